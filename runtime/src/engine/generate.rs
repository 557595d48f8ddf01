//! A prompt in, tokens out, one at a time, and why they ended.

use std::time::{Duration, Instant};

use crate::base::ids::TokenId;
use crate::engine::{Engine, EngineError, Session};
use crate::model::prefill::PrefillObserver;
use crate::model::{ModelError, Want};
use crate::sample::Sampler;

/// How a reply is made.
pub struct GenerateOptions<'a> {
    /// Chooses the tokens.
    pub sampler: &'a mut Sampler,
    /// Tokens of the reply at most.
    pub tokens_max: u32,
    /// Whether stop tokens are ordinary tokens.
    pub ignores_stops: bool,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it with this token, which is not part of it.
    Stop(TokenId),
    /// It has as many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
    /// The caller stopped it.
    Aborted,
}

/// Wall time of a reply, in two parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// From the call to the first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub reply: Duration,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Its tokens.
    pub ids: Vec<TokenId>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt that were fed.
    pub prompt_fed: u32,
    /// Tokens of the prompt that the session held already.
    pub prompt_reused: u32,
    /// How long it took.
    pub times: StepTimes,
}

/// What happens while a reply is made.
pub trait GenerateObserver {
    /// Prompt tokens fed, of how many.
    fn prompt(&mut self, _done: u32, _total: u32) {}

    /// A token of the reply.
    fn token(&mut self, id: TokenId);

    /// Asked before every step and every layer of a prompt; `true` ends the reply.
    fn should_stop(&mut self) -> bool {
        false
    }
}

/// Lets a [`GenerateObserver`] watch and stop the prompt.
struct PromptWatch<'a>(&'a mut dyn GenerateObserver);

impl PrefillObserver for PromptWatch<'_> {
    fn should_stop(&mut self) -> bool {
        self.0.should_stop()
    }

    fn progress(&mut self, done: u32, total: u32) {
        self.0.prompt(done, total);
    }
}

impl Engine {
    /// Feeds `prompt`, of which the session may hold a beginning, and generates a reply.
    ///
    /// The tokens of the reply stay in the session but for the last one, which is fed with the next prompt.
    ///
    /// # Errors
    /// When the prompt is empty or does not fit, or a step fails. Tokens given to the observer before stand.
    pub fn generate(
        &mut self,
        session: &mut Session,
        prompt: &[TokenId],
        options: &mut GenerateOptions<'_>,
        observer: &mut dyn GenerateObserver,
    ) -> Result<Generated, EngineError> {
        let started = Instant::now();
        let want = if options.sampler.options().is_plain_argmax() { Want::Greedy } else { Want::Logits };
        let mut reply = Generated {
            ids: Vec::with_capacity(options.tokens_max.min(session.context_len()) as usize),
            finish: Finish::Length,
            prompt_fed: 0,
            prompt_reused: 0,
            times: StepTimes::default(),
        };

        let fed = self.feed_prompt(session, prompt, want, &mut PromptWatch(observer));
        let mut step = match fed {
            Ok(fed) => {
                (reply.prompt_fed, reply.prompt_reused) = (fed.fed, fed.reused);
                fed.step
            }
            Err(EngineError::Model(ModelError::Stopped)) => {
                reply.finish = Finish::Aborted;
                reply.times.prompt = started.elapsed();
                return Ok(reply);
            }
            Err(error) => return Err(error),
        };
        reply.times.prompt = started.elapsed();
        options.sampler.start_from(prompt);

        let first_token_at = Instant::now();
        let mut logits = Vec::new();
        loop {
            if reply.ids.len() >= options.tokens_max as usize {
                break;
            }
            let token = match step.greedy {
                Some(token) if want == Want::Greedy => token,
                _ => {
                    self.read_logits_of(&step, &mut logits);
                    options.sampler.sample(&mut logits)?
                }
            };
            if !options.ignores_stops && self.is_stop(token) {
                reply.finish = Finish::Stop(token);
                break;
            }
            options.sampler.accept(token);
            reply.ids.push(token);
            observer.token(token);
            if reply.ids.len() >= options.tokens_max as usize {
                break;
            }
            if observer.should_stop() {
                reply.finish = Finish::Aborted;
                break;
            }
            let fed_behind = u32::try_from(reply.ids.len()).map_or(0, |made| options.tokens_max - made - 1);
            step = match self.feed_next(session, token, want, fed_behind) {
                Ok(step) => step,
                Err(EngineError::Model(ModelError::ContextFull { .. })) => {
                    reply.finish = Finish::ContextFull;
                    break;
                }
                Err(error) => return Err(error),
            };
        }
        reply.times.reply = first_token_at.elapsed();
        Ok(reply)
    }
}
