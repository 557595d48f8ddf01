//! `--stripe DIR[=WEIGHT],...`: the drives over which the experts of a store are spread, and the share of each.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use flint_rt::store::{StoreError, StripePlan, begun_weights, measure_bandwidth};

use crate::exit::{Exit, Failure, Outcome};
use crate::terminal::note;

/// Written and read to measure a drive: under a second each on an NVMe drive.
const MEASURED_BYTES: u64 = 256 << 20;

/// A folder on a drive, and its share if the caller says it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stripe {
    pub(crate) folder: PathBuf,
    pub(crate) weight: Option<f64>,
}

impl FromStr for Stripe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (folder, weight) = match text.rsplit_once('=') {
            Some((folder, weight)) => (folder, Some(weight)),
            None => (text, None),
        };
        if folder.is_empty() {
            return Err("wanted a folder, or FOLDER=WEIGHT".to_owned());
        }
        let weight = weight
            .map(|weight| {
                weight.parse::<f64>().map_err(|_| format!("`{weight}` is no weight: wanted a number, as 3.5"))
            })
            .transpose()?;
        if weight.is_some_and(|weight| !(weight.is_finite() && weight > 0.0)) {
            return Err("a weight is a number above zero".to_owned());
        }
        Ok(Self { folder: folder.into(), weight })
    }
}

/// Refuses a folder that is not there: its drive may not be mounted, so it is not made.
pub(crate) fn check(stripes: &[Stripe]) -> Outcome {
    match stripes.iter().find(|stripe| !stripe.folder.is_dir()) {
        None => Ok(()),
        Some(Stripe { folder, .. }) => Err(Failure::new(
            Exit::Failed,
            format!(
                "{}: is no folder, so it cannot hold a stripe; make it, or mount its drive, first",
                folder.display()
            ),
        )),
    }
}

/// The plan of `stripes` for the store `target`. Where no weight is given, an interrupted ingest goes on with the shares
/// that it was begun with, and otherwise each drive's bandwidth of reads is measured and taken.
///
/// # Errors
/// When weights are given for some and not for all, or a folder cannot be measured.
pub(crate) fn plan(stripes: &[Stripe], target: &Path) -> Outcome<Vec<StripePlan>> {
    let given: Vec<f64> = stripes.iter().filter_map(|stripe| stripe.weight).collect();
    let folders: Vec<PathBuf> = stripes.iter().map(|stripe| stripe.folder.clone()).collect();
    let weights = match given.len() {
        count if count == stripes.len() => given,
        0 => match begun_weights(target, &folders) {
            Some(weights) => weights,
            None => {
                let weights = folders.iter().map(|folder| measured(folder)).collect::<Outcome<Vec<_>>>()?;
                let said =
                    folders.iter().zip(&weights).map(|(folder, rate)| format!("{} {rate}", folder.display()));
                note(&format!("GB/s of reads, measured: {}", said.collect::<Vec<_>>().join(", ")));
                weights
            }
        },
        _ => return Err(Failure::usage("--stripe: give a weight for each folder, or for none")),
    };
    let plan =
        folders.into_iter().zip(weights).map(|(folder, weight)| StripePlan { folder: Some(folder), weight });
    Ok(plan.collect())
}

/// GB/s of reads, to a tenth.
fn measured(folder: &Path) -> Outcome<f64> {
    let bandwidth = measure_bandwidth(folder, MEASURED_BYTES).map_err(|error| match &error {
        // The drive is at fault, not a model.
        StoreError::Io { source, .. } => {
            Failure::because(Exit::of_io(source), folder.display().to_string(), &error)
        }
        _ => error.into(),
    })?;
    if !bandwidth.is_direct {
        note(&format!(
            "{}: measured through the page cache, which says little of the drive",
            folder.display()
        ));
    }
    Ok((bandwidth.read / 1e8).round().max(1.0) / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_is_a_folder_and_perhaps_a_weight() {
        let of = |text: &str| text.parse::<Stripe>();
        assert_eq!(of("/a").unwrap(), Stripe { folder: "/a".into(), weight: None });
        assert_eq!(of("/a=b=3.5").unwrap(), Stripe { folder: "/a=b".into(), weight: Some(3.5) });
        for wrong in ["", "=3", "/a=x", "/a=0", "/a=-1", "/a=NaN", "/a=inf"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!(plan(&[of("/a=1").unwrap(), of("/b").unwrap()], Path::new("/s")).is_err());
    }
}
