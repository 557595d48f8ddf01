//! Compares what the drive gave with the checksums of the store, before anything computes with it.
//!
//! - Owns: the threads that sum records, the sum of the tensor that is being read, and how much was checked.
//! - In: bytes where they landed, and what they should be. Out: right or wrong.
//! - Invariants: a checksum covers who the bytes are (store, layer, expert, length), so a right record in a wrong place is
//!   wrong. Nothing is copied. Parts of a tensor are fed in order, from its first byte to its last.

use std::sync::Arc;
use std::time::Instant;

use crate::base::ids::{ExpertKey, LayerIndex, Span};
use crate::expert::ExpertError;
use crate::expert::sums::{Piece, Summers, Sums, thread_count};
use crate::store::{Source, TensorSum, join_record, record_checksum};

/// What the bytes of a move are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// The whole record of an expert.
    Record(ExpertKey),
    /// A part of a dense tensor. Its parts are moves that follow one another and leave nothing out.
    TensorPart {
        /// The tensor.
        name: Arc<str>,
        /// Whether the tensor ends with it.
        is_last: bool,
    },
}

impl Check {
    /// The model layer that the bytes belong to, where they are an expert's.
    pub(super) fn layer(&self) -> Option<LayerIndex> {
        match self {
            Self::Record(key) => Some(key.layer),
            Self::TensorPart { .. } => None,
        }
    }

    /// Whether the parts before it have to be checked first.
    pub(super) fn is_in_order(&self) -> bool {
        matches!(self, Self::TensorPart { .. })
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Record(key) => write!(f, "{key}"),
            Self::TensorPart { name, .. } => write!(f, "tensor {name}"),
        }
    }
}

/// What was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckStats {
    /// Bytes that were compared with a checksum.
    pub bytes: u64,
    /// Time that it took, on all threads together, in nanoseconds.
    pub ns: u64,
    /// Of it, what the thread that drives the engine did itself or waited for, in nanoseconds.
    pub waited_ns: u64,
    /// Records that were wrong and were read a second time.
    pub second_reads: u64,
}

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Right, or there is nothing to compare with.
    Right,
    Wrong,
}

/// Bytes of a piece from which on another thread sums it: below, waking that costs more than the sum.
const SHARED_BYTES_MIN: u64 = 128 << 10;

/// Threads that compare records with their checksums on this machine, the one that drives the engine among them.
pub fn checking_threads() -> usize {
    1 + thread_count(processors())
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Checks for one source; without a source all is right.
#[derive(Default)]
pub(super) struct Checker {
    source: Option<Arc<Source>>,
    summers: Option<Summers>,
    shared_bytes_min: u64,
    tensor: Option<TensorSum>,
    stats: CheckStats,
}

impl Checker {
    pub(super) fn new(source: Arc<Source>) -> Self {
        Self {
            source: Some(source),
            summers: Some(Summers::start(thread_count(processors()))),
            shared_bytes_min: SHARED_BYTES_MIN,
            ..Self::default()
        }
    }

    /// Has everything summed by other threads, however small it is.
    #[cfg(feature = "simulation")]
    pub(super) fn share_all(&mut self) {
        self.shared_bytes_min = 0;
        self.summers = self.source.is_some().then(|| Summers::start(2));
    }

    pub(super) fn stats(&self) -> CheckStats {
        self.stats
    }

    pub(super) fn note_second_read(&mut self) {
        self.stats.second_reads += 1;
    }

    /// After an error: the next tensor begins anew.
    pub(super) fn forget(&mut self) {
        self.tensor = None;
    }

    /// Sums a piece here, where it is small or all threads have enough to do, or has it summed.
    pub(super) fn sum(&mut self, piece: Piece, is_wanted: bool) -> Option<Sums> {
        let refused = match &mut self.summers {
            Some(summers) if piece.len_bytes() >= self.shared_bytes_min => {
                summers.push(piece, is_wanted).err()?
            }
            _ => piece,
        };
        let sums = refused.sum();
        self.stats.bytes += sums.bytes;
        self.stats.ns += sums.ns;
        self.stats.waited_ns += sums.ns;
        Some(sums)
    }

    /// Appends the sums that are ready of those that other threads make.
    pub(super) fn take(&mut self, sums: &mut Vec<Sums>) {
        if let Some(summers) = &mut self.summers {
            summers.take(sums);
            self.note(sums);
        }
    }

    /// As [`Self::take`], and waits for one, if there is any to be.
    pub(super) fn wait(&mut self, sums: &mut Vec<Sums>) {
        let begin = Instant::now();
        if let Some(summers) = &mut self.summers {
            summers.wait(sums);
            self.note(sums);
            self.stats.waited_ns += u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
    }

    fn note(&mut self, sums: &[Sums]) {
        self.stats.bytes += sums.iter().map(|sums| sums.bytes).sum::<u64>();
        self.stats.ns += sums.iter().map(|sums| sums.ns).sum::<u64>();
    }

    /// Pieces that are being summed.
    pub(super) fn outstanding(&self) -> usize {
        self.summers.as_ref().map_or(0, Summers::outstanding)
    }

    /// Whether a record whose matrices have these sums is the one that the store has of `key`.
    pub(super) fn judge(&self, key: ExpertKey, sums: [u128; 3]) -> Verdict {
        let Some(source) = &self.source else { return Verdict::Right };
        let Some(wanted) = source.record_checksum(key) else { return Verdict::Right };
        let found = join_record(source.identity(), key, source.record().record_bytes(), sums);
        if found == wanted { Verdict::Right } else { Verdict::Wrong }
    }

    /// Whether there is anything to compare with.
    pub(super) fn is_on(&self) -> bool {
        self.source.is_some()
    }

    /// Compares `bytes` with what `check` says that they are.
    pub(super) fn check(&mut self, check: Option<&Check>, bytes: &[u8]) -> Verdict {
        let (Some(source), Some(check)) = (&self.source, check) else { return Verdict::Right };
        let started = Instant::now();
        let is_right = match check {
            Check::Record(key) => match source.record_checksum(*key) {
                Some(wanted) => record_checksum(source.identity(), *key, &source.record(), bytes) == wanted,
                None => return Verdict::Right,
            },
            Check::TensorPart { name, is_last } => match source.tensor_checksum(name) {
                Some(wanted) => {
                    let sum = self.tensor.get_or_insert_default();
                    sum.update(bytes);
                    !is_last
                        || self
                            .tensor
                            .take()
                            .expect("invariant: inserted above")
                            .finish(source.identity(), name)
                            == wanted
                }
                None => return Verdict::Right,
            },
        };
        let ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.stats.bytes += bytes.len() as u64;
        self.stats.ns += ns;
        self.stats.waited_ns += ns;
        if is_right { Verdict::Right } else { Verdict::Wrong }
    }

    /// The error that says so.
    pub(super) fn damaged(&self, check: &Check, read: Span) -> ExpertError {
        let source = self.source.as_ref().expect("invariant: something was compared");
        let span = match check {
            Check::Record(_) => read,
            Check::TensorPart { name, .. } => source.tensor_span(name).unwrap_or(read),
        };
        let path = source.files()[usize::from(span.file.0)].clone();
        ExpertError::Damaged {
            what: check.to_string(),
            path,
            offset_bytes: span.offset_bytes,
            len_bytes: span.len_bytes,
        }
    }
}
