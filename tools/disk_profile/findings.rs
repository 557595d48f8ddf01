//! What the figures do not say themselves: what is in the way, what holds the drive back, what nobody can know. Pure.
//!
//! - In: [`Facts`] and what was [`Seen`] while measuring. Out: findings in plain words, the weightiest first.
//! - Invariants: each has a code that stays, and says what follows from it. What cannot be found out is a finding, too.

use flint_rt::base::units::display_bytes;
use flint_rt::disk::profile::{Finding, FindingLevel, ReadEngine, Sample};

use super::counters::Traffic;
use super::facts::{DriveFact, Facts, FileFact, Link};

/// Below this, what is read again comes from the drive's own memory as likely as not.
const SPREAD_BYTES_MIN: u64 = 512 << 20;

/// Younger files may still lie in a drive's fast cells.
const FRESH_S: u64 = 600;

/// What was seen while measuring.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// The best rate of any direct row, 10^9 bytes a second.
    pub(super) best_gb_s: f64,
    pub(super) spread_bytes: u64,
    pub(super) traffic: Traffic,
    pub(super) sustained: Vec<Sample>,
    /// Seconds of the long run as asked for, and as it was.
    pub(super) sustained_seconds: Option<(u32, f64)>,
    /// Engines that could not be had, and why.
    pub(super) missing: Vec<(ReadEngine, String)>,
    /// Whether the file was made by us just now.
    pub(super) is_made: bool,
    /// Why nothing was measured beside a device's copies.
    pub(super) no_uploads: Option<String>,
    /// Whether the copying device is this machine's own processors.
    pub(super) is_software_device: bool,
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: FindingLevel, code: &str, text: String) {
        self.0.push(Finding { code: code.to_owned(), level, text });
    }

    fn warn(&mut self, code: &str, text: String) {
        self.add(FindingLevel::Warning, code, text);
    }

    fn note(&mut self, code: &str, text: String) {
        self.add(FindingLevel::Note, code, text);
    }

    fn unknown(&mut self, code: &str, text: String) {
        self.add(FindingLevel::Unknown, code, text);
    }
}

/// Everything that follows.
pub(super) fn find(facts: &Facts, seen: &Seen) -> Vec<Finding> {
    let mut found = Findings(Vec::new());
    for file in &facts.files {
        of_file(file, seen, &mut found);
    }
    // Many files of one store say the same: once is enough.
    let mut codes = Vec::new();
    found.0.retain(|finding| {
        let is_new = !codes.contains(&finding.code);
        codes.push(finding.code.clone());
        is_new
    });
    // What several drives give together says nothing of the link of one.
    let best_gb_s = if facts.drives.len() == 1 { seen.best_gb_s } else { 0.0 };
    for drive in &facts.drives {
        of_drive(drive, best_gb_s, &mut found);
    }
    of_cache(facts, seen, &mut found);
    of_traffic(&seen.traffic, &mut found);
    of_time(facts, &seen.sustained, &mut found);
    of_length(seen, &mut found);
    of_machine(facts, seen, &mut found);
    found.0.sort_by_key(|finding| match finding.level {
        FindingLevel::Warning => 0,
        FindingLevel::Note => 1,
        FindingLevel::Unknown => 2,
    });
    found.0
}

