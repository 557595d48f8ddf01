//! The profile of a drive: what it gave for the runtime's reads, kept as one JSON file a drive and record size.
//!
//! - Owns: the structures and their file. In: what the program's `disk-profile` measured. Out: the same, read back by
//!   whoever wants a drive's rates: `plan`, `bench`.
//! - Invariants: plain numbers, no measuring here. A file appears whole or not at all: written beside, synced, renamed. A
//!   file of another schema is refused, never guessed at.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::drive_identity::DriveIdentity;
use super::{DiskError, ReadPath};

/// The version of these structures; it changes when a key changes its meaning or goes.
pub const PROFILE_SCHEMA_VERSION: u32 = 1;

/// Longest file that is read. A full matrix has some 300 rows of 400 B, a long run a sample a second.
const PROFILE_BYTES_MAX: u64 = 16 << 20;

/// In which order blocks were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Every block once, in random order, before any is read again.
    Random,
    /// One after the other.
    Sequential,
}

/// By which calls blocks were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadEngine {
    /// io_uring with registered buffers and files: the product's first choice.
    Ring,
    /// io_uring with nothing registered.
    RingPlain,
    /// Threads that call pread, past the page cache.
    Pool,
    /// Threads that call pread, through the page cache, which is emptied of the file before.
    Buffered,
    /// Threads that touch a mapping of the file, whose cached pages are dropped before.
    Mmap,
}

impl ReadEngine {
    /// All of them, the product's first.
    pub const ALL: [Self; 5] = [Self::Ring, Self::RingPlain, Self::Pool, Self::Buffered, Self::Mmap];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::RingPlain => "ring-plain",
            Self::Pool => "pool",
            Self::Buffered => "buffered",
            Self::Mmap => "mmap",
        }
    }

    /// The product's path that it is; nothing where the page cache is between.
    pub fn path(self) -> Option<ReadPath> {
        match self {
            Self::Ring => Some(ReadPath::Ring),
            Self::RingPlain => Some(ReadPath::RingPlain),
            Self::Pool => Some(ReadPath::Pool),
            Self::Buffered | Self::Mmap => None,
        }
    }

    /// Whether it reads past the page cache where the file system can.
    pub fn is_direct(self) -> bool {
        self.path().is_some()
    }
}

impl From<ReadPath> for ReadEngine {
    fn from(path: ReadPath) -> Self {
        match path {
            ReadPath::Ring => Self::Ring,
            ReadPath::RingPlain => Self::RingPlain,
            ReadPath::Pool => Self::Pool,
        }
    }
}

/// Latencies in microseconds, from the push of a block to its last byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Mean.
    pub mean: f64,
    /// Half of the blocks took at most this.
    pub p50: f64,
    /// Nine tenths.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1,000.
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    /// The longest.
    pub max: f64,
}

/// One measurement with blocks under way all the time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileRow {
    /// By which calls.
    pub engine: ReadEngine,
    /// In which order.
    pub pattern: Pattern,
    /// Whether blocks are expert records; of a GGUF in place one is up to three reads.
    pub is_record: bool,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks under way.
    pub depth: u32,
    /// The one drive or path that was read of several; all together when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// Whether a device was copying from host memory at the same time.
    pub with_uploads: bool,
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Blocks that were read.
    pub reads: u64,
    /// Bytes that were wanted.
    pub bytes: u64,
    /// Wanted bytes a second, in 10^9.
    pub gb_s: f64,
    /// Blocks a second.
    pub iops: f64,
    /// How long a block took.
    pub latency_us: Percentiles,
    /// Processor seconds of this process, kernel's part included, for 10^9 bytes.
    pub cpu_s_per_gb: Option<f64>,
}

/// Several records asked for at once, as a layer with so many missing experts does, and waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// Records of a burst.
    pub records: u32,
    /// How many bursts were measured.
    pub bursts: u64,
    /// Mean seconds until all of them had come.
    pub seconds: f64,
    /// Wanted bytes a second while bursts were under way, in 10^9.
    pub gb_s: f64,
    /// How long a burst took.
    pub latency_us: Percentiles,
}

/// What a device copied while the drive was read, and alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Uploads {
    /// The device's name.
    pub device: String,
    /// How it reaches host memory: `import`, `mapped` or `copy`.
    pub host_path: String,
    /// Copies with the drive at rest, 10^9 bytes a second.
    pub alone_gb_s: f64,
    /// Copies while records were read.
    pub with_reads_gb_s: f64,
    /// Records with the device at rest, 10^9 bytes a second.
    pub reads_alone_gb_s: f64,
    /// Records while the device copied.
    pub reads_with_gb_s: f64,
}

