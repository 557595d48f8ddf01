//! Out of a session and back into one, a slice at a time.

use std::sync::Arc;

use crate::base::ids::TokenId;
use crate::engine::snapshot::SnapshotError;
use crate::engine::snapshot::shape::{CacheShape, CutMark};
use crate::engine::snapshot::value::{CUTS_MAX, Cut, Snapshot, kept_cuts};
use crate::engine::snapshot::walk::{Stretch, Walk};
use crate::engine::{Engine, EngineError, Session};
use crate::store::Sha256Digest;

/// A snapshot that is being made. The session must not go on meanwhile.
#[derive(Debug)]
pub struct Saving {
    model: Sha256Digest,
    shape: CacheShape,
    tokens: Vec<TokenId>,
    mark: CutMark,
    /// Earlier cuts, that were made before.
    earlier: Vec<Arc<Cut>>,
    walk: Walk,
    /// The full layers', then the sliding ones'.
    planes: Vec<Vec<u8>>,
}

/// A session that is being filled. Until that is done it is empty.
#[derive(Debug)]
pub struct Restoring {
    snapshot: Arc<Snapshot>,
    cut: usize,
    to: u32,
    walk: Walk,
}

/// Host memory for the planes of these stretches.
fn planes_for(stretches: &[Stretch], row_bytes: u32) -> Result<Vec<Vec<u8>>, SnapshotError> {
    stretches
        .iter()
        .map(|stretch| {
            let bytes = u64::from(stretch.to - stretch.from) * u64::from(row_bytes);
            new_plane(bytes)
        })
        .collect()
}

/// An empty plane with room for `bytes`.
pub(super) fn new_plane(bytes: u64) -> Result<Vec<u8>, SnapshotError> {
    let none = || SnapshotError::NoMemory { wanted_bytes: bytes };
    let mut plane = Vec::new();
    plane.try_reserve_exact(usize::try_from(bytes).map_err(|_| none())?).map_err(|_| none())?;
    Ok(plane)
}

/// Keys and values of `layer` from `from` to `to`, in planes `plane` and the next, which begin at `plane_first`.
fn both(layer: usize, plane: usize, plane_first: u32, from: u32, to: u32) -> [Stretch; 2] {
    [false, true].map(|is_values| Stretch {
        layer,
        is_values,
        plane: plane + usize::from(is_values),
        plane_first,
        from,
        to,
    })
}

fn full_stretches(shape: &CacheShape, from: u32, to: u32) -> Vec<Stretch> {
    shape.full_layers().enumerate().flat_map(|(rank, layer)| both(layer, 2 * rank, 0, from, to)).collect()
}

/// `begin` says where to begin of those that a cut has, from a layer's number and that first position.
fn sliding_stretches(
    shape: &CacheShape,
    mark: CutMark,
    plane: usize,
    to: u32,
    begin: impl Fn(usize, u32) -> u32,
) -> Vec<Stretch> {
    let of = |(rank, (layer, window)): (usize, (usize, u32))| {
        let first = mark.first(window);
        both(layer, plane + 2 * rank, first, begin(layer, first), to)
    };
    shape.sliding_layers().enumerate().flat_map(of).collect()
}

impl Saving {
    /// Of `tokens`, which can be taken up at their end and `slack` tokens before. Of the `earlier` cuts those are kept that the
    /// last one does not make needless, as far as there is room.
    ///
    /// # Errors
    /// [`SnapshotError::NothingHeld`], [`SnapshotError::NoMemory`].
    pub fn new(
        model: Sha256Digest,
        shape: &CacheShape,
        tokens: &[TokenId],
        slack: u32,
        earlier: &[Arc<Cut>],
    ) -> Result<Self, SnapshotError> {
        if tokens.is_empty() {
            return Err(SnapshotError::NothingHeld);
        }
        let position = u32::try_from(tokens.len()).expect("invariant: a context is a u32");
        let mark = CutMark { position, slack };
        let mut earlier: Vec<_> =
            earlier.iter().filter(|cut| cut.position() < mark.from(shape)).cloned().collect();
        earlier.sort_by_key(|cut| cut.position());
        earlier.dedup_by_key(|cut| cut.position());
        let positions: Vec<u32> = earlier.iter().map(|cut| cut.position()).collect();
        let mut stays = kept_cuts(&positions, CUTS_MAX - 1).into_iter();
        earlier.retain(|_| stays.next().unwrap_or(false));

        let mut stretches = full_stretches(shape, 0, position);
        stretches.extend(sliding_stretches(shape, mark, stretches.len(), position, |_, first| first));
        Ok(Self {
            model,
            shape: shape.clone(),
            tokens: tokens.to_vec(),
            mark,
            earlier,
            planes: planes_for(&stretches, shape.row_bytes)?,
            walk: Walk::new(stretches),
        })
    }

