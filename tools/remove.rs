//! `flint-rt remove`: a store, or an unfinished one, off the drive.
//!
//! - In: a name or a folder's path, and a yes. Out: what was removed, and how much room that gave.
//! - Invariants: only folders are removed in which every file has a name that an ingest gives, and no link is followed: a
//!   link in the place of a store, of its stripe or of one of their files is refused or left. A store that a process has
//!   open is refused. The manifest goes last, so what an interruption leaves is still known for a store.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use flint_rt::base::units::display_bytes;
use flint_rt::store::MANIFEST_NAME;
use serde_json::{Value, json};

use crate::args::RemoveArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::model;
use crate::stores;
use crate::terminal::{escaped_line, note};

/// What an ingest locks.
const LOCK_NAME: &str = "lock";

/// Describes a stripe in its own folder.
const STRIPE_NAME: &str = "stripe.json";

/// How often, and how long apart, a folder is tried that should be empty.
const EMPTY_TRIES: u32 = 50;
const EMPTY_WAIT: Duration = Duration::from_millis(20);

/// A folder whose files are to go.
struct Folder {
    path: PathBuf,
    /// Those of its files, the one that names it last.
    files: Vec<(PathBuf, fs::Metadata)>,
}

/// Runs the command.
pub(crate) fn run(args: &RemoveArgs) -> Outcome {
    let path = find(args)?;
    let shown = path.display().to_string();
    let mut folders = look(&path)?;
    // Held until a folder's files are gone: what opens the store meanwhile is refused.
    let mut locks = lock(&folders)?;
    for stripe in stripes(&path) {
        match look_at_stripe(&path, &stripe) {
            Ok(folder) => folders.push(folder),
            // The other of its two names.
            Err(_) if fs::symlink_metadata(&stripe).is_err() && is_unfinished(&path) => {}
            Err(why) => note(&format!("{}: left as it is: {why}", stripe.display())),
        }
    }
    refuse_open_files(&shown, &folders)?;

    let bytes: u64 =
        folders.iter().flat_map(|folder| &folder.files).map(|(_, file)| file.blocks() * 512).sum();
    confirm(args.yes, &shown, &folders, bytes)?;
    // The store's own folder names the others, so it goes last.
    for (index, folder) in folders.iter().enumerate().rev() {
        let failed = |error| Failure::because(Exit::Failed, folder.path.display().to_string(), &error);
        for (file, _) in &folder.files {
            fs::remove_file(file).map_err(failed)?;
        }
        if let Some(lock) = locks.get_mut(index) {
            lock.clear();
        }
        remove_folder(&folder.path).map_err(failed)?;
    }
    let mut stdout = io::stdout().lock();
    if args.json {
        let paths: Vec<_> = folders.iter().map(|folder| folder.path.display().to_string()).collect();
        writeln!(stdout, "{}", json!({ "removed": paths, "bytes": bytes }))?;
    } else {
        writeln!(stdout, "removed {}, {}", escaped_line(&shown), display_bytes(bytes))?;
    }
    Ok(())
}

/// Removes a folder whose files were removed. FUSE and NFS keep a removed file that was open under another name, until a
/// moment after it is closed.
fn remove_folder(path: &Path) -> io::Result<()> {
    for _ in 0..EMPTY_TRIES {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => thread::sleep(EMPTY_WAIT),
            done => return done,
        }
    }
    fs::remove_dir(path)
}

/// The folder that is meant: a name is one of the store folder's, anything with a slash a path.
fn find(args: &RemoveArgs) -> Outcome<PathBuf> {
    let name = args.name.to_string_lossy();
    if matches!(&*name, "" | "." | "..") {
        return Err(Failure::usage(format!("{name:?} is no store's name")));
    }
    let path = if name.contains('/') {
        args.name.clone()
    } else {
        match model::store_dir(args.store_dir.as_ref()) {
            Some(dir) => dir.join(&args.name),
            None => return Err(Failure::usage("there is no home folder: give the store's path")),
        }
    };
    // A slash at the end would have a link followed.
    Ok(path.components().collect())
}