/// One second or so of a long run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds from the run's begin to this sample's end.
    pub at_s: f64,
    /// 10^9 bytes a second within it.
    pub gb_s: f64,
    /// 99 of 100 blocks that ended within it took at most this, in microseconds.
    pub p99_us: f64,
    /// The drive's temperature in degrees Celsius, where it tells one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<f64>,
}

/// How weighty a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingLevel {
    /// The figures do not mean what they seem to, or the drive is held back.
    Warning,
    /// Worth knowing.
    Note,
    /// Could not be found out here.
    Unknown,
}

/// Something that was found, in plain words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// A short name that stays: `page_cache`, `sparse_file`.
    pub code: String,
    /// How weighty.
    pub level: FindingLevel,
    /// What it is and what follows from it.
    pub text: String,
}

/// What was measured of one drive, or of several that are read together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriveProfile {
    /// [`PROFILE_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The program's version.
    pub program_version: String,
    /// When, in seconds of Unix time.
    pub measured_at: u64,
    /// What was read, as it was named.
    pub paths: Vec<String>,
    /// On which drives, each once.
    pub drives: Vec<DriveIdentity>,
    /// Bytes of a record.
    pub record_bytes: u64,
    /// Where that number is from: `model`, `flag` or `default`.
    pub record_from: String,
    /// Reads that make one record.
    pub reads_a_record: u32,
    /// The read path in use, with what was lost on the way to it.
    pub read_path: String,
    /// Whether every file was read past the page cache.
    pub is_direct: bool,
    /// Bytes over which reads were spread.
    pub spread_bytes: u64,
    /// How long all of it took, in seconds.
    pub seconds: f64,
    /// Measurements with a constant depth.
    pub rows: Vec<ProfileRow>,
    /// Measurements of bursts of records.
    pub bursts: Vec<Burst>,
    /// With a device's copies at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploads: Option<Uploads>,
    /// A long run at one depth.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sustained: Vec<Sample>,
    /// What was found.
    pub findings: Vec<Finding>,
}

impl DriveProfile {
    /// The rows of records in random order by the product's own path, all drives together, device at rest; by depth.
    pub fn record_rows(&self) -> impl Iterator<Item = &ProfileRow> {
        self.rows.iter().filter(|row| {
            row.is_record
                && row.pattern == Pattern::Random
                && row.part.is_none()
                && !row.with_uploads
                && row.engine == self.engine()
        })
    }

    /// The engine of the product's path: the first direct one that was measured with records.
    pub fn engine(&self) -> ReadEngine {
        let is_there =
            |engine: &ReadEngine| self.rows.iter().any(|row| row.is_record && row.engine == *engine);
        ReadEngine::ALL.into_iter().find(is_there).unwrap_or(ReadEngine::Ring)
    }

    /// The best rate of records at a constant depth of at most `depth_max`, in bytes a second; 0 where none was measured.
    pub fn steady_rate(&self, depth_max: u32) -> f64 {
        let rates = self.record_rows().filter(|row| row.depth <= depth_max).map(|row| 1e9 * row.gb_s);
        rates.fold(0.0, f64::max)
    }

    /// Records of a burst, and mean seconds until all have come; by rising count.
    pub fn burst_seconds(&self) -> Vec<(u32, f64)> {
        let mut bursts: Vec<_> = self.bursts.iter().map(|burst| (burst.records, burst.seconds)).collect();
        bursts.sort_by_key(|&(records, _)| records);
        bursts
    }

    /// Whether the standard set is in it: records at several depths, and bursts.
    pub fn is_standard(&self) -> bool {
        self.record_rows().count() >= 2 && !self.bursts.is_empty()
    }

    /// Reads the profile of `drives` with records of `record_bytes` from `folder`; `None` where none was saved.
    ///
    /// # Errors
    /// [`DiskError::ProfileFile`], [`DiskError::ProfileInvalid`].
    pub fn load(
        folder: &Path,
        drives: &[DriveIdentity],
        record_bytes: u64,
    ) -> Result<Option<Self>, DiskError> {
        Self::read(&file_in(folder, drives, record_bytes))
    }

