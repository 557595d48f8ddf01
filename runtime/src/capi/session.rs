//! `flint_rt_session_*`: conversations, fed token by token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::guard::{self, LastError};
use super::handles::{self, Handle};
use super::lock::{Exclusive, Held};
use super::memory::{InArray, Out, OutArray};
use super::model::Model;
use super::sampler::Sampler;
use super::status::{Fault, Status};
use crate::base::ids::TokenId;
use crate::engine::{self, Engine};
use crate::model::Want;
use crate::model::prefill::PrefillObserver;

/// A conversation.
pub(super) struct Session {
    /// Freed before the model that it keeps open.
    pub(super) state: Exclusive<State>,
    pub(super) model: Arc<Model>,
    /// Set by any thread; looked at before each step and each layer of a prompt.
    pub(super) cancel: AtomicBool,
    pub(super) errors: LastError,
}

/// What one call at a time may use.
pub(super) struct State {
    /// Nothing only while it is dropped.
    pub(super) session: Option<engine::Session>,
    /// Of the last token that was fed; `[vocabulary]`, or empty.
    logits: Vec<f32>,
    /// What the session is to hold, while it is fed.
    ids: Vec<TokenId>,
}

impl State {
    pub(super) fn session(&mut self) -> &mut engine::Session {
        self.session.as_mut().expect("invariant: there until it is dropped")
    }

    /// What `logits` were of is no longer the end of the session.
    pub(super) fn forget_logits(&mut self) {
        self.logits.clear();
    }

    fn keep_logits(&mut self, engine: &Engine) {
        engine.read_logits(&mut self.logits);
    }
}

impl Session {
    fn new(model: &Arc<Model>) -> Result<Self, Fault> {
        let session = model.engine.enter()?.session()?;
        let ids = Vec::with_capacity(model.info.context_len as usize);
        let logits = Vec::with_capacity(model.info.vocabulary as usize);
        let state = State { session: Some(session), logits, ids };
        Ok(Self {
            state: Exclusive::new("session", state),
            model: model.clone(),
            cancel: AtomicBool::new(false),
            errors: LastError::default(),
        })
    }

    /// Whether a call of this thread is using it.
    pub(super) fn is_held_here(&self) -> bool {
        self.state.is_held_here()
    }

    /// A call that computes begins: what was cancelled before it had the session does not matter to it.
    pub(super) fn begin(&self) -> Result<(Held<'_, State>, Held<'_, Engine>), Fault> {
        let state = self.state.enter()?;
        self.cancel.store(false, Ordering::Relaxed);
        Ok((state, self.model.engine.enter()?))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (state, model) = (&self.state, &self.model);
        // The device's memory is given back between steps of other sessions, not within one.
        model.engine.while_idle(|_| {
            state.while_idle(|state| drop(state.and_then(|state| state.session.take())));
        });
    }
}

/// Ends a prompt when the session is cancelled.
struct Watch<'a>(&'a AtomicBool);

impl PrefillObserver for Watch<'_> {
    fn should_stop(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_create(model: Handle, session: Out<Handle>) -> Status {
    handles::with::<Model>(model, |model| {
        let target = session.need("session")?;
        target.set(0);
        target.set(handles::add(Session::new(model)?));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_free(session: Handle) -> Status {
    handles::free::<Session>(session)
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_feed(
    session: Handle,
    tokens: InArray<u32>,
    token_count: usize,
) -> Status {
    handles::with::<Session>(session, |session| {
        let tokens = tokens.slice(token_count, "tokens")?;
        let (mut state, mut engine) = session.begin()?;
        state.forget_logits();
        let held = state.session().tokens().len();
        if let (&[token], true) = (tokens, held > 0) {
            engine.feed_token(state.session(), token, Want::Logits)?;
        } else {
            let mut ids = std::mem::take(&mut state.ids);
            ids.clear();
            ids.extend_from_slice(state.session().tokens());
            ids.extend_from_slice(tokens);
            let fed = match tokens {
                [] => Err(engine::EngineError::EmptyPrompt),
                _ => engine.feed_prompt(state.session(), &ids, Want::Logits, &mut Watch(&session.cancel)),
            };
            state.ids = ids;
            fed?;
        }
        state.keep_logits(&engine);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_set_prompt(
    session: Handle,
    tokens: InArray<u32>,
    token_count: usize,
    reused: Out<u32>,
) -> Status {
    handles::with::<Session>(session, |session| {
        let (tokens, reused) = (tokens.slice(token_count, "tokens")?, reused.get("reused")?);
        let (mut state, mut engine) = session.begin()?;
        state.forget_logits();
        let fed = engine.feed_prompt(state.session(), tokens, Want::Logits, &mut Watch(&session.cancel))?;
        state.keep_logits(&engine);
        if let Some(reused) = reused {
            reused.set(fed.reused);
        }
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_logits(
    session: Handle,
    logits: Out<*const f32>,
    count: Out<usize>,
) -> Status {
    handles::with::<Session>(session, |session| {
        let (logits, count) = (logits.need("logits")?, count.need("count")?);
        let state = session.state.enter()?;
        if state.logits.is_empty() {
            return Err(no_logits());
        }
        logits.set(state.logits.as_ptr());
        count.set(state.logits.len());
        Ok(())
    })
}

fn no_logits() -> Fault {
    Fault::new(Status::State, "there are no logits: feed a token first")
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_sample(
    session: Handle,
    sampler: Handle,
    token: Out<u32>,
) -> Status {
    handles::with::<Session>(session, |session| {
        let target = token.need("token")?;
        let state = session.state.enter()?;
        if state.logits.is_empty() {
            return Err(no_logits());
        }
        target.set(handles::find::<Sampler>(sampler)?.choose(&state.logits)?);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_tokens(
    session: Handle,
    tokens: OutArray<u32>,
    capacity: usize,
    count: Out<usize>,
) -> Status {
    handles::with::<Session>(session, |session| {
        let mut state = session.state.enter()?;
        tokens.fill(capacity, state.session().tokens(), &count)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_room(session: Handle, room: Out<u32>) -> Status {
    handles::with::<Session>(session, |session| {
        let target = room.need("room")?;
        target.set(session.state.enter()?.session().room());
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_truncate(
    session: Handle,
    token_count: usize,
    kept: Out<usize>,
) -> Status {
    handles::with::<Session>(session, |session| {
        let kept = kept.get("kept")?;
        let (mut state, _engine) = session.begin()?;
        let held = state.session().tokens().len();
        let left = if token_count < held {
            state.forget_logits();
            // One more than is to stay: a prefix is never all of what is wanted.
            let ids = state.session().tokens()[..=token_count].to_vec();
            state.session().keep_prefix(&ids) as usize
        } else {
            held
        };
        if let Some(kept) = kept {
            kept.set(left);
        }
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_cancel(session: Handle) -> Status {
    guard::run(None, || {
        handles::find::<Session>(session)?.cancel.store(true, Ordering::Relaxed);
        Ok(())
    })
}