/// The store's folder, checked to be one, and the folder in it if it is unfinished.
fn look(path: &Path) -> Outcome<Vec<Folder>> {
    let shown = path.display().to_string();
    let metadata = fs::symlink_metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::new(Exit::Model, format!("{shown}: there is no such store; flint-rt list shows them"))
        }
        _ => Failure::because(Exit::Failed, shown.clone(), &error),
    })?;
    let refuse = |why: String| Err(Failure::usage(format!("{shown}: {why}; nothing was removed")));
    if metadata.is_symlink() {
        let link = fs::read_link(path).unwrap_or_default();
        return refuse(format!("this is a link to {}: name the store itself", link.display()));
    }
    if !metadata.is_dir() {
        return refuse("this is no store but a file".to_owned());
    }
    if is_unfinished(path) {
        let outer = match ours(path, LOCK_NAME, is_store_file, Some(stores::UNFINISHED)) {
            Ok(folder) => folder,
            Err(why) => return refuse(why),
        };
        let inner = path.join(stores::UNFINISHED);
        if fs::symlink_metadata(&inner).is_err() {
            return Ok(vec![outer]);
        }
        return match ours(&inner, MANIFEST_NAME, is_store_file, None) {
            Ok(inner) => Ok(vec![outer, inner]),
            Err(why) => refuse(why),
        };
    }
    let folder = match ours(path, MANIFEST_NAME, is_store_file, None) {
        Ok(folder) => folder,
        Err(why) => return refuse(why),
    };
    if !folder.files.iter().any(|(file, _)| file.ends_with(MANIFEST_NAME)) {
        return refuse("this is no store: it has no manifest.json".to_owned());
    }
    Ok(vec![folder])
}

/// All of a folder, if each of its files has a name that `is_ours`; `last` goes to the end. A folder in it may only be
/// `inner`, which is looked at apart.
fn ours(path: &Path, last: &str, is_ours: fn(&str) -> bool, inner: Option<&str>) -> Result<Folder, String> {
    let mut files = Vec::new();
    let entries = fs::read_dir(path).map_err(|error| error.to_string())?;
    for entry in entries {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let metadata = entry.metadata().map_err(|error| format!("{name}: {error}"))?;
        if metadata.is_dir() && inner == Some(&name) {
            continue;
        }
        if !metadata.is_file() || !is_ours(&name) {
            return Err(format!("no ingest put {name} there: move it away first"));
        }
        files.push((entry.path(), metadata));
    }
    files.sort_by_key(|(file, _)| (file.ends_with(last), file.clone()));
    Ok(Folder { path: path.to_owned(), files })
}

/// Whether an ingest gives this name to a file of a store, or of an unfinished one.
fn is_store_file(name: &str) -> bool {
    let plain = name.strip_suffix(".new").unwrap_or(name);
    matches!(plain, "manifest.json" | "header.bin" | "dense.bin" | "journal.json" | "pieces.bin" | LOCK_NAME)
        || is_experts_file(plain)
}

fn is_stripe_file(name: &str) -> bool {
    let plain = name.strip_suffix(".new").unwrap_or(name);
    plain == STRIPE_NAME || is_experts_file(plain)
}

