//! Compares what the drive gave with the checksums of the store, before anything computes with it.
//!
//! - Owns: the sum of the tensor that is being read, and how much was checked.
//! - In: bytes where they landed, and what they should be. Out: right or wrong.
//! - Invariants: a checksum covers who the bytes are (store, layer, expert, length), so a right record in a wrong place is
//!   wrong. Nothing is copied. Parts of a tensor are fed in order, from its first byte to its last.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rayon::prelude::*;

use crate::base::ids::{ExpertKey, LayerIndex, Span};
use crate::expert::ExpertError;
use crate::store::{Source, TensorSum, join_record, piece_checksum, record_checksum};

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
    /// Time that it took, in nanoseconds.
    pub ns: u64,
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

/// Bytes from which on several threads check: below, waking them costs more.
const PARALLEL_BYTES_MIN: u64 = 1 << 20;

/// Threads that check: one sums 6 to 7 GB/s of memory that nobody has read yet, which is less than what half a dozen records that
/// land together ask for.
const THREADS_MAX: usize = 4;

/// Threads that compare records with their checksums on this machine.
pub fn checking_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

/// Threads of our own, ended when this is dropped: rayon lets them end by themselves, and then they may still run while the
/// library is taken out of memory.
struct Threads {
    /// Nothing only while it is dropped.
    pool: Option<rayon::ThreadPool>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// `count` threads; `None` for one, and where the system gives none.
    fn start(count: usize) -> Option<Self> {
        if count < 2 {
            return None;
        }
        let mut handles = Vec::with_capacity(count);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .spawn_handler(|thread| {
                let name = format!("check {}", thread.index());
                handles.push(std::thread::Builder::new().name(name).spawn(|| thread.run())?);
                Ok(())
            })
            .build();
        Some(Self { pool: Some(pool.ok()?), handles })
    }

    fn pool(&self) -> &rayon::ThreadPool {
        self.pool.as_ref().expect("invariant: there until it is dropped")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.pool = None;
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// Checks for one source; without a source all is right.
#[derive(Default)]
pub(super) struct Checker {
    source: Option<Arc<Source>>,
    /// None where one thread is all that can be had.
    threads: Option<Threads>,
    tensor: Option<TensorSum>,
    stats: CheckStats,
}

impl Checker {
    pub(super) fn new(source: Arc<Source>) -> Self {
        Self { source: Some(source), threads: Threads::start(checking_threads()), ..Self::default() }
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

    /// The sums of `matrices`, several at once.
    pub(super) fn sum_matrices(&mut self, matrices: &[&[u8]]) -> Vec<u128> {
        let started = Instant::now();
        let bytes: u64 = matrices.iter().map(|matrix| matrix.len() as u64).sum();
        let sums = match &self.threads {
            Some(threads) if bytes >= PARALLEL_BYTES_MIN => {
                threads.pool().install(|| matrices.par_iter().map(|matrix| piece_checksum(matrix)).collect())
            }
            _ => matrices.iter().map(|matrix| piece_checksum(matrix)).collect(),
        };
        self.stats.bytes += bytes;
        self.stats.ns += u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        sums
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
        self.stats.bytes += bytes.len() as u64;
        self.stats.ns += u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
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