    /// Reads one file; `None` where it is not there.
    ///
    /// # Errors
    /// [`DiskError::ProfileFile`], [`DiskError::ProfileInvalid`].
    pub fn read(path: &Path) -> Result<Option<Self>, DiskError> {
        let failed = |source| DiskError::ProfileFile { path: path.to_owned(), call: "read", source };
        let invalid = |why: String| DiskError::ProfileInvalid { path: path.to_owned(), why };
        let len_bytes = match fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if len_bytes > PROFILE_BYTES_MAX {
            return Err(invalid(format!("{len_bytes} B, above {PROFILE_BYTES_MAX} B")));
        }
        let bytes = fs::read(path).map_err(failed)?;
        let version: Version = serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
        if version.schema_version != PROFILE_SCHEMA_VERSION {
            return Err(invalid(format!(
                "schema version {}, this program reads {PROFILE_SCHEMA_VERSION}",
                version.schema_version
            )));
        }
        let profile: Self = serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
        if profile.bursts.iter().any(|burst| burst.records == 0 || burst.seconds <= 0.0) {
            return Err(invalid("a burst of no records or no time".to_owned()));
        }
        Ok(Some(profile))
    }

    /// Writes it into `folder`, which is made where it is missing; gives the file's path. An older profile of the same
    /// drives and record size is replaced.
    ///
    /// # Errors
    /// [`DiskError::ProfileFile`].
    pub fn save(&self, folder: &Path) -> Result<PathBuf, DiskError> {
        let path = file_in(folder, &self.drives, self.record_bytes);
        let half =
            folder.join(format!(".{}.{}", file_name(&self.drives, self.record_bytes), std::process::id()));
        let written = self.write_whole(folder, &half, &path);
        if written.is_err() {
            // It may not be there, and the first error is the one to tell.
            let _ = fs::remove_file(&half);
        }
        written.map(|()| path)
    }

    fn write_whole(&self, folder: &Path, half: &Path, path: &Path) -> Result<(), DiskError> {
        let failed = |call, path: &Path| {
            let path = path.to_owned();
            move |source| DiskError::ProfileFile { path, call, source }
        };
        fs::create_dir_all(folder).map_err(failed("make the folder", folder))?;
        let text = serde_json::to_vec_pretty(self).expect("invariant: names and numbers are JSON");
        let mut file = File::create(half).map_err(failed("create", half))?;
        file.write_all(&text).map_err(failed("write", half))?;
        file.sync_all().map_err(failed("sync", half))?;
        fs::rename(half, path).map_err(failed("rename to", path))
    }
}

#[derive(Deserialize)]
struct Version {
    schema_version: u32,
}

fn file_in(folder: &Path, drives: &[DriveIdentity], record_bytes: u64) -> PathBuf {
    folder.join(file_name(drives, record_bytes))
}

