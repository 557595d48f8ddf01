//! Which tuning a device gets: the caller's, what was measured on it before, or the table's.
//!
//! - Owns: one small file for each device and model shape. In: options, the device, the model's numbers. Out: [`ChosenTuning`].
//! - Invariants: what was measured counts only for the device, the driver, the kernels and the shapes that it was measured with;
//!   everything else is passed over with a note. Where a conversation's bits are to depend on nothing else, nothing that was measured
//!   is taken, as another order of sums gives other bits.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flint_shaders::KERNELS;
use serde::{Deserialize, Serialize};

use crate::engine::EngineOptions;
use crate::gpu::{DeviceInfo, GpuError};
use crate::kernels::tuning::{DeviceFamily, TuningChanges};
use crate::kernels::{ManyForm, Tuning};
use crate::model::hparams::FlintConfig;
use crate::store::Sha256Digest;

/// Counted up when a member changes its meaning.
const SCHEMA_VERSION: u32 = 1;

/// Longest file that is read; ours have less than 1 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Where a tuning is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TuningSource {
    /// The caller gave all of it.
    Caller,
    /// The table.
    Table(DeviceFamily),
    /// Measured on this device, and remembered.
    Remembered(PathBuf),
}

/// A tuning and where it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenTuning {
    /// The sizes.
    pub tuning: Tuning,
    /// Where they are from, but for what was changed by hand.
    pub source: TuningSource,
    /// Whether some were chosen by hand.
    pub is_changed: bool,
    /// Whether it is the form for which bits depend on nothing else.
    pub is_deterministic: bool,
    /// Why what was remembered was passed over, if it was.
    pub note: Option<String>,
}

impl fmt::Display for ChosenTuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            TuningSource::Caller => f.write_str("the caller's")?,
            TuningSource::Table(family) => write!(f, "table, {family}")?,
            TuningSource::Remembered(path) => write!(f, "measured on this device, {}", path.display())?,
        }
        if self.is_changed {
            f.write_str("; some chosen by hand")?;
        }
        if self.is_deterministic {
            f.write_str("; deterministic")?;
        }
        write!(f, ": {}", self.tuning)
    }
}

/// What was measured, and what it was measured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    schema_version: u32,
    device: String,
    device_uuid: String,
    driver_version: u32,
    kernels: String,
    shape: String,
    tuning: BTreeMap<String, u32>,
}

impl Remembered {
    fn of(info: &DeviceInfo, config: &FlintConfig, tuning: &Tuning) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            device: info.title(),
            device_uuid: hex(&info.device_uuid),
            driver_version: info.driver_version,
            kernels: kernels_digest(),
            shape: shape(config),
            tuning: tuning.values().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }

    /// The tuning, if it was measured with all that `now` names; else what differs.
    fn tuning_as(&self, now: &Self, table: Tuning) -> Result<Tuning, String> {
        let differs = [
            (self.schema_version != now.schema_version, "another version of this program"),
            (self.device_uuid != now.device_uuid, "another device"),
            (self.driver_version != now.driver_version, "another version of the driver"),
            (self.kernels != now.kernels, "other kernels"),
            (self.shape != now.shape, "another model's shapes"),
        ];
        if let Some((_, what)) = differs.into_iter().find(|(differs, _)| *differs) {
            return Err(format!("it was measured with {what}"));
        }
        let with = |tuning: Tuning, (name, &value): (&String, &u32)| tuning.with(name, value);
        self.tuning.iter().try_fold(table, with).map_err(|fault| fault.to_string())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names all kernels, to the last instruction.
fn kernels_digest() -> String {
    let mut bytes = Vec::new();
    for kernel in KERNELS {
        bytes.extend_from_slice(kernel.name.as_bytes());
        bytes.extend_from_slice(kernel.spirv);
    }
    Sha256Digest::of(&bytes).to_string()
}

/// What of a model decides what is fast.
fn shape(config: &FlintConfig) -> String {
    format!(
        "{} wide, {} and {} heads of {}, networks of {}, {} and {} of {} x {}, {} tokens",
        config.embed_dim,
        config.head_count,
        config.kv_head_count,
        config.head_dim,
        config.ffn_dim,
        config.shared_ffn_dim,
        config.experts_used,
        config.expert_count,
        config.expert_ffn_dim,
        config.vocabulary
    )
}

/// Where the tuning of a device and a model's shapes is kept in `folder`.
fn path_in(folder: &Path, info: &DeviceInfo, config: &FlintConfig) -> PathBuf {
    let model = Sha256Digest::of(shape(config).as_bytes()).to_string();
    folder.join(format!("tuning-{}-{}.json", hex(&info.device_uuid), &model[..12]))
}

/// Keeps what was measured, in `folder`, which is made if it is not there.
///
/// # Errors
/// When it cannot be written; what was there before then stands.
pub fn remember(
    folder: &Path,
    info: &DeviceInfo,
    config: &FlintConfig,
    tuning: &Tuning,
) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = path_in(folder, info, config);
    let partial = path.with_extension(format!("{}.part", std::process::id()));
    let text =
        serde_json::to_string_pretty(&Remembered::of(info, config, tuning)).map_err(io::Error::from)?;
    let written = File::create(&partial)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&partial, &path));
    if let Err(error) = written {
        // What could not be finished is of no use; the error that led here is the one to report.
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    Ok(path)
}

