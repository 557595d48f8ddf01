//! The drive's own rate, which a bench is measured by: from a saved profile, or from the drive that is simulated.

use std::path::PathBuf;

use flint_rt::base::limits::READS_IN_FLIGHT_MAX;
use flint_rt::disk::profile::DriveProfile;
use flint_rt::disk::{DriveIdentity, DriveModel};
use flint_rt::engine::expectation::DriveCost;

use crate::exit::{Exit, Failure, Outcome};
use crate::folders;

/// What the plan takes for a drive that nobody measured, in bytes a second: the default of `flint-rt plan`.
const ASSUMED_RATE: f64 = 3.0e9;

/// What is known of the drive.
pub(super) struct Drive {
    /// Bytes a second that it gives for records; nothing where nobody measured it.
    pub(super) rate: Option<f64>,
    /// Where that is from, or how to get it.
    pub(super) profile: String,
    /// As the plan takes it.
    pub(super) cost: DriveCost,
    /// Where that is from.
    pub(super) cost_from: String,
}

impl Drive {
    /// Of the drives on which `files` lie.
    pub(super) fn of(files: &[PathBuf], record_bytes: u64, simulated: Option<DriveModel>) -> Outcome<Self> {
        if let Some(model) = simulated {
            let one = model.latency.as_secs_f64() + record_bytes as f64 / model.rate;
            let label = format!("simulated drive: {model}");
            return Ok(Self {
                rate: Some(model.rate),
                profile: label.clone(),
                cost: DriveCost::measured(vec![(1, one)], model.rate, record_bytes),
                cost_from: label,
            });
        }
        let mut drives: Vec<DriveIdentity> = Vec::new();
        for drive in files.iter().map(|file| DriveIdentity::of(file)) {
            if !drives.contains(&drive) {
                drives.push(drive);
            }
        }
        let found = match folders::drives_dir() {
            Some(folder) => DriveProfile::load(&folder, &drives, record_bytes)
                .map_err(|error| Failure::because(Exit::Failed, "the drive's profile", &error))?,
            None => None,
        };
        let place = files.first().map(|file| file.display().to_string()).unwrap_or_default();
        let without = Self {
            rate: None,
            profile: format!("no profile: run flint-rt disk-profile {place}"),
            cost: DriveCost::assumed(ASSUMED_RATE, record_bytes),
            cost_from: format!("assumed {} GB/s", ASSUMED_RATE / 1e9),
        };
        let Some(profile) = found else { return Ok(without) };
        let (rate, bursts) = (profile.steady_rate(READS_IN_FLIGHT_MAX), profile.burst_seconds());
        if rate <= 0.0 || bursts.is_empty() {
            return Ok(without);
        }
        Ok(Self {
            rate: Some(rate),
            profile: format!("{} records at depth {READS_IN_FLIGHT_MAX}", profile.read_path),
            cost: DriveCost::measured(bursts, rate, record_bytes),
            cost_from: "profile".to_owned(),
        })
    }
}
