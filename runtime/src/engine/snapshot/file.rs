//! Snapshots as files.
//!
//! - In: a [`Snapshot`] and a path; or a path, and the model that it must be of. Out: a file, which appears whole or not at all; or
//!   the same snapshot.
//! - Invariants: every byte is covered by a checksum or compared with what it must be. Counts are bounded, then compared with the
//!   file's length, before anything is made room for. Each sum covers the sum before it too, so that
//!   sections of two files do not mix.
//!
//! ```text
//! magic:8  version:u32  head_bytes:u32  model:32  row_bytes:u32  layers:u32  tokens:u32  cuts:u32
//! window:u32 x layers (0: none)   (position:u32 slack:u32) x cuts   sum:16 of all before        = head_bytes
//! tokens:u32 x tokens  sum:16
//! for each full layer:                     keys  sum:16  values  sum:16
//! for each cut, for each sliding layer:    keys  sum:16  values  sum:16
//! ```
//!
//! Numbers are little-endian, sums XXH3-128. There is no padding.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use twox_hash::XxHash3_128;

use crate::base::ids::TokenId;
use crate::base::limits::{CONTEXT_MAX, LAYERS_MAX};
use crate::engine::snapshot::SnapshotError;
use crate::engine::snapshot::moving::new_plane;
use crate::engine::snapshot::shape::{CacheShape, CutMark};
use crate::engine::snapshot::value::{CUTS_MAX, Cut, Snapshot, reach};
use crate::store::Sha256Digest;

const MAGIC: [u8; 8] = *b"FLINT-KV";

const VERSION: u32 = 1;

/// Up to the windows.
const FIXED_BYTES: usize = 64;

const SUM_BYTES: u64 = 16;

/// Bytes between two looks at whether writing is given up.
const WRITE_BYTES: usize = 8 << 20;

/// The end of a name under which a file is written before it gets its own.
pub const PARTIAL: &str = ".flint-kv-partial";

/// What a file says of itself, without the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The model that it is of.
    pub model: Sha256Digest,
    /// Its layers.
    pub shape: CacheShape,
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// Its cuts.
    pub marks: Vec<CutMark>,
}

impl SnapshotHead {
    /// Reads it. Whether the rows are whole is not looked at, but for their length.
    ///
    /// # Errors
    /// When the file cannot be read, is no whole snapshot, or of another model than `wanted`.
    pub fn read(path: &Path, wanted: (Sha256Digest, &CacheShape)) -> Result<Self, SnapshotError> {
        Reader::open(path, wanted).map(|reader| reader.head)
    }

    /// As [`Snapshot::reach`].
    pub fn reach(&self, ids: &[TokenId]) -> u32 {
        reach(&self.shape, &self.tokens, &self.marks, ids)
    }

    /// As [`Snapshot::bytes`].
    pub fn bytes(&self) -> u64 {
        let tokens = u32::try_from(self.tokens.len()).expect("invariant: a context is a u32");
        let cuts: u64 = self.marks.iter().map(|mark| self.shape.cut_bytes(*mark)).sum();
        self.shape.full_bytes(tokens) + u64::from(tokens) * 4 + cuts
    }
}