/// What was remembered of this device and model; `None` where nothing was, an error in words where it does not count.
fn recall(path: &Path, now: &Remembered, table: Tuning) -> Result<Option<Tuning>, String> {
    let mut text = String::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?,
    };
    let file: Remembered = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    file.tuning_as(now, table).map(Some)
}

/// The tuning that `options` and the environment give a device and a model.
///
/// # Errors
/// [`GpuError::InvalidVariable`] where the environment names no form of a prompt's products.
pub fn choose(
    options: &EngineOptions,
    info: &DeviceInfo,
    config: &FlintConfig,
) -> Result<ChosenTuning, GpuError> {
    let (is_deterministic, changes): (_, &TuningChanges) =
        (options.is_deterministic, &options.tuning_changes);
    let (table, family) = (Tuning::of(info), DeviceFamily::of(info));
    let mut note = None;
    let (tuning, source) = match (options.tuning, &options.tuning_dir) {
        (Some(tuning), _) => (tuning, TuningSource::Caller),
        (None, Some(folder)) if !is_deterministic => {
            let path = path_in(folder, info, config);
            match recall(&path, &Remembered::of(info, config, &table), table) {
                Ok(Some(tuning)) => (tuning, TuningSource::Remembered(path)),
                Ok(None) => (table, TuningSource::Table(family)),
                Err(why) => {
                    note = Some(format!("the tuning in {} is passed over: {why}", path.display()));
                    (table, TuningSource::Table(family))
                }
            }
        }
        (None, _) => (table, TuningSource::Table(family)),
    };
    let form = ManyForm::from_environment()?;
    let tuning = form.map_or(tuning, |form| tuning.with_form(info, form));
    let tuning = changes.apply(tuning);
    let tuning = if is_deterministic { tuning.deterministic() } else { tuning };
    let is_changed = !changes.is_empty() || form.is_some();
    Ok(ChosenTuning { tuning, source, is_changed, is_deterministic, note })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::DeviceKind;

    fn remembered(tuning: Tuning) -> Remembered {
        Remembered {
            schema_version: SCHEMA_VERSION,
            device: "A device".to_owned(),
            device_uuid: "00ff".to_owned(),
            driver_version: 7,
            kernels: "all".to_owned(),
            shape: "narrow".to_owned(),
            tuning: tuning.values().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }

    #[test]
    fn it_counts_only_for_what_it_was_measured_with() {
        let table = Tuning::for_device(DeviceKind::Discrete);
        let best = Tuning { rows_one: 8, ..table };
        let (kept, now) = (remembered(best), remembered(table));
        assert_eq!(kept.tuning_as(&now, table), Ok(best));
        for (other, word) in [
            (Remembered { schema_version: 99, ..now.clone() }, "version of this program"),
            (Remembered { device_uuid: "00fe".to_owned(), ..now.clone() }, "another device"),
            (Remembered { driver_version: 8, ..now.clone() }, "of the driver"),
            (Remembered { kernels: "others".to_owned(), ..now.clone() }, "other kernels"),
            (Remembered { shape: "wide".to_owned(), ..now.clone() }, "model's shapes"),
        ] {
            let why = kept.tuning_as(&other, table).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        // A title is for people: a driver may word it otherwise.
        assert!(
            kept.tuning_as(&Remembered { device: "The device".to_owned(), ..now.clone() }, table).is_ok()
        );
        let mut wrong = kept.clone();
        wrong.tuning.insert("rows_one".to_owned(), 3);
        assert!(wrong.tuning_as(&now, table).unwrap_err().contains("none of [1, 2, 4, 8]"));
        // A choice that a later version knows was not measured: it stays the table's.
        let mut fewer = kept;
        fewer.tuning.remove("decode_splits");
        assert_eq!(fewer.tuning_as(&now, table), Ok(best));
    }
}
