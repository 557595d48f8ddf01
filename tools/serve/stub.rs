//! An engine that says what it is told to, for tests and benches of everything around it.

use std::time::Duration;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::session::common_prefix;
use flint_rt::engine::{EngineError, SamplingAdvice};
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{ModelError, Want};
use flint_rt::text::chat::{Role, StopTokens, Thinking};
use flint_rt::text::{Specials, Tokenizer, Vocabulary};
use serde_json::Value;

use crate::wire::messages::ChatMessage;
use crate::{Backend, Counters, Facts};

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
    /// How long a token takes.
    pub token_time: Duration,
    /// How long a chunk of a prompt takes; it may be given up every millisecond.
    pub chunk_time: Duration,
    /// Tokens of a chunk.
    pub chunk_len: u32,
    /// Tokens of a conversation.
    pub context_len: u32,
    /// Tokens after which every step fails.
    pub fails_after: Option<usize>,
    /// What its file says of sampling.
    pub sampling: SamplingAdvice,
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
    /// The token of the last step.
    said: TokenId,
    fed: usize,
}

/// Its conversation.
#[derive(Debug, Default)]
pub struct StubSession {
    tokens: Vec<TokenId>,
    /// Where the reply begins.
    prompt_len: usize,
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
            said: end,
            fed: 0,
        }
    }

    /// What follows `said` tokens of a reply.
    fn say(&mut self, said: usize) -> Result<Option<TokenId>, EngineError> {
        self.fed += 1;
        if self.script.fails_after.is_some_and(|after| self.fed > after) {
            return Err(EngineError::Model(ModelError::NotFinite { position: 0 }));
        }
        let token = match self.script.repeats {
            true => self.reply.get(said % self.reply.len().max(1)),
            false => self.reply.get(said),
        };
        self.said = token.copied().unwrap_or(self.end);
        Ok(Some(self.said))
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
        u32::try_from(keep).expect("a context is a u32")
    }

    fn feed_prompt(
        &mut self,
        session: &mut StubSession,
        ids: &[TokenId],
        _want: Want,
        observer: &mut dyn PrefillObserver,
    ) -> Result<Option<TokenId>, EngineError> {
        let mut left = self.script.chunk_time;
        while !left.is_zero() {
            if observer.should_stop() {
                return Err(ModelError::Stopped.into());
            }
            let slice = left.min(Duration::from_millis(1));
            std::thread::sleep(slice);
            left -= slice;
        }
        session.tokens = ids.to_vec();
        session.prompt_len = ids.len();
        self.say(0)
    }

    fn feed_token(
        &mut self,
        session: &mut StubSession,
        token: TokenId,
        _want: Want,
    ) -> Result<Option<TokenId>, EngineError> {
        let context_len = self.script.context_len;
        if session.tokens.len() >= context_len as usize {
            return Err(ModelError::ContextFull { context_len }.into());
        }
        if !self.script.token_time.is_zero() {
            std::thread::sleep(self.script.token_time);
        }
        session.tokens.push(token);
        self.say(session.tokens.len() - session.prompt_len)
    }

    fn read_logits(&self, logits: &mut Vec<f32>) {
        logits.clear();
        logits.resize(self.tokenizer.vocabulary().token_count() as usize, 0.0);
        // So likely that no seed draws another.
        logits[self.said as usize] = 50.0;
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