    /// As [`Snapshot::bytes`].
    pub fn bytes(&self) -> u64 {
        let tokens = u32::try_from(self.tokens.len()).expect("invariant: a context is a u32");
        let earlier: u64 = self.earlier.iter().map(|cut| cut.bytes()).sum();
        self.shape.full_bytes(tokens) + u64::from(tokens) * 4 + self.shape.cut_bytes(self.mark) + earlier
    }

    /// Whether everything has been copied.
    pub fn is_done(&self) -> bool {
        self.walk.is_done()
    }

    /// The snapshot.
    ///
    /// # Panics
    /// When not everything has been copied.
    pub fn finish(self) -> Snapshot {
        assert!(self.is_done(), "a snapshot is whole");
        let mut planes = self.planes;
        let sliding = planes.split_off(2 * self.shape.full_layers().count());
        let mut cuts = self.earlier;
        cuts.push(Arc::new(Cut { mark: self.mark, planes: sliding }));
        Snapshot { model: self.model, shape: self.shape, tokens: self.tokens, planes, cuts }
    }
}

impl Restoring {
    /// Of the first `to` tokens of `snapshot`, into a session with room for `context_len` of a model of this identity and shape.
    /// Its full layers hold the `held` tokens already; `rows_of` are the rows of a layer's cache.
    ///
    /// # Errors
    /// When it is of another model, too long, or cannot be taken up there.
    pub fn new(
        snapshot: Arc<Snapshot>,
        to: u32,
        (model, shape): (Sha256Digest, &CacheShape),
        context_len: u32,
        held: &[TokenId],
        rows_of: impl Fn(usize) -> u32,
    ) -> Result<Self, SnapshotError> {
        if snapshot.model != model {
            return Err(SnapshotError::OtherModel { wanted: model, got: snapshot.model });
        }
        if snapshot.shape != *shape {
            let (wanted, got) = (shape.to_string(), snapshot.shape.to_string());
            return Err(SnapshotError::OtherShape { wanted, got });
        }
        if to > context_len {
            return Err(SnapshotError::TooLong { wanted: context_len, got: to });
        }
        let tokens = u32::try_from(snapshot.tokens.len()).expect("invariant: a context is a u32");
        let cut = snapshot.cut_for(to).ok_or(SnapshotError::NoCut { tokens, got: to })?;
        let wanted = &snapshot.tokens[..to as usize];
        let common = held.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let from = u32::try_from(common).expect("invariant: a context is a u32");
        let mark = snapshot.cuts[cut].mark;
        let mut stretches = full_stretches(shape, from, to);
        let plane = 2 * shape.full_layers().count();
        // As far back as the ring holds.
        let begin = |layer, first: u32| first.max(to.saturating_sub(rows_of(layer)));
        stretches.extend(sliding_stretches(shape, mark, plane, to, begin));
        Ok(Self { cut, to, walk: Walk::new(stretches), snapshot })
    }

    /// The same from a cut of the very conversation that the session holds, whose full layers therefore hold all that they need.
    ///
    /// # Errors
    /// [`SnapshotError::NoCut`] where `to` is not of the cut, or beyond what is held.
    pub fn of_cut(
        cut: Arc<Cut>,
        to: u32,
        (model, shape): (Sha256Digest, &CacheShape),
        held: &[TokenId],
        rows_of: impl Fn(usize) -> u32,
    ) -> Result<Self, SnapshotError> {
        let tokens = u32::try_from(held.len()).expect("invariant: a context is a u32");
        let mark = cut.mark;
        if to > tokens || !(mark.from(shape)..=mark.position).contains(&to) {
            return Err(SnapshotError::NoCut { tokens, got: to });
        }
        let begin = |layer, first: u32| first.max(to.saturating_sub(rows_of(layer)));
        let walk = Walk::new(sliding_stretches(shape, mark, 0, to, begin));
        let tokens = held[..to as usize].to_vec();
        let snapshot = Snapshot { model, shape: shape.clone(), tokens, planes: Vec::new(), cuts: vec![cut] };
        Ok(Self { snapshot: Arc::new(snapshot), cut: 0, to, walk })
    }

    /// Whether everything has been copied.
    pub fn is_done(&self) -> bool {
        self.walk.is_done()
    }

    /// The tokens that are brought back.
    pub fn tokens(&self) -> &[TokenId] {
        &self.snapshot.tokens[..self.to as usize]
    }

    /// The cuts of what they are brought back from.
    pub fn cuts(&self) -> &[Arc<Cut>] {
        &self.snapshot.cuts
    }
}

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
    /// [`SnapshotError::NothingHeld`], [`SnapshotError::NoMemory`].
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
        Ok(Saving::new(self.identity(), &self.cache_shape(), session.tokens(), slack, earlier)?)
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
            (self.identity(), &self.cache_shape()),
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
        let of = (self.identity(), &self.cache_shape());
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
