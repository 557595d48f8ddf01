//! The drive's own rate, which a bench is measured by: from a saved profile, or from the drive that is simulated.

use flint_rt::base::limits::READS_IN_FLIGHT_MAX;
use flint_rt::disk::DriveModel;
use flint_rt::disk::profile::DriveProfile;
use flint_rt::engine::drive_cost::DriveCost;
use flint_rt::store::Source;

use super::simulate::drive_cost;
use crate::disk_profile::{self, Target};
use crate::exit::Outcome;
use crate::plan::ASSUMED_DRIVE_RATE;
use crate::terminal::note;

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
    /// Of the drives on which the experts of `source` lie; `shown` is what the user calls it.
    pub(super) fn of(source: &Source, shown: &str, simulated: Option<DriveModel>) -> Outcome<Self> {
        let record_bytes = source.record().record_bytes();
        if let Some(model) = simulated {
            let label = format!("simulated drive: {model}");
            return Ok(Self {
                rate: Some(model.rate),
                profile: label.clone(),
                cost: drive_cost(model, record_bytes),
                cost_from: label,
            });
        }
        let found = saved_profile(source, shown)?;
        let without = Self {
            rate: None,
            profile: format!("no profile: run flint-rt disk-profile {shown}"),
            cost: DriveCost::assumed(ASSUMED_DRIVE_RATE, record_bytes),
            cost_from: format!("assumed {} GB/s", ASSUMED_DRIVE_RATE / 1e9),
        };
        let Some(profile) = found else { return Ok(without) };
        let depth = READS_IN_FLIGHT_MAX / profile.reads_a_record.max(1);
        let Some(cost) = cost_of(&profile, record_bytes) else { return Ok(without) };
        let rate = cost.steady_rate();
        Ok(Self {
            rate: Some(rate),
            profile: format!("{} at depth {depth}: {:.2} GB/s", profile.read_path, rate / 1e9),
            cost,
            cost_from: "profile".to_owned(),
        })
    }
}

/// A profile as the plan takes it, at the depth of the product; nothing where it lacks what that needs.
fn cost_of(profile: &DriveProfile, record_bytes: u64) -> Option<DriveCost> {
    let rate = profile.steady_rate(READS_IN_FLIGHT_MAX / profile.reads_a_record.max(1));
    let bursts = profile.burst_seconds();
    (rate > 0.0 && !bursts.is_empty()).then(|| DriveCost::measured(bursts, rate, record_bytes))
}

/// The saved profile of the drives on which the experts of `source` lie.
pub(super) fn saved_profile(source: &Source, shown: &str) -> Outcome<Option<DriveProfile>> {
    let Some(folder) = disk_profile::profiles_dir() else { return Ok(None) };
    let drives = Target::model(source, shown.to_owned())?.drives();
    // As with `plan`: a profile that cannot be read is said, and hinders nothing.
    Ok(DriveProfile::load(&folder, &drives, source.record().record_bytes()).unwrap_or_else(|error| {
        note(&format!("note: {error}"));
        None
    }))
}
