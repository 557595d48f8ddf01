//! A plan as text and as JSON.
//!
//! In: a [`Report`]. Out: what stands on standard output. Every number that nobody measured is called an estimate.

use std::fmt::Write as _;

use flint_rt::base::host_memory::Bound;
use flint_rt::base::units::{display_bytes, display_rate};
use flint_rt::engine::expectation::Expectation;
use serde_json::{Value, json};

use super::drive::Run;
use super::{Drive, Report, Use};
use crate::devices;
use crate::info::{file_json, plan_json};

/// Where the hit rates come from.
const HIT_RATES: &str = "hit rates are those of the default cache policy, by simulation of recorded routes of a \
                         small model of this architecture (code, prose, chat; 672 experts); a larger model may differ";

impl Report {
    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let config = &self.config;
        let gguf = &self.header.gguf;
        let _ = writeln!(text, "model {} ({}, {})", config.name, self.header.kind, self.header.shown);
        let _ = writeln!(
            text,
            "  {}, of which the header was read ({}); {} experts of {} in {} layers, {} a token in each",
            display_bytes(gguf.file_len_bytes),
            display_bytes(gguf.header_bytes().len() as u64),
            self.plan.expert_total,
            display_bytes(config.record_bytes()),
            config.moe_layer_count(),
            config.experts_used,
        );
        text.push_str("this machine\n");
        for device in &self.devices {
            let _ = writeln!(text, "  device  {}", devices::line(device));
        }
        let shown = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), display_bytes);
        let available = match &self.host.available {
            Some((bytes, Bound::Machine)) => display_bytes(*bytes),
            Some((bytes, bound)) => format!("{} by {bound}", display_bytes(*bytes)),
            None => "unknown".to_owned(),
        };
        let _ = writeln!(
            text,
            "  host    {} of memory, {available} available, {} processors",
            shown(self.host.memory_bytes),
            self.host.cores
        );
        for line in self.drive_lines() {
            let _ = writeln!(text, "  drive   {line}");
        }
        let _ = write!(text, "memory on {}\n{}", self.device.title(), self.plan);
        for note in self.notes() {
            let _ = writeln!(text, "  note: {note}");
        }
        text.push_str("speed to expect, one conversation, one token at a time (estimates)\n");
        self.use_lines("cold", "every expert is read", &self.cold, &mut text);
        let (hits, on_host) = (self.typical.expected.hit_rate, self.typical.expected.host_hit_rate);
        let hits = match self.plan.host.slots {
            0 => format!("{:.0} % of uses hit", 100.0 * hits),
            _ => format!("{:.0} % hit, {:.0} % on host", 100.0 * hits, 100.0 * on_host),
        };
        self.use_lines("typical", &hits, &self.typical, &mut text);
        self.use_lines("resident", "nothing is read", &self.resident, &mut text);
        let (seconds, bytes) = self.chunk;
        let tokens = self.plan.prefill_chunk;
        let _ = writeln!(
            text,
            "  {:<9} {:<22} {:>8.1} tok/s at most: a cold chunk of {tokens} tokens reads {}, {seconds:.3} s of the \
             drive; what kernels take is not in it",
            "prompt",
            "experts read in waves",
            f64::from(tokens) / seconds,
            display_bytes(whole(bytes)),
        );
        let _ = writeln!(text, "  {:<9} {:<22} {}", "agent", "time to first token", self.first_token.line());
        text.push_str("what this rests on\n");
        for basis in self.basis() {
            let _ = writeln!(text, "  {basis}");
        }
        text.push_str("to run this plan\n");
        if self.header.store.is_some() {
            let _ = writeln!(text, "  flint-rt ingest {}", shell(std::slice::from_ref(&self.header.shown)));
        }
        let _ = writeln!(text, "  flint-rt chat {}", shell(&self.flags()));
        if self.plan.pool_slots < self.plan.expert_total && !self.is_bound_by_bindings() {
            let _ = writeln!(
                text,
                "  with {} of device memory every expert stays there, and the resident speed lasts (--gpu-memory says how \
                 much may be used)",
                display_bytes(self.all_resident_bytes())
            );
        }
        text
    }

    fn use_lines(&self, name: &str, what: &str, of: &Use, text: &mut String) {
        let e = &of.expected;
        let range = of.range.as_ref().map_or_else(String::new, |(low, high)| {
            format!(" ({:.1} to {:.1})", low.tokens_a_second(), high.tokens_a_second())
        });
        let _ = writeln!(
            text,
            "  {name:<9} {what:<22} {:>8.1} tok/s{range}, limited by {}",
            e.tokens_a_second(),
            e.limit()
        );
        let _ = writeln!(
            text,
            "  {:<9} {:<22} {:.1} ms a token: drive {:.1} ({:.1} MB), round trips {:.1}, kernels {:.1}, device memory {:.1}",
            "",
            "",
            1e3 * e.seconds(),
            1e3 * e.drive_seconds,
            e.read_bytes / 1e6,
            1e3 * e.round_trip_seconds,
            1e3 * e.kernel_seconds,
            1e3 * e.memory_seconds
        );
    }

    fn drive_lines(&self) -> Vec<String> {
        let measured = match &self.drive {
            Drive::Assumed(rate) => {
                let rate = display_rate(1, 1.0 / rate);
                return vec![format!(
                    "taken for {rate}, not measured; --measure measures it in 10 s, flint-rt disk-profile more thoroughly, \
                     --drive-rate says another"
                )];
            }
            Drive::Measured(found) => found,
        };
        let profile = &measured.profile;
        let mut lines = vec![
            format!("{}: {}", measured.shown, measured.facts.line()),
            format!(
                "{}, {:.1} s, {} read{}",
                profile.read_path,
                profile.seconds,
                display_bytes(measured.read_bytes()),
                if measured.is_saved { ", as flint-rt disk-profile saved it" } else { "" }
            ),
            format!(
                "records at once: {}",
                runs(&measured.bursts(), |run| {
                    format!("{} in {:.2} ms ({:.2} GB/s)", run.records, 1e3 * run.seconds, run.rate / 1e9)
                })
            ),
            format!(
                "records under way: {}",
                runs(&measured.steady(), |run| { format!("{} at {:.2} GB/s", run.records, run.rate / 1e9) })
            ),
        ];
        lines.extend(measured.doubts().iter().map(|doubt| format!("note: {doubt}")));
        lines
    }

    /// What the user should know of the plan.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.plan.warnings.clone();
        if self.is_lowered {
            notes.push(format!(
                "what is usual does not fit: this is the plan with a conversation of {} tokens and chunks of {}",
                self.plan.context_len, self.plan.prefill_chunk
            ));
        }
        if self.is_bound_by_bindings() {
            notes.push(format!(
                "kernels of this device can bind {} slots, though memory has room for more",
                self.plan.pool_slots
            ));
        }
        let plan = &self.plan;
        let device_bytes = plan.resident_bytes + plan.kv_bytes + plan.scratch_bytes + plan.pool_bytes;
        if self.is_shared_memory() {
            let available = self.host.available.as_ref().map_or(u64::MAX, |(bytes, _)| *bytes);
            notes.push(match device_bytes > available {
                true => format!(
                    "this device's memory is the host's, of which {} are available: --gpu-memory limits the plan",
                    display_bytes(available)
                ),
                false => "this device's memory is the host's".to_owned(),
            });
        }
        notes
    }

    /// What is measured and what is not.
    fn basis(&self) -> Vec<String> {
        let drive = match &self.drive {
            Drive::Assumed(rate) => {
                format!(
                    "drive: {} at any depth, assumed, first answer after 0.1 ms",
                    display_rate(1, 1.0 / rate)
                )
            }
            Drive::Measured(found) => format!(
                "drive: {}, {} with many records under way",
                found.when(),
                display_rate(1, 1.0 / found.steady_rate())
            ),
        };
        vec![
            drive,
            HIT_RATES.to_owned(),
            self.device_basis(),
            format!("keys and values: of {} tokens, half a conversation", self.plan.context_len / 2),
        ]
    }

    fn device_basis(&self) -> String {
        let (cost, step) = (&self.device_cost, &self.step_cost);
        let Some(rehearsal) = &self.rehearsal else {
            return format!(
                "device: assumed for a {}, not measured: {:.0} us a kernel that waits for another, {:.1} GB/s of memory, \
                 {:.0} us a layer that waits for the drive, {:.0} GB/s from host to slot",
                self.device.kind,
                1e6 * cost.stage_seconds,
                cost.memory_rate / 1e9,
                1e6 * cost.round_trip_seconds,
                cost.bus_rate / 1e9
            );
        };
        let layers: Vec<String> = rehearsal.resident.iter().map(|time| time.layers.to_string()).collect();
        format!(
            "device: measured now, by tokens through these shapes with {} of {} expert layers: {:.2} ms a token with all \
             experts resident, {:.0} us a layer that waits for the drive, {:.0} us a record from host to slot, {:.0} us a \
             submission more, {:.0} us a layer gone through in vain{}",
            layers.join(" and "),
            self.config.moe_layer_count(),
            1e3 * step.kernel_seconds,
            1e6 * step.stall_seconds,
            1e6 * step.record_seconds,
            1e6 * step.submission_seconds,
            1e6 * step.vain_seconds,
            if rehearsal.misses.is_empty() {
                " (the last four assumed: too few experts to miss any)"
            } else {
                ""
            }
        )
    }

    /// For programs.
    pub(super) fn as_json(&self) -> Value {
        let config = &self.config;
        let (seconds, bytes) = self.chunk;
        json!({
            "schema_version": 1,
            "model": {
                "name": config.name,
                "shown": self.header.shown,
                "kind": self.header.kind,
                "file_bytes": self.header.gguf.file_len_bytes,
                "header_bytes": self.header.gguf.header_bytes().len(),
                "record_bytes": config.record_bytes(),
                "moe_layer_count": config.moe_layer_count(),
                "expert_count": config.expert_count,
                "experts_used": config.experts_used,
            },
            "host": {
                "memory_bytes": self.host.memory_bytes,
                "available_bytes": self.host.available.as_ref().map(|(bytes, _)| bytes),
                "available_by": self.host.available.as_ref().map(|(_, bound)| bound.to_string()),
                "processors": self.host.cores,
            },
            "devices": self.devices.iter().map(devices::as_json).collect::<Vec<_>>(),
            "device": devices::as_json(&self.device),
            "drive": self.drive_json(),
            "memory": plan_json(&self.plan),
            "is_lowered": self.is_lowered,
            "all_resident_bytes": self.all_resident_bytes(),
            "expectation": {
                "is_estimate": true,
                "cold": use_json(&self.cold),
                "typical": use_json(&self.typical),
                "resident": use_json(&self.resident),
                "by_hit_rate": self.curve.iter().map(point_json).collect::<Vec<_>>(),
                "prompt_cold": {
                    "tokens": self.plan.prefill_chunk,
                    "read_bytes": bytes,
                    "drive_seconds": seconds,
                    "tokens_a_second_at_most": f64::from(self.plan.prefill_chunk) / seconds,
                },
            },
            "first_token": self.first_token.json(),
            "device_cost": {
                "measured": self.step_cost.is_measured,
                "from": if self.step_cost.is_measured { "measured now" } else { "assumed" },
                "kernel_seconds": self.step_cost.kernel_seconds,
                "memory_seconds": self.step_cost.memory_seconds,
                "stall_seconds": self.step_cost.stall_seconds,
                "record_seconds": self.step_cost.record_seconds,
                "submission_seconds": self.step_cost.submission_seconds,
                "vain_seconds": self.step_cost.vain_seconds,
                "guess_seconds": self.step_cost.guess_seconds,
            },
            "basis": self.basis(),
            "notes": self.notes(),
            "flags": self.flags(),
        })
    }

    fn drive_json(&self) -> Value {
        match &self.drive {
            Drive::Assumed(rate) => json!({ "measured": false, "from": "assumed", "bytes_a_second": rate }),
            Drive::Measured(found) => {
                let profile = &found.profile;
                json!({
                    "measured": true,
                    "from": found.when(),
                    "saved": found.is_saved,
                    "measured_at": profile.measured_at,
                    "bytes_a_second": found.steady_rate(),
                    "path": found.shown,
                    "file": file_json(&found.facts),
                    "queue": profile.read_path,
                    "seconds": profile.seconds,
                    "read_bytes": found.read_bytes(),
                    "bursts": runs_json(&found.bursts()),
                    "steady": runs_json(&found.steady()),
                    "doubts": found.doubts(),
                })
            }
        }
    }
}

