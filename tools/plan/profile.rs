//! The saved profile of the drive that a model lies on, where there is one.
//!
//! In: the model's files, the record size, the state folder. Out: a [`DriveProfile`] with bursts and rates of records. One that
//! cannot be read is said and passed over: a plan can do without.

use flint_rt::disk::DriveIdentity;
use flint_rt::disk::profile::DriveProfile;
use flint_rt::engine::expectation::DriveCost;
use flint_rt::store::Source;

use crate::folders;
use crate::terminal::note;

/// Records under way at most in the rate that is taken: what the product keeps under way.
const DEPTH_MAX: u32 = flint_rt::base::limits::READS_IN_FLIGHT_MAX;

/// Finds it.
pub(super) fn find(source: &Source, record_bytes: u64) -> Option<DriveProfile> {
    let folder = folders::state_dir()?.join("drives");
    let mut drives: Vec<DriveIdentity> = Vec::new();
    for file in source.files() {
        let drive = DriveIdentity::of(file);
        if !drives.contains(&drive) {
            drives.push(drive);
        }
    }
    match DriveProfile::load(&folder, &drives, record_bytes) {
        Ok(found) => found.filter(|profile| profile.is_standard() && steady_rate(profile) > 0.0),
        Err(error) => {
            note(&format!("the drive's profile is left out: {error}"));
            None
        }
    }
}

/// As the expectation takes it.
pub(super) fn cost(profile: &DriveProfile, record_bytes: u64) -> DriveCost {
    DriveCost::measured(profile.burst_seconds(), steady_rate(profile), record_bytes)
}

/// Bytes a second with as many records under way as the product has.
pub(super) fn steady_rate(profile: &DriveProfile) -> f64 {
    profile.steady_rate(DEPTH_MAX)
}

/// What is said of it.
pub(super) fn line(profile: &DriveProfile) -> String {
    format!(
        "{}, by the profile of {} ({} a record, flint-rt {})",
        flint_rt::base::units::display_rate(1, 1.0 / steady_rate(profile)),
        date(profile.measured_at),
        if profile.reads_a_record == 1 {
            "one read".to_owned()
        } else {
            format!("{} reads", profile.reads_a_record)
        },
        profile.program_version,
    )
}

/// Year, month and day of a moment in seconds of Unix time, in UTC.
///
/// Years begin in March, so that the leap day is a year's last; 400 years have 146,097 days.
pub(super) fn date(unix_seconds: u64) -> String {
    let days = unix_seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let (month, carry) = if shifted < 10 { (shifted + 3, 0) } else { (shifted - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year_of_era + carry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_their_dates() {
        for (seconds, wanted) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_767_225_599, "2025-12-31"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(seconds), wanted);
        }
    }
}
