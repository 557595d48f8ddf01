//! Which drive holds a file: file system, block device, model name, as far as the kernel tells.
//!
//! - Owns: nothing. In: a path, the kernel's table of mounts, `/sys`. Out: a [`DriveIdentity`].
//! - Invariants: for names and for finding a saved profile; no read is decided by it. What cannot be found out is absent,
//!   never guessed. No serial number is in it: people show these files to others; of the drive's worldwide name it keeps 32
//!   bits of a sum, which tell two drives of one model apart and are no name of either.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::mounts::Mount;

/// One drive, or what stands for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveIdentity {
    /// The file system's type, as the kernel names it; absent for a block device that is read itself.
    pub file_system: Option<String>,
    /// What the file system lies on: a device, a server's folder, or a word.
    pub mount_source: Option<String>,
    /// The kernel's name of the whole block device, as `nvme0n1`; of a layered one (`dm-0`, `md0`) the topmost.
    pub device: Option<String>,
    /// The devices at the bottom of a layered one, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub under: Vec<String>,
    /// 32 bits of a sum over the worldwide names of the drives at the bottom, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The maker's name of the model.
    pub model: Option<String>,
    /// Bytes of the block device.
    pub size_bytes: Option<u64>,
    /// Whether it turns.
    pub is_rotational: Option<bool>,
}

impl DriveIdentity {
    /// The drive under a file, a folder or a block device, links followed.
    pub fn of(path: &Path) -> Self {
        Self::below(path, Path::new("/sys"))
    }

    fn below(path: &Path, sys: &Path) -> Self {
        let Ok(metadata) = fs::metadata(path) else { return Self::default() };
        let is_device = metadata.file_type().is_block_device();
        let mount = if is_device { None } else { Mount::of(path).ok() };
        let number = if is_device { metadata.rdev() } else { metadata.dev() };
        let folder = block_folder(sys, number).or_else(|| {
            // btrfs gives its files device numbers of no device; its mount names one.
            let source = Path::new(&mount.as_ref()?.source);
            block_folder(
                sys,
                fs::metadata(source).ok().filter(|found| found.file_type().is_block_device())?.rdev(),
            )
        });
        let mut identity = Self {
            file_system: mount.as_ref().map(|mount| mount.kind.clone()),
            mount_source: mount.map(|mount| mount.source),
            ..Self::default()
        };
        if let Some(folder) = folder {
            identity.device = name_of(&folder);
            identity.size_bytes = number_in(&folder.join("size")).map(|sectors| 512 * sectors);
            identity.is_rotational = number_in(&folder.join("queue/rotational")).map(|turns| turns != 0);
            let bottom = bottom_of(&folder, 0);
            identity.model = bottom.iter().find_map(|folder| text_in(&folder.join("device/model")));
            identity.fingerprint = fingerprint(&bottom);
            identity.under =
                bottom.iter().filter(|found| **found != folder).filter_map(|f| name_of(f)).collect();
        }
        identity
    }

    /// What tells it from others on this machine.
    pub(super) fn key(&self) -> String {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let size = self.size_bytes.unwrap_or(0);
        // Names of devices change from boot to boot, so the model, where known, stands for them.
        match &self.model {
            Some(model) => format!(
                "{model} {size} {} {} {}",
                self.under.len(),
                text(&self.file_system),
                text(&self.fingerprint)
            ),
            None => format!(
                "{} {size} {} {}",
                text(&self.device),
                text(&self.file_system),
                text(&self.mount_source)
            ),
        }
    }

    /// A word for the name of a file.
    pub(super) fn short_name(&self) -> String {
        let name = self.model.as_ref().or(self.device.as_ref()).or(self.mount_source.as_ref());
        let name = name.or(self.file_system.as_ref()).map_or("drive", String::as_str);
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = name.trim_start_matches("/dev/").chars().map(plain).take(32).collect();
        name.trim_matches('_').to_owned()
    }

    /// The block devices whose counters are this drive's: those at the bottom.
    pub fn devices(&self) -> Vec<&str> {
        if self.under.is_empty() {
            self.device.iter().map(String::as_str).collect()
        } else {
            self.under.iter().map(String::as_str).collect()
        }
    }
}

impl std::fmt::Display for DriveIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.model.clone());
        parts.extend(self.device.clone());
        if !self.under.is_empty() {
            parts.push(format!("over {}", self.under.join(" + ")));
        }
        parts.extend(self.size_bytes.map(|bytes| format!("{:.0} GB", bytes as f64 / 1e9)));
        match (&self.file_system, &self.mount_source) {
            (Some(kind), Some(source)) if self.device.is_none() => parts.push(format!("{kind} on {source}")),
            (Some(kind), _) => parts.push(kind.clone()),
            _ => {}
        }
        if parts.is_empty() {
            f.write_str("a drive that the kernel does not name")
        } else {
            f.write_str(&parts.join(", "))
        }
    }
}

/// The folder in `/sys` of the whole device with this number.
fn block_folder(sys: &Path, number: u64) -> Option<PathBuf> {
    let link = sys.join("dev/block").join(format!("{}:{}", libc::major(number), libc::minor(number)));
    let folder = link.canonicalize().ok()?;
    // A partition lies in its device's folder.
    if folder.join("partition").exists() { folder.parent().map(Path::to_owned) } else { Some(folder) }
}

