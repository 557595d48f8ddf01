//! What a plan takes a drive for: measured now by the reads of decode, or as its saved profile says.
//!
//! In: a model's files, any file, or a folder in which a file is made for the while. Out: [`Measured`].

use std::path::Path;

use flint_rt::base::limits::READS_IN_FLIGHT_MAX;
use flint_rt::base::units::align_up;
use flint_rt::base::volume::free_bytes;
use flint_rt::disk::ReadPath;
use flint_rt::disk::profile::{DriveProfile, FindingLevel};
use flint_rt::engine::drive_cost::DriveCost;

use crate::date;
use crate::disk_profile::{self, Target};
use crate::exit::Outcome;
use crate::info::{FileFacts, file_facts};
use crate::terminal::note;

/// Length of a file that is made, and its records: many times what drives keep in their own memory would fill people's
/// drives.
const MADE_BYTES: u64 = 1 << 30;
const MADE_RECORDS: u64 = 2048;

/// One run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Records asked for at once, or kept under way.
    pub(super) records: u32,
    /// Seconds until all of a burst have come, on average; of a steady run, seconds a record.
    pub(super) seconds: f64,
    /// Bytes a second.
    pub(super) rate: f64,
}

/// What was measured.
pub(super) struct Measured {
    pub(super) profile: DriveProfile,
    /// The file or folder, for reports.
    pub(super) shown: String,
    /// How its first file with records lies on the drive.
    pub(super) facts: FileFacts,
    /// Whether it is a saved profile, and not of this run.
    pub(super) is_saved: bool,
}

/// Where records are read: in the file at `path`, or in one that is made in the folder `path`. A layer of the model asks for
/// `experts_used` of them at once.
pub(super) fn at(path: &Path, record_bytes: u64, experts_used: u32) -> Outcome<Target> {
    let made = path.is_dir().then(|| {
        let records = MADE_RECORDS * align_up(record_bytes, 4096);
        // Where the room is not told, making the file says why.
        MADE_BYTES.min(records).min(free_bytes(path).map_or(u64::MAX, |free| free / 4))
    });
    let mut target = Target::open(&[path.to_owned()], Some(record_bytes), made)?;
    target.experts_used = experts_used;
    Ok(target)
}

/// Measures for about `seconds`.
pub(super) fn measure(target: &Target, wanted: Option<ReadPath>, seconds: u32) -> Outcome<Measured> {
    let profile = disk_profile::measure_decode(target, wanted, seconds)?;
    of(target, profile, false)
}

/// The saved profile of the drives under `target`, if there is one of records of this length.
pub(super) fn saved(target: &Target) -> Outcome<Option<Measured>> {
    let Some(dir) = disk_profile::profiles_dir() else { return Ok(None) };
    match DriveProfile::load(&dir, &target.drives(), target.record_bytes) {
        Ok(Some(profile)) if profile.is_standard() => of(target, profile, true).map(Some),
        Ok(_) => Ok(None),
        Err(error) => {
            note(&format!("note: {error}"));
            Ok(None)
        }
    }
}

fn of(target: &Target, profile: DriveProfile, is_saved: bool) -> Outcome<Measured> {
    let facts = file_facts(target.files[0].file.path())?;
    Ok(Measured { profile, shown: target.paths.join(", "), facts, is_saved })
}

impl Measured {
    /// As the expectation takes it.
    pub(super) fn cost(&self, record_bytes: u64) -> DriveCost {
        DriveCost::measured(self.profile.burst_seconds(), self.steady_rate(), record_bytes)
    }

    /// The best rate with as many records under way as the runtime has at most, in bytes a second.
    pub(super) fn steady_rate(&self) -> f64 {
        let of_product = self.profile.steady_rate(READS_IN_FLIGHT_MAX / self.profile.reads_a_record.max(1));
        if of_product > 0.0 { of_product } else { self.profile.steady_rate(u32::MAX) }
    }

    /// When it was measured, in words.
    pub(super) fn when(&self) -> String {
        match date::timestamp(self.profile.measured_at).split_once('T') {
            Some((day, _)) if self.is_saved => format!("profile of {day}"),
            _ => "measured now".to_owned(),
        }
    }

    pub(super) fn bursts(&self) -> Vec<Run> {
        let run = |burst: &flint_rt::disk::profile::Burst| Run {
            records: burst.records,
            seconds: burst.seconds,
            rate: 1e9 * burst.gb_s,
        };
        self.profile.bursts.iter().map(run).collect()
    }

    pub(super) fn steady(&self) -> Vec<Run> {
        let rows = self.profile.record_rows();
        rows.map(|row| Run { records: row.depth, seconds: 1.0 / row.iops, rate: 1e9 * row.gb_s }).collect()
    }

    /// Bytes that were read for it.
    pub(super) fn read_bytes(&self) -> u64 {
        let bursts = self.profile.bursts.iter();
        let of_bursts: u64 =
            bursts.map(|burst| burst.bursts * u64::from(burst.records) * self.profile.record_bytes).sum();
        of_bursts + self.profile.rows.iter().map(|row| row.bytes).sum::<u64>()
    }

    /// What makes the numbers doubtful.
    pub(super) fn doubts(&self) -> Vec<&str> {
        let warnings = self.profile.findings.iter().filter(|finding| finding.level == FindingLevel::Warning);
        warnings.map(|finding| finding.text.as_str()).collect()
    }
}
