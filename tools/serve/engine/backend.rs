//! What the server needs of an engine, so that tests and benches can put a stand-in in its place.

use std::sync::Arc;

use flint_rt::base::ids::TokenId;
use flint_rt::disk::ReadCounters;
use flint_rt::engine::snapshot::{CacheShape, Cut, Restoring, Saving, Snapshot};
use flint_rt::engine::speculate::DRAFTS_MAX;
use flint_rt::engine::{self, Engine, EngineError, SamplingAdvice, Session, SpeculateMode, SpeculateStats};
use flint_rt::expert::{ExpertError, StreamStats};
use flint_rt::gpu::GpuError;
use flint_rt::model::decode::StepOutput;
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{ModelError, Want};
use flint_rt::store::Sha256Digest;
use flint_rt::text::Tokenizer;
use flint_rt::text::chat::StopTokens;

/// What does not change once a model is loaded.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The model's own name.
    pub name: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// The tokens that end a reply.
    pub stops: StopTokens,
    /// Tokens of a conversation.
    pub context_len: u32,
    /// Those that the model was trained for.
    pub context_max: u32,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// The chat template in its file.
    pub chat_template: Option<String>,
    /// How its file says that its tokens are best drawn.
    pub sampling: SamplingAdvice,
    /// What it runs on.
    pub device: String,
}

/// Counters since the model was opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    /// Of the expert stream.
    pub stream: StreamStats,
    /// Of the read queue.
    pub reads: ReadCounters,
    /// Of drafts.
    pub speculate: SpeculateStats,
    /// Slots of the expert pool.
    pub pool_slots: u32,
}

/// What one conversation is fed in a step that it may share with others.
pub struct Feed<'a, S> {
    /// The conversation.
    pub session: &'a mut S,
    /// What follows what it holds, at least one token.
    pub tokens: &'a [TokenId],
    /// What the last of them is to give.
    pub want: Want,
}

/// What a step gave each conversation, or why it gave nothing.
pub type Outputs = Vec<Result<StepOutput, EngineError>>;

/// An engine, driven by one thread.
pub trait Backend {
    /// A conversation.
    type Session;

    /// What does not change.
    fn facts(&self) -> Facts;

    /// An empty conversation.
    ///
    /// # Errors
    /// When the device has too little memory.
    fn open_session(&mut self) -> Result<Self::Session, EngineError>;

