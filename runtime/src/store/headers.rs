//! The headers of sources, wherever their bytes come from.
//!
//! - Owns: nothing. In: sources. Out: their headers, joined to one.
//! - Invariants: a source is read from its beginning, and only as far as its header needs, in few large reads.

use std::path::{Path, PathBuf};

use crate::gguf::{Gguf, GgufError, Parsed};
use crate::store::bytes::ByteSource;
use crate::store::error::StoreError;
use crate::store::local::LocalSource;
use crate::store::parts::{self, Joined};

/// Bytes of the first look at a source; a header is rarely longer, and its length is known only from itself.
const HEADER_BYTES_MIN: u64 = 8 << 20;

/// Opens the GGUF file at `path`, or all parts of the split GGUF that it belongs to.
///
/// # Errors
/// A file, or a part, is missing or cannot be read.
pub fn open_local(path: &Path) -> Result<Vec<Box<dyn ByteSource>>, StoreError> {
    let open = |path: &PathBuf| Ok(Box::new(LocalSource::open(path)?) as Box<dyn ByteSource>);
    parts::paths(path)?.iter().map(open).collect()
}

/// Reads the headers of a source, and nothing else; those of several files as one.
///
/// # Errors
/// The source cannot be read, or a header is not what it must be, or the files are not one GGUF.
///
/// # Panics
/// When there is no source.
pub fn read_header(sources: &mut [Box<dyn ByteSource>]) -> Result<Gguf, StoreError> {
    Ok(join_headers(sources)?.gguf)
}

/// [`read_header`], with where each file begins.
pub(super) fn join_headers(sources: &mut [Box<dyn ByteSource>]) -> Result<Joined, StoreError> {
    assert!(!sources.is_empty(), "a model has at least one file");
    let headers: Result<Vec<_>, StoreError> = sources
        .iter_mut()
        .map(|source| Ok((source.name().to_owned(), read_one_header(source.as_mut())?)))
        .collect();
    parts::join(headers?)
}

fn read_one_header(source: &mut dyn ByteSource) -> Result<Gguf, StoreError> {
    let len_bytes = source.len_bytes();
    let in_file = |name: &str, cause| GgufError::InFile { path: PathBuf::from(name), cause: Box::new(cause) };
    let mut bytes = Vec::new();
    let mut want_bytes = HEADER_BYTES_MIN;
    loop {
        let mut have = bytes.len();
        let want = usize::try_from(want_bytes.min(len_bytes)).unwrap_or(usize::MAX);
        let reserved = bytes.try_reserve_exact(want.saturating_sub(have));
        let refused = |error| GgufError::Read { offset_bytes: have as u64, error };
        reserved.map_err(|error| in_file(source.name(), refused(error.into())))?;
        bytes.resize(want, 0);
        while have < want {
            match source.read_from(have as u64, &mut bytes[have..])? {
                0 => {
                    let path = source.stamp()?.location.into();
                    return Err(StoreError::SourceTruncated {
                        path,
                        want_bytes: len_bytes,
                        got_bytes: have as u64,
                    });
                }
                got => have += got,
            }
        }
        match Gguf::parse(&bytes, len_bytes).map_err(|error| in_file(source.name(), error))? {
            Parsed::Complete(gguf) => return Ok(*gguf),
            Parsed::Incomplete { need_bytes } if bytes.len() as u64 == len_bytes => {
                let error = GgufError::Incomplete { have_bytes: len_bytes, need_bytes };
                return Err(in_file(source.name(), error).into());
            }
            Parsed::Incomplete { need_bytes } => want_bytes = need_bytes.max(2 * want_bytes),
        }
    }
}
