//! Chooses the read path and opens it.
//!
//! In: files, regions, the path that the user forces if any, the depth. Out: a queue, and a [`ReadPathReport`] that
//! says in one line what was chosen, what was lost and why.
//!
//! Invariant: the three paths give the same bytes; they differ in time only. A forced path is used or refused, never
//! replaced.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::DiskError;
use super::pool::PoolQueue;
use super::queue::ReadQueue;
use super::ring::RingQueue;
use super::source::SourceFile;
use crate::base::limits::READ_DEPTH_MAX;
use crate::base::region::HostRegion;
use crate::base::units::display_bytes;

/// How bytes come from the drive, fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReadPath {
    /// io_uring with registered buffers, and registered files where they are allowed.
    Ring,
    /// io_uring with nothing registered.
    RingPlain,
    /// Threads that call pread.
    Pool,
}

impl fmt::Display for ReadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::RingPlain => "ring-plain",
            Self::Pool => "pool",
        })
    }
}

impl FromStr for ReadPath {
    type Err = DiskError;

    fn from_str(text: &str) -> Result<Self, DiskError> {
        match text {
            "ring" => Ok(Self::Ring),
            "ring-plain" => Ok(Self::RingPlain),
            "pool" => Ok(Self::Pool),
            _ => Err(DiskError::PathUnknown { found: text.to_owned() }),
        }
    }
}

/// What was chosen, and what was lost on the way. Prints as one line.
#[derive(Debug, Clone)]
pub struct ReadPathReport {
    /// The path in use.
    pub path: ReadPath,
    /// Reads in flight at most.
    pub depth: u32,
    /// Threads of the pool; 0 for a ring.
    pub threads: usize,
    /// Bytes of registered buffers.
    pub registered_bytes: u64,
    /// Whether the files are registered with the ring.
    pub has_registered_files: bool,
    /// How the files are read, each distinct answer with the number of files that gave it.
    pub files: Vec<(String, usize)>,
    /// What was tried and refused, with the reason and the remedy.
    pub lost: Vec<String>,
}

impl fmt::Display for ReadPathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, depth {}", self.path, self.depth)?;
        if self.threads > 0 {
            write!(f, ", {} threads", self.threads)?;
        }
        if self.registered_bytes > 0 {
            write!(f, ", {} registered", display_bytes(self.registered_bytes))?;
        }
        if self.has_registered_files {
            write!(f, ", files registered")?;
        }
        for (how, count) in &self.files {
            let noun = if *count == 1 { "file" } else { "files" };
            write!(f, "; {count} {noun} {how}")?;
        }
        for lost in &self.lost {
            write!(f, "; lost: {lost}")?;
        }
        Ok(())
    }
}

/// Opens a queue over `files`, which reads name by their place in the list.
///
/// `regions` are those whose buffers reads will mostly fill: they are registered where that is allowed. Buffers of other
/// regions work too. Without `wanted`, the fastest path that works is taken.
///
/// # Errors
/// [`DiskError::PathImpossible`] when a forced path does not work here, [`DiskError::Depth`],
/// [`DiskError::PoolThreads`], [`DiskError::Memory`].
///
/// # Panics
/// When there is no file, or more than a `FileIndex` can name.
pub fn open_queue(
    files: Vec<Arc<SourceFile>>,
    regions: &[HostRegion],
    wanted: Option<ReadPath>,
    depth: u32,
) -> Result<(Box<dyn ReadQueue>, ReadPathReport), DiskError> {
    assert!(!files.is_empty(), "a queue over no files");
    assert!(files.len() <= usize::from(u16::MAX), "{} files in one queue", files.len());
    if depth == 0 || depth > READ_DEPTH_MAX {
        return Err(DiskError::Depth { wanted: depth, max: READ_DEPTH_MAX });
    }
    let mut report = ReadPathReport {
        path: ReadPath::Pool,
        depth,
        threads: 0,
        registered_bytes: 0,
        has_registered_files: false,
        files: describe(&files),
        lost: Vec::new(),
    };
    if wanted != Some(ReadPath::Pool) {
        let register = wanted != Some(ReadPath::RingPlain);
        match RingQueue::open(files.clone(), regions, register, depth) {
            Ok((queue, state)) => {
                report.lost = state.lost.iter().map(DiskError::to_string).collect();
                if state.registered_bytes > 0 {
                    report.path = ReadPath::Ring;
                } else if wanted == Some(ReadPath::Ring) {
                    let why =
                        report.lost.first().cloned().unwrap_or_else(|| "no memory to register".to_owned());
                    return Err(DiskError::PathImpossible { wanted: ReadPath::Ring, why });
                } else {
                    report.path = ReadPath::RingPlain;
                }
                report.registered_bytes = state.registered_bytes;
                report.has_registered_files = state.has_registered_files;
                return Ok((Box::new(queue), report));
            }
            Err(error) => match wanted {
                Some(wanted) => return Err(DiskError::PathImpossible { wanted, why: error.to_string() }),
                None => report.lost.push(error.to_string()),
            },
        }
    }
    let queue = PoolQueue::start(files, depth as usize)?;
    report.threads = queue.threads();
    Ok((Box::new(queue), report))
}

fn describe(files: &[Arc<SourceFile>]) -> Vec<(String, usize)> {
    let mut counts = BTreeMap::new();
    for file in files {
        *counts.entry(file.direct().to_string()).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_they_are_printed() {
        for path in [ReadPath::Ring, ReadPath::RingPlain, ReadPath::Pool] {
            assert_eq!(path.to_string().parse::<ReadPath>().unwrap(), path);
        }
        assert!("Ring".parse::<ReadPath>().unwrap_err().to_string().contains("ring-plain"));
    }
}