impl Snapshot {
    /// Writes it under another name, syncs it, and gives it its own, which may be taken already. Only its owner can read it.
    /// Returns its bytes. `is_given_up` is asked now and then.
    ///
    /// # Errors
    /// When the drive fails, or writing is given up. What was there under the name is then untouched.
    pub fn save(&self, path: &Path, is_given_up: &dyn Fn() -> bool) -> Result<u64, SnapshotError> {
        let partial = partial_path(path);
        let written = self.write(&partial, is_given_up).and_then(|bytes| {
            fs::rename(&partial, path).map_err(failed("rename", &partial))?;
            Ok(bytes)
        });
        if written.is_err() {
            // Left behind by a full drive it would keep the drive full.
            let _ = fs::remove_file(&partial);
        }
        let bytes = written?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))?;
        Ok(bytes)
    }

    fn write(&self, path: &Path, is_given_up: &dyn Fn() -> bool) -> Result<u64, SnapshotError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(failed("make", path))?;
        // Says that it is being written; where there are no locks nobody can ask.
        let _ = file.try_lock();
        let mut writer = Writer { file: &file, path, is_given_up, written: 0 };
        let (head, mut sum) = self.head();
        writer.write(&head)?;
        for section in self.sections() {
            sum = section_sum(sum, &section);
            writer.write(&section)?;
            writer.write(&sum.to_le_bytes())?;
        }
        let written = writer.written;
        file.sync_all().map_err(failed("sync", path))?;
        Ok(written)
    }

    fn head(&self) -> (Vec<u8>, u128) {
        let number = |len: usize| u32::try_from(len).expect("invariant: bounded by limits").to_le_bytes();
        let mut head = Vec::new();
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        let head_bytes = head_bytes(self.shape.windows.len(), self.cuts.len());
        head.extend(number(head_bytes));
        head.extend(self.model.0);
        head.extend(self.shape.row_bytes.to_le_bytes());
        head.extend(number(self.shape.windows.len()));
        head.extend(number(self.tokens.len()));
        head.extend(number(self.cuts.len()));
        head.extend(self.shape.windows.iter().flat_map(|window| window.unwrap_or(0).to_le_bytes()));
        for cut in &self.cuts {
            head.extend(cut.mark.position.to_le_bytes());
            head.extend(cut.mark.slack.to_le_bytes());
        }
        let sum = XxHash3_128::oneshot(&head);
        head.extend(sum.to_le_bytes());
        assert_eq!(head.len(), head_bytes, "a head is as long as it says");
        (head, sum)
    }

    fn sections(&self) -> impl Iterator<Item = std::borrow::Cow<'_, [u8]>> {
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        let planes = self.planes.iter().chain(self.cuts.iter().flat_map(|cut| &cut.planes));
        std::iter::once(tokens.into()).chain(planes.map(|plane| plane.as_slice().into()))
    }

    /// Bytes of its file.
    pub fn file_bytes(&self) -> u64 {
        let marks: Vec<CutMark> = self.cuts.iter().map(|cut| cut.mark).collect();
        file_bytes(&self.shape, self.tokens.len() as u64, &marks)
    }

    /// Reads one.
    ///
    /// # Errors
    /// When the file cannot be read, is not whole, or of another model than `wanted`.
    pub fn load(path: &Path, wanted: (Sha256Digest, &CacheShape)) -> Result<Self, SnapshotError> {
        let mut reader = Reader::open(path, wanted)?;
        let SnapshotHead { model, shape, tokens, marks, .. } = reader.head.clone();
        let tokens_len = tokens.len() as u64;
        let row_bytes = u64::from(shape.row_bytes);
        let full = 2 * shape.full_layers().count();
        let planes = (0..full)
            .map(|_| reader.section("rows of a full layer", tokens_len * row_bytes))
            .collect::<Result<_, _>>()?;
        let mut cuts = Vec::new();
        for mark in marks {
            let mut planes = Vec::new();
            for (_, window) in shape.sliding_layers() {
                let bytes = u64::from(mark.position - mark.first(window)) * row_bytes;
                for _ in 0..2 {
                    planes.push(reader.section("rows of a sliding layer", bytes)?);
                }
            }
            cuts.push(Arc::new(Cut { mark, planes }));
        }
        Ok(Self { model, shape, tokens, planes, cuts })
    }
}

/// Beside `path`, a name that nobody else uses.
fn partial_path(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}-{}{PARTIAL}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

/// Whether the file at `path` begins as a snapshot does; a link is not followed.
pub fn is_snapshot(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
        && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == MAGIC
}

/// Removes what a killed process left half written in `folder`, but not what others are writing now. Returns how many files.
pub fn remove_partial(folder: &Path) -> usize {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_left = |path: &PathBuf| {
        path.as_os_str().as_encoded_bytes().ends_with(PARTIAL.as_bytes())
            && fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
            && File::open(path).is_ok_and(|file| file.try_lock().is_ok())
    };
    names.map(|entry| entry.path()).filter(is_left).filter(|path| fs::remove_file(path).is_ok()).count()
}

fn failed<'p>(what: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> SnapshotError + use<'p> {
    move |source| SnapshotError::Io { what, path: path.to_owned(), source }
}

fn head_bytes(layers: usize, cuts: usize) -> usize {
    FIXED_BYTES + 4 * layers + 8 * cuts + 16
}

/// Of a section behind what has the sum `before`.
fn section_sum(before: u128, bytes: &[u8]) -> u128 {
    let mut sum = XxHash3_128::new();
    sum.write(&before.to_le_bytes());
    sum.write(bytes);
    sum.finish_128()
}

struct Writer<'a> {
    file: &'a File,
    path: &'a Path,
    is_given_up: &'a dyn Fn() -> bool,
    written: u64,
}

