//! What the kernel says of the files, their drives and the machine, beside any measurement.
//!
//! - In: the target, `/sys`, `/proc`. Out: [`Facts`], plain values; absent where nobody says.
//! - Invariants: nothing is judged here: that is `findings`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flint_rt::base::mounts::Mount;

use super::target::{Target, TargetFile};

/// Everything that is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) files: Vec<FileFact>,
    pub(super) drives: Vec<DriveFact>,
    /// What the machine runs in, if that is known to be no bare machine: `a virtual machine`, `a container`.
    pub(super) inside: Option<String>,
}

/// One file.
#[derive(Debug, Clone, Default)]
pub(super) struct FileFact {
    pub(super) name: String,
    pub(super) file_system: Option<String>,
    pub(super) mount_options: String,
    pub(super) is_device: bool,
    /// Why it is read through the page cache.
    pub(super) why_buffered: Option<String>,
    pub(super) len_bytes: u64,
    pub(super) allocated_bytes: Option<u64>,
    /// Where its first hole begins.
    pub(super) hole_at: Option<u64>,
    /// Seconds since it was written.
    pub(super) age_s: Option<u64>,
    pub(super) is_compressed: Option<bool>,
    pub(super) is_encrypted: Option<bool>,
    /// Bytes in the page cache after it was asked to drop them.
    pub(super) resident_bytes: Option<u64>,
}

/// One block device.
#[derive(Debug, Clone, Default)]
pub(super) struct DriveFact {
    pub(super) name: String,
    pub(super) model: Option<String>,
    /// Whether a layer on the way to it encrypts.
    pub(super) is_crypt: bool,
    /// The file behind a loop device.
    pub(super) loop_file: Option<String>,
    pub(super) is_rotational: bool,
    pub(super) link: Option<Link>,
    pub(super) heat: Heat,
}

/// A drive's PCIe link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Link {
    /// 10^9 transfers a second, and lanes, as they are.
    pub(super) gt_s: f64,
    pub(super) lanes: u32,
    /// The same as the drive could.
    pub(super) gt_s_max: f64,
    pub(super) lanes_max: u32,
}

/// Degrees Celsius.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Heat {
    pub(super) now_c: Option<f64>,
    /// Where the drive begins to slow itself down, as it says.
    pub(super) limit_c: Option<f64>,
}

impl Link {
    /// Bytes a second of payload, in 10^9, about: the line code and the packets' heads taken off.
    pub(super) fn gb_s(gt_s: f64, lanes: u32) -> f64 {
        // 8b/10b below 8 GT/s, 128b/130b from there (PCI Express Base 3.0, 4.2.2); packets cost some 8 % more.
        let code = if gt_s < 8.0 { 0.8 } else { 128.0 / 130.0 };
        gt_s / 8.0 * code * 0.92 * f64::from(lanes)
    }
}

impl Facts {
    /// Looks at all of it.
    pub(super) fn look(target: &Target) -> Self {
        let mut drives: Vec<DriveFact> = Vec::new();
        for drive in target.drives() {
            let top = drive.device.as_deref().map(block);
            let is_crypt = top.as_deref().is_some_and(|top| is_crypt(top, 0));
            for name in drive.devices() {
                if drives.iter().all(|known| known.name != name) {
                    drives.push(DriveFact { is_crypt, ..DriveFact::look(name) });
                }
            }
        }
        Self { files: target.files.iter().map(FileFact::look).collect(), drives, inside: inside() }
    }
}

impl FileFact {
    fn look(target: &TargetFile) -> Self {
        let file = &target.file;
        let mount = Mount::of(file.path()).ok().filter(|_| !target.is_device);
        let metadata = fs::metadata(file.path()).ok();
        let attributes = file.attributes();
        // mincore tells the truth only to who owns the file.
        let own_id = fs::metadata("/proc/self").map(|own| own.uid());
        let may_ask =
            metadata.as_ref().is_some_and(|file| own_id.is_ok_and(|own| own == 0 || own == file.uid()));
        file.drop_cached(0, file.len_bytes());
        let resident = || file.map().ok()?.resident_bytes().ok();
        let written = metadata.as_ref().and_then(|file| file.modified().ok());
        Self {
            name: file.path().display().to_string(),
            file_system: mount.as_ref().map(|mount| mount.kind.clone()),
            mount_options: mount.map(|mount| mount.options).unwrap_or_default(),
            is_device: target.is_device,
            why_buffered: file.direct().why_buffered.clone().filter(|_| !file.direct().is_direct()),
            len_bytes: file.len_bytes(),
            allocated_bytes: metadata.filter(|_| !target.is_device).map(|file| 512 * file.blocks()),
            hole_at: file.first_hole().filter(|&at| at < file.len_bytes() && !target.is_device),
            age_s: written
                .filter(|_| !target.is_device)
                .and_then(|written| Some(SystemTime::now().duration_since(written).ok()?.as_secs())),
            is_compressed: attributes.is_compressed,
            is_encrypted: attributes.is_encrypted,
            resident_bytes: if may_ask { resident() } else { None },
        }
    }
}

