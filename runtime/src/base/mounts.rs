//! Which file system holds a path.
//!
//! - Owns: nothing. In: a path, and the kernel's table of mounts (`/proc/self/mountinfo`). Out: the file system's type, what
//!   it lies on, where it is mounted.
//! - Invariants: for people to read; which file system holds a path decides nothing. The deepest mount above the path counts, of several on one
//!   place the last, which hides the others. Device numbers are not compared: btrfs gives each subvolume its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Its type, as the kernel names it: `ext4`, `btrfs`, `overlay`, `fuse.sshfs`.
    pub kind: String,
    /// What it lies on: a device, a server's folder, or a word.
    pub source: String,
    /// Which folder of the file system is mounted: `/`, but for bind mounts and namespaces.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The file system's own options, with commas: `rw,compress=zstd:3`.
    pub options: String,
}

impl Mount {
    /// The file system that holds `path`, links followed.
    ///
    /// # Errors
    /// The path does not exist, or there is no table of mounts.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let table = std::fs::read("/proc/self/mountinfo")?;
        find(&table, &path).ok_or_else(|| io::Error::other("no mount in the kernel's table holds it"))
    }

    /// All of a kernel's table, in its order; what is no line of it is passed over.
    pub fn parse_all(table: &[u8]) -> Vec<Self> {
        table.split(|&byte| byte == b'\n').filter_map(parse).collect()
    }
}

fn find(table: &[u8], path: &Path) -> Option<Mount> {
    // The last of the deepest.
    Mount::parse_all(table)
        .into_iter()
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

/// One line: `36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/sda1 rw`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let root = fields.nth(3)?;
    let point = fields.next()?;
    let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
    let text = |field: &[u8]| OsString::from_vec(unescape(field)).to_string_lossy().into_owned();
    Some(Mount {
        kind: text(behind.next()?),
        source: text(behind.next()?),
        root: PathBuf::from(OsString::from_vec(unescape(root))),
        point: PathBuf::from(OsString::from_vec(unescape(point))),
        options: behind.next().map(text).unwrap_or_default(),
    })
}

/// The kernel writes blanks, tabs, newlines and backslashes as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = match behind {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if first == b'\\' => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &behind[3..] } else { behind };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /tmp rw - tmpfs tmpfs rw
31 22 0:31 /var /var rw shared:4 master:2 - btrfs /dev/nvme0n1p2 rw,subvol=/var
32 31 0:40 / /var/a\\040b rw - fuse.sshfs host:/x\\134y rw
33 30 0:41 / /tmp rw - overlay overlay rw
broken line
";

    #[test]
    fn the_deepest_and_last_mount_holds_a_path() {
        let of = |path: &str| find(TABLE, Path::new(path)).unwrap();
        assert_eq!(of("/usr/lib").kind, "ext4");
        assert_eq!(of("/tmp/x").kind, "overlay");
        assert_eq!(of("/tmpx").kind, "ext4");
        assert_eq!(of("/var/u").source, "/dev/nvme0n1p2");
        let odd = of("/var/a b/model");
        assert_eq!((odd.kind.as_str(), odd.source.as_str()), ("fuse.sshfs", "host:/x\\y"));
        assert_eq!(odd.point, Path::new("/var/a b"));
        assert_eq!(of("/var/u").options, "rw,subvol=/var");
        assert_eq!((of("/var/u").root, of("/usr/lib").root), ("/var".into(), "/".into()));
    }

    #[test]
    fn this_machine_has_a_table() {
        let mount = Mount::of(Path::new("/proc/self")).unwrap();
        assert_eq!(mount.kind, "proc");
        assert!(Mount::of(Path::new("/does/not/exist")).is_err());
    }
}