impl Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        for piece in bytes.chunks(WRITE_BYTES) {
            if (self.is_given_up)() {
                return Err(SnapshotError::GivenUp);
            }
            self.file.write_all(piece).map_err(failed("write", self.path))?;
            self.written += piece.len() as u64;
        }
        Ok(())
    }
}

/// A file whose head and tokens are known to be whole.
struct Reader<'a> {
    file: File,
    path: &'a Path,
    head: SnapshotHead,
    /// Of the head, or of the section that was read last.
    sum: u128,
    section: u32,
}

impl<'a> Reader<'a> {
    fn open(path: &'a Path, (model, shape): (Sha256Digest, &CacheShape)) -> Result<Self, SnapshotError> {
        let mut file = File::open(path).map_err(failed("open", path))?;
        let len_bytes = file.metadata().map_err(failed("read", path))?.len();
        let mut head = vec![0; FIXED_BYTES];
        let is_short = len_bytes < FIXED_BYTES as u64;
        if !is_short {
            file.read_exact(&mut head).map_err(failed("read", path))?;
        }
        let word = |bytes: &[u8], at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"))
        };
        if is_short || head[..8] != MAGIC {
            return Err(SnapshotError::NotASnapshot { path: path.to_owned() });
        }
        let version = word(&head, 8);
        if version != VERSION {
            return Err(SnapshotError::OtherVersion { path: path.to_owned(), wanted: VERSION, got: version });
        }
        let within = |what, at, most: u32| match word(&head, at) {
            got if got > most => {
                let (wanted, got) = (most.into(), got.into());
                Err(SnapshotError::BadHead { path: path.to_owned(), what, wanted, got })
            }
            got => Ok(got as usize),
        };
        let layers = within("number of layers", 52, LAYERS_MAX)?;
        let tokens = within("number of tokens", 56, CONTEXT_MAX)?;
        let cuts_max = u32::try_from(CUTS_MAX).expect("invariant: a few");
        let cuts = within("number of cuts", 60, cuts_max)?;
        let head_bytes = head_bytes(layers, cuts);
        let short = |wanted| SnapshotError::OtherLength { path: path.to_owned(), wanted, got: len_bytes };
        if len_bytes < head_bytes as u64 {
            return Err(short(head_bytes as u64));
        }
        head.resize(head_bytes, 0);
        file.read_exact(&mut head[FIXED_BYTES..]).map_err(failed("read", path))?;
        let (told, sum) = head.split_at(head_bytes - 16);
        let wanted_sum = u128::from_le_bytes(sum.try_into().expect("invariant: sixteen bytes"));
        let head_sum = XxHash3_128::oneshot(told);
        if head_sum != wanted_sum {
            let what = "the head".to_owned();
            return Err(SnapshotError::Damaged {
                path: path.to_owned(),
                what,
                wanted: wanted_sum,
                got: head_sum,
            });
        }

        // What it says is what was written; now whether that can be used.
        let got = Sha256Digest(told[16..48].try_into().expect("invariant: 32 bytes"));
        if got != model {
            return Err(SnapshotError::OtherModel { wanted: model, got });
        }
        let windows = told[FIXED_BYTES..][..4 * layers].chunks_exact(4);
        let windows = windows.map(|bytes| Some(word(bytes, 0)).filter(|window| *window > 0)).collect();
        let told_shape = CacheShape { row_bytes: word(told, 48), windows };
        if told_shape != *shape {
            let (wanted, got) = (shape.to_string(), told_shape.to_string());
            return Err(SnapshotError::OtherShape { wanted, got });
        }
        let marks = told[FIXED_BYTES + 4 * layers..].chunks_exact(8);
        let marks: Vec<_> =
            marks.map(|bytes| CutMark { position: word(bytes, 0), slack: word(bytes, 4) }).collect();
        for mark in &marks {
            if mark.position as usize > tokens || mark.slack > mark.position {
                let (wanted, got) = (tokens as u64, mark.position.max(mark.slack).into());
                return Err(SnapshotError::BadHead { path: path.to_owned(), what: "cut", wanted, got });
            }
        }
        let mut head = SnapshotHead { model, shape: told_shape, tokens: Vec::new(), marks };
        let wanted = file_bytes(&head.shape, tokens as u64, &head.marks);
        if wanted != len_bytes {
            return Err(short(wanted));
        }
        let mut reader = Self { file, path, head: head.clone(), sum: head_sum, section: 0 };
        let tokens = reader.section("the list of tokens", tokens as u64 * 4)?;
        head.tokens = tokens.chunks_exact(4).map(|id| word(id, 0)).collect();
        reader.head = head;
        Ok(reader)
    }

    /// The next section, of `bytes`, which lie in the file.
    fn section(&mut self, what: &str, bytes: u64) -> Result<Vec<u8>, SnapshotError> {
        let mut section = new_plane(bytes)?;
        let mut sum = [0; 16];
        (&mut self.file).take(bytes).read_to_end(&mut section).map_err(failed("read", self.path))?;
        // It was long enough a moment ago.
        self.file.read_exact(&mut sum).map_err(failed("read", self.path))?;
        let wanted = u128::from_le_bytes(sum);
        let got = section_sum(self.sum, &section);
        if got != wanted || section.len() as u64 != bytes {
            let what = format!("section {} ({what})", self.section);
            return Err(SnapshotError::Damaged { path: self.path.to_owned(), what, wanted, got });
        }
        (self.sum, self.section) = (got, self.section + 1);
        Ok(section)
    }
}