fn runs_json(runs: &[Run]) -> Vec<Value> {
    let as_json =
        |run: &Run| json!({ "records": run.records, "seconds": run.seconds, "bytes_a_second": run.rate });
    runs.iter().map(as_json).collect()
}

fn runs(runs: &[Run], shown: impl Fn(&Run) -> String) -> String {
    runs.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn point_json(e: &Expectation) -> Value {
    json!({ "hit_rate": e.hit_rate, "tokens_a_second": e.tokens_a_second() })
}

fn use_json(of: &Use) -> Value {
    let speed = |e: &Expectation| {
        json!({
            "tokens_a_second": e.tokens_a_second(),
            "hit_rate": e.hit_rate,
            "host_hit_rate": e.host_hit_rate,
            "read_bytes": e.read_bytes,
            "drive_seconds": e.drive_seconds,
            "round_trip_seconds": e.round_trip_seconds,
            "kernel_seconds": e.kernel_seconds,
            "memory_seconds": e.memory_seconds,
            "limit": e.limit().to_string(),
        })
    };
    let mut value = speed(&of.expected);
    if let Some((low, high)) = &of.range {
        value["low"] = speed(low);
        value["high"] = speed(high);
    }
    value
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, for people, above zero"
)]
fn whole(bytes: f64) -> u64 {
    bytes as u64
}

/// Words as a shell takes them.
fn shell(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_from_a_shell() {
        let words = ["a b", "it's", "", "--ctx-size"].map(str::to_owned);
        assert_eq!(shell(&words), "'a b' 'it'\\''s' '' --ctx-size");
    }
}
