//! The model that the program brings along.
//!
//! - Owns: the bytes of flint-nano, embedded under the feature `bundled-model`.
//! - In: the store folder. Out: a store of the model in it, made at first use, or its GGUF; in a folder of this process
//!   alone where the store folder cannot be written.
//! - Invariants: a file that is not byte for byte the embedded one is written anew; a file or store appears by a rename,
//!   whole; nothing of another name, and no store of another model, is touched.

use std::path::PathBuf;

use crate::args::SourceChoice;
use crate::exit::Outcome;
use crate::model::Found;

#[cfg(not(feature = "bundled-model"))]
pub(crate) fn find(_dir: Option<PathBuf>, _choice: Option<SourceChoice>) -> Outcome<Found> {
    Err(crate::exit::Failure::usage("no model: name one with --model; this build brings none along"))
}

#[cfg(feature = "bundled-model")]
pub(crate) fn find(dir: Option<PathBuf>, choice: Option<SourceChoice>) -> Outcome<Found> {
    embedded::find(dir, choice)
}

#[cfg(feature = "bundled-model")]
mod embedded {
    use std::io::{self, Write};
    use std::path::{Path, PathBuf};

    use flint_rt::store::{IngestOptions, Sha256Digest, Source, StoreError};

    use crate::args::SourceChoice;
    use crate::exit::{Exit, Failure, Outcome};
    use crate::ingest;
    use crate::model::Found;
    use crate::terminal::note;

    /// The GGUF.
    static BYTES: &[u8] = include_bytes!("flint-nano-q4_1.gguf");

    /// Its SHA-256; a test compares.
    const SHA256: &str = "add0fe3af78cdb965ec7711379ccedcdf0126185e4327878a30a1711b09784d9";

    /// The name of its store, and with an ending of its file.
    const NAME: &str = "flint-nano-q4_1";

    pub(super) fn find(dir: Option<PathBuf>, choice: Option<SourceChoice>) -> Outcome<Found> {
        note("no --model named: this is the bundled flint-nano, a small model for trying");
        let reason = match &dir {
            None => "there is no home folder".to_owned(),
            Some(dir) => match place(dir, choice) {
                Ok(path) => return Ok(Found { path, _temporary: None }),
                Err(error) => error,
            },
        };
        let temporary = tempfile::Builder::new().prefix("flint-rt-").tempdir().map_err(|error| {
            Failure::because(Exit::Memory, format!("{reason}; and no temporary folder"), &error)
        })?;
        note(&format!("{reason}: using {} for this run only", temporary.path().display()));
        let path = place(temporary.path(), choice).map_err(|error| Failure::new(Exit::Memory, error))?;
        Ok(Found { path, _temporary: Some(temporary) })
    }

    /// The model in `dir`, made where it is missing or damaged; or why that cannot be.
    fn place(dir: &Path, choice: Option<SourceChoice>) -> Result<PathBuf, String> {
        if choice == Some(SourceChoice::Gguf) {
            return gguf(dir).map_err(|error| error.to_string());
        }
        let store = dir.join(NAME);
        match Source::open(&store) {
            Ok(source) if source.source_sha256().is_some_and(|digest| digest.to_string() == SHA256) => {
                return Ok(store);
            }
            Ok(_) => {
                if choice.is_some() {
                    return Err(format!("{} is a store of another model", store.display()));
                }
                note(&format!("{} is a store of another model: reading the GGUF in place", store.display()));
                return gguf(dir).map_err(|error| error.to_string());
            }
            // What an older version of this program made is as good as damaged: its source is here.
            Err(error) if error.is_data_damage() || matches!(error, StoreError::ManifestVersion { .. }) => {
                note(&format!("{error}: making it anew"));
                std::fs::remove_dir_all(&store).map_err(|error| format!("{}: {error}", store.display()))?;
            }
            Err(_) => {}
        }
        let file = gguf(dir).map_err(|error| error.to_string())?;
        // What an interrupted run left is of a file that is not the same any more.
        let options = IngestOptions { restart: true, ..IngestOptions::default() };
        match ingest::make_quietly(&file, &store, &options) {
            Ok(_) => Ok(store),
            // Another process was faster, and what stands there is whole.
            Err(StoreError::TargetExists { .. }) if Source::open(&store).is_ok() => Ok(store),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The GGUF in `dir`, written where it is missing or differs.
    fn gguf(dir: &Path) -> io::Result<PathBuf> {
        let path = dir.join(format!("{NAME}.gguf"));
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let is_whole = std::fs::metadata(&path)
            .is_ok_and(|file| file.is_file() && file.len() == BYTES.len() as u64)
            && std::fs::read(&path).is_ok_and(|bytes| Sha256Digest::of(&bytes).to_string() == SHA256);
        if !is_whole {
            std::fs::create_dir_all(dir).map_err(|error| named(dir, error))?;
            let mut file = tempfile::Builder::new()
                .prefix(".flint-nano-")
                .suffix(".tmp")
                .tempfile_in(dir)
                .map_err(|error| named(dir, error))?;
            file.write_all(BYTES)
                .and_then(|()| file.as_file().sync_all())
                .map_err(|error| named(&path, error))?;
            file.persist(&path).map_err(|error| named(&path, error.error))?;
        }
        Ok(path)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_embedded_bytes_are_those_of_the_digest() {
            assert_eq!(Sha256Digest::of(BYTES).to_string(), SHA256);
        }

        #[test]
        fn a_damaged_file_is_written_anew() {
            let dir = tempfile::tempdir().unwrap();
            let path = gguf(dir.path()).unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[1 << 20] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            gguf(dir.path()).unwrap();
            assert!(std::fs::read(&path).unwrap() == BYTES, "the flipped bit is still there");
        }
    }
}
