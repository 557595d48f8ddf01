//! Decides, for one file, between direct and buffered reads, and finds the alignment.
//!
//! Pure but for the probe that is handed in. In: what statx says, the page size, and a way to try a real direct read.
//! Out: a [`DirectReport`].
//!
//! A file system may accept `O_DIRECT` at open and refuse every read (an overlay over a read-only image), or need
//! more than the drive's sector (16 KiB blocks, ZFS, some RAID). So no report is believed without a read.
//!
//! Invariant: a file is direct only when a read of its first and one of its last block, at the alignment that is
//! kept, gave exactly the bytes that are there.

use std::fmt;
use std::io;

use super::sys::ReportedAlign;

/// Alignments that are tried where statx does not say, or says too little, from the sector up.
const CANDIDATES: [u32; 4] = [512, 4096, 16_384, 65_536];

/// The largest alignment that is believed; above it, outward rounding would cost more than the page cache.
const ALIGN_BYTES_MAX: u32 = 1 << 20;

/// How the alignment of a direct file was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlignFoundBy {
    /// The file system said it, and a read confirmed it.
    Statx,
    /// Reads were tried, from 512 bytes up.
    Probe,
}

/// Whether a file is read past the page cache, and why not if not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectReport {
    /// The alignment of direct reads and how it was found; `None` for a buffered file.
    pub align: Option<(u32, AlignFoundBy)>,
    /// Why the file is buffered.
    pub why_buffered: Option<String>,
}

impl DirectReport {
    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.align.is_some()
    }

    /// What offset and length of a read are rounded outward to: 1 for a buffered file.
    pub fn align_bytes(&self) -> u32 {
        self.align.map_or(1, |(bytes, _)| bytes)
    }

    pub(super) fn buffered(why: impl Into<String>) -> Self {
        Self { align: None, why_buffered: Some(why.into()) }
    }
}

impl fmt::Display for DirectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.align, &self.why_buffered) {
            (Some((bytes, AlignFoundBy::Statx)), _) => write!(f, "direct, {bytes} B aligned"),
            (Some((bytes, AlignFoundBy::Probe)), _) => write!(f, "direct, {bytes} B aligned (by trial)"),
            (None, Some(why)) => write!(f, "buffered: {why}"),
            (None, None) => write!(f, "buffered"),
        }
    }
}

/// Chooses. `probe(align)` reads the file's first and last block of `align` bytes by direct I/O.
pub(super) fn decide(
    reported: Option<ReportedAlign>,
    page_bytes: u32,
    mut probe: impl FnMut(u32) -> io::Result<()>,
) -> DirectReport {
    let mut first = 0;
    if let Some(ReportedAlign { memory_bytes, offset_bytes }) = reported {
        if memory_bytes == 0 || offset_bytes == 0 {
            return DirectReport::buffered("the file system has no direct I/O for this file");
        }
        if memory_bytes > page_bytes {
            return DirectReport::buffered(format!(
                "direct I/O wants memory aligned to {memory_bytes} B, above the page of {page_bytes} B"
            ));
        }
        // Never below a sector, so that an alignment of 1 always means a buffered file.
        first = memory_bytes.max(offset_bytes).max(CANDIDATES[0]);
        if !memory_bytes.is_power_of_two() || !offset_bytes.is_power_of_two() || first > ALIGN_BYTES_MAX {
            return DirectReport::buffered(format!(
                "direct I/O wants an alignment of {memory_bytes} B in memory, {offset_bytes} B in the file"
            ));
        }
        if probe(first).is_ok() {
            return DirectReport { align: Some((first, AlignFoundBy::Statx)), why_buffered: None };
        }
    }
    let mut last_error = None;
    for align in CANDIDATES.into_iter().filter(|align| *align > first) {
        match probe(align) {
            Ok(()) => return DirectReport { align: Some((align, AlignFoundBy::Probe)), why_buffered: None },
            Err(error) => last_error = Some(error),
        }
    }
    let tried = last_error.map_or_else(|| "no alignment left to try".to_owned(), |error| error.to_string());
    DirectReport::buffered(format!("a direct read was refused at every alignment ({tried})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(memory_bytes: u32, offset_bytes: u32) -> Option<ReportedAlign> {
        Some(ReportedAlign { memory_bytes, offset_bytes })
    }

    fn refuses_below(needed: u32) -> impl FnMut(u32) -> io::Result<()> {
        move |align| if align >= needed { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
    }

    #[test]
    fn what_the_file_system_says_is_kept_when_a_read_confirms_it() {
        for (memory, offset, align) in
            [(4, 512, 512), (1, 1, 512), (512, 4096, 4096), (4096, 512, 4096), (512, 65_536, 65_536)]
        {
            let report = decide(said(memory, offset), 4096, refuses_below(align));
            assert_eq!(report.align, Some((align, AlignFoundBy::Statx)));
        }
    }

    #[test]
    fn no_answer_is_found_by_trial() {
        for needed in [512, 4096, 16_384, 65_536] {
            let report = decide(None, 4096, refuses_below(needed));
            assert_eq!(report.align, Some((needed, AlignFoundBy::Probe)));
        }
    }

    #[test]
    fn a_file_that_needs_more_than_it_says_gets_it() {
        let report = decide(said(512, 512), 4096, refuses_below(16_384));
        assert_eq!(report.align, Some((16_384, AlignFoundBy::Probe)));
    }

    #[test]
    fn refused_at_every_read_means_buffered_with_the_reason() {
        let report = decide(said(512, 512), 4096, refuses_below(u32::MAX));
        assert!(!report.is_direct());
        assert!(report.to_string().contains("Invalid argument"), "{report}");
        assert_eq!(report.align_bytes(), 1);
    }

    #[test]
    fn zero_strange_or_huge_means_buffered_without_a_read() {
        for reported in [said(0, 0), said(0, 512), said(8192, 512), said(512, 768), said(512, 2 << 20)] {
            let report = decide(reported, 4096, |_| panic!("no read is to be tried"));
            assert!(!report.is_direct(), "{reported:?}");
        }
    }

    #[test]
    fn larger_pages_allow_larger_memory_alignment() {
        let report = decide(said(16_384, 512), 65_536, refuses_below(16_384));
        assert_eq!(report.align_bytes(), 16_384);
    }
}
