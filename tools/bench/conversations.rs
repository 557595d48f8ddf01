//! The conversations of a test: one, or several side by side whose steps are shared.
//!
//! - Owns: sessions. In: the tokens of each. Out: steps.
//! - Invariants: one conversation takes the ways of a reply, several the way of a server with as many replies under way. Prompts are
//!   fed one conversation after the other.

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, EngineError, Feed, Session};
use flint_rt::model::prefill::NoObserver;
use flint_rt::model::{ModelError, Want};

use super::case::Case;
use super::measure::Watch;
use super::tokens::Tokens;
use crate::interrupt;

/// Conversations that take the same steps.
pub(super) struct Conversations {
    sessions: Vec<Session>,
    /// Of each, all tokens of the test.
    ids: Vec<Vec<TokenId>>,
}

impl Conversations {
    /// As many as `case` has, empty.
    ///
    /// # Errors
    /// As [`Engine::session`].
    pub(super) fn open(engine: &Engine, case: Case) -> Result<Self, EngineError> {
        let sessions = (0..case.n_parallel).map(|_| engine.session()).collect::<Result<_, _>>()?;
        Ok(Self { sessions, ids: Vec::new() })
    }

    /// Empties them, and gives each its own tokens, from `first` on.
    pub(super) fn begin(&mut self, tokens: &Tokens, case: Case, first: u64) {
        self.sessions.iter_mut().for_each(Session::reset);
        let starts = (0..).map(|index| first + index * case.context());
        self.ids = self.sessions.iter().zip(starts).map(|(_, at)| tokens.part(at, case.context())).collect();
    }

    /// Feeds each the first `len` of its tokens, beyond what it holds.
    ///
    /// # Errors
    /// As [`Engine::feed_prompt`].
    pub(super) fn prompt(
        &mut self,
        engine: &mut Engine,
        len: usize,
        want: Want,
        watch: &mut Watch<'_>,
    ) -> Result<(), EngineError> {
        for (session, ids) in self.sessions.iter_mut().zip(&self.ids) {
            let done = watch.done;
            let held = session.tokens().len();
            engine.feed_prompt(session, &ids[..len], want, watch)?;
            watch.done = done + len.saturating_sub(held) as u64;
        }
        Ok(())
    }

    /// Feeds each its token `index`; one that is alone takes up to `drafts_max` of the tokens behind it as drafts, where they are wanted.
    ///
    /// # Errors
    /// As [`Engine::feed_next`] and [`Engine::feed_many`]; [`ModelError::Stopped`] at Ctrl-C.
    pub(super) fn token(
        &mut self,
        engine: &mut Engine,
        index: usize,
        drafts_max: u32,
    ) -> Result<(), EngineError> {
        if interrupt::is_requested() {
            return Err(ModelError::Stopped.into());
        }
        if let ([session], [ids]) = (self.sessions.as_mut_slice(), self.ids.as_slice()) {
            // As a model that says what the text has next.
            return engine.feed_next(session, ids[index], Want::Greedy, drafts_max).map(drop);
        }
        let feeds = self.sessions.iter_mut().zip(&self.ids);
        let mut feeds: Vec<_> = feeds
            .map(|(session, ids)| Feed { session, tokens: &ids[index..=index], want: Want::Greedy })
            .collect();
        engine.feed_many(&mut feeds, &mut NoObserver)?.into_iter().try_for_each(|output| output.map(drop))
    }
}