/// Names of the drives in order, a sum over what tells them apart, the record size.
fn file_name(drives: &[DriveIdentity], record_bytes: u64) -> String {
    // Each drive counts once, and two of one model are two: together they give other rates than one alone.
    let (mut seen, mut keys) = (Vec::new(), Vec::new());
    for drive in drives {
        if !seen.contains(&drive) {
            seen.push(drive);
            keys.push(drive.key());
        }
    }
    keys.sort_unstable();
    let sum = twox_hash::XxHash3_128::oneshot(keys.join("\n").as_bytes());
    let mut names: Vec<String> = drives.iter().map(DriveIdentity::short_name).collect();
    names.sort_unstable();
    names.dedup();
    let mut name = names.join("+");
    name.truncate(64);
    format!("{name}-{:016x}-{record_bytes}.json", sum >> 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(device: &str) -> DriveIdentity {
        DriveIdentity { device: Some(device.to_owned()), ..DriveIdentity::default() }
    }

    fn row(engine: ReadEngine, depth: u32, gb_s: f64) -> ProfileRow {
        ProfileRow {
            engine,
            pattern: Pattern::Random,
            is_record: true,
            block_bytes: 4096,
            depth,
            part: None,
            with_uploads: false,
            seconds: 1.0,
            reads: 10,
            bytes: 40_960,
            gb_s,
            iops: 10.0,
            latency_us: Percentiles { p99_9: 7.5, ..Percentiles::default() },
            cpu_s_per_gb: Some(0.1),
        }
    }

    fn profile(drives: Vec<DriveIdentity>) -> DriveProfile {
        let burst = |records, seconds| Burst {
            records,
            bursts: 3,
            seconds,
            gb_s: 1.0,
            latency_us: Percentiles::default(),
        };
        let mut with_uploads = row(ReadEngine::Ring, 8, 9.0);
        with_uploads.with_uploads = true;
        DriveProfile {
            schema_version: PROFILE_SCHEMA_VERSION,
            program_version: "1".to_owned(),
            measured_at: 5,
            paths: vec!["a".to_owned()],
            drives,
            record_bytes: 4096,
            record_from: "flag".to_owned(),
            reads_a_record: 1,
            read_path: "ring".to_owned(),
            is_direct: true,
            spread_bytes: 1 << 20,
            seconds: 2.0,
            rows: vec![
                row(ReadEngine::Mmap, 8, 50.0),
                row(ReadEngine::Ring, 1, 1.0),
                row(ReadEngine::Ring, 8, 3.0),
                row(ReadEngine::Ring, 64, 4.0),
                with_uploads,
            ],
            bursts: vec![burst(6, 0.006), burst(1, 0.001)],
            uploads: None,
            sustained: Vec::new(),
            findings: Vec::new(),
        }
    }

    #[test]
    fn a_profile_comes_back_as_it_was_saved_for_its_drive_and_record_size_only() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("drives");
        let saved = profile(vec![drive("nvme0n1")]);
        assert_eq!(DriveProfile::load(&folder, &saved.drives, 4096).unwrap(), None);
        let path = saved.save(&folder).unwrap();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("nvme0n1-"), "{path:?}");
        assert_eq!(DriveProfile::load(&folder, &saved.drives, 4096).unwrap(), Some(saved.clone()));
        assert_eq!(DriveProfile::load(&folder, &saved.drives, 8192).unwrap(), None);
        assert_eq!(DriveProfile::load(&folder, &[drive("nvme1n1")], 4096).unwrap(), None);
        saved.save(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "replaced, and no half file left");
    }

    #[test]
    fn drives_together_have_one_name_in_any_order() {
        let (a, b) = (drive("sda"), drive("sdb"));
        let pair = file_name(&[a.clone(), b.clone()], 1);
        assert_eq!(pair, file_name(&[b, a.clone(), a.clone()], 1));
        assert_ne!(pair, file_name(&[a], 1));
    }

    #[test]
    fn two_drives_of_one_model_are_not_taken_for_one() {
        let [a, b] = ["nvme0n1", "nvme1n1"]
            .map(|device| DriveIdentity { model: Some("Fast".to_owned()), ..drive(device) });
        let both = [a, b];
        assert_eq!(file_name(&both[..1], 1), file_name(&both[1..], 1), "names change from boot to boot");
        assert_ne!(file_name(&both[..1], 1), file_name(&both, 1));
    }

    #[test]
    fn another_schema_or_no_json_is_refused_with_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        for (text, what) in
            [("{\"schema_version\": 99}", "99"), ("{", "EOF"), ("{\"schema_version\": 1}", "missing")]
        {
            fs::write(&path, text).unwrap();
            let error = DriveProfile::read(&path).unwrap_err().to_string();
            assert!(error.contains("x.json") && error.contains(what), "{error}");
        }
        let mut edited = profile(vec![drive("a")]);
        edited.bursts[0].seconds = 0.0;
        fs::write(&path, serde_json::to_vec(&edited).unwrap()).unwrap();
        let error = DriveProfile::read(&path).unwrap_err().to_string();
        assert!(error.contains("no time"), "{error}");
    }

    #[test]
    fn the_products_rates_are_of_its_own_path_with_the_device_at_rest() {
        let profile = profile(vec![drive("a")]);
        assert_eq!(profile.engine(), ReadEngine::Ring);
        assert!((profile.steady_rate(32) - 3e9).abs() < 1.0, "not of depth 64, mmap or with uploads");
        assert!((profile.steady_rate(64) - 4e9).abs() < 1.0);
        assert_eq!(profile.burst_seconds(), [(1, 0.001), (6, 0.006)]);
        assert!(profile.is_standard());
    }

    #[test]
    fn engines_are_named_as_in_json() {
        for engine in ReadEngine::ALL {
            assert_eq!(serde_json::to_value(engine).unwrap(), engine.name());
        }
        let json = serde_json::to_value(row(ReadEngine::RingPlain, 1, 1.0)).unwrap();
        assert_eq!(json["latency_us"]["p99.9"], 7.5);
    }
}