/// The devices under a layered one, itself where there are none.
fn bottom_of(folder: &Path, layers: u32) -> Vec<PathBuf> {
    let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten();
    let mut found: Vec<PathBuf> = slaves
        .filter_map(|entry| {
            let folder = entry.ok()?.path().canonicalize().ok()?;
            if folder.join("partition").exists() { folder.parent().map(Path::to_owned) } else { Some(folder) }
        })
        .collect();
    found.sort();
    found.dedup();
    // Eight layers are more than anybody stacks; the limit ends a ring of links.
    if found.is_empty() || layers >= 8 {
        return vec![folder.to_owned()];
    }
    let mut bottom: Vec<PathBuf> = found.iter().flat_map(|found| bottom_of(found, layers + 1)).collect();
    bottom.sort();
    bottom.dedup();
    bottom
}

/// What of their worldwide names is kept; nothing where one has none.
fn fingerprint(drives: &[PathBuf]) -> Option<String> {
    // NVMe tells it at the device itself, SCSI and SATA at what it is a part of, virtual drives where they have a serial number.
    let name = |folder: &PathBuf| {
        ["wwid", "device/wwid", "serial"].iter().find_map(|file| text_in(&folder.join(file)))
    };
    let names = drives.iter().map(name).collect::<Option<Vec<_>>>().filter(|names| !names.is_empty())?;
    let sum = twox_hash::XxHash3_128::oneshot(names.join("\n").as_bytes());
    Some(format!("{:08x}", sum >> 96))
}

fn name_of(folder: &Path) -> Option<String> {
    Some(folder.file_name()?.to_string_lossy().into_owned())
}

fn text_in(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|text| !text.is_empty())
}

fn number_in(path: &Path) -> Option<u64> {
    text_in(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A tree as the kernel shows it: a partition on an NVMe drive, a mapper over it with the number of `path`'s device.
    fn tree(number: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let nvme = dir.path().join("devices/nvme0n1");
        let mapper = dir.path().join("devices/dm-0");
        for folder in
            [nvme.join("device"), nvme.join("nvme0n1p2"), mapper.join("slaves"), dir.path().join("dev/block")]
        {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(nvme.join("device/model"), "Fast   Drive 2TB   \n").unwrap();
        fs::write(nvme.join("nvme0n1p2/partition"), "2\n").unwrap();
        fs::write(mapper.join("size"), "2048\n").unwrap();
        symlink(nvme.join("nvme0n1p2"), mapper.join("slaves/nvme0n1p2")).unwrap();
        let name = format!("{}:{}", libc::major(number), libc::minor(number));
        symlink(&mapper, dir.path().join("dev/block").join(name)).unwrap();
        dir
    }

    #[test]
    fn a_layered_device_has_the_model_of_the_drive_at_its_bottom() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let sys = tree(file.as_file().metadata().unwrap().dev());
        let found = DriveIdentity::below(file.path(), sys.path());
        assert_eq!(found.device.as_deref(), Some("dm-0"));
        assert_eq!(found.under, ["nvme0n1"]);
        assert_eq!(found.model.as_deref(), Some("Fast Drive 2TB"));
        assert_eq!(found.size_bytes, Some(1 << 20));
        assert_eq!(found.short_name(), "Fast_Drive_2TB");
        assert_eq!(found.devices(), ["nvme0n1"]);
    }

    #[test]
    fn two_drives_of_one_model_are_told_apart_and_neither_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let sys = tree(file.as_file().metadata().unwrap().dev());
        let found = |wwid: Option<&str>| {
            let at = sys.path().join("devices/nvme0n1/wwid");
            match wwid {
                Some(wwid) => fs::write(at, wwid).unwrap(),
                None => fs::remove_file(at).unwrap_or(()),
            }
            DriveIdentity::below(file.path(), sys.path())
        };
        let (one, other, unknown) = (found(Some("eui.0001\n")), found(Some("eui.0002\n")), found(None));
        assert_ne!(one.key(), other.key());
        assert_eq!(one.key(), found(Some("eui.0001")).key());
        assert_eq!(unknown.fingerprint, None);
        assert_eq!(one.fingerprint.as_ref().map(String::len), Some(8));
        assert!(!serde_json::to_string(&one).unwrap().contains("eui"), "{one:?}");
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_absent() {
        let sys = tempfile::tempdir().unwrap();
        let found = DriveIdentity::below(sys.path(), sys.path());
        // The table of mounts is still there, so only the device is missing.
        assert!(found.device.is_none() || found.file_system.is_some(), "{found:?}");
        assert_eq!(DriveIdentity::of(Path::new("/does/not/exist")), DriveIdentity::default());
        assert!(!DriveIdentity::default().to_string().is_empty());
    }

    #[test]
    fn renamed_devices_keep_their_key() {
        let of = |device: &str, model: Option<&str>| {
            let identity = DriveIdentity {
                device: Some(device.to_owned()),
                model: model.map(str::to_owned),
                ..DriveIdentity::default()
            };
            identity.key()
        };
        assert_eq!(of("nvme0n1", Some("M")), of("nvme1n1", Some("M")));
        assert_ne!(of("vda", None), of("vdb", None));
    }
}
