//! Files that a command is to write: whether it may, asked before the work that fills them.
//!
//! - In: a path that the user named. Out: nothing, or why it cannot or must not be written.
//! - Invariants: a model is never replaced: neither a GGUF, nor anything in a folder of a store. To look changes nothing.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure, Outcome};
use crate::stores;

/// Files that only the folder of a store, or of its part on another drive, has.
const OF_STORES: [&str; 4] = ["header.bin", "dense.bin", "stripe.json", stores::JOURNAL];

/// Whether `path` can be written: by opening what is there, else by a file without a name in its folder.
///
/// # Errors
/// A usage fault where a model is in the way, else the drive's answer.
pub(crate) fn check(path: &Path) -> Outcome {
    let failed = |error: io::Error| Failure::because(Exit::of_io(&error), path.display().to_string(), &error);
    // A link is followed, as the write would.
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = folder_of(&real);
    if OF_STORES.iter().any(|name| folder.join(name).is_file()) {
        return Err(Failure::usage(format!(
            "{}: lies in the folder of a store, where nothing else is written; name another place",
            path.display()
        )));
    }
    if !path.exists() {
        return tempfile::tempfile_in(folder).map(drop).map_err(failed);
    }
    if path.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if !path.is_file() {
        // A pipe's reader would take the look for the end.
        return Ok(());
    }
    fs::OpenOptions::new().write(true).open(path).map_err(failed)?;
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    if read.is_ok() && magic == *b"GGUF" {
        return Err(Failure::usage(format!("{}: is a model, and is left as it is", path.display())));
    }
    Ok(())
}

/// The folder that holds `path`.
fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_into_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        fs::create_dir(&store).unwrap();
        fs::write(store.join("dense.bin"), "weights").unwrap();
        let link = dir.path().join("link.json");
        std::os::unix::fs::symlink(store.join("dense.bin"), &link).unwrap();
        for path in [store.join("dense.bin"), store.join("new.json"), link] {
            let refused = check(&path);
            assert!(matches!(refused, Err(Failure::Told { exit: Exit::Usage, .. })), "{path:?}: {refused:?}");
        }
        assert!(check(&dir.path().join("page.html")).is_ok());
        assert!(!dir.path().join("page.html").exists(), "to look made a file");
    }
}
