//! An engine that says what it is told to, for tests and benches of everything around it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::session::common_prefix;
use flint_rt::engine::snapshot::{CacheShape, Cut, Restoring, Saving, Snapshot};
use flint_rt::engine::{EngineError, SamplingAdvice};
use flint_rt::gpu::GpuError;
use flint_rt::model::decode::StepOutput;
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{ModelError, Want};
use flint_rt::store::Sha256Digest;
use flint_rt::text::chat::{Role, StopTokens, Thinking};
use flint_rt::text::{Specials, Tokenizer, Vocabulary};
use serde_json::Value;

use crate::engine::backend::Outputs;
use crate::wire::messages::ChatMessage;
use crate::{Backend, Counters, Facts, Feed};

const NANO: &str = include_str!("../../tests/vectors/nano_vocabulary.json");

/// The tokenizer of the bundled model.
///
/// # Panics
/// When the vectors in the tree are damaged.
pub fn nano_tokenizer() -> Tokenizer {
    let tables: Value = serde_json::from_str(NANO).expect("the vectors are JSON");
    let texts = |key: &str| -> Vec<Vec<u8>> {
        let texts = tables[key].as_array().into_iter().flatten();
        texts.filter_map(|text| Some(text.as_str()?.as_bytes().to_vec())).collect()
    };
    let kinds: Vec<i32> = serde_json::from_value(tables["kinds"].clone()).expect("the kinds are numbers");
    let vocabulary =
        Vocabulary::new(texts("tokens"), kinds, texts("merges")).expect("the vectors fit together");
    Tokenizer::new(vocabulary).expect("the vectors' special tokens are few")
}

/// What a [`Stub`] does.
#[derive(Debug, Clone)]
pub struct Script {
    /// The reply to everything, markers in it taken for tokens.
    pub reply: String,
    /// Whether it begins again at its end; else the reply ends there.
    pub repeats: bool,
    /// How long a step takes that has next tokens, however many.
    pub token_time: Duration,
    /// How much longer one takes that has a piece of a prompt; it may be given up every millisecond.
    pub chunk_time: Duration,
    /// Tokens of a chunk.
    pub chunk_len: u32,
    /// Tokens of a conversation.
    pub context_len: u32,
    /// Tokens after which every step fails.
    pub fails_after: Option<usize>,
    /// What its file says of sampling.
    pub sampling: SamplingAdvice,
    /// Steps after which each fails as a whole that has several conversations.
    pub tears_after: Option<usize>,
    /// Steps after which the device is lost.
    pub dies_after: Option<usize>,
    /// Where it is written down how many tokens of each conversation were in each step.
    pub steps: Option<Arc<Mutex<Vec<Vec<usize>>>>>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            reply: "def add(a, b):\n    return a + b".to_owned(),
            repeats: false,
            token_time: Duration::ZERO,
            chunk_time: Duration::ZERO,
            chunk_len: 64,
            context_len: 4096,
            fails_after: None,
            sampling: SamplingAdvice::default(),
            tears_after: None,
            dies_after: None,
            steps: None,
        }
    }
}

/// The engine.
pub struct Stub {
    script: Script,
    tokenizer: Tokenizer,
    stops: StopTokens,
    end: TokenId,
    reply: Vec<TokenId>,
    /// The token that each conversation got in the last step.
    said: Vec<TokenId>,
    fed: usize,
    stepped: usize,
}

/// Its conversation.
#[derive(Debug, Default)]
pub struct StubSession {
    tokens: Vec<TokenId>,
    /// Where the reply begins, once the prompt was fed.
    prompt_len: Option<usize>,
}

impl Stub {
    /// An engine with the bundled model's vocabulary.
    ///
    /// # Panics
    /// When the vocabulary has no end token.
    pub fn new(script: Script) -> Self {
        let tokenizer = nano_tokenizer();
        let end = tokenizer.special_id("<|user|>").expect("the vocabulary has its markers");
        let reply = tokenizer.encode(&script.reply, Specials::Parse);
        Self {
            stops: StopTokens::new(&tokenizer, Some(end)),
            script,
            tokenizer,
            end,
            reply,
            said: Vec::new(),
            fed: 0,
            stepped: 0,
        }
    }

