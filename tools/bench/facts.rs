//! What a row says of the build, the machine and the model.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use flint_rt::gguf::Gguf;
use flint_rt::store::{Source, SourceKind};

/// The commit that the program was built from, where the build says it.
pub(super) const BUILD_COMMIT: &str = match option_env!("FLINT_RT_BUILD_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// A model's file.
pub(super) struct ModelFacts {
    pub(super) filename: String,
    /// Name and the type of most of its bytes.
    pub(super) kind: String,
    pub(super) size_bytes: u64,
    pub(super) params: u64,
    pub(super) source: SourceKind,
}

impl ModelFacts {
    /// Of a model that is called `shown`, and by its own file `name`.
    pub(super) fn of(source: &Source, shown: String, name: &str) -> Self {
        let gguf = source.gguf();
        Self {
            filename: shown,
            kind: format!("{name} {}", main_kind(gguf)),
            size_bytes: gguf.tensors.iter().map(|tensor| tensor.len_bytes).sum(),
            params: gguf.tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum(),
            source: source.kind(),
        }
    }
}

fn main_kind(gguf: &Gguf) -> String {
    let mut bytes = BTreeMap::new();
    for tensor in gguf.tensors.iter() {
        *bytes.entry(tensor.kind.name()).or_insert(0) += tensor.len_bytes;
    }
    bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or_else(String::new, |(kind, _)| kind.to_owned())
}

/// The processor's name.
pub(super) fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    named.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

/// Processors that this program may use.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// This moment, as llama-bench writes it.
pub(super) fn now() -> String {
    timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}

/// Seconds since 1970 as UTC. Days become a date by Hinnant's civil_from_days (2014), in years that begin in March.
fn timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(timestamp(1_735_689_600), "2025-01-01T00:00:00Z");
    }
}
