//! Made-up material for tests: a sweep, a drive, two tokens. No figure in it was measured.

use flint_rt::base::events::Lane;
use flint_rt::disk::DriveIdentity;
use flint_rt::disk::profile::{
    DriveProfile, Finding, FindingLevel, PROFILE_SCHEMA_VERSION, Pattern, Percentiles, ProfileRow,
    ReadEngine, Sample,
};

use super::recorded::{LayerColumn, Moment, Recorded};
use crate::bench::Row;

/// What a file name may be.
pub(crate) const HOSTILE: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;</style>]]>\u{1b}[31m\u{202e}\0{{7*7}}.gguf";

/// Four pool sizes, a prompt and a reply each.
pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (slots, share, speed) in [(24, 0.25, 3.0), (48, 0.5, 5.5), (72, 0.75, 11.0), (96, 1.0, 30.0)] {
        let row = Row {
            model_filename: "models/made-up.gguf".to_owned(),
            model_type: "made-up".to_owned(),
            gpu_info: "A device".to_owned(),
            test_time: "2026-01-01T00:00:00Z".to_owned(),
            pool_slots: slots,
            pool_share: share,
            pool_bytes: u64::from(slots) * 30_720,
            record_bytes: 30_720,
            expert_total: 96,
            experts_a_token: 24,
            hit_rate: Some(share.sqrt()),
            samples_ts: vec![speed, speed],
            stddev_ts: speed / 20.0,
            drive_gb_s: Some(2.0),
            disk_ns_a_token: 1e8 / speed,
            gpu_ns_a_token: 9e8 / speed,
            bound: Some("disk".to_owned()),
            bound_share: Some(0.5),
            ..Row::default()
        };
        rows.push(Row { test: "pp64".to_owned(), n_prompt: 64, avg_ts: 10.0 * speed, ..row.clone() });
        rows.push(Row {
            test: "tg16".to_owned(),
            n_gen: 16,
            avg_ts: speed,
            disk_bound_ts: Some(2.0 * speed),
            memory_bound_ts: Some(40.0),
            ..row
        });
    }
    rows
}

/// Depths, blocks, two read paths, a long run.
pub(crate) fn profile() -> DriveProfile {
    let row = |engine, block_bytes: u64, depth: u32, is_record| {
        let gb_s =
            3.0 * f64::from(depth) / (f64::from(depth) + 4.0) * (block_bytes as f64 / 1_048_576.0).min(1.0);
        let us = 80.0 * f64::from(depth);
        ProfileRow {
            engine,
            pattern: Pattern::Random,
            is_record,
            block_bytes,
            depth,
            part: None,
            with_uploads: false,
            seconds: 1.0,
            reads: 1000,
            bytes: 1000 * block_bytes,
            gb_s: if engine == ReadEngine::Pool { 0.8 * gb_s } else { gb_s },
            iops: 1000.0,
            latency_us: Percentiles {
                mean: us,
                p50: us,
                p90: 1.4 * us,
                p99: 3.0 * us,
                p99_9: 9.0 * us,
                max: 20.0 * us,
            },
            cpu_s_per_gb: Some(0.1),
        }
    };
    let mut rows = Vec::new();
    for depth in [1, 2, 4, 8, 16, 32, 64] {
        rows.push(row(ReadEngine::Ring, 1_966_080, depth, true));
        rows.push(row(ReadEngine::Pool, 1_966_080, depth, true));
    }
    for block in [4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304] {
        rows.extend([1, 8, 32].map(|depth| row(ReadEngine::Ring, block, depth, false)));
    }
    DriveProfile {
        schema_version: PROFILE_SCHEMA_VERSION,
        program_version: "0".to_owned(),
        measured_at: 0,
        paths: vec!["made-up".to_owned()],
        drives: vec![DriveIdentity { model: Some("A drive".to_owned()), ..DriveIdentity::default() }],
        record_bytes: 1_966_080,
        record_from: "model".to_owned(),
        reads_a_record: 1,
        read_path: "ring".to_owned(),
        is_direct: true,
        spread_bytes: 1 << 30,
        seconds: 60.0,
        rows,
        bursts: Vec::new(),
        uploads: None,
        sustained: (1..=60)
            .map(|at| Sample {
                at_s: f64::from(at),
                gb_s: if at < 40 { 3.0 } else { 2.1 },
                p99_us: 900.0,
                temperature_c: None,
            })
            .collect(),
        findings: vec![Finding {
            code: "made_up".to_owned(),
            level: FindingLevel::Warning,
            text: "none of it was measured".to_owned(),
        }],
    }
}

/// Two tokens through four layers, each with three reads at a time.
pub(crate) fn recorded() -> Recorded {
    let mut moments = Vec::new();
    let mut tokens = Vec::new();
    let mut now = 1_000_001_u64;
    for token in 0..2_u64 {
        let begin = now;
        let mut add = |lane, what: &str, layer, bytes, begin_ns: u64, end_ns: u64| {
            moments.push(Moment { lane, what: what.to_owned(), layer, bytes, begin_ns, end_ns });
        };
        let mut layers = Vec::new();
        for layer in 1..5_u32 {
            add(Lane::Device, "layer", Some(layer), 0, now, now + 700_003);
            let reads = now + 650_000;
            for read in 0..3_u64 {
                let (begin, end) = (reads + 10_000 * read, reads + 400_000 + 150_001 * read);
                add(Lane::Drive, "read", Some(layer), 30_720, begin, end);
                add(Lane::Copy, "copy", Some(layer), 30_720, end, end + 60_000);
            }
            add(Lane::Host, "wait for kernels", None, 0, now, now + 700_003);
            add(Lane::Host, "wait for reads", None, 0, now + 700_003, now + 1_350_000);
            add(Lane::Host, "wait for copies", None, 0, now + 1_350_000, now + 1_410_011);
            now += 1_420_000;
            layers.push((layer, u64::from(layer), 3));
        }
        add(Lane::Step, "token", None, 0, begin, now);
        tokens.push(LayerColumn { label: (token + 1).to_string(), layers });
    }
    moments.sort_by_key(|moment| (moment.begin_ns, moment.end_ns));
    Recorded { title: "made-up, 12 slots, 2 tokens".to_owned(), moments, left_out: 0, tokens }
}
