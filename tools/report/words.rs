//! What a page says in words: the table, machine and settings, what is missing and why. Pure.

use flint_rt::base::limits::EVENTS_MAX;
use flint_rt::base::units::display_bytes;
use flint_rt::disk::profile::{DriveProfile, FindingLevel};
use serde::Serialize;

use super::frame::number;
use super::recorded::Recorded;
use crate::bench::Row;

/// Different values of a setting that are listed; then it "varies".
const VALUES_MAX: usize = 6;

/// A name with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fact {
    pub(super) name: &'static str,
    pub(super) value: String,
}

fn fact(name: &'static str, value: impl Into<String>) -> Fact {
    Fact { name, value: value.into() }
}

fn percent(share: f64) -> String {
    format!("{} %", number(100.0 * share))
}

fn or_dash(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "–".to_owned(), show)
}

/// Names of the table's columns.
pub(super) const COLUMNS: [&str; 13] = [
    "test",
    "pool",
    "tokens/s",
    "hits",
    "read a token",
    "drive GB/s",
    "of its rate",
    "drive busy",
    "disk",
    "copy",
    "kernels",
    "host",
    "of the bound",
];

/// One row of the table.
pub(super) fn cells(row: &Row) -> Vec<String> {
    let ms = |ns: f64| number(ns / 1e6);
    let spread = if row.stddev_ts > 0.0 { format!(" ± {}", number(row.stddev_ts)) } else { String::new() };
    let bound = row.bound.as_deref().map_or(String::new(), |bound| format!(" ({bound})"));
    vec![
        if row.interrupted { format!("{}, interrupted", row.test) } else { row.test.clone() },
        format!("{} of {}", row.pool_slots, row.expert_total),
        format!("{}{spread}", number(row.avg_ts)),
        or_dash(row.hit_rate, percent),
        display_bytes(whole(row.read_bytes_a_token)),
        or_dash(row.disk_gb_s, number),
        or_dash(row.disk_share, percent),
        percent(row.disk_busy_share),
        ms(row.disk_ns_a_token),
        ms(row.copy_ns_a_token),
        ms(row.gpu_ns_a_token),
        ms(row.host_ns_a_token),
        or_dash(row.bound_share, |share| format!("{}{bound}", percent(share))),
    ]
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// The figures for the page's head.
pub(super) fn highlights(rows: &[Row]) -> Vec<Fact> {
    let best = |is_wanted: &dyn Fn(&Row) -> bool| {
        rows.iter().filter(|row| is_wanted(row)).max_by(|a, b| a.avg_ts.total_cmp(&b.avg_ts))
    };
    let mut facts = Vec::new();
    let at_pool = |row: &Row| format!(", {} of the experts in the pool", percent(row.pool_share));
    if let Some(row) = best(&|row| row.n_gen > 0 && row.n_prompt == 0) {
        facts.push(fact(
            "generation",
            format!("{} tokens/s ({}{})", number(row.avg_ts), row.test, at_pool(row)),
        ));
        if let Some(hits) = row.hit_rate {
            facts.push(fact("hits in that test", percent(hits)));
        }
        if let (Some(share), Some(bound)) = (row.bound_share, &row.bound) {
            facts.push(fact("of what is possible", format!("{}, bound by {bound}", percent(share))));
        }
    }
    if let Some(row) = best(&|row| row.n_prompt > 0 && row.n_gen == 0) {
        facts
            .push(fact("prompts", format!("{} tokens/s ({}{})", number(row.avg_ts), row.test, at_pool(row))));
    }
    facts
}

/// Machine and settings.
pub(super) fn settings(rows: &[Row], profile: Option<&DriveProfile>) -> Vec<Fact> {
    let of = |name, value: &dyn Fn(&Row) -> String| {
        let mut values: Vec<String> = Vec::new();
        for value in rows.iter().map(value).filter(|value| !value.is_empty()) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let text = if values.len() > VALUES_MAX { "varies".to_owned() } else { values.join("; ") };
        fact(name, text)
    };
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    let mut facts = vec![
        of("model", &|row| row.model_filename.clone()),
        of("its kind", &|row| row.model_type.clone()),
        of("its size", &|row| {
            let parameters = number(row.model_n_params as f64 / 1e9);
            format!("{}, {parameters} billion parameters", display_bytes(row.model_size))
        }),
        of("read from", &|row| row.model_source.clone()),
        of("device", &|row| row.gpu_info.clone()),
        of("kind of device", &|row| row.device_kind.clone()),
        of("driver", &|row| row.driver.clone()),
        of("processor", &|row| row.cpu_info.clone()),
        of("expert record", &|row| display_bytes(row.record_bytes)),
        of("experts", &|row| format!("{}, of which a token uses {}", row.expert_total, row.experts_a_token)),
        of("pool", &|row| format!("{} slots, {}", row.pool_slots, display_bytes(row.pool_bytes))),
        of("context", &|row| format!("{} tokens", row.context_len)),
        of("prompt chunk", &|row| format!("{} tokens", row.n_ubatch)),
        of("reads", &|row| row.read_path.clone()),
        of("past the page cache", &|row| yes(row.use_direct_io)),
        of("to the device by", &|row| row.host_path.clone()),
        of("records checked", &|row| yes(row.checked)),
        of("tokens fed", &|row| row.tokens.clone()),
        of("routes", &|row| row.routes.clone()),
        of("cache before a test", &|row| match (row.cache.as_str(), row.cache_policy.as_str()) {
            (cache, "") => cache.to_owned(),
            (cache, policy) => format!("{cache}: {policy}"),
        }),
        of("simulated drive", &|row| row.simulated_drive.clone().unwrap_or_default()),
        of("rate of the drive from", &|row| row.drive_profile.clone()),
        of("rate of the memory from", &|row| row.memory_rate_source.clone()),
        of("program", &|row| {
            format!("{} {} {}", row.program, row.build_version, row.build_commit).trim().to_owned()
        }),
    ];
    let measured = match rows {
        [first, .., last] => format!("{} to {}", first.test_time, last.test_time),
        rows => rows.iter().map(|row| row.test_time.clone()).collect(),
    };
    facts.push(fact("measured", measured));
    if let Some(profile) = profile {
        facts.push(fact("drive", drive(profile)));
        facts.push(fact(
            "drive measured by",
            format!("flint-rt {}: {}", profile.program_version, profile.read_path),
        ));
    }
    facts.retain(|fact| !fact.value.is_empty());
    facts
}

fn drive(profile: &DriveProfile) -> String {
    let names = profile.drives.iter().map(|drive| {
        let parts = [&drive.model, &drive.device, &drive.file_system];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        if parts.is_empty() { "unknown".to_owned() } else { parts.join(", ") }
    });
    names.collect::<Vec<_>>().join("; ")
}

/// What the page lacks, or what makes its figures doubtful, in sentences.
pub(super) fn gaps(rows: &[Row], profile: Option<&DriveProfile>, recorded: Option<&Recorded>) -> Vec<String> {
    let mut gaps = Vec::new();
    let mut simulated: Vec<&str> = rows.iter().filter_map(|row| row.simulated_drive.as_deref()).collect();
    simulated.dedup();
    for drive in simulated {
        gaps.push(format!(
            "Times of the drive are simulated ({drive}): bytes came from elsewhere and were held back. \
             No such drive was measured."
        ));
    }
    let late: u64 = rows.iter().filter_map(|row| row.simulated_late_reads).sum();
    if late > 0 {
        gaps.push(format!(
            "{late} reads came later than the simulated drive would have given them: it would be faster than shown."
        ));
    }
    if rows.iter().any(|row| row.interrupted) {
        gaps.push("Tests marked as interrupted have fewer repetitions than were asked for.".to_owned());
    }
    if rows.iter().any(|row| row.samples_ts.len() == 1) {
        gaps.push(
            "A test that ran once has no spread: differences between such tests mean little.".to_owned(),
        );
    }
    if rows.iter().all(|row| row.pool_slots == rows[0].pool_slots) {
        gaps.push(
            "One pool size was measured, so there are no curves over it: bench --sweep pool=10%,20%,...,100% gives them."
                .to_owned(),
        );
    }
    if rows.iter().any(|row| row.drive_gb_s.is_none()) {
        gaps.push(
            "The drive's own rate is not known, so nothing says how near to it the reads came: flint-rt disk-profile \
             MODEL measures it."
                .to_owned(),
        );
    }
    if rows.iter().any(|row| row.n_gen > 0 && row.n_prompt == 0 && row.memory_bound_ts.is_none()) {
        gaps.push("The device's memory bandwidth is not known, so there is no bound by it.".to_owned());
    }
    if rows.iter().any(|row| row.memory_bound_ts.is_some() && row.memory_rate_source.starts_with("estimate"))
    {
        gaps.push(
            "The bound by memory rests on an estimate of its bandwidth: nobody measured it.".to_owned(),
        );
    }
    if rows.iter().filter_map(|row| row.disk_share).any(|share| share > 1.1) {
        gaps.push(
            "Some tests read faster than the profile says the drive can: it was measured while something else used the drive, or \
             reads came from a memory below it."
                .to_owned(),
        );
    }
    match profile {
        None => gaps.push(
            "No profile of the drive was at hand, so there are no pictures of it: flint-rt disk-profile MODEL makes one."
                .to_owned(),
        ),
        Some(profile) => {
            let is_told = |level| matches!(level, FindingLevel::Warning | FindingLevel::Unknown);
            let told = profile.findings.iter().filter(|finding| is_told(finding.level));
            gaps.extend(told.map(|finding| format!("Drive: {}", finding.text)));
        }
    }
    if let Some(left_out) = recorded.map(|recorded| recorded.left_out).filter(|count| *count > 0) {
        gaps.push(format!(
            "The timeline lacks {left_out} events: no more than {EVENTS_MAX} are kept, the first ones."
        ));
    }
    match recorded {
        None => gaps.push("No timeline was recorded.".to_owned()),
        Some(_) => gaps.push(
            "The timeline was recorded in a pass of its own: noting costs a few per cent. Kernels and copies are \
             on the device's clock, which is brought to the host's by the shortest wait that was seen: they lie late, by \
             microseconds on a GPU, by more on a software device that shares its processors."
                .to_owned(),
        ),
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let row = |slots| Row { pool_slots: slots, drive_gb_s: Some(1.0), ..Row::default() };
        let said = gaps(&[row(1)], None, None).join("\n");
        for word in ["One pool size", "No profile", "No timeline"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        let mut rows = vec![row(1), row(2)];
        let full = Recorded { left_out: 12, ..Recorded::default() };
        assert!(gaps(&rows, None, Some(&full)).join("\n").contains("lacks 12 events"));
        let said = gaps(&rows, None, Some(&Recorded::default())).join("\n");
        assert!(!said.contains("One pool size") && !said.contains("No timeline"), "{said}");
        rows[0].simulated_drive = Some("7 GB/s".to_owned());
        rows[0].simulated_late_reads = Some(3);
        rows[1].drive_gb_s = None;
        rows[1].disk_share = Some(3.0);
        rows[1].memory_bound_ts = Some(9.0);
        rows[1].memory_rate_source = "estimate for a software device".to_owned();
        let said = gaps(&rows, None, None).join("\n");
        for word in [
            "simulated (7 GB/s)",
            "3 reads came later",
            "own rate is not known",
            "faster than the profile",
            "rests on an estimate",
        ] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }

    #[test]
    fn settings_that_differ_are_listed() {
        let row =
            |slots: u32, gpu: &str| Row { pool_slots: slots, gpu_info: gpu.to_owned(), ..Row::default() };
        let of = |facts: &[Fact], name: &str| {
            facts.iter().find(|fact| fact.name == name).map(|fact| fact.value.clone())
        };
        let facts = settings(&[row(1, "a"), row(2, "a"), row(2, "b")], None);
        assert_eq!(of(&facts, "device").as_deref(), Some("a; b"));
        assert_eq!(of(&facts, "pool").as_deref(), Some("1 slots, 0 B; 2 slots, 0 B"));
        assert_eq!(of(&facts, "driver"), None, "what is not known has no line");
        let many: Vec<Row> = (0..9).map(|slots| row(slots, "a")).collect();
        assert_eq!(of(&settings(&many, None), "pool").as_deref(), Some("varies"));
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let cells = cells(&Row::default());
        assert_eq!(cells.len(), COLUMNS.len());
        assert_eq!(cells[3], "–");
    }
}