fn of_file(file: &FileFact, seen: &Seen, found: &mut Findings) {
    let name = &file.name;
    if let Some(why) = &file.why_buffered {
        let system = file.file_system.as_deref().unwrap_or("this file system");
        found.warn(
            "no_direct_io",
            format!(
                "{name}: {system} gives no direct reads ({why}): everything went through the page cache, which costs processor time \
                 and memory; a store on ext4, XFS or btrfs is read past it"
            ),
        );
    }
    if let Some(at) = file.hole_at {
        found.warn(
            "sparse_file",
            format!(
                "{name}: has a hole from byte {at} on, and {} of its {} are on the drive: what is read from holes comes from \
                 nowhere, and is faster than any drive",
                display_bytes(file.allocated_bytes.unwrap_or(0)),
                display_bytes(file.len_bytes)
            ),
        );
    } else if file.allocated_bytes.is_some_and(|bytes| bytes < file.len_bytes / 2)
        && file.is_compressed != Some(true)
    {
        found.warn(
            "sparse_file",
            format!(
                "{name}: takes {} on the drive for {}: it is sparse, compressed or deduplicated, and figures are not of so many \
                 bytes of the drive",
                display_bytes(file.allocated_bytes.unwrap_or(0)),
                display_bytes(file.len_bytes)
            ),
        );
    }
    let compresses = file.mount_options.split(',').find(|option| option.starts_with("compress"));
    if file.is_compressed == Some(true) {
        found.warn(
            "compressed",
            format!("{name}: lies compressed: reads cost processor time, and direct ones may go through the page cache"),
        );
    } else if let Some(option) = compresses {
        found.note(
            "compressed",
            format!("{name}: its file system is mounted with {option}; quantised weights hardly compress, but their blocks are tried"),
        );
    }
    if file.is_encrypted == Some(true) {
        found.note(
            "encrypted",
            format!("{name}: the file system encrypts it: each byte is decrypted by the processor"),
        );
    }
    if seen.is_made {
        found.note(
            "fresh_file",
            "the file was written just now: drives write to fast cells first, and may read them faster than an old file".to_owned(),
        );
    } else if let Some(age) = file.age_s.filter(|&age| age < FRESH_S) {
        found.note(
            "fresh_file",
            format!("{name}: was written {age} s ago: a drive may still have it in fast cells, and may still be busy moving it"),
        );
    }
    match file.resident_bytes {
        Some(bytes) if bytes > file.len_bytes / 20 => found.warn(
            "page_cache",
            format!(
                "{name}: {} of {} stay in the page cache although it was asked to drop them (another process has them mapped, or \
                 they are being written): rows buffered and mmap are too fast",
                display_bytes(bytes),
                display_bytes(file.len_bytes)
            ),
        ),
        None if !file.is_device => found.unknown(
            "page_cache_unknown",
            format!("{name}: only its owner is told what the page cache holds of it: rows buffered and mmap may be too fast"),
        ),
        _ => {}
    }
}

fn of_drive(drive: &DriveFact, best_gb_s: f64, found: &mut Findings) {
    let name = &drive.name;
    if drive.is_crypt {
        found.note(
            "encrypted_drive",
            format!("{name}: dm-crypt lies on the way: each byte is decrypted by the processor, which bounds the rate of one drive to a few GB/s"),
        );
    }
    if let Some(file) = &drive.loop_file {
        found.warn(
            "loop_device",
            format!("{name}: is the file {file}, read by the kernel on our behalf: not a drive's figures"),
        );
    }
    if drive.is_rotational && !is_virtual(drive) {
        found.note(
            "rotating",
            format!("{name}: says that it turns: each random read waits some milliseconds for the disk"),
        );
    }
    if is_virtual(drive) {
        found.unknown(
            "virtual_drive",
            format!(
                "{name}: is a virtual drive: what lies below it (the real drive, its host's cache, a limit of reads or bytes a \
                 second, other guests) cannot be seen from here"
            ),
        );
    }
    if let Some(link) = &drive.link {
        of_link(name, link, best_gb_s, found);
    } else if name.starts_with("nvme") {
        found.unknown("link_unknown", format!("{name}: the kernel does not show its PCIe link"));
    }
    if let (Some(now), Some(limit)) = (drive.heat.now_c, drive.heat.limit_c)
        && now >= limit - 5.0
    {
        found.warn(
            "hot",
            format!("{name}: is at {now:.0} C, and slows itself down from about {limit:.0} C on: a heat sink or moving air helps"),
        );
    }
}

fn of_link(name: &str, link: &Link, best_gb_s: f64, found: &mut Findings) {
    let (now, could) = (Link::gb_s(link.gt_s, link.lanes), Link::gb_s(link.gt_s_max, link.lanes_max));
    if now < 0.9 * could {
        found.warn(
            "small_link",
            format!(
                "{name}: its PCIe link runs at {} GT/s x{} (about {now:.1} GB/s); the drive could {} GT/s x{} (about {could:.1} \
                 GB/s): another slot may give that",
                link.gt_s, link.lanes, link.gt_s_max, link.lanes_max
            ),
        );
    }
    if now > 0.0 && best_gb_s > 1.08 * now {
        found.warn(
            "faster_than_link",
            format!("{name}: {best_gb_s:.1} GB/s is more than its PCIe link carries ({now:.1} GB/s): a cache answered"),
        );
    } else if best_gb_s > 0.85 * now {
        found.note(
            "link_bound",
            format!("{name}: {best_gb_s:.1} GB/s is about what its PCIe link carries ({now:.1} GB/s)"),
        );
    }
}

