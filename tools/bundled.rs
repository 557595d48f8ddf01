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
    use std::fs::File;
    use std::io::{self, Write};
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use flint_rt::store::{IngestOptions, Sha256Digest, Source, StoreError};

    use crate::args::SourceChoice;
    use crate::exit::{self, Exit, Failure, Outcome};
    use crate::ingest;
    use crate::interrupt::Working;
    use crate::model::Found;
    use crate::terminal::note;

    /// The GGUF.
    static BYTES: &[u8] = include_bytes!("flint-nano-q4_1.gguf");

    /// Its SHA-256; a test compares.
    const SHA256: &str = "add0fe3af78cdb965ec7711379ccedcdf0126185e4327878a30a1711b09784d9";

    /// The name of its store, and with an ending of its file.
    const NAME: &str = "flint-nano-q4_1";

    /// How the names of folders for one run begin.
    const TEMPORARY: &str = "flint-rt-bundled-";

    /// The age from which such a folder without a lock is of a run that was killed.
    const LEFT_AFTER: Duration = Duration::from_secs(60);

    /// What a store consists of, in every version so far.
    const STORE_FILES: [&str; 4] = ["manifest.json", "header.bin", "dense.bin", "experts.bin"];

    pub(super) fn find(dir: Option<PathBuf>, choice: Option<SourceChoice>) -> Outcome<Found> {
        note("no --model named: this is the bundled flint-nano, a small model for trying");
        let reason = match &dir {
            None => "there is no home folder".to_owned(),
            Some(dir) => match place(dir, choice) {
                Ok(path) => return Ok(Found { path, _temporary: None }),
                Err(place) => place.text,
            },
        };
        remove_left(&std::env::temp_dir());
        let temporary = tempfile::Builder::new().prefix(TEMPORARY).tempdir().map_err(|error| {
            Failure::because(Exit::of_io(&error), format!("{reason}; and no temporary folder"), &error)
        })?;
        if let Ok(folder) = File::open(temporary.path())
            && folder.try_lock_shared().is_ok()
        {
            // Until the process ends, however it does.
            std::mem::forget(folder);
        }
        let working = Working::begin(temporary.path().to_owned());
        note(&format!("{reason}: using {} for this run only", temporary.path().display()));
        let path = place(temporary.path(), choice).map_err(|place| Failure::new(place.exit, place.text))?;
        Ok(Found { path, _temporary: Some((temporary, working)) })
    }

    /// Removes from `dir` the folders of runs that were killed: nobody holds their lock, and they are not just being made.
    /// What cannot be removed stays; it is in nobody's way.
    fn remove_left(dir: &Path) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let is_of_run = entry.file_name().to_string_lossy().starts_with(TEMPORARY)
                && entry.file_type().is_ok_and(|kind| kind.is_dir());
            let is_old = || {
                let changed = entry.metadata().and_then(|folder| folder.modified());
                changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LEFT_AFTER))
            };
            if is_of_run
                && is_old()
                && let Ok(folder) = File::open(entry.path())
                && folder.try_lock().is_ok()
            {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Why the model cannot be in a folder, and the exit code of that.
    #[derive(Debug)]
    struct NoPlace {
        exit: Exit,
        text: String,
    }

    impl From<io::Error> for NoPlace {
        fn from(error: io::Error) -> Self {
            Self { exit: Exit::of_io(&error), text: error.to_string() }
        }
    }

    impl From<String> for NoPlace {
        fn from(text: String) -> Self {
            Self { exit: Exit::Failed, text }
        }
    }

    /// The model in `dir`, made where it is missing or damaged; or why that cannot be.
    fn place(dir: &Path, choice: Option<SourceChoice>) -> Result<PathBuf, NoPlace> {
        if choice == Some(SourceChoice::Gguf) {
            return gguf(dir);
        }
        let store = dir.join(NAME);
        match Source::open(&store) {
            Ok(source) if source.source_sha256().is_some_and(|digest| digest.to_string() == SHA256) => {
                return Ok(store);
            }
            Ok(_) => {
                if choice.is_some() {
                    return Err(format!("{} is a store of another model", store.display()).into());
                }
                note(&format!("{} is a store of another model: reading the GGUF in place", store.display()));
                return gguf(dir);
            }
            Err(StoreError::ManifestVersion { found, known, .. }) if found > u64::from(known) => {
                let shown = store.display();
                if choice.is_some() {
                    return Err(format!("{shown} is of a later flint-rt").into());
                }
                note(&format!("{shown} is of a later flint-rt: reading the GGUF in place"));
                return gguf(dir);
            }
            Err(_)
                if store.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) => {}
            // Where the drive or its rights are at fault, nothing is known of what is there.
            Err(StoreError::Io { source, .. }) if source.kind() != io::ErrorKind::NotFound => {
                return Err(named(&store, source).into());
            }
            Err(error) => {
                note(&format!("{error}: making it anew"));
                make_way(&store)?;
            }
        }
        let file = gguf(dir)?;
        // What an interrupted run left is of a file that is not the same any more.
        let options = IngestOptions { restart: true, ..IngestOptions::default() };
        match ingest::make_quietly(&file, &store, &options) {
            Ok(_) => Ok(store),
            // Another process was faster, and what stands there is whole.
            Err(StoreError::TargetExists { .. }) if Source::open(&store).is_ok() => Ok(store),
            Err(StoreError::Io { source, path, .. }) => Err(named(&path, source).into()),
            Err(error) => Err(NoPlace { exit: exit::of_store(&error), text: error.to_string() }),
        }
    }

    /// Frees the store's name: files that only a store has are removed, anything else is renamed.
    fn make_way(store: &Path) -> io::Result<()> {
        let is_folder = store.symlink_metadata().is_ok_and(|found| found.is_dir());
        let mut files = Vec::new();
        let mut is_ours = is_folder;
        if is_folder {
            for entry in std::fs::read_dir(store).map_err(|error| named(store, error))? {
                let entry = entry.map_err(|error| named(store, error))?;
                let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
                is_ours &= is_file && STORE_FILES.iter().any(|name| entry.file_name() == *name);
                files.push(entry.path());
            }
        }
        if is_ours {
            for file in files {
                std::fs::remove_file(&file).map_err(|error| named(&file, error))?;
            }
            return std::fs::remove_dir(store).map_err(|error| named(store, error));
        }
        let aside = (1..).map(|number| store.with_file_name(format!("{NAME}.old-{number}")));
        let aside = aside.into_iter().find(|path| path.symlink_metadata().is_err());
        let aside = aside.expect("invariant: no folder holds every number");
        std::fs::rename(store, &aside).map_err(|error| named(store, error))?;
        note(&format!("what was there is {} now", aside.display()));
        Ok(())
    }

    fn named(path: &Path, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    }

    /// The GGUF in `dir`, written where it is missing or differs.
    fn gguf(dir: &Path) -> Result<PathBuf, NoPlace> {
        let path = dir.join(format!("{NAME}.gguf"));
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
            let _working = Working::begin(file.path().to_owned());
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
        fn only_what_a_killed_run_left_is_removed() {
            let dir = tempfile::tempdir().unwrap();
            let make = |name: &str, age: u64| {
                let path = dir.path().join(name);
                std::fs::create_dir(&path).unwrap();
                std::fs::write(path.join("file"), "bytes").unwrap();
                let folder = File::open(&path).unwrap();
                folder.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
                (path, folder)
            };
            let (killed, _) = make("flint-rt-bundled-killed", 3600);
            let (other, _) = make("flint-rt-of-a-user", 3600);
            let (fresh, _) = make("flint-rt-bundled-fresh", 0);
            let (running, lock) = make("flint-rt-bundled-running", 3600);
            lock.try_lock_shared().unwrap();
            remove_left(dir.path());
            assert!(!killed.exists(), "it stayed");
            for path in [other, fresh, running] {
                assert!(path.join("file").exists(), "{path:?} is gone");
            }
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
