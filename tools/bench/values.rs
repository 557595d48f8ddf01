//! Lists, ranges and sizes as `bench` takes them. Pure.

use std::str::FromStr;
use std::time::Duration;

use flint_rt::base::limits::READS_IN_FLIGHT_MAX;
use flint_rt::disk::DriveModel;

/// Values of one list at most: a slip of the pen is no day of measuring.
const VALUES_MAX: usize = 1000;

/// Tokens by commas, each a number or a range: `a-b`, `a-b+step`, `a-b*factor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Values(Vec<u32>);

impl Values {
    /// The values of a flag that was given once or more.
    pub(super) fn all(lists: &[Self]) -> Vec<u32> {
        lists.iter().flat_map(|list| list.0.iter().copied()).collect()
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is no number of tokens"))
}

/// What follows a value of a range.
enum Stride {
    Plus(u32),
    Times(u32),
}

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut values = Vec::new();
        for item in text.split(',') {
            let Some((first, rest)) = item.split_once('-') else {
                values.push(number(item)?);
                continue;
            };
            let (last, stride) = if let Some((last, step)) = rest.split_once('+') {
                (number(last)?, Stride::Plus(number(step)?))
            } else if let Some((last, factor)) = rest.split_once('*') {
                (number(last)?, Stride::Times(number(factor)?))
            } else {
                (number(rest)?, Stride::Plus(1))
            };
            let mut value = number(first)?;
            if value > last {
                return Err(format!("the range {item} ends before it begins"));
            }
            while value <= last {
                if values.len() >= VALUES_MAX {
                    return Err(format!("more than {VALUES_MAX} values"));
                }
                values.push(value);
                let next = match stride {
                    Stride::Plus(step) => value.checked_add(step),
                    Stride::Times(factor) => value.checked_mul(factor),
                };
                match next {
                    Some(next) if next > value => value = next,
                    Some(_) => return Err(format!("the range {item} does not rise")),
                    None => break,
                }
            }
        }
        Ok(Self(values))
    }
}

/// `PROMPT,GEN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptAndReply {
    pub(super) n_prompt: u32,
    pub(super) n_gen: u32,
}

impl FromStr for PromptAndReply {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (n_prompt, n_gen) = text.split_once(',').ok_or("wanted PROMPT,GEN, as 512,128")?;
        Ok(Self { n_prompt: number(n_prompt)?, n_gen: number(n_gen)? })
    }
}

/// A pool's size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PoolSize {
    Slots(u32),
    /// Of all experts, 0 to 1.
    Share(f64),
}

impl PoolSize {
    /// In slots, of a model with `total` experts; never fewer than `least`, without which nothing runs.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of at most 1 of a u32"
    )]
    pub(super) fn slots(self, total: u32, least: u32) -> u32 {
        match self {
            Self::Slots(slots) => slots,
            Self::Share(share) => ((share * f64::from(total)).round() as u32).max(least),
        }
    }
}

/// Pool sizes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sweep(pub(super) Vec<PoolSize>);

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let list = text.strip_prefix("pool=").ok_or("wanted pool=SIZE,..., as pool=10%,50%,100%")?;
        let items: Vec<&str> = list.split(',').map(str::trim).collect();
        let mut sizes: Vec<PoolSize> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if *item == "..." {
                let next = items.get(index + 1).ok_or("what follows ... is missing")?;
                fill(&mut sizes, size(next)?)?;
            } else {
                sizes.push(size(item)?);
            }
        }
        Ok(Self(sizes))
    }
}

fn size(text: &str) -> Result<PoolSize, String> {
    let wrong =
        || format!("{text:?} is no pool size: wanted slots, as 64, or a share of all experts, as 25%");
    match text.strip_suffix('%') {
        Some(percent) => {
            let percent: f64 = percent.trim().parse().map_err(|_| wrong())?;
            let is_share = percent > 0.0 && percent <= 100.0;
            is_share.then_some(PoolSize::Share(percent / 100.0)).ok_or_else(wrong)
        }
        None => match text.parse() {
            Ok(slots) if slots > 0 => Ok(PoolSize::Slots(slots)),
            _ => Err(wrong()),
        },
    }
}

