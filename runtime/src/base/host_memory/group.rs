//! Control groups: the limits that a container, a service or a session puts on this process's memory.
//!
//! - Owns: nothing. In: the table of mounts, `/proc/self/cgroup`, and the files of each group. Out: [`GroupRoom`]s.
//! - Invariants: every group up to the root of what is mounted here counts, as each limits all below it. Of what a group uses,
//!   page cache that the kernel can drop at once is not counted: clean pages of files (and, by version 2, reclaimable slab).
//!
//! Version 2 has `memory.max` (above it: killed) and `memory.high` (above it: slowed down), of which the lower one counts.
//! Version 1 has `memory.limit_in_bytes`; both may be mounted at once, with the memory in either.

use std::fs;
use std::path::{Path, PathBuf};

use super::stall::Stall;
use crate::base::mounts::Mount;

/// A limit of version 1 from here on is none: the kernel says "no limit" by its largest number of pages.
const NO_LIMIT_BYTES: u64 = 1 << 62;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A group that this process is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    folder: PathBuf,
    version: Version,
}

/// What a group with a limit leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRoom {
    /// Its folder.
    pub folder: PathBuf,
    /// Bytes that it may use.
    pub limit_bytes: u64,
    /// Bytes that it uses, page cache included.
    pub used_bytes: u64,
    /// Bytes of these that the kernel can drop at once.
    pub cache_bytes: u64,
}

impl GroupRoom {
    /// Bytes that may still be had.
    pub fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes.saturating_sub(self.cache_bytes))
    }
}

impl Group {
    /// The groups of this process that can limit memory: its own, and each above it.
    pub fn all() -> Vec<Self> {
        let mounts = Mount::parse_all(&fs::read("/proc/self/mountinfo").unwrap_or_default());
        find(&mounts, &fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
    }

    /// Where its files lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What its limit leaves; `None` where it has none.
    pub fn room(&self) -> Option<GroupRoom> {
        room(&self.folder, self.version, |name| fs::read_to_string(self.folder.join(name)).ok())
    }

    /// How long its tasks stood still for want of memory; `None` where the kernel does not count that (version 1).
    pub fn stall(&self) -> Option<Stall> {
        match self.version {
            Version::One => None,
            Version::Two => Stall::read(&self.folder.join("memory.pressure")),
        }
    }
}

/// The groups of a process, by the mounts that it sees and the text of its `cgroup` file.
fn find(mounts: &[Mount], text: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    // `hierarchy:controllers:path`; version 2 has number 0 and no controllers.
    for (controllers, path) in text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':')) {
        let has_memory = |list: &str| list.split(',').any(|word| word == "memory");
        let (version, mount) = if controllers.is_empty() {
            (Version::Two, mounts.iter().rfind(|mount| mount.kind == "cgroup2"))
        } else if has_memory(controllers) {
            let is_memory = |mount: &&Mount| mount.kind == "cgroup" && has_memory(&mount.options);
            (Version::One, mounts.iter().rfind(is_memory))
        } else {
            continue;
        };
        let Some(mount) = mount else { continue };
        // A container may see another root than the one that the path begins at: then only the mount itself is sure.
        let below = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
        let is_sound = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let below = if is_sound { below } else { Path::new("") };
        for part in below.ancestors() {
            groups.push(Group { folder: mount.point.join(part), version });
        }
    }
    groups
}