/// Whether a drive is one that a host makes up.
fn is_virtual(drive: &DriveFact) -> bool {
    const WORDS: [&str; 8] =
        ["qemu", "virtual", "vbox", "vmware", "msft", "elastic block", "persistentdisk", "cloud"];
    let model = drive.model.as_deref().unwrap_or_default().to_lowercase();
    drive.name.starts_with("vd")
        || drive.name.starts_with("xvd")
        || WORDS.iter().any(|word| model.contains(word))
}

fn of_cache(facts: &Facts, seen: &Seen, found: &mut Findings) {
    if seen.spread_bytes < SPREAD_BYTES_MIN {
        found.warn(
            "small_spread",
            format!(
                "only {} were there to read: a drive's own memory holds that, so these rates may be too high; --make-file 8GiB \
                 FOLDER measures more",
                display_bytes(seen.spread_bytes)
            ),
        );
    }
    if facts.drives.is_empty() {
        let system =
            facts.files.iter().find_map(|file| file.file_system.clone()).unwrap_or_else(|| "it".to_owned());
        found.unknown(
            "no_block_device",
            format!(
                "no block device is to be seen under {system} (a network, memory, or a container hides it): model, link, heat and other \
                 users of the drive cannot be found out"
            ),
        );
    }
}

fn of_traffic(traffic: &Traffic, found: &mut Findings) {
    let Some(counted) = traffic.counted_bytes else { return };
    let ours = traffic.our_bytes;
    let share = counted as f64 / ours.max(1) as f64;
    if ours > 0 && share < 0.9 {
        found.warn(
            "not_from_drive",
            format!(
                "the drive counted {} while {} were read: the rest came from a cache or from holes, and these rates are not the \
                 drive's",
                display_bytes(counted),
                display_bytes(ours)
            ),
        );
    }
    let others = counted.saturating_sub(ours) as f64 + traffic.written_bytes as f64;
    // Rounding outward, read-ahead of metadata and a journal are a few per cent.
    if share > 0.9 && others > 0.05 * ours as f64 && others / traffic.seconds.max(1e-9) > 5e6 {
        found.warn(
            "drive_in_use",
            format!(
                "another process used the drive meanwhile: {:.2} GB/s read and {:.2} GB/s written beside ours: close it and measure \
                 again",
                counted.saturating_sub(ours) as f64 / traffic.seconds / 1e9,
                traffic.written_bytes as f64 / traffic.seconds / 1e9
            ),
        );
    }
}

/// The rate over time: the last fifth beside the first.
fn of_time(facts: &Facts, samples: &[Sample], found: &mut Findings) {
    let fifth = samples.len() / 5;
    if fifth == 0 {
        return;
    }
    let (first, last) = (median(&samples[..fifth]), median(&samples[samples.len() - fifth..]));
    if last >= 0.9 * first {
        return;
    }
    let seconds = samples.last().map_or(0.0, |sample| sample.at_s);
    let fell = format!("within {seconds:.0} s the rate fell from {first:.2} to {last:.2} GB/s");
    let heat = |sample: Option<&Sample>| sample.and_then(|sample| sample.temperature_c);
    let (cool, warm) = (heat(samples.first()), heat(samples.last()));
    let limit = facts.drives.iter().find_map(|drive| drive.heat.limit_c);
    match (cool, warm) {
        (Some(cool), Some(warm)) if warm >= limit.unwrap_or(70.0) - 10.0 || warm > cool + 15.0 => found.warn(
            "thermal",
            format!("{fell} while the drive went from {cool:.0} to {warm:.0} C: it slows itself down; a heat sink or moving air helps"),
        ),
        (Some(cool), Some(warm)) => found.warn(
            "slows_down",
            format!("{fell}, and it is not heat ({cool:.0} to {warm:.0} C): a limit of the host, another user, or the drive's upkeep"),
        ),
        _ => found.warn(
            "slows_down",
            format!("{fell}; the drive shows no temperature, so whether it is heat, a limit of a host or another user cannot be found out"),
        ),
    }
}

/// A long run that came to an end of the files first.
fn of_length(seen: &Seen, found: &mut Findings) {
    let Some((wanted, got)) = seen.sustained_seconds else { return };
    if got >= 0.95 * f64::from(wanted) {
        return;
    }
    found.warn(
        "short_run",
        format!(
            "the long run ended after {got:.1} of {wanted} s: there are no direct reads here, so what was read once lies in the page \
             cache, and all {} were; a larger file, or one on a file system with direct I/O, lasts longer",
            display_bytes(seen.spread_bytes)
        ),
    );
}