    /// What a conversation's cache holds.
    fn tokens<'s>(&self, session: &'s Self::Session) -> &'s [TokenId];

    /// As [`Session::keep_prefix`].
    fn keep_prefix(&mut self, session: &mut Self::Session, ids: &[TokenId]) -> u32;

    /// As [`Engine::feed_many`].
    ///
    /// # Errors
    /// As there.
    fn step(
        &mut self,
        feeds: &mut [Feed<'_, Self::Session>],
        observer: &mut dyn PrefillObserver,
    ) -> Result<Outputs, EngineError>;

    /// Drafts that may ride beside a token, at most.
    fn drafts_max(&self) -> u32 {
        0
    }

    /// As [`Engine::feed_speculating`].
    ///
    /// # Errors
    /// As there.
    fn feed_speculating(
        &mut self,
        session: &mut Self::Session,
        token: TokenId,
        want: Want,
        _drafts_max: u32,
        observer: &mut dyn PrefillObserver,
    ) -> Result<StepOutput, EngineError> {
        let mut outputs = self.step(&mut [Feed { session, tokens: &[token], want }], observer)?;
        outputs.pop().expect("invariant: a feed has an output")
    }

    /// As [`Engine::take_ahead`].
    ///
    /// # Errors
    /// As there.
    fn take_ahead(
        &mut self,
        _session: &mut Self::Session,
        _token: TokenId,
    ) -> Result<Option<StepOutput>, EngineError> {
        Ok(None)
    }

    /// Copies the logits that `output` of the last step stands for, where they were wanted.
    fn read_logits(&self, output: &StepOutput, logits: &mut Vec<f32>);

    /// Tokens that go through the layers together.
    fn chunk_len(&self) -> u32;

    /// Counters.
    fn counters(&self) -> Counters;

    /// Names what caches are computed with, and says what they look like.
    fn identity(&self) -> (Sha256Digest, CacheShape);

    /// As [`Session::reach`].
    fn reach(&self, session: &Self::Session, ids: &[TokenId]) -> u32;

    /// As [`Session::can_continue_at`].
    fn can_continue_at(&self, session: &Self::Session, position: u32) -> bool;

    /// As [`Session::could_continue_at`].
    fn could_continue_at(&self, session: &Self::Session, position: u32, tokens: u32) -> bool;

    /// As [`Session::reset`].
    fn reset(&mut self, session: &mut Self::Session);

    /// As [`Engine::begin_saving`].
    ///
    /// # Errors
    /// As there.
    fn begin_saving(
        &self,
        session: &Self::Session,
        back_to: Option<u32>,
        cuts: &[Arc<Cut>],
    ) -> Result<Saving, EngineError>;

    /// As [`Engine::save_step`].
    ///
    /// # Errors
    /// As there.
    fn save_step(&mut self, session: &Self::Session, saving: &mut Saving) -> Result<bool, EngineError>;

    /// As [`Engine::cut`].
    ///
    /// # Errors
    /// As there.
    fn cut(&mut self, session: &Self::Session, position: u32, slack: u32)
    -> Result<Option<Cut>, EngineError>;

    /// As [`Engine::begin_restoring`].
    ///
    /// # Errors
    /// As there.
    fn begin_restoring(
        &self,
        session: &mut Self::Session,
        snapshot: Arc<Snapshot>,
        to: u32,
    ) -> Result<Restoring, EngineError>;

    /// As [`Engine::begin_rewinding`].
    ///
    /// # Errors
    /// As there.
    fn begin_rewinding(
        &self,
        session: &mut Self::Session,
        cut: Arc<Cut>,
        to: u32,
    ) -> Result<Restoring, EngineError>;

    /// As [`Engine::restore_step`].
    ///
    /// # Errors
    /// As there.
    fn restore_step(
        &mut self,
        session: &mut Self::Session,
        restoring: &mut Restoring,
    ) -> Result<bool, EngineError>;

    /// Called about once a second while there is nothing to do.
    fn rest(&mut self) {}

    /// Asked once, at the end.
    ///
    /// # Errors
    /// What went wrong unseen, if anything did.
    fn close(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Backend for Engine {
    type Session = Session;

    fn facts(&self) -> Facts {
        let (config, plan, info) = (self.config(), self.plan(), self.gpu().info());
        Facts {
            name: config.name.clone(),
            tokenizer: self.tokenizer().clone(),
            stops: self.stops().clone(),
            context_len: plan.context_len,
            context_max: config.context_len,
            vocabulary: config.vocabulary,
            weight_bytes: plan.resident_bytes + plan.experts_bytes + plan.token_table_bytes,
            chat_template: self.chat_template().map(str::to_owned),
            sampling: *self.sampling_advice(),
            device: info.title().to_owned(),
        }
    }

    fn open_session(&mut self) -> Result<Session, EngineError> {
        self.session()
    }

    fn tokens<'s>(&self, session: &'s Session) -> &'s [TokenId] {
        session.tokens()
    }

    fn keep_prefix(&mut self, session: &mut Session, ids: &[TokenId]) -> u32 {
        session.keep_prefix(ids)
    }

    fn step(
        &mut self,
        feeds: &mut [Feed<'_, Session>],
        observer: &mut dyn PrefillObserver,
    ) -> Result<Outputs, EngineError> {
        let mut feeds: Vec<engine::Feed<'_>> = feeds
            .iter_mut()
            .map(|feed| engine::Feed { session: feed.session, tokens: feed.tokens, want: feed.want })
            .collect();
        self.feed_many(&mut feeds, observer)
    }

    fn drafts_max(&self) -> u32 {
        match self.speculates() {
            SpeculateMode::Off => 0,
            SpeculateMode::Auto | SpeculateMode::Fixed(_) => DRAFTS_MAX,
        }
    }

    fn feed_speculating(
        &mut self,
        session: &mut Session,
        token: TokenId,
        want: Want,
        drafts_max: u32,
        observer: &mut dyn PrefillObserver,
    ) -> Result<StepOutput, EngineError> {
        Engine::feed_speculating(self, session, token, want, drafts_max, observer)
    }

    fn take_ahead(
        &mut self,
        session: &mut Session,
        token: TokenId,
    ) -> Result<Option<StepOutput>, EngineError> {
        Engine::take_ahead(self, session, token)
    }

    fn read_logits(&self, output: &StepOutput, logits: &mut Vec<f32>) {
        self.read_logits_of(output, logits);
    }

    fn chunk_len(&self) -> u32 {
        self.step_tokens_max()
    }

    fn counters(&self) -> Counters {
        Counters {
            stream: self.stream_stats(),
            reads: self.read_counters(),
            speculate: self.speculate_stats(),
            pool_slots: self.plan().pool_slots,
        }
    }

    fn identity(&self) -> (Sha256Digest, CacheShape) {
        (self.snapshot_identity(), self.cache_shape())
    }

    fn reach(&self, session: &Session, ids: &[TokenId]) -> u32 {
        session.reach(ids)
    }

    fn can_continue_at(&self, session: &Session, position: u32) -> bool {
        session.can_continue_at(position)
    }

    fn could_continue_at(&self, session: &Session, position: u32, tokens: u32) -> bool {
        session.could_continue_at(position, tokens)
    }

    fn reset(&mut self, session: &mut Session) {
        session.reset();
    }

    fn begin_saving(
        &self,
        session: &Session,
        back_to: Option<u32>,
        cuts: &[Arc<Cut>],
    ) -> Result<Saving, EngineError> {
        Engine::begin_saving(self, session, back_to, cuts)
    }

    fn save_step(&mut self, session: &Session, saving: &mut Saving) -> Result<bool, EngineError> {
        Engine::save_step(self, session, saving)
    }

    fn cut(&mut self, session: &Session, position: u32, slack: u32) -> Result<Option<Cut>, EngineError> {
        Engine::cut(self, session, position, slack)
    }

    fn begin_restoring(
        &self,
        session: &mut Session,
        snapshot: Arc<Snapshot>,
        to: u32,
    ) -> Result<Restoring, EngineError> {
        Engine::begin_restoring(self, session, snapshot, to)
    }

    fn begin_rewinding(
        &self,
        session: &mut Session,
        cut: Arc<Cut>,
        to: u32,
    ) -> Result<Restoring, EngineError> {
        Engine::begin_rewinding(self, session, cut, to)
    }

    fn restore_step(
        &mut self,
        session: &mut Session,
        restoring: &mut Restoring,
    ) -> Result<bool, EngineError> {
        Engine::restore_step(self, session, restoring)
    }

    fn rest(&mut self) {
        self.look_after_memory();
    }

    fn close(&self) -> Result<(), String> {
        let messages = self.gpu().validation_messages();
        for message in &messages {
            tracing::error!("validation: {message}");
        }
        match messages.len() {
            0 => Ok(()),
            count => Err(format!("the validation layer reported {count} faults")),
        }
    }
}

/// Whether the device is gone: then nothing will work until the program is started again.
pub(crate) fn is_device_lost(error: &EngineError) -> bool {
    let is_lost = GpuError::is_device_lost;
    match error {
        EngineError::Gpu(error) | EngineError::Model(ModelError::Gpu(error)) => is_lost(error),
        EngineError::Expert(error) | EngineError::Model(ModelError::Expert(error)) => {
            matches!(error, ExpertError::Gpu(error) if is_lost(error))
        }
        _ => false,
    }
}
