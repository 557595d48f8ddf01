//! A drive in memory that can be cut from power, or fail, at any of its operations.
//!
//! - Owns: its files, twice: as programs see them, and as they would be found after a power loss. In: operations, a seed.
//! - Out: answers like a file system's; after [`SimulatedDrive::cut_power`], what a drive may have kept.
//! - Invariants: only what was synced is sure to be kept. Of what was not, each block of each write and each change of a
//!   name is kept or lost by itself, whatever their order was: more than real file systems do.
//!
//! A sync that fails loses some of what it was to keep, and says so once: the next one succeeds, as on Linux.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::drive::{Drive, DriveFile, Entry, LockAnswer};
use crate::store::record::BLOCK_BYTES;

/// What happens at an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// From this operation on, which may have been carried out in part, nothing works.
    PowerLoss,
    /// This operation fails with an error of the system (`libc::ENOSPC`, ...).
    Error(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    Folder,
    File(usize),
}

#[derive(Debug, Clone)]
enum NameChange {
    Made(PathBuf, Node),
    Removed(PathBuf),
    Renamed(PathBuf, PathBuf),
}

#[derive(Debug, Default)]
struct FileState {
    seen: Vec<u8>,
    kept: Vec<u8>,
    /// Blocks that were written since the last sync, in their order.
    unsure: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug, Default)]
struct World {
    seen: BTreeMap<PathBuf, Node>,
    kept: BTreeMap<PathBuf, Node>,
    unsure: Vec<NameChange>,
    files: Vec<FileState>,
    free_bytes: u64,
    operations: u64,
    fault: Option<(u64, Fault)>,
    is_off: bool,
    random: u64,
}

/// The drive. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SimulatedDrive(Arc<Mutex<World>>);

impl SimulatedDrive {
    /// An empty drive with a folder at `root`, whose every choice follows from `seed`.
    pub fn new(root: &Path, seed: u64) -> Self {
        let drive = Self::default();
        let mut world = drive.world();
        (world.free_bytes, world.random) = (1 << 50, seed);
        for folder in root.ancestors() {
            world.seen.insert(folder.to_owned(), Node::Folder);
            world.kept.insert(folder.to_owned(), Node::Folder);
        }
        drop(world);
        drive
    }

    /// Lets operation `number`, counted from 0 and from now, be hit by `fault`.
    pub fn fail_at(&self, number: u64, fault: Fault) {
        let mut world = self.world();
        world.fault = Some((world.operations + number, fault));
    }

    /// Operations so far that change something.
    pub fn operations(&self) -> u64 {
        self.world().operations
    }

    /// Bytes that the drive says are free.
    pub fn set_free_bytes(&self, free_bytes: u64) {
        self.world().free_bytes = free_bytes;
    }

    /// Ends the power and lets it come back: from now on, the drive is what it kept.
    pub fn cut_power(&self) {
        let mut world = self.world();
        let World { kept, unsure, files, random, .. } = &mut *world;
        for change in unsure.drain(..) {
            if flip(random) {
                apply(kept, &change);
            }
        }
        // What lies in a folder that was not kept is not there, either.
        let paths: Vec<PathBuf> = kept.keys().cloned().collect();
        for path in paths {
            if path.parent().is_some_and(|parent| kept.get(parent) != Some(&Node::Folder)) {
                kept.remove(&path);
            }
        }
        for file in files {
            for (offset, bytes) in file.unsure.drain(..) {
                if flip(random) {
                    put(&mut file.kept, offset, &bytes);
                }
            }
            file.seen = file.kept.clone();
        }
        world.seen = world.kept.clone();
        (world.is_off, world.fault) = (false, None);
    }

    /// Writes what is seen below `from` into the real folder `to`.
    ///
    /// # Errors
    /// The real file system fails.
    pub fn export(&self, from: &Path, to: &Path) -> io::Result<()> {
        let world = self.world();
        for (path, node) in &world.seen {
            let Ok(below) = path.strip_prefix(from) else { continue };
            let target = to.join(below);
            match *node {
                Node::Folder => std::fs::create_dir_all(target)?,
                Node::File(file) => std::fs::write(target, &world.files[file].seen)?,
            }
        }
        Ok(())
    }