fn median(samples: &[Sample]) -> f64 {
    let mut rates: Vec<f64> = samples.iter().map(|sample| sample.gb_s).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

fn of_machine(facts: &Facts, seen: &Seen, found: &mut Findings) {
    for (engine, why) in &seen.missing {
        found.note("engine_missing", format!("{} was not measured: {why}", engine.name()));
    }
    if let Some(why) = &seen.no_uploads {
        found.unknown("no_uploads", format!("reads beside a device's copies were not measured: {why}"));
    } else if seen.is_software_device {
        found.note(
            "software_device",
            "the device that copies is this machine's own processors: a GPU's copies cost reads less"
                .to_owned(),
        );
    }
    if let Some(inside) = &facts.inside
        && !found.0.iter().any(|finding| finding.code == "virtual_drive")
    {
        found.unknown(
            "inside",
            format!("this system is {inside}: a host's cache and limits cannot be seen from here"),
        );
    }
    if !facts.drives.is_empty() && facts.drives.iter().all(|drive| drive.heat.now_c.is_none()) {
        found.unknown("no_temperature", "no drive shows its temperature here".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::Heat;
    use super::*;

    fn whole() -> FileFact {
        FileFact {
            name: "/m".to_owned(),
            file_system: Some("ext4".to_owned()),
            len_bytes: 1 << 30,
            allocated_bytes: Some(1 << 30),
            age_s: Some(100_000),
            is_compressed: Some(false),
            is_encrypted: Some(false),
            resident_bytes: Some(0),
            ..FileFact::default()
        }
    }

    fn nvme() -> DriveFact {
        DriveFact {
            name: "nvme0n1".to_owned(),
            model: Some("Fast".to_owned()),
            link: Some(Link { gt_s: 16.0, lanes: 4, gt_s_max: 16.0, lanes_max: 4 }),
            heat: Heat { now_c: Some(40.0), limit_c: Some(80.0) },
            ..DriveFact::default()
        }
    }

    fn quiet() -> Seen {
        Seen { best_gb_s: 5.0, spread_bytes: 20 << 30, ..Seen::default() }
    }

    fn codes(facts: &Facts, seen: &Seen) -> Vec<String> {
        find(facts, seen).into_iter().map(|finding| finding.code).collect()
    }

    fn facts(file: FileFact, drive: DriveFact) -> Facts {
        Facts { files: vec![file], drives: vec![drive], inside: None }
    }

    #[track_caller]
    fn of_one_file(change: impl Fn(&mut FileFact)) -> Vec<String> {
        let mut file = whole();
        change(&mut file);
        codes(&facts(file, nvme()), &quiet())
    }

    #[track_caller]
    fn of_one_drive(change: impl Fn(&mut DriveFact), seen: &Seen) -> Vec<String> {
        let mut drive = nvme();
        change(&mut drive);
        codes(&facts(whole(), drive), seen)
    }

    #[test]
    fn a_good_drive_and_a_whole_file_leave_nothing_to_say() {
        assert!(
            find(&facts(whole(), nvme()), &quiet()).is_empty(),
            "{:?}",
            find(&facts(whole(), nvme()), &quiet())
        );
    }

    #[test]
    fn files_say_what_is_wrong_with_them() {
        assert_eq!(of_one_file(|file| file.why_buffered = Some("no".to_owned())), ["no_direct_io"]);
        assert_eq!(of_one_file(|file| file.hole_at = Some(7)), ["sparse_file"]);
        assert_eq!(of_one_file(|file| file.allocated_bytes = Some(1 << 20)), ["sparse_file"]);
        assert_eq!(of_one_file(|file| file.age_s = Some(5)), ["fresh_file"]);
        assert_eq!(of_one_file(|file| file.is_compressed = Some(true)), ["compressed"]);
        assert_eq!(of_one_file(|file| file.mount_options = "rw,compress=zstd:1".to_owned()), ["compressed"]);
        assert_eq!(of_one_file(|file| file.is_encrypted = Some(true)), ["encrypted"]);
        assert_eq!(of_one_file(|file| file.resident_bytes = Some(1 << 29)), ["page_cache"]);
        assert_eq!(of_one_file(|file| file.resident_bytes = None), ["page_cache_unknown"]);
    }

    #[test]
    fn drives_say_what_holds_them_back() {
        let seen = quiet();
        assert_eq!(of_one_drive(|drive| drive.is_crypt = true, &seen), ["encrypted_drive"]);
        assert_eq!(of_one_drive(|drive| drive.loop_file = Some("/x".to_owned()), &seen), ["loop_device"]);
        assert_eq!(of_one_drive(|drive| drive.is_rotational = true, &seen), ["rotating"]);
        assert_eq!(of_one_drive(|drive| drive.heat.now_c = Some(78.0), &seen), ["hot"]);
        assert_eq!(of_one_drive(|drive| drive.link = None, &seen), ["link_unknown"]);
        assert_eq!(of_one_drive(|drive| drive.heat = Heat::default(), &seen), ["no_temperature"]);
        let slow = Seen { best_gb_s: 1.0, ..quiet() };
        let half = |drive: &mut DriveFact| drive.link.as_mut().unwrap().lanes = 2;
        assert_eq!(of_one_drive(half, &slow), ["small_link"]);
        let at_link = Seen { best_gb_s: 7.0, ..quiet() };
        assert_eq!(of_one_drive(|_| {}, &at_link), ["link_bound"]);
        let above = Seen { best_gb_s: 9.0, ..quiet() };
        assert_eq!(of_one_drive(|_| {}, &above), ["faster_than_link"]);
        let pair = [nvme(), DriveFact { name: "nvme1n1".to_owned(), ..nvme() }].to_vec();
        let of_two = Facts { drives: pair, ..facts(whole(), nvme()) };
        assert!(codes(&of_two, &above).is_empty(), "two drives give more than one link carries");
        let virtual_drive =
            |drive: &mut DriveFact| drive.model = Some("Amazon Elastic Block Store".to_owned());
        assert_eq!(of_one_drive(virtual_drive, &seen), ["virtual_drive"]);
    }

    #[test]
    fn the_drives_counters_tell_of_caches_and_of_others() {
        let with = |counted, written_bytes, our_bytes| {
            let traffic = Traffic { counted_bytes: Some(counted), written_bytes, our_bytes, seconds: 1.0 };
            codes(&facts(whole(), nvme()), &Seen { traffic, ..quiet() })
        };
        const GB: u64 = 1_000_000_000;
        assert!(with(GB, 0, GB).is_empty());
        assert!(with(GB + GB / 50, 0, GB).is_empty(), "rounding outward");
        assert_eq!(with(GB / 2, 0, GB), ["not_from_drive"]);
        assert_eq!(with(GB + GB / 5, 0, GB), ["drive_in_use"]);
        assert_eq!(with(GB, GB / 5, GB), ["drive_in_use"]);
        assert!(with(1100, 0, 1000).is_empty(), "a few bytes are nobody");
    }

    #[test]
    fn a_rate_that_falls_is_heat_where_heat_rises() {
        let run = |last: f64, temperatures: Option<(f64, f64)>| {
            let sample = |index: u32| Sample {
                at_s: f64::from(index),
                gb_s: if index < 30 { 5.0 } else { last },
                p99_us: 1.0,
                temperature_c: temperatures.map(|(cool, warm)| if index < 30 { cool } else { warm }),
            };
            let sustained = (1..=60).map(sample).collect();
            codes(&facts(whole(), nvme()), &Seen { sustained, ..quiet() })
        };
        assert!(run(4.9, Some((40.0, 75.0))).is_empty());
        assert_eq!(run(3.0, Some((45.0, 78.0))), ["thermal"]);
        assert_eq!(run(3.0, Some((45.0, 47.0))), ["slows_down"]);
        assert_eq!(run(3.0, None), ["slows_down"]);
    }

    #[test]
    fn a_long_run_that_ends_early_is_said() {
        let run =
            |got| codes(&facts(whole(), nvme()), &Seen { sustained_seconds: Some((60, got)), ..quiet() });
        assert_eq!(run(2.5), ["short_run"]);
        assert!(run(60.1).is_empty());
    }

    #[test]
    fn what_cannot_be_known_is_said_last_and_once_a_file_kind() {
        let facts = Facts {
            files: vec![FileFact { resident_bytes: None, hole_at: Some(1), ..whole() }; 3],
            drives: Vec::new(),
            inside: Some("a container".to_owned()),
        };
        let seen = Seen {
            spread_bytes: 1,
            missing: vec![(ReadEngine::Ring, "seccomp".to_owned())],
            no_uploads: Some("no device".to_owned()),
            ..quiet()
        };
        let found = codes(&facts, &seen);
        assert_eq!(
            found,
            [
                "sparse_file",
                "small_spread",
                "engine_missing",
                "page_cache_unknown",
                "no_block_device",
                "no_uploads",
                "inside"
            ]
        );
    }
}
