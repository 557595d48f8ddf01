//! A synthetic GGUF that nobody wrote, read as if it lay somewhere.
//!
//! Owns: the layout. In: offsets. Out: the file's bytes, made by several threads at once, and a stamp by which an
//! interrupted ingest knows that they are still the same.

use std::sync::{Mutex, PoisonError};
use std::thread;

use flint_rt::store::{ByteSource, Sha256Digest, SourceError, SourceStamp};

use super::layout::Layout;

/// What a thread makes at least: below it, starting the thread takes as long as its work.
const PIECE_BYTES_MIN: usize = 1 << 20;

/// A layout as a [`ByteSource`].
#[derive(Debug)]
pub(super) struct SyntheticSource {
    layout: Layout,
    name: String,
    /// All that its bytes follow from.
    recipe: String,
    threads: usize,
}

impl SyntheticSource {
    /// The file of `layout`, under the name `name`. `recipe` is what of the bytes the header does not tell.
    pub(super) fn new(layout: Layout, name: String, recipe: &str, threads: usize) -> Self {
        // Another version may fill the same tensors with other numbers.
        let recipe = format!(
            "{recipe}, header {}, flint-rt {}",
            Sha256Digest::of(layout.header()),
            env!("CARGO_PKG_VERSION")
        );
        Self { layout, name, recipe, threads }
    }
}

impl ByteSource for SyntheticSource {
    fn len_bytes(&self) -> u64 {
        self.layout.len_bytes()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn stamp(&self) -> Result<SourceStamp, SourceError> {
        Ok(SourceStamp {
            kind: "synth".to_owned(),
            location: self.name.clone(),
            len_bytes: self.layout.len_bytes(),
            state: self.recipe.clone(),
        })
    }

    fn read_from(&mut self, offset_bytes: u64, target: &mut [u8]) -> Result<usize, SourceError> {
        let left = self.layout.len_bytes().saturating_sub(offset_bytes);
        let len = usize::try_from(left).map_or(target.len(), |left| left.min(target.len()));
        let target = &mut target[..len];
        let piece = len.div_ceil(self.threads.max(1)).max(PIECE_BYTES_MIN);
        let threads = len.div_ceil(piece.max(1));
        let pieces = Mutex::new((offset_bytes..).step_by(piece).zip(target.chunks_mut(piece)));
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((offset, piece)) = next() {
                self.layout.write(offset, piece);
            }
        };
        thread::scope(|scope| {
            // This thread works, too: where the system gives no others, alone.
            for _ in 1..threads {
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        Ok(len)
    }
}