    /// Paths of all that is seen below `from`, sorted.
    pub fn paths(&self, from: &Path) -> Vec<PathBuf> {
        let world = self.world();
        world.seen.keys().filter(|path| path.starts_with(from) && *path != from).cloned().collect()
    }

    /// The bytes of a file, if there is one.
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let world = self.world();
        match world.seen.get(path) {
            Some(&Node::File(file)) => Some(world.files[file].seen.clone()),
            _ => None,
        }
    }

    /// Flips a bit of a file, on the drive itself.
    ///
    /// # Panics
    /// When there is no such file, or it has no such byte.
    pub fn flip_bit(&self, path: &Path, byte: usize, bit: u8) {
        let mut world = self.world();
        let Some(&Node::File(file)) = world.seen.get(path) else { panic!("there is no {}", path.display()) };
        let file = &mut world.files[file];
        file.seen[byte] ^= 1 << bit;
        file.kept[byte] ^= 1 << bit;
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// Counts an operation. `Ok(false)`: it is the last one, and may do its work in part.
    fn begin(&mut self) -> io::Result<bool> {
        if self.is_off {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let number = self.operations;
        self.operations += 1;
        match self.fault {
            Some((at, Fault::PowerLoss)) if at == number => {
                self.is_off = true;
                Ok(false)
            }
            Some((at, Fault::Error(errno))) if at == number => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(true),
        }
    }

    fn change(&mut self, change: NameChange) -> io::Result<()> {
        let is_on = self.begin()?;
        if is_on || flip(&mut self.random) {
            apply(&mut self.seen, &change);
            self.unsure.push(change);
        }
        answer(is_on)
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.seen.get(path) {
            Some(&Node::File(file)) => Ok(file),
            Some(Node::Folder) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn check_parent(&self, path: &Path) -> io::Result<()> {
        match path.parent().and_then(|parent| self.seen.get(parent)) {
            Some(Node::Folder) => Ok(()),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }
}

fn answer(is_on: bool) -> io::Result<()> {
    if is_on { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
}

/// A coin, by SplitMix64.
fn flip(state: &mut u64) -> bool {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) & 1 == 1
}

fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if bytes.len() < offset + new.len() {
        bytes.resize(offset + new.len(), 0);
    }
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

/// A change that makes no sense any more, because one before it was lost, is lost, too.
fn apply(names: &mut BTreeMap<PathBuf, Node>, change: &NameChange) {
    match change {
        NameChange::Made(path, node) => {
            names.insert(path.clone(), *node);
        }
        NameChange::Removed(path) => {
            names.remove(path);
        }
        NameChange::Renamed(from, to) => {
            let moved: Vec<_> = names.keys().filter(|path| path.starts_with(from)).cloned().collect();
            for path in moved {
                let node = names.remove(&path).expect("invariant: its key was just read");
                let below = path.strip_prefix(from).expect("invariant: filtered by it");
                let target = if below == Path::new("") { to.clone() } else { to.join(below) };
                names.insert(target, node);
            }
        }
    }
}

/// The folders that hold the names that a change is about.
fn is_of(change: &NameChange, folder: &Path) -> bool {
    match change {
        NameChange::Made(path, _) | NameChange::Removed(path) => path.parent() == Some(folder),
        NameChange::Renamed(from, to) => from.parent() == Some(folder) || to.parent() == Some(folder),
    }
}

impl Drive for SimulatedDrive {
    fn free_bytes(&self, _folder: &Path) -> io::Result<u64> {
        Ok(self.world().free_bytes)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        let world = self.world();
        if world.is_off {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(world.seen.get(path).map(|node| match *node {
            Node::Folder => Entry::Folder,
            Node::File(file) => Entry::File(world.files[file].seen.len() as u64),
        }))
    }

    fn read_at(&self, path: &Path, offset_bytes: u64, target: &mut [u8]) -> io::Result<()> {
        let world = self.world();
        if world.is_off {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let bytes = &world.files[world.file(path)?].seen;
        let start = usize::try_from(offset_bytes).map_err(|_| ErrorKind::UnexpectedEof)?;
        let end = start.checked_add(target.len()).filter(|end| *end <= bytes.len());
        target.copy_from_slice(&bytes[start..end.ok_or(ErrorKind::UnexpectedEof)?]);
        Ok(())
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.check_parent(path)?;
        if world.seen.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        world.change(NameChange::Made(path.to_owned(), Node::Folder))
    }

    fn create_file(&self, path: &Path, len_bytes: u64) -> io::Result<Box<dyn DriveFile>> {
        let mut world = self.world();
        world.check_parent(path)?;
        if world.seen.get(path) == Some(&Node::Folder) {
            return Err(ErrorKind::IsADirectory.into());
        }
        let len = usize::try_from(len_bytes).map_err(|_| ErrorKind::FileTooLarge)?;
        let number = world.files.len();
        // Its length is unsure, too: until it is synced, a power loss may leave an empty file.
        world.files.push(FileState { seen: vec![0; len], kept: Vec::new(), unsure: vec![(0, vec![0; len])] });
        world.change(NameChange::Made(path.to_owned(), Node::File(number)))?;
        Ok(Box::new(SimulatedFile { drive: self.clone(), number }))
    }

    fn open_file(&self, path: &Path) -> io::Result<Box<dyn DriveFile>> {
        let number = self.world().file(path)?;
        Ok(Box::new(SimulatedFile { drive: self.clone(), number }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.check_parent(to)?;
        match (world.seen.get(from), world.seen.get(to)) {
            (None, _) => Err(ErrorKind::NotFound.into()),
            (Some(Node::File(_)), None | Some(Node::File(_))) | (Some(Node::Folder), None) => {
                world.change(NameChange::Renamed(from.to_owned(), to.to_owned()))
            }
            _ => Err(ErrorKind::AlreadyExists.into()),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        let below: Vec<_> = world.seen.keys().filter(|other| other.starts_with(path)).cloned().collect();
        // From the leaves to the root, as a file system asks for.
        below.into_iter().rev().try_for_each(|path| world.change(NameChange::Removed(path)))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let mut world = self.world();
        if !world.begin()? {
            return answer(false);
        }
        let World { kept, unsure, .. } = &mut *world;
        unsure.retain(|change| {
            let is_kept = is_of(change, folder);
            if is_kept {
                apply(kept, change);
            }
            !is_kept
        });
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<LockAnswer> {
        self.create_file(path, 0)?;
        Ok(LockAnswer::Held(Box::new(())))
    }
}

#[derive(Debug)]
struct SimulatedFile {
    drive: SimulatedDrive,
    number: usize,
}

impl DriveFile for SimulatedFile {
    fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        let mut world = self.drive.world();
        let is_on = world.begin()?;
        let offset = usize::try_from(offset_bytes).map_err(|_| ErrorKind::FileTooLarge)?;
        let World { files, random, .. } = &mut *world;
        let file = &mut files[self.number];
        let mut at = 0;
        while at < bytes.len() {
            // A drive keeps a block whole or not at all.
            let len = (BLOCK_BYTES - (offset + at) % BLOCK_BYTES).min(bytes.len() - at);
            if is_on || flip(random) {
                put(&mut file.seen, offset + at, &bytes[at..at + len]);
                file.unsure.push((offset + at, bytes[at..at + len].to_vec()));
            }
            at += len;
        }
        answer(is_on)
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.drive.world();
        let begun = world.begin();
        let World { files, random, .. } = &mut *world;
        let file = &mut files[self.number];
        match begun {
            Ok(true) => {
                for (offset, bytes) in file.unsure.drain(..) {
                    put(&mut file.kept, offset, &bytes);
                }
                Ok(())
            }
            Ok(false) => answer(false),
            Err(error) => {
                // The pages count as clean from now on, whether or not they went out.
                for (offset, bytes) in file.unsure.drain(..) {
                    if flip(random) {
                        put(&mut file.kept, offset, &bytes);
                    }
                }
                Err(error)
            }
        }
    }
}
