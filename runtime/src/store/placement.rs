//! Which file of a store holds which expert record.
//!
//! - Owns: nothing. Pure. In: the number of records, and a share for each file. Out: a place for every record.
//! - Invariants: within a file, records stand in the order of the table, without gaps. So the file of each record is
//!   all that needs to be known, and equal weights give equal places on every machine.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where a record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Which experts file, from 0.
    pub(super) file: u16,
    /// The record's number in that file.
    pub(super) index: u64,
}

/// The places of all records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) places: Vec<Place>,
    /// Records of each file.
    pub(super) counts: Vec<u64>,
}

impl Placement {
    /// All in one file.
    pub(super) fn single(record_count: u64) -> Self {
        let places = (0..record_count).map(|index| Place { file: 0, index }).collect();
        Self { places, counts: vec![record_count] }
    }

    /// Spread so that each file gets its share of every run of records: neighbours, which are read together, lie on
    /// different drives.
    ///
    /// # Panics
    /// When there is no weight, or one is not above zero, or not finite, or there are more than a `u16` numbers.
    pub(super) fn weighted(record_count: u64, weights: &[f64]) -> Self {
        assert!(
            !weights.is_empty() && weights.iter().all(|weight| weight.is_finite() && *weight > 0.0),
            "weights of stripes are above zero: {weights:?}"
        );
        let total: f64 = weights.iter().sum();
        let mut counts = vec![0u64; weights.len()];
        let places = (0..record_count).map(|done| {
            // The file that is furthest behind its share gets the record; of equals the first.
            let behind = |file: usize| (done + 1) as f64 * weights[file] / total - counts[file] as f64;
            let file = (1..weights.len()).fold(
                0,
                |best, file| {
                    if behind(file) > behind(best) { file } else { best }
                },
            );
            let index = counts[file];
            counts[file] += 1;
            Place { file: u16::try_from(file).expect("invariant: there are few stripes"), index }
        });
        let places = places.collect();
        Self { places, counts }
    }

    /// From the file of each record, as a manifest says it; `None` when one is not among `file_count` files.
    pub(super) fn of_files(files: impl Iterator<Item = u16>, file_count: usize) -> Option<Self> {
        let mut counts = vec![0u64; file_count];
        let mut places = Vec::new();
        for file in files {
            let count = counts.get_mut(usize::from(file))?;
            places.push(Place { file, index: *count });
            *count += 1;
        }
        Some(Self { places, counts })
    }
}

/// A record as the manifest lists it: `FILE:INDEX:CHECKSUM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordEntry {
    pub(super) place: Place,
    pub(super) checksum: u128,
}

impl Serialize for RecordEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Place { file, index } = self.place;
        serializer.collect_str(&format_args!("{file}:{index}:{:032x}", self.checksum))
    }
}

impl<'de> Deserialize<'de> for RecordEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parse = || {
            let mut parts = text.split(':');
            let place = Place { file: parts.next()?.parse().ok()?, index: parts.next()?.parse().ok()? };
            let entry = Self { place, checksum: parse_checksum(parts.next()?)? };
            parts.next().is_none().then_some(entry)
        };
        parse().ok_or_else(|| serde::de::Error::custom("a record is written FILE:INDEX:CHECKSUM"))
    }
}

/// A checksum as 32 digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checksum(pub(super) u128);

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("a checksum is written as 32 digits of 0-9 and a-f");
        parse_checksum(&text).map(Self).ok_or_else(wrong)
    }
}

fn parse_checksum(text: &str) -> Option<u128> {
    let is_plain = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_plain.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_weights_in_every_run() {
        let placement = Placement::weighted(1200, &[3.0, 1.0, 2.0]);
        assert_eq!(placement.counts, [600, 200, 400]);
        for run in placement.places.chunks(12) {
            let of = |file| run.iter().filter(|place| place.file == file).count();
            assert!((5..=7).contains(&of(0)) && (1..=3).contains(&of(1)), "an uneven run: {run:?}");
        }
        assert_eq!(Placement::weighted(7, &[0.25]), Placement::single(7));
        let files = placement.places.iter().map(|place| place.file);
        assert_eq!(Placement::of_files(files, 3).as_ref(), Some(&placement));
        assert_eq!(Placement::of_files([0, 3].into_iter(), 3), None);
    }

    #[test]
    fn an_entry_has_one_spelling() {
        let entry = RecordEntry { place: Place { file: 1, index: 17 }, checksum: 0xab };
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(text, format!("\"1:17:{:032x}\"", 0xab));
        assert_eq!(serde_json::from_str::<RecordEntry>(&text).unwrap(), entry);
        for wrong in ["1:17", "1:17:ab", "-1:17:", "65536:0:", "1:17:000000000000000000000000000000AB"] {
            let text =
                format!("\"{wrong}{}\"", if wrong.ends_with(':') { "0".repeat(32) } else { String::new() });
            assert!(serde_json::from_str::<RecordEntry>(&text).is_err(), "{wrong}");
        }
    }
}
