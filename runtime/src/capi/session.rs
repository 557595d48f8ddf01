//! `flint_rt_session_*`: conversations, fed token by token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::guard::{self, LastError};
use super::handles::{self, Handle};
use super::lock::{Exclusive, Held, is_in_callback};
use super::memory::{InArray, InOutArray, InText, Out, OutArray};
use super::model::Model;
use super::sampler::Sampler;
use super::status::{Fault, Status};
use super::types;
use crate::base::ids::TokenId;
use crate::base::limits::STEP_SEQUENCES_MAX;
use crate::engine::{self, Engine, Feed, Snapshot};
use crate::model::Want;
use crate::model::decode::StepOutput;
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

    fn keep_logits(&mut self, engine: &Engine, step: &StepOutput) {
        engine.read_logits_of(step, &mut self.logits);
    }
}

impl Session {
    fn new(model: &Arc<Model>) -> Result<Self, Fault> {
        let session = model.engine.enter()?.session()?;
        let ids = Vec::with_capacity(model.info.context_len as usize);
        let logits = Vec::with_capacity(model.info.vocabulary as usize);
        let state = State { session: Some(session), logits, ids };
        Ok(Self {
            state: Exclusive::waiting("session", state),
            model: model.clone(),
            cancel: AtomicBool::new(false),
            errors: LastError::default(),
        })
    }

    /// Whether a call of this thread is using it; within a callback any other, too, as its end may wait for its model.
    pub(super) fn is_held_here(&self) -> bool {
        self.state.is_held_here() || is_in_callback()
    }

    /// A call that computes begins: what was cancelled before it had the session does not matter to it.
    pub(super) fn begin(&self) -> Result<(Held<'_, State>, Held<'_, Engine>), Fault> {
        let state = self.state.enter()?;
        self.cancel.store(false, Ordering::Relaxed);
        Ok((state, self.model.engine.enter()?))
    }
}

/// Makes `target` hold all that `snapshot` has, without logits; a snapshot that is refused changes nothing.
fn restore(engine: &mut Engine, target: &mut State, snapshot: Snapshot) -> Result<(), Fault> {
    let to = u32::try_from(snapshot.tokens().len()).expect("invariant: a context is a u32");
    let mut restoring = engine.begin_restoring(target.session(), Arc::new(snapshot), to)?;
    target.forget_logits();
    while !engine.restore_step(target.session(), &mut restoring)? {}
    Ok(())
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
        let step = if let (&[token], true) = (tokens, held > 0) {
            engine.feed_token(state.session(), token, Want::Logits)?
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
            fed?.step
        };
        state.keep_logits(&engine, &step);
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
        state.keep_logits(&engine, &fed.step);
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

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_clone(session: Handle, clone: Out<Handle>) -> Status {
    handles::with::<Session>(session, |session| {
        let target = clone.need("clone")?;
        target.set(0);
        let mut state = session.state.enter()?;
        let made = Session::new(&session.model)?;
        if !state.session().tokens().is_empty() {
            let mut engine = session.model.engine.enter()?;
            let snapshot = engine.snapshot(state.session())?;
            let mut copy = made.state.enter()?;
            restore(&mut engine, &mut copy, snapshot)?;
            copy.logits.extend_from_slice(&state.logits);
        }
        target.set(handles::add(made));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_save(session: Handle, path: InText) -> Status {
    handles::with::<Session>(session, |session| {
        let path = path.need("path")?;
        let (mut state, mut engine) = session.begin()?;
        let snapshot = engine.snapshot(state.session())?;
        // What is written is a copy, so that others may use the device meanwhile.
        drop(engine);
        snapshot.save(path.as_ref(), &|| session.cancel.load(Ordering::Relaxed))?;
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_session_restore(session: Handle, path: InText) -> Status {
    handles::with::<Session>(session, |session| {
        let path = path.need("path")?;
        let (mut state, mut engine) = session.begin()?;
        let snapshot = Snapshot::load(path.as_ref(), (engine.snapshot_identity(), &engine.cache_shape()))?;
        restore(&mut engine, &mut state, snapshot)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_step(mut feeds: InOutArray<types::Feed>, feed_count: usize) -> Status {
    guard::run(None, || {
        let feeds = feeds.slice(feed_count, "feeds")?;
        if feeds.is_empty() || feeds.len() > STEP_SEQUENCES_MAX as usize {
            let text = format!("{} sessions in a step, wanted 1 to {STEP_SEQUENCES_MAX}", feeds.len());
            return Err(Fault::argument(text));
        }
        // In the order of their numbers, so that two threads never wait for each other.
        let mut order: Vec<usize> = (0..feeds.len()).collect();
        order.sort_unstable_by_key(|&at| feeds[at].session);
        if order.windows(2).any(|pair| feeds[pair[0]].session == feeds[pair[1]].session) {
            return Err(Fault::argument("a session is twice in one step"));
        }
        let sessions = order.iter().map(|&at| handles::find::<Session>(feeds[at].session));
        let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
        let model = &sessions[0].model;
        if sessions.iter().any(|session| !Arc::ptr_eq(&session.model, model)) {
            return Err(Fault::argument("the sessions of a step are of several models"));
        }
        let mut states =
            sessions.iter().map(|session| session.state.enter()).collect::<Result<Vec<_>, _>>()?;
        sessions.iter().for_each(|session| session.cancel.store(false, Ordering::Relaxed));
        let mut engine = model.engine.enter()?;
        let mut tokens = Vec::with_capacity(states.len());
        for &at in &order {
            tokens.push(feeds[at].tokens.slice(feeds[at].token_count, "tokens")?);
        }
        if tokens.iter().any(|tokens| tokens.is_empty()) {
            return Err(engine::EngineError::EmptyPrompt.into());
        }
        let token_total = tokens.iter().fold(0_usize, |total, tokens| total.saturating_add(tokens.len()));
        let tokens_max = engine.step_tokens_max();
        if token_total > tokens_max as usize {
            return Err(Fault::argument(format!(
                "{token_total} tokens in a step, wanted at most {tokens_max}"
            )));
        }
        let mut parts = Vec::with_capacity(states.len());
        for (tokens, state) in tokens.into_iter().zip(&mut states) {
            state.forget_logits();
            parts.push(Feed { session: state.session(), tokens, want: Want::Logits });
        }
        let mut watch = WatchAll(&sessions);
        let outputs = engine.feed_many(&mut parts, &mut watch)?;
        drop(parts);
        let mut statuses = Vec::with_capacity(outputs.len());
        for ((state, session), output) in states.iter_mut().zip(&sessions).zip(outputs) {
            statuses.push(guard::run(Some(&session.errors), || {
                state.keep_logits(&engine, &output?);
                Ok(())
            }));
        }
        for (at, status) in order.into_iter().zip(statuses) {
            feeds[at].status = status as i32;
        }
        Ok(())
    })
}

/// Ends a step when one of its sessions is cancelled.
struct WatchAll<'a>(&'a [Arc<Session>]);

impl PrefillObserver for WatchAll<'_> {
    fn should_stop(&mut self) -> bool {
        self.0.iter().any(|session| session.cancel.load(Ordering::Relaxed))
    }
}