    /// What follows `said` tokens of a reply.
    fn say(&mut self, said: usize) -> Result<StepOutput, EngineError> {
        self.fed += 1;
        if self.script.fails_after.is_some_and(|after| self.fed > after) {
            return Err(EngineError::Model(ModelError::NotFinite { position: 0 }));
        }
        let token = match self.script.repeats {
            true => self.reply.get(said % self.reply.len().max(1)),
            false => self.reply.get(said),
        };
        let logits_row = u32::try_from(self.said.len()).expect("a step is small");
        self.said.push(token.copied().unwrap_or(self.end));
        Ok(StepOutput { greedy: self.said.last().copied(), logits_row })
    }

    /// What one conversation gets.
    fn feed(&mut self, feed: &mut Feed<'_, StubSession>) -> Result<StepOutput, EngineError> {
        let session = &mut *feed.session;
        let context_len = self.script.context_len;
        if session.tokens.len() + feed.tokens.len() > context_len as usize {
            return Err(ModelError::ContextFull { context_len }.into());
        }
        session.tokens.extend_from_slice(feed.tokens);
        if feed.want == Want::Nothing {
            return Ok(StepOutput::default());
        }
        let prompt_len = *session.prompt_len.get_or_insert(session.tokens.len());
        self.say(session.tokens.len() - prompt_len)
    }

    /// Why the next step fails as a whole, if it does.
    fn fault(&self, feeds: usize) -> Option<ModelError> {
        let is_past = |limit: Option<usize>| limit.is_some_and(|limit| self.stepped > limit);
        if is_past(self.script.dies_after) {
            return Some(GpuError::DeviceLost { call: "vkQueueSubmit2" }.into());
        }
        (is_past(self.script.tears_after) && feeds > 1).then_some(ModelError::NotFinite { position: 0 })
    }
}

impl Backend for Stub {
    type Session = StubSession;

    fn facts(&self) -> Facts {
        Facts {
            name: "stub".to_owned(),
            tokenizer: self.tokenizer.clone(),
            stops: self.stops.clone(),
            context_len: self.script.context_len,
            context_max: self.script.context_len,
            vocabulary: self.tokenizer.vocabulary().token_count(),
            weight_bytes: 0,
            chat_template: None,
            sampling: self.script.sampling,
            device: "none".to_owned(),
        }
    }

    fn open_session(&mut self) -> Result<StubSession, EngineError> {
        Ok(StubSession::default())
    }

