//! `flint_rt_session_generate`: a prompt in, tokens out by a callback.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use super::guard;
use super::handles::{self, Handle};
use super::lock::in_callback;
use super::memory::{In, InArray, Out};
use super::model::NO_TOKEN;
use super::sampler::{self, Sampler};
use super::session::Session;
use super::status::Status;
use super::types::{GenerateOptions, GenerateResult};
use crate::base::ids::TokenId;
use crate::engine::{self, Finish, GenerateObserver, Generated};
use crate::text::Detokenizer;

/// Carries what happens to the caller's functions, and what they answer back.
struct Callbacks<'a> {
    options: &'a GenerateOptions,
    cancel: &'a AtomicBool,
    detokenizer: Detokenizer,
    /// What the last token completed.
    text: String,
    is_over: bool,
}

impl Callbacks<'_> {
    fn give(&mut self, token: TokenId, text: &str) {
        if let Some(function) = self.options.token {
            let user_data: *mut c_void = self.options.user_data;
            let answer = in_callback(|| function(user_data, token, text.as_ptr().cast(), text.len()));
            self.is_over |= answer != 0;
        }
    }

    /// The end of a text that stops within a character; nothing more for a callback that ended it.
    fn finish(&mut self) {
        if !self.is_over && self.detokenizer.is_holding() {
            let rest = self.detokenizer.finish();
            self.give(NO_TOKEN, &rest);
        }
    }
}

impl GenerateObserver for Callbacks<'_> {
    fn prompt(&mut self, done: u32, total: u32) {
        if let Some(function) = self.options.prompt {
            self.is_over |= in_callback(|| function(self.options.user_data, done, total)) != 0;
        }
    }

    fn token(&mut self, id: TokenId) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        self.detokenizer.push_to(id, &mut text);
        self.give(id, &text);
        self.text = text;
    }

    fn should_stop(&mut self) -> bool {
        self.is_over || self.cancel.load(Ordering::Relaxed)
    }
}

fn result_of(reply: &Generated) -> GenerateResult {
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    GenerateResult {
        finish: match reply.finish {
            Finish::Stop(_) => 1,
            Finish::Length => 2,
            Finish::ContextFull => 3,
            Finish::Aborted => 4,
        },
        stop_token: match reply.finish {
            Finish::Stop(token) => token,
            _ => NO_TOKEN,
        },
        token_count: u32::try_from(reply.ids.len()).expect("invariant: a context is a u32"),
        prompt_fed: reply.prompt_fed,
        prompt_reused: reply.prompt_reused,
        prompt_ns: ns(reply.times.prompt),
        reply_ns: ns(reply.times.reply),
        ..GenerateResult::default()
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_generate_options_init(
    options: Out<GenerateOptions>,
    struct_size: usize,
) -> Status {
    guard::run(None, || options.init(struct_size, "options"))
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_generate(
    session: Handle,
    sampler: Handle,
    prompt: InArray<u32>,
    prompt_count: usize,
    options: In<GenerateOptions>,
    result: Out<GenerateResult>,
) -> Status {
    handles::with::<Session>(session, |session| {
        let (prompt, options) = (prompt.slice(prompt_count, "prompt")?, options.read("options")?);
        if !result.is_null() {
            result.check("result")?;
        }
        let sampler = if sampler == 0 { None } else { Some(handles::find::<Sampler>(sampler)?) };
        let (mut state, mut engine) = session.begin()?;
        let mut given = sampler.as_ref().map(|sampler| sampler.state.enter()).transpose()?;
        let mut own = match given {
            Some(_) => None,
            None => Some(sampler::greedy(session.model.info.vocabulary)?),
        };
        state.forget_logits();
        let mut callbacks = Callbacks {
            options: &options,
            cancel: &session.cancel,
            detokenizer: Detokenizer::new(&session.model.tokenizer),
            text: String::with_capacity(256),
            is_over: false,
        };
        let sampler = given.as_mut().map(|given| &mut given.sampler).or(own.as_mut());
        let mut how = engine::GenerateOptions {
            sampler: sampler.expect("invariant: given, or made above"),
            tokens_max: if options.tokens_max == 0 { u32::MAX } else { options.tokens_max },
            ignores_stops: options.ignore_stops != 0,
        };
        let reply = engine.generate(state.session(), prompt, &mut how, &mut callbacks)?;
        callbacks.finish();
        if !result.is_null() {
            result.fill(&result_of(&reply), "result")?;
        }
        Ok(())
    })
}