fn is_experts_file(name: &str) -> bool {
    let number = name.strip_prefix("experts").and_then(|rest| rest.strip_suffix(".bin"));
    number.is_some_and(|number| {
        number.is_empty()
            || number
                .strip_prefix('-')
                .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Takes the store for itself: whoever reads, makes or checks one locks a file of it, too. Gives the locks by folder.
fn lock(folders: &[Folder]) -> Outcome<Vec<Vec<File>>> {
    let mut held = Vec::new();
    for folder in folders {
        let mut of_folder = Vec::new();
        for (path, _) in &folder.files {
            let Ok(file) = File::open(path) else { continue };
            match file.try_lock() {
                Ok(()) => of_folder.push(file),
                Err(TryLockError::WouldBlock) => {
                    let who = stores::users(std::slice::from_ref(path));
                    return Err(in_use(&folders[0].path.display().to_string(), &who));
                }
                // No locks on this file system: who has files open is looked at in any case.
                Err(TryLockError::Error(_)) => {}
            }
        }
        held.push(of_folder);
    }
    Ok(held)
}

fn in_use(shown: &str, who: &[String]) -> Failure {
    let who = if who.is_empty() { "another process".to_owned() } else { who.join(", ") };
    Failure::new(Exit::Failed, format!("{shown}: in use by {who}; end that first, nothing was removed"))
}

fn refuse_open_files(shown: &str, folders: &[Folder]) -> Outcome {
    let files = folders.iter().flat_map(|folder| &folder.files).map(|(file, _)| file.clone());
    let who = stores::users(&files.collect::<Vec<_>>());
    if who.is_empty() { Ok(()) } else { Err(in_use(shown, &who)) }
}

/// What describes the store: its manifest, or the journal of an unfinished one.
fn description(path: &Path) -> Option<Value> {
    stores::json_of(&path.join(MANIFEST_NAME))
        .or_else(|| stores::json_of(&path.join(stores::JOURNAL))?.get("task").cloned())
}

fn is_unfinished(path: &Path) -> bool {
    stores::is_partial(&path.file_name().unwrap_or_default().to_string_lossy())
}

/// Folders beside the store's own in which it says that it has files.
fn stripes(path: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    if let Some(described) = description(path) {
        collect_folders(&described, &mut folders);
        let of_journal = described.get("folders").and_then(Value::as_array).into_iter().flatten();
        folders.extend(of_journal.filter_map(Value::as_str).map(PathBuf::from));
    }
    // While it is made, a stripe's folder has another name.
    let partial = folders.iter().map(|folder| folder.with_added_extension("partial")).collect::<Vec<_>>();
    folders.extend(partial.into_iter().filter(|folder| folder.is_dir()));
    folders.retain(|folder| folder.is_absolute() && folder != path);
    folders.sort();
    folders.dedup();
    folders
}

/// Every `"folder"` of the manifest's lists of files.
fn collect_folders(value: &Value, folders: &mut Vec<PathBuf>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(folder) if key == "folder" => folders.push(folder.into()),
                    _ => collect_folders(value, folders),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_folders(value, folders)),
        _ => {}
    }
}

/// A stripe's folder, if it says itself that it belongs to this store.
fn look_at_stripe(store: &Path, path: &Path) -> Result<Folder, String> {
    let metadata = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_dir() {
        return Err("it is no folder".to_owned());
    }
    let id = |value: Option<Value>| Some(value?.get("store_id")?.as_str()?.to_owned());
    match (id(description(store)), id(stores::json_of(&path.join(STRIPE_NAME)))) {
        (Some(of_store), Some(of_stripe)) if of_store == of_stripe => {
            ours(path, STRIPE_NAME, is_stripe_file, None)
        }
        (_, Some(_)) => Err("it belongs to another store".to_owned()),
        (_, None) => Err(format!("it has no {STRIPE_NAME} that can be read")),
    }
}

fn confirm(is_agreed: bool, shown: &str, folders: &[Folder], bytes: u64) -> Outcome {
    if is_agreed {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(format!("{shown}: there is nobody to ask: say --yes to remove it")));
    }
    let others = folders[1..].iter().filter(|folder| !folder.path.starts_with(&folders[0].path));
    let stripes = match others.count() {
        0 => String::new(),
        count => format!(" and {count} stripes"),
    };
    let mut stderr = io::stderr();
    // Whether the question was seen shows in the answer.
    let asked = escaped_line(&format!("Remove {shown}{stripes}, {}? [y/N] ", display_bytes(bytes)));
    let _ = write!(stderr, "{asked}");
    let _ = stderr.flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    match (read, answer.trim().to_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Ok(()),
        _ => Err(Failure::new(Exit::Failed, format!("{shown}: nothing was removed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_ingests_are_known_by_name() {
        for name in
            ["manifest.json", "header.bin", "dense.bin", "experts.bin", "experts-0.bin", "experts-12.bin"]
        {
            assert!(is_store_file(name), "{name}");
        }
        for name in
            ["notes.txt", "experts-.bin", "experts-1a.bin", "experts.bin.bak", "model.gguf", ".bashrc"]
        {
            assert!(!is_store_file(name), "{name}");
        }
    }

    #[test]
    fn stripes_are_the_absolute_folders_of_a_manifest_or_a_journal() {
        let store = tempfile::tempdir().unwrap();
        let files = json!([
            { "folder": null, "name": "experts-0.bin" },
            { "folder": "/var/b/x.stripe", "name": "experts-1.bin" },
            { "folder": "../y", "name": "experts-2.bin" },
        ]);
        fs::write(
            store.path().join(stores::JOURNAL),
            json!({ "task": { "folders": [null, "/var/c"] } }).to_string(),
        )
        .unwrap();
        assert_eq!(stripes(store.path()), [PathBuf::from("/var/c")]);
        let manifest = json!({ "experts": { "files": files } });
        fs::write(store.path().join(MANIFEST_NAME), manifest.to_string()).unwrap();
        assert_eq!(stripes(store.path()), [PathBuf::from("/var/b/x.stripe")]);
    }
}