/// What a group's files say of its room.
fn room(folder: &Path, version: Version, read: impl Fn(&str) -> Option<String>) -> Option<GroupRoom> {
    // `max` is no number, and no limit.
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let stat = |text: &str, key: &str| -> u64 {
        let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok();
        text.lines().find_map(value).unwrap_or(0)
    };
    let (limit_bytes, used_bytes, dropped, kept) = match version {
        Version::Two => (
            number("memory.max").into_iter().chain(number("memory.high")).min()?,
            number("memory.current")?,
            ["inactive_file", "active_file", "slab_reclaimable"].as_slice(),
            ["file_dirty", "file_writeback"],
        ),
        Version::One => (
            number("memory.limit_in_bytes").filter(|&bytes| bytes < NO_LIMIT_BYTES)?,
            number("memory.usage_in_bytes")?,
            ["total_inactive_file", "total_active_file"].as_slice(),
            ["total_dirty", "total_writeback"],
        ),
    };
    let text = read("memory.stat").unwrap_or_default();
    let dropped: u64 = dropped.iter().map(|key| stat(&text, key)).sum();
    let kept: u64 = kept.iter().map(|key| stat(&text, key)).sum();
    let cache_bytes = dropped.saturating_sub(kept);
    Some(GroupRoom { folder: folder.to_owned(), limit_bytes, used_bytes, cache_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 2 alone, in a service, as systemd mounts it.
    const UNIFIED: &[u8] =
        b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    /// Version 1 with the unified hierarchy beside it.
    const HYBRID: &[u8] = b"\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn folders(table: &[u8], text: &str) -> Vec<(String, Version)> {
        let found = find(&Mount::parse_all(table), text);
        found.into_iter().map(|group| (group.folder.display().to_string(), group.version)).collect()
    }

    #[test]
    fn every_group_up_to_the_root_counts() {
        let found = folders(UNIFIED, "0::/system.slice/flint.service\n");
        let wanted =
            ["/sys/fs/cgroup/system.slice/flint.service", "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/"];
        assert_eq!(found, wanted.map(|folder| (folder.to_owned(), Version::Two)));
        let found = folders(HYBRID, "9:name=systemd:/\n4:memory:/job/7\n2:cpuacct:/\n0::/\n");
        let wanted = [
            ("/sys/fs/cgroup/memory/job/7", Version::One),
            ("/sys/fs/cgroup/memory/job", Version::One),
            ("/sys/fs/cgroup/memory/", Version::One),
            ("/sys/fs/cgroup/unified/", Version::Two),
        ];
        assert_eq!(found, wanted.map(|(folder, version)| (folder.to_owned(), version)));
    }

    #[test]
    fn a_container_s_mount_begins_below_the_root() {
        // Without a namespace of its own the container's group is bound over the root of its hierarchy.
        let bound = b"700 699 0:32 /docker/5fb1 /sys/fs/cgroup/memory ro,nosuid master:12 - cgroup cgroup rw,memory\n";
        let found = folders(bound, "4:memory:/docker/5fb1/inner\n");
        let wanted = ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory/"];
        assert_eq!(found, wanted.map(|folder| (folder.to_owned(), Version::One)));
        // A process that was moved out of the namespace that it looks from, and one that sees another root.
        for path in ["/../../other", "/elsewhere"] {
            let found = folders(bound, &format!("4:memory:{path}\n"));
            assert_eq!(found, [("/sys/fs/cgroup/memory/".to_owned(), Version::One)], "{path}");
        }
        assert_eq!(folders(b"", "0::/\n4:memory:/\n"), []);
        assert_eq!(folders(HYBRID, "nonsense\n"), []);
    }

    fn files<'a>(texts: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| texts.iter().find(|(have, _)| *have == name).map(|(_, text)| (*text).to_owned())
    }

    #[test]
    fn the_lower_limit_counts_and_clean_cache_is_free() {
        let texts = [
            ("memory.max", "8589934592\n"),
            ("memory.high", "6442450944\n"),
            ("memory.current", "5368709120\n"),
            (
                "memory.stat",
                "anon 1073741824\nfile 3221225472\nfile_mapped 4096\nfile_dirty 100000\nfile_writeback 5000\n\
                 inactive_file 2147483648\nactive_file 1073741824\nslab_reclaimable 1000000\n",
            ),
        ];
        let found = room(Path::new("/g"), Version::Two, files(&texts)).unwrap();
        assert_eq!(found.limit_bytes, 6 << 30);
        assert_eq!(found.cache_bytes, (3 << 30) + 1_000_000 - 105_000);
        assert_eq!(found.free_bytes(), (6 << 30) - (5 << 30) + (3 << 30) + 895_000);
        let unlimited = [("memory.max", "max\n"), ("memory.high", "max\n"), ("memory.current", "5\n")];
        assert_eq!(room(Path::new("/g"), Version::Two, files(&unlimited)), None);
        // The root of the hierarchy has no such files.
        assert_eq!(room(Path::new("/"), Version::Two, files(&[])), None);
    }

    #[test]
    fn version_one_says_no_limit_by_a_large_number() {
        let texts = |limit| {
            [
                ("memory.limit_in_bytes", limit),
                ("memory.usage_in_bytes", "3547136\n"),
                (
                    "memory.stat",
                    "cache 507904\ninactive_file 1\nactive_file 1\ntotal_cache 507904\ntotal_dirty 16384\n\
                     total_writeback 0\ntotal_inactive_file 143360\ntotal_active_file 364544\n",
                ),
            ]
        };
        assert_eq!(room(Path::new("/g"), Version::One, files(&texts("9223372036854771712\n"))), None);
        let found = room(Path::new("/g"), Version::One, files(&texts("4194304\n"))).unwrap();
        assert_eq!(found.cache_bytes, 143_360 + 364_544 - 16_384);
        assert_eq!(found.free_bytes(), 4_194_304 - (3_547_136 - 491_520));
        // A limit that was lowered below what is used leaves nothing.
        let found = room(Path::new("/g"), Version::One, files(&texts("1048576\n"))).unwrap();
        assert_eq!(found.free_bytes(), 0);
    }
}
