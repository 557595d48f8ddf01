//! Out of a session and back into one, a slice at a time.

use std::sync::Arc;

use crate::base::ids::TokenId;
use crate::engine::snapshot::moving::{Restoring, Saving, planes_for, sliding_stretches};
use crate::engine::snapshot::shape::{CacheShape, CutMark};
use crate::engine::snapshot::value::{Cut, Snapshot};
use crate::engine::snapshot::walk::Walk;
use crate::engine::{Engine, EngineError, Session};

impl Engine {
    /// What a snapshot of this model's conversations looks like.
    pub fn cache_shape(&self) -> CacheShape {
        CacheShape::of(self.config())
    }

    /// Has snapshots copied in slices of `bytes` from now on; 8 MiB unless this says otherwise. Smaller ones keep whoever waits between
    /// them less, and copy slower.
    pub fn set_snapshot_slice(&mut self, bytes: u32) {
        self.porter.set_slice(bytes);
    }

    /// Begins to copy what the session holds. Besides at its end, the snapshot can be taken up from `back_to` on where the
    /// session can go back that far, and at the `earlier` cuts.
    ///
    /// # Errors
    /// [`crate::engine::SnapshotError::NothingHeld`], [`crate::engine::SnapshotError::NoMemory`].
    pub fn begin_saving(
        &self,
        session: &Session,
        back_to: Option<u32>,
        earlier: &[Arc<Cut>],
    ) -> Result<Saving, EngineError> {
        let position = session.sequence().position();
        let slack = back_to
            .filter(|back_to| *back_to <= position && session.can_continue_at(*back_to))
            .map_or(0, |back_to| position - back_to);
        Ok(Saving::new(self.snapshot_identity(), &self.cache_shape(), session.tokens(), slack, earlier)?)
    }

    /// Copies the next slice. Returns whether that was the last.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When the session went on meanwhile.
    pub fn save_step(&mut self, session: &Session, saving: &mut Saving) -> Result<bool, EngineError> {
        assert_eq!(session.tokens().len(), saving.tokens.len(), "a session that is being saved waits");
        if !saving.is_done() {
            let (cache, row_bytes) = (session.sequence().cache(), saving.shape.row_bytes);
            self.porter.take_out(&self.model.gpu, cache, row_bytes, &mut saving.walk, &mut saving.planes)?;
        }
        Ok(saving.is_done())
    }

    /// A snapshot of all that the session holds, at once.
    ///
    /// # Errors
    /// As [`Self::begin_saving`] and [`Self::save_step`].
    pub fn snapshot(&mut self, session: &Session) -> Result<Snapshot, EngineError> {
        let mut saving = self.begin_saving(session, None, &[])?;
        while !self.save_step(session, &mut saving)? {}
        Ok(saving.finish())
    }

    /// The rows of sliding layers that whoever goes on at `position`, or up to `slack` tokens before, needs, as long as they are
    /// there; none when they are not. At once: it is a window of each sliding layer.
    ///
    /// # Errors
    /// When the device fails, or host memory is short.
    pub fn cut(&mut self, session: &Session, position: u32, slack: u32) -> Result<Option<Cut>, EngineError> {
        let back_to = position.saturating_sub(slack);
        if back_to == 0 || !session.can_continue_at(position) || !session.can_continue_at(back_to) {
            return Ok(None);
        }
        let (shape, mark) = (self.cache_shape(), CutMark { position, slack });
        let stretches = sliding_stretches(&shape, mark, 0, position, |_, first| first);
        let mut planes = planes_for(&stretches, shape.row_bytes)?;
        let mut walk = Walk::new(stretches);
        while !walk.is_done() {
            let cache = session.sequence().cache();
            self.porter.take_out(&self.model.gpu, cache, shape.row_bytes, &mut walk, &mut planes)?;
        }
        Ok(Some(Cut { mark, planes }))
    }

    /// Begins to make the session hold the first `to` tokens of `snapshot`, of which those that it has are not copied again. Until
    /// [`Self::restore_step`] says that it is done, the session is empty.
    ///
    /// # Errors
    /// As [`Restoring::new`]; the session is then as it was.
    pub fn begin_restoring(
        &self,
        session: &mut Session,
        snapshot: Arc<Snapshot>,
        to: u32,
    ) -> Result<Restoring, EngineError> {
        let cache = session.sequence().cache();
        let restoring = Restoring::new(
            snapshot,
            to,
            (self.snapshot_identity(), &self.cache_shape()),
            session.context_len(),
            session.tokens(),
            |layer| cache.layers[layer].rows,
        )?;
        session.reset();
        Ok(restoring)
    }

    /// Begins to go back to the first `to` tokens of what the session holds, which its rings have lost and `cut` has. Until
    /// [`Self::restore_step`] says that it is done, the session is empty.
    ///
    /// # Errors
    /// As [`Restoring::of_cut`]; the session is then as it was.
    pub fn begin_rewinding(
        &self,
        session: &mut Session,
        cut: Arc<Cut>,
        to: u32,
    ) -> Result<Restoring, EngineError> {
        let cache = session.sequence().cache();
        let of = (self.snapshot_identity(), &self.cache_shape());
        let restoring = Restoring::of_cut(cut, to, of, session.tokens(), |layer| cache.layers[layer].rows)?;
        session.reset();
        Ok(restoring)
    }

    /// Copies the next slice. Returns whether that was the last: then the session holds the tokens.
    ///
    /// # Errors
    /// When the device fails; the session stays empty.
    pub fn restore_step(
        &mut self,
        session: &mut Session,
        restoring: &mut Restoring,
    ) -> Result<bool, EngineError> {
        let Restoring { snapshot, cut, to, walk } = restoring;
        let cut = &snapshot.cuts[*cut];
        if !walk.is_done() {
            let plane = |index: usize| match index.checked_sub(snapshot.planes.len()) {
                None => snapshot.planes[index].as_slice(),
                Some(index) => cut.planes[index].as_slice(),
            };
            let (cache, row_bytes) = (session.sequence().cache(), snapshot.shape.row_bytes);
            self.porter.bring_in(&self.model.gpu, cache, row_bytes, walk, plane)?;
        }
        if walk.is_done() {
            session.adopt(&snapshot.tokens[..*to as usize], |window| cut.mark.first(window));
        }
        Ok(walk.is_done())
    }

    /// Makes the session hold as much of the beginning of `ids` as `snapshot` has, at once. Returns how many tokens that are; 0,
    /// and an empty session, where it has nothing of them.
    ///
    /// # Errors
    /// As [`Self::begin_restoring`] and [`Self::restore_step`].
    pub fn restore(
        &mut self,
        session: &mut Session,
        snapshot: &Arc<Snapshot>,
        ids: &[TokenId],
    ) -> Result<u32, EngineError> {
        let to = snapshot.reach(ids).min(session.context_len());
        if to == 0 || snapshot.cut_for(to).is_none() {
            session.reset();
            return Ok(0);
        }
        let mut restoring = self.begin_restoring(session, snapshot.clone(), to)?;
        while !self.restore_step(session, &mut restoring)? {}
        Ok(to)
    }
}
