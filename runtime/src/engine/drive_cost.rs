//! What a drive takes for records that are asked for together. Pure.

/// What a drive takes for records.
#[derive(Debug, Clone, PartialEq)]
pub struct DriveCost {
    /// Records asked for at once, and seconds until the last has come; ascending, at least one.
    bursts: Vec<(u32, f64)>,
    /// Bytes a second while many are under way.
    steady_rate: f64,
    record_bytes: u64,
}

impl DriveCost {
    /// A drive of a steady `rate` in bytes a second, with a first answer after 100 us.
    ///
    /// # Panics
    /// When the rate is not above 0.
    pub fn assumed(rate: f64, record_bytes: u64) -> Self {
        assert!(rate > 0.0, "a drive of {rate} B/s never answers");
        Self { bursts: vec![(1, 100e-6 + record_bytes as f64 / rate)], steady_rate: rate, record_bytes }
    }

    /// As it was measured: bursts of so many records took so many seconds.
    ///
    /// # Panics
    /// When there is no burst, or a number is not above 0.
    pub fn measured(mut bursts: Vec<(u32, f64)>, steady_rate: f64, record_bytes: u64) -> Self {
        assert!(!bursts.is_empty(), "a drive that was measured has an answer");
        assert!(steady_rate > 0.0, "a drive of {steady_rate} B/s never answers");
        assert!(bursts.iter().all(|&(count, s)| count > 0 && s > 0.0), "a burst of nothing: {bursts:?}");
        bursts.sort_unstable_by_key(|&(count, _)| count);
        // More records never take less: what says so is noise, and neighbours that say so get their mean.
        let mut groups: Vec<(f64, usize)> = Vec::new();
        for &(_, seconds) in &bursts {
            let mut group = (seconds, 1);
            while let Some((mean, count)) = groups.pop_if(|(mean, _)| *mean > group.0) {
                let sum = mean * count as f64 + group.0 * group.1 as f64;
                group = (sum / (count + group.1) as f64, count + group.1);
            }
            groups.push(group);
        }
        let smooth = groups.into_iter().flat_map(|(mean, count)| std::iter::repeat_n(mean, count));
        bursts.iter_mut().zip(smooth).for_each(|(burst, seconds)| burst.1 = seconds);
        Self { bursts, steady_rate, record_bytes }
    }

    /// Bytes of a record.
    pub(super) fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    /// Bytes a second while many records are under way.
    pub fn steady_rate(&self) -> f64 {
        self.steady_rate
    }

    /// Seconds until `count` records that are asked for at once have come.
    pub fn burst_seconds(&self, count: u32) -> f64 {
        if count == 0 {
            return 0.0;
        }
        let above = self.bursts.partition_point(|&(have, _)| have < count);
        match (above.checked_sub(1).map(|below| self.bursts[below]), self.bursts.get(above)) {
            (_, Some(&(have, seconds))) if have == count => seconds,
            (Some((low, low_s)), Some(&(high, high_s))) => {
                low_s + (high_s - low_s) * f64::from(count - low) / f64::from(high - low)
            }
            (Some((low, low_s)), None) => {
                low_s + f64::from(count - low) * self.record_bytes as f64 / self.steady_rate
            }
            (None, Some(&(_, high_s))) => high_s,
            (None, None) => unreachable!("there is always a burst"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_met_between_and_beyond_what_was_measured() {
        let drive = DriveCost::measured(vec![(4, 4e-3), (1, 1e-3), (6, 3e-3)], 1_966_080e3, 1_966_080);
        let near = |count, wanted: f64| {
            let found = drive.burst_seconds(count);
            assert!((found - wanted).abs() < 1e-9, "{count}: {found}, wanted {wanted}");
        };
        near(0, 0.0);
        near(1, 1e-3);
        // Six took less than four did: noise, so both get the mean.
        near(2, 1e-3 + 2.5e-3 / 3.0);
        near(4, 3.5e-3);
        near(6, 3.5e-3);
        near(8, 5.5e-3);
        let late = DriveCost::measured(vec![(4, 4e-3)], 1e9, 1_000_000);
        assert_eq!(late.burst_seconds(1), 4e-3);
    }
}
