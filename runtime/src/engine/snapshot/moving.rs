//! Snapshots that are being made, and sessions that are being filled: what is left to copy. Pure.

use std::sync::Arc;

use crate::base::ids::TokenId;
use crate::engine::snapshot::SnapshotError;
use crate::engine::snapshot::shape::{CacheShape, CutMark};
use crate::engine::snapshot::value::{CUTS_MAX, Cut, Snapshot, kept_cuts};
use crate::engine::snapshot::walk::{Stretch, Walk};
use crate::store::Sha256Digest;

/// A snapshot that is being made. The session must not go on meanwhile.
#[derive(Debug)]
pub struct Saving {
    model: Sha256Digest,
    pub(super) shape: CacheShape,
    pub(super) tokens: Vec<TokenId>,
    mark: CutMark,
    /// Earlier cuts, that were made before.
    earlier: Vec<Arc<Cut>>,
    pub(super) walk: Walk,
    /// The full layers', then the sliding ones'.
    pub(super) planes: Vec<Vec<u8>>,
}

/// A session that is being filled. Until that is done it is empty.
#[derive(Debug)]
pub struct Restoring {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) cut: usize,
    pub(super) to: u32,
    pub(super) walk: Walk,
}

/// Host memory for the planes of these stretches.
pub(super) fn planes_for(stretches: &[Stretch], row_bytes: u32) -> Result<Vec<Vec<u8>>, SnapshotError> {
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
pub(super) fn sliding_stretches(
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
