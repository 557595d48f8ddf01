//! The bytes of a header, fetched as they are asked for.
//!
//! Owns the buffer that becomes [`super::Gguf::header_bytes`]. Invariant: a length is compared with the end of the
//! file before a byte is fetched for it or memory taken.

use std::io::Read;

use super::error::{GgufError, printable};
use crate::base::limits::HEADER_BYTES_MAX;

/// Least bytes that one read asks for, and the most beyond what is needed.
const READ_BYTES_MIN: usize = 256 << 10;
const READ_AHEAD_BYTES_MAX: usize = 4 << 20;

/// A cursor over the beginning of a file.
pub(super) struct Source<'a> {
    input: &'a mut dyn Read,
    buffer: Vec<u8>,
    position: usize,
    file_len_bytes: u64,
}

impl<'a> Source<'a> {
    /// Reads from `input`, which stands at the start of a file of `file_len_bytes`.
    pub(super) fn new(input: &'a mut dyn Read, file_len_bytes: u64) -> Self {
        Self { input, buffer: Vec::new(), position: 0, file_len_bytes }
    }

    /// The offset of the next byte.
    pub(super) fn offset_bytes(&self) -> u64 {
        self.position as u64
    }

    /// Bytes from here to the end of the file.
    pub(super) fn left_bytes(&self) -> u64 {
        self.file_len_bytes - self.position as u64
    }

    /// Refuses `want_bytes` that the rest of the file cannot hold.
    pub(super) fn check_left(&self, want_bytes: u64, what: &'static str) -> Result<(), GgufError> {
        let left_bytes = self.left_bytes();
        if want_bytes > left_bytes {
            return Err(GgufError::Truncated {
                what,
                offset_bytes: self.offset_bytes(),
                want_bytes,
                left_bytes,
            });
        }
        Ok(())
    }

    /// The next `len_bytes` bytes; `what` names them in errors.
    pub(super) fn take(&mut self, len_bytes: u64, what: &'static str) -> Result<&[u8], GgufError> {
        // Both operands are below 2^32, or refused: no sum here can wrap.
        self.check_left(len_bytes, what)?;
        let limit = HEADER_BYTES_MAX - self.offset_bytes();
        if len_bytes > limit {
            return Err(GgufError::Limit {
                what: "the length of the header with the field",
                offset_bytes: self.offset_bytes(),
                limit: HEADER_BYTES_MAX,
                found: self.offset_bytes().saturating_add(len_bytes),
            });
        }
        let start = self.position;
        let end = start + usize::try_from(len_bytes).expect("invariant: a header is below 1 GiB");
        if end > self.buffer.len() {
            self.fetch(end)?;
        }
        self.position = end;
        Ok(&self.buffer[start..end])
    }

    /// Fetches until the buffer holds `end` bytes.
    fn fetch(&mut self, end: usize) -> Result<(), GgufError> {
        let have = self.buffer.len();
        // An eighth of what is there ahead of need, so that many small fields cost few reads.
        let ahead = (have / 8).clamp(READ_BYTES_MIN, READ_AHEAD_BYTES_MAX);
        let wanted = (end - have).max(ahead);
        let left = usize::try_from(self.file_len_bytes - have as u64).unwrap_or(usize::MAX);
        let wanted = wanted.min(left);
        self.buffer
            .try_reserve_exact(wanted)
            .map_err(|error| GgufError::Read { offset_bytes: have as u64, error: error.into() })?;
        let mut input = (&mut *self.input).take(wanted as u64);
        input
            .read_to_end(&mut self.buffer)
            .map_err(|error| GgufError::Read { offset_bytes: have as u64, error })?;
        if self.buffer.len() < end {
            return Err(GgufError::Incomplete {
                have_bytes: self.buffer.len() as u64,
                need_bytes: end as u64,
            });
        }
        Ok(())
    }

    /// A fixed number of bytes.
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        Ok(self.take(N as u64, what)?.try_into().expect("invariant: take gives what was asked for"))
    }

    /// A `u8`.
    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, GgufError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    /// A little-endian `u16`.
    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, GgufError> {
        self.array(what).map(u16::from_le_bytes)
    }

    /// A little-endian `u32`.
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// A little-endian `u64`.
    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of at most `limit`, each of whose things takes at least `least_bytes` of what follows.
    pub(super) fn count(
        &mut self,
        limit: u64,
        least_bytes: u64,
        what: &'static str,
    ) -> Result<u64, GgufError> {
        let offset_bytes = self.offset_bytes();
        let found = self.u64(what)?;
        if found > limit {
            return Err(GgufError::Limit { what, offset_bytes, limit, found });
        }
        let want_bytes = found.checked_mul(least_bytes).expect("invariant: limits are far below 2^60");
        self.check_left(want_bytes, what)?;
        Ok(found)
    }

    /// A string of at most `limit` bytes, verbatim.
    pub(super) fn string(&mut self, limit: u64, what: &'static str) -> Result<&[u8], GgufError> {
        let len_bytes = self.count(limit, 1, what)?;
        self.take(len_bytes, what)
    }

    /// A name: a string in UTF-8, not empty.
    pub(super) fn name(&mut self, limit: u64, what: &'static str) -> Result<String, GgufError> {
        let offset_bytes = self.offset_bytes();
        let bytes = self.string(limit, what)?;
        match std::str::from_utf8(bytes) {
            Ok(name) if !name.is_empty() => Ok(name.to_owned()),
            _ => Err(GgufError::Name { what, offset_bytes, found: printable(bytes) }),
        }
    }

    /// Everything up to here.
    pub(super) fn into_header(mut self) -> Vec<u8> {
        self.buffer.truncate(self.position);
        self.buffer.shrink_to_fit();
        self.buffer
    }
}