/// Bytes of a file with these contents.
fn file_bytes(shape: &CacheShape, tokens: u64, marks: &[CutMark]) -> u64 {
    let tokens_bytes = tokens * (4 + 2 * shape.full_layers().count() as u64 * u64::from(shape.row_bytes));
    let cuts: u64 = marks.iter().map(|mark| shape.cut_bytes(*mark)).sum();
    let sections =
        1 + 2 * (shape.full_layers().count() + shape.sliding_layers().count() * marks.len()) as u64;
    head_bytes(shape.windows.len(), marks.len()) as u64 + tokens_bytes + cuts + sections * SUM_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Sha256Digest = Sha256Digest([7; 32]);

    fn shape() -> CacheShape {
        CacheShape { row_bytes: 4, windows: vec![None, Some(3), None] }
    }

    fn snapshot() -> Snapshot {
        let shape = shape();
        let mut next = 0_u8;
        let mut plane = |bytes: usize| -> Vec<u8> {
            (0..bytes)
                .map(|_| {
                    next = next.wrapping_mul(5).wrapping_add(3);
                    next
                })
                .collect()
        };
        let cut = |mark: CutMark, plane: &mut dyn FnMut(usize) -> Vec<u8>| {
            let rows = (mark.position - mark.first(3)) as usize;
            Arc::new(Cut { mark, planes: vec![plane(rows * 4), plane(rows * 4)] })
        };
        let planes = (0..4).map(|_| plane(6 * 4)).collect();
        let cuts = vec![
            cut(CutMark { position: 4, slack: 0 }, &mut plane),
            cut(CutMark { position: 6, slack: 1 }, &mut plane),
        ];
        Snapshot { model: MODEL, shape, tokens: vec![5, 1, 4, 1, 5, 9], planes, cuts }
    }

    fn saved(folder: &Path) -> (PathBuf, Vec<u8>) {
        let path = folder.join("kept");
        let bytes = snapshot().save(&path, &|| false).expect("written");
        let content = fs::read(&path).expect("read");
        assert_eq!((bytes, snapshot().file_bytes()), (content.len() as u64, bytes));
        (path, content)
    }

    #[test]
    fn what_is_written_comes_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, _) = saved(folder.path());
        let loaded = Snapshot::load(&path, (MODEL, &shape())).expect("read");
        assert_eq!(loaded, snapshot());
        let head = SnapshotHead::read(&path, (MODEL, &shape())).expect("read");
        assert_eq!((head.tokens.as_slice(), head.bytes()), (loaded.tokens(), loaded.bytes()));
        for ids in [&[5, 1, 4, 1, 5, 9, 2][..], &[5, 1, 4, 1, 5, 8], &[5, 1, 4, 1, 8], &[5, 1, 4, 8], &[]] {
            assert_eq!(head.reach(ids), loaded.reach(ids), "{ids:?}");
        }
        assert_eq!(loaded.reach(&[5, 1, 4, 1, 5, 8]), 5);
        assert!(is_snapshot(&path) && !is_snapshot(folder.path()) && !is_snapshot(&folder.path().join("no")));
        // A name that is taken is taken over, and nothing else is left in the folder.
        snapshot().save(&path, &|| false).expect("written again");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn every_flip_and_every_cut_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, content) = saved(folder.path());
        let load = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("written");
            let head = SnapshotHead::read(&path, (MODEL, &shape()));
            let loaded = Snapshot::load(&path, (MODEL, &shape()));
            assert!(loaded.is_err() || head.is_ok(), "a whole file has a whole head");
            loaded
        };
        assert!(load(&content).is_ok());
        for at in 0..content.len() {
            for bit in 0..8 {
                let mut flipped = content.clone();
                flipped[at] ^= 1 << bit;
                assert!(load(&flipped).is_err(), "bit {bit} of byte {at}");
            }
            assert!(load(&content[..at]).is_err(), "cut off at {at}");
        }
        let mut longer = content.clone();
        longer.push(0);
        assert!(matches!(load(&longer), Err(SnapshotError::OtherLength { .. })));
        // Counts that would take terabytes are compared with what there is.
        let mut huge = content.clone();
        huge[56..60].copy_from_slice(&CONTEXT_MAX.to_le_bytes());
        assert!(matches!(load(&huge), Err(SnapshotError::Damaged { .. })));
        huge[56..60].copy_from_slice(&u32::MAX.to_le_bytes());
        let refused = load(&huge).expect_err("too many");
        assert!(refused.to_string().contains("number of tokens of 4294967295"), "{refused}");
    }

    #[test]
    fn sections_of_two_files_do_not_mix() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, content) = saved(folder.path());
        let mut other = snapshot();
        other.tokens[0] = 6;
        let other_path = folder.path().join("other");
        other.save(&other_path, &|| false).expect("written");
        let other = fs::read(&other_path).expect("read");
        assert_eq!(other.len(), content.len());
        // Rows and sums of one behind head and tokens of the other; and two planes of one exchanged.
        let planes = head_bytes(3, 2) + 6 * 4 + 16;
        let mixed = [&content[..planes], &other[planes..]].concat();
        let plane = 6 * 4 + 16;
        let mut swapped = content.clone();
        swapped[planes..planes + plane].copy_from_slice(&content[planes + plane..planes + 2 * plane]);
        swapped[planes + plane..planes + 2 * plane].copy_from_slice(&content[planes..planes + plane]);
        for bytes in [mixed, swapped] {
            fs::write(&path, &bytes).expect("written");
            let loaded = Snapshot::load(&path, (MODEL, &shape()));
            assert!(matches!(loaded, Err(SnapshotError::Damaged { .. })), "{loaded:?}");
        }
    }

    #[test]
    fn others_are_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, mut content) = saved(folder.path());
        let refused =
            |wanted: (Sha256Digest, &CacheShape)| Snapshot::load(&path, wanted).expect_err("another");
        let other = Sha256Digest([8; 32]);
        let error = refused((other, &shape()));
        assert!(
            matches!(error, SnapshotError::OtherModel { wanted, got } if wanted == other && got == MODEL)
        );
        let wide = CacheShape { row_bytes: 8, ..shape() };
        assert!(matches!(refused((MODEL, &wide)), SnapshotError::OtherShape { .. }));
        content[8] = 2;
        fs::write(&path, &content).expect("written");
        let error = refused((MODEL, &shape()));
        assert!(matches!(error, SnapshotError::OtherVersion { wanted: 1, got: 2, .. }), "{error}");
        fs::write(&path, b"GGUF").expect("written");
        assert!(matches!(refused((MODEL, &shape())), SnapshotError::NotASnapshot { .. }));
        assert!(matches!(
            Snapshot::load(folder.path(), (MODEL, &shape())),
            Err(SnapshotError::Io { .. } | SnapshotError::NotASnapshot { .. })
        ));
    }

    #[test]
    fn what_is_given_up_or_killed_leaves_nothing_half() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, content) = saved(folder.path());
        assert!(matches!(snapshot().save(&path, &|| true), Err(SnapshotError::GivenUp)));
        assert_eq!(fs::read(&path).expect("read"), content);
        let left = folder.path().join(".kept.1-2.flint-kv-partial");
        fs::write(&left, b"half").expect("written");
        let held = folder.path().join(".kept.1-3.flint-kv-partial");
        fs::write(&held, b"half").expect("written");
        let writing = File::open(&held).expect("open");
        writing.lock().expect("a lock");
        assert_eq!(remove_partial(folder.path()), 1);
        assert!(!left.exists() && held.exists() && path.exists());
        assert_eq!(remove_partial(&folder.path().join("nowhere")), 0);
    }
}