    fn tokens<'s>(&self, session: &'s StubSession) -> &'s [TokenId] {
        &session.tokens
    }

    fn keep_prefix(&mut self, session: &mut StubSession, ids: &[TokenId]) -> u32 {
        let keep = common_prefix(&session.tokens, ids);
        session.tokens.truncate(keep);
        session.prompt_len = None;
        u32::try_from(keep).expect("a context is a u32")
    }

    fn step(
        &mut self,
        feeds: &mut [Feed<'_, StubSession>],
        observer: &mut dyn PrefillObserver,
    ) -> Result<Outputs, EngineError> {
        self.stepped += 1;
        if let Some(steps) = &self.script.steps {
            let rows = feeds.iter().map(|feed| feed.tokens.len()).collect();
            steps.lock().expect("nobody panics with it").push(rows);
        }
        if feeds.iter().any(|feed| feed.session.prompt_len.is_none()) {
            let mut left = self.script.chunk_time;
            while !left.is_zero() {
                if observer.should_stop() {
                    return Err(ModelError::Stopped.into());
                }
                let slice = left.min(Duration::from_millis(1));
                std::thread::sleep(slice);
                left -= slice;
            }
        }
        if feeds.iter().any(|feed| feed.session.prompt_len.is_some()) && !self.script.token_time.is_zero() {
            std::thread::sleep(self.script.token_time);
        }
        if let Some(fault) = self.fault(feeds.len()) {
            return Err(fault.into());
        }
        self.said.clear();
        Ok(feeds.iter_mut().map(|feed| self.feed(feed)).collect())
    }

    fn identity(&self) -> (Sha256Digest, CacheShape) {
        (Sha256Digest::of(b"stub"), CacheShape { row_bytes: 4, windows: Vec::new() })
    }

    fn reach(&self, session: &StubSession, ids: &[TokenId]) -> u32 {
        u32::try_from(common_prefix(&session.tokens, ids)).expect("a context is a u32")
    }

    fn can_continue_at(&self, session: &StubSession, position: u32) -> bool {
        position as usize <= session.tokens.len()
    }

    fn could_continue_at(&self, _session: &StubSession, _position: u32, _tokens: u32) -> bool {
        true
    }

    fn reset(&mut self, session: &mut StubSession) {
        session.tokens.clear();
    }

    fn begin_saving(
        &self,
        session: &StubSession,
        back_to: Option<u32>,
        cuts: &[Arc<Cut>],
    ) -> Result<Saving, EngineError> {
        let (model, shape) = self.identity();
        let held = u32::try_from(session.tokens.len()).expect("a context is a u32");
        let slack = back_to.and_then(|back_to| held.checked_sub(back_to)).unwrap_or(0);
        Ok(Saving::new(model, &shape, &session.tokens, slack, cuts)?)
    }

    fn save_step(&mut self, _session: &StubSession, saving: &mut Saving) -> Result<bool, EngineError> {
        Ok(saving.is_done())
    }

    fn cut(
        &mut self,
        _session: &StubSession,
        _position: u32,
        _slack: u32,
    ) -> Result<Option<Cut>, EngineError> {
        Ok(None)
    }

    fn begin_restoring(
        &self,
        session: &mut StubSession,
        snapshot: Arc<Snapshot>,
        to: u32,
    ) -> Result<Restoring, EngineError> {
        let (model, shape) = self.identity();
        let context_len = self.script.context_len;
        let restoring =
            Restoring::new(snapshot, to, (model, &shape), context_len, &session.tokens, |_| context_len)?;
        session.tokens.clear();
        Ok(restoring)
    }

    fn begin_rewinding(
        &self,
        session: &mut StubSession,
        cut: Arc<Cut>,
        to: u32,
    ) -> Result<Restoring, EngineError> {
        let (model, shape) = self.identity();
        let context_len = self.script.context_len;
        let restoring = Restoring::of_cut(cut, to, (model, &shape), &session.tokens, |_| context_len)?;
        session.tokens.clear();
        Ok(restoring)
    }

    fn restore_step(
        &mut self,
        session: &mut StubSession,
        restoring: &mut Restoring,
    ) -> Result<bool, EngineError> {
        session.tokens = restoring.tokens().to_vec();
        Ok(restoring.is_done())
    }

    fn read_logits(&self, output: &StepOutput, logits: &mut Vec<f32>) {
        logits.clear();
        logits.resize(self.tokenizer.vocabulary().token_count() as usize, 0.0);
        // So likely that no seed draws another.
        logits[self.said[output.logits_row as usize] as usize] = 50.0;
    }

    fn chunk_len(&self) -> u32 {
        self.script.chunk_len
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// The chat form by itself, for benches.
pub struct Form(crate::chat::form::ChatForm);

impl Form {
    /// By this template, or the built-in form.
    ///
    /// # Errors
    /// When the template does not compile.
    pub fn new(tokenizer: &Tokenizer, template: Option<&str>) -> Result<Self, String> {
        crate::chat::form::ChatForm::new(tokenizer, template, &crate::FormChoice::File).map(Self)
    }

    /// The prompt of a conversation of roles and texts.
    ///
    /// # Errors
    /// When the template refuses it.
    pub fn ids(&self, messages: &[(Role, &str)]) -> Result<Vec<TokenId>, String> {
        let messages: Vec<_> = messages.iter().map(|(role, text)| ChatMessage::new(*role, *text)).collect();
        let asked = crate::chat::form::Asked {
            messages: &messages,
            tools: &[],
            thinking: Thinking::Auto,
            opens_reply: true,
            extra: None,
        };
        self.0.render(&asked).map(|rendered| rendered.ids).map_err(|error| error.message)
    }
}