impl DriveFact {
    fn look(name: &str) -> Self {
        let folder = block(name);
        Self {
            name: name.to_owned(),
            model: text(&folder.join("device/model")),
            is_crypt: false,
            loop_file: text(&folder.join("loop/backing_file")),
            is_rotational: text(&folder.join("queue/rotational")).is_some_and(|turns| turns == "1"),
            link: link(&folder),
            heat: heat(name),
        }
    }
}

fn block(name: &str) -> PathBuf {
    Path::new("/sys/block").join(name)
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Whether this device, or one between it and the drive, is of dm-crypt.
fn is_crypt(folder: &Path, layers: u32) -> bool {
    if text(&folder.join("dm/uuid")).is_some_and(|uuid| uuid.starts_with("CRYPT-")) {
        return true;
    }
    let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
    layers < 8 && slaves.into_iter().any(|slave| is_crypt(&slave.path(), layers + 1))
}

/// The link of the PCIe function above a drive: of an NVMe drive its own, of a SATA drive its controller's is none of ours.
fn link(folder: &Path) -> Option<Link> {
    let device = folder.join("device/device").canonicalize().ok()?;
    let number =
        |name: &str| -> Option<f64> { text(&device.join(name))?.split_whitespace().next()?.parse().ok() };
    let lanes = |name: &str| -> Option<u32> { text(&device.join(name))?.parse().ok() };
    Some(Link {
        gt_s: number("current_link_speed")?,
        lanes: lanes("current_link_width")?,
        gt_s_max: number("max_link_speed")?,
        lanes_max: lanes("max_link_width")?,
    })
}

/// A drive's own thermometer, where the kernel shows one.
pub(super) fn heat(name: &str) -> Heat {
    let folders = ["device", "device/device"].map(|below| block(name).join(below));
    let monitors = folders.iter().flat_map(|folder| {
        let direct = fs::read_dir(folder).into_iter().flatten().flatten();
        let nested = fs::read_dir(folder.join("hwmon")).into_iter().flatten().flatten();
        direct.chain(nested).map(|entry| entry.path())
    });
    let mut monitors = monitors.filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("hwmon"))
            && path.join("temp1_input").exists()
    });
    let Some(monitor) = monitors.next() else { return Heat::default() };
    let degrees = |name: &str| Some(text(&monitor.join(name))?.parse::<f64>().ok()? / 1000.0);
    Heat { now_c: degrees("temp1_input"), limit_c: degrees("temp1_max").or_else(|| degrees("temp1_crit")) }
}

/// What this system runs in.
fn inside() -> Option<String> {
    let is_file = |path: &str| Path::new(path).exists();
    let cgroup = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    let is_container = is_file("/.dockerenv")
        || is_file("/run/.containerenv")
        || ["docker", "kubepods", "containerd", "lxc"].iter().any(|word| cgroup.contains(word));
    if is_container {
        return Some("a container".to_owned());
    }
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processor.lines().find(|line| line.starts_with("flags"))?;
    flags.split_whitespace().any(|flag| flag == "hypervisor").then(|| "a virtual machine".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_give_what_their_generation_gives() {
        for (gt_s, lanes, gb_s) in
            [(16.0, 4, 7.25), (8.0, 4, 3.62), (8.0, 2, 1.81), (5.0, 4, 1.84), (32.0, 4, 14.5)]
        {
            let found = Link::gb_s(gt_s, lanes);
            assert!((found - gb_s).abs() < 0.02, "{gt_s} GT/s x{lanes}: {found}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_has_no_facts() {
        let fact = DriveFact::look("no-such-device");
        assert!(fact.model.is_none() && fact.link.is_none() && fact.heat == Heat::default(), "{fact:?}");
    }
}