/// Goes on from the last two sizes by their difference, to below `end`.
fn fill(sizes: &mut Vec<PoolSize>, end: PoolSize) -> Result<(), String> {
    let wrong = "... goes on from two rising sizes of one kind to a larger one, as 10%,20%,...,100%";
    let [.., before, last] = sizes[..] else { return Err(wrong.to_owned()) };
    match (before, last, end) {
        (PoolSize::Share(before), PoolSize::Share(last), PoolSize::Share(end))
            if before < last && last < end =>
        {
            let step = last - before;
            for count in 1..VALUES_MAX {
                let next = last + step * count as f64;
                // Half a step's tenth: sums of tenths of a percent are not exact.
                if next >= end - step * 0.05 {
                    return Ok(());
                }
                sizes.push(PoolSize::Share(next));
            }
        }
        (PoolSize::Slots(before), PoolSize::Slots(last), PoolSize::Slots(end))
            if before < last && last < end =>
        {
            let step = (last - before) as usize;
            let between: Vec<u32> = (last..end).step_by(step).skip(1).take(VALUES_MAX).collect();
            if between.len() < VALUES_MAX {
                sizes.extend(between.into_iter().map(PoolSize::Slots));
                return Ok(());
            }
        }
        _ => return Err(wrong.to_owned()),
    }
    Err(format!("more than {VALUES_MAX} pool sizes"))
}

/// `RATE[,LATENCY]`: `7GB/s`, `500MB/s,80us`.
pub(super) fn drive_model(text: &str) -> Result<DriveModel, String> {
    let wrong = || "wanted RATE[,LATENCY], as 7GB/s or 3.5GB/s,100us".to_owned();
    let (rate, latency) = text.split_once(',').unwrap_or((text, "100us"));
    let unit = |text: &str, units: &[(&str, f64)]| -> Option<f64> {
        let (number, factor) =
            units.iter().find_map(|(unit, factor)| Some((text.trim().strip_suffix(unit)?, factor)))?;
        number.trim().parse::<f64>().ok().map(|number| number * factor)
    };
    let rate = unit(rate, &[("GB/s", 1e9), ("MB/s", 1e6)]).ok_or_else(wrong)?;
    let seconds = unit(latency, &[("us", 1e-6), ("ms", 1e-3)]).ok_or_else(wrong)?;
    if !(1e6..=1e12).contains(&rate) {
        return Err("wanted a rate of 1MB/s to 1000GB/s".to_owned());
    }
    if !(0.0..=1.0).contains(&seconds) {
        return Err("wanted a latency of 0us to 1000ms".to_owned());
    }
    Ok(DriveModel { rate, latency: Duration::from_secs_f64(seconds), depth: READS_IN_FLIGHT_MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<u32> {
        text.parse::<Values>().unwrap().0
    }

    #[test]
    fn lists_and_ranges() {
        assert_eq!(values("512"), [512]);
        assert_eq!(values("0,4096"), [0, 4096]);
        assert_eq!(values("3-5"), [3, 4, 5]);
        assert_eq!(values("128-512+128,7"), [128, 256, 384, 512, 7]);
        assert_eq!(values("1-20*4"), [1, 4, 16]);
        for wrong in ["", "x", "5-3", "1-9+0", "0-9*2", "1-9*1", "1,,2", "-3", "0-4000000000"] {
            assert!(wrong.parse::<Values>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn prompt_and_reply() {
        let pair: PromptAndReply = "512,128".parse().unwrap();
        assert_eq!((pair.n_prompt, pair.n_gen), (512, 128));
        assert!("512".parse::<PromptAndReply>().is_err());
    }

    #[test]
    fn sweeps_go_on_by_their_step() {
        let Sweep(sizes) = "pool=10%,20%,...,100%".parse().unwrap();
        let slots: Vec<u32> = sizes.iter().map(|size| size.slots(1000, 6)).collect();
        assert_eq!(slots, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]);
        let Sweep(sizes) = "pool=8,16,...,32,100".parse().unwrap();
        assert_eq!(sizes, [8, 16, 24, 32, 100].map(PoolSize::Slots));
        assert_eq!(PoolSize::Share(0.001).slots(1000, 6), 6);
        for wrong in [
            "10%",
            "pool=",
            "pool=0",
            "pool=101%",
            "pool=...,3",
            "pool=1,...,9",
            "pool=1,2,...",
            "pool=2,1,...,9",
            "pool=10%,20%,...,5%",
            "pool=8,16,...,16",
        ] {
            assert!(wrong.parse::<Sweep>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn drives_have_a_rate_and_a_latency() {
        let drive = drive_model("3.5GB/s,80us").unwrap();
        assert!((drive.rate - 3.5e9).abs() < 1.0 && drive.latency == Duration::from_micros(80));
        assert_eq!(drive_model("500MB/s").unwrap().latency, Duration::from_micros(100));
        for wrong in ["7", "7GB", "GB/s", "0GB/s", "-1GB/s", "7GB/s,1s", "7GB/s,-1us", "7GB/s,", "nanGB/s"] {
            assert!(drive_model(wrong).is_err(), "{wrong}");
        }
    }
}
