//! The trace file: Chrome's trace event format as JSON, which Perfetto's viewer opens, too.
//!
//! - In: a [`Recorded`]. Out: a JSON object; and back.
//! - Invariants: each track holds complete events (`ph` `X`) that touch at most, as viewers take what overlaps within a track for
//!   nested calls. Events stand in order of their beginnings. `ts` and `dur` are microseconds, and give the exact nanosecond to
//!   a reader that multiplies by 1,000 and drops the rest, as Perfetto does.
//!
//! The layout of tracks: one process, and for each [`Lane`] as many threads as its deepest moment needs, numbered from
//! [`first_tid`]. What the format has no field for lies in `args` of an event and in `otherData`.

use std::fmt;

use flint_rt::base::events::Lane;
use serde_json::{Map, Value, json};

use super::lanes::assign;
use super::recorded::{LayerColumn, Moment, Recorded};

const PROCESS: u32 = 1;

/// Lanes in the order in which they are shown.
pub(super) const LANES: [Lane; 6] =
    [Lane::Step, Lane::Host, Lane::Device, Lane::Dispatch, Lane::Copy, Lane::Drive];

/// Threads of a lane: more than the queue's depth.
const LANE_TIDS: u32 = 1000;

/// A lane's name in `cat`.
fn category(lane: Lane) -> &'static str {
    match lane {
        Lane::Step => "step",
        Lane::Host => "host",
        Lane::Device => "device",
        Lane::Dispatch => "dispatch",
        Lane::Copy => "copy",
        Lane::Drive => "drive",
    }
}

/// A lane's name for people.
pub(super) fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Step => "steps",
        Lane::Host => "host",
        Lane::Device => "kernels",
        Lane::Dispatch => "dispatches",
        Lane::Copy => "copies",
        Lane::Drive => "reads",
    }
}

fn first_tid(lane_index: usize) -> u32 {
    LANE_TIDS * (u32::try_from(lane_index).expect("invariant: six lanes") + 1)
}

/// The whole file.
pub(crate) fn to_json(recorded: &Recorded) -> Value {
    let mut head =
        vec![metadata("process_name", None, "name", format!("flint-rt: {}", recorded.title).into())];
    let mut spans: Vec<(u64, Value)> = Vec::new();
    for (lane_index, lane) in LANES.into_iter().enumerate() {
        let moments: Vec<&Moment> = recorded.moments.iter().filter(|moment| moment.lane == lane).collect();
        let tracks = assign(&moments.iter().map(|moment| moment.span()).collect::<Vec<_>>());
        let first = first_tid(lane_index);
        let count = tracks.iter().max().map_or(0, |track| track + 1);
        for track in 0..count {
            let tid = tid(first, track);
            let name = if count == 1 {
                lane_name(lane).to_owned()
            } else {
                format!("{} {}", lane_name(lane), track + 1)
            };
            head.push(metadata("thread_name", Some(tid), "name", name.into()));
            head.push(metadata("thread_sort_index", Some(tid), "sort_index", tid.into()));
        }
        for (moment, track) in moments.into_iter().zip(tracks) {
            spans.push((moment.begin_ns, complete(moment, tid(first, track))));
        }
    }
    spans.sort_by_key(|&(begin_ns, _)| begin_ns);
    head.extend(spans.into_iter().map(|(_, event)| event));
    json!({
        "traceEvents": head,
        "displayTimeUnit": "ns",
        "otherData": {
            "program": "flint-rt",
            "version": env!("CARGO_PKG_VERSION"),
            "title": recorded.title,
            "events_left_out": recorded.left_out,
            "layer_uses": recorded.tokens.iter().map(column).collect::<Vec<_>>(),
        },
    })
}

fn tid(first: u32, track: usize) -> u32 {
    // What goes beyond the lane's numbers shares the last one rather than the next lane's.
    first + u32::try_from(track).unwrap_or(u32::MAX).min(LANE_TIDS - 1)
}

fn metadata(name: &str, tid: Option<u32>, key: &str, value: Value) -> Value {
    let args = Map::from_iter([(key.to_owned(), value)]);
    let mut event = json!({ "name": name, "ph": "M", "ts": 0, "pid": PROCESS, "args": args });
    if let Some(tid) = tid {
        event["tid"] = tid.into();
    }
    event
}

fn complete(moment: &Moment, tid: u32) -> Value {
    let mut args = Map::new();
    if let Some(layer) = moment.layer {
        args.insert("layer".to_owned(), layer.into());
    }
    if moment.bytes > 0 {
        args.insert("bytes".to_owned(), moment.bytes.into());
        let ns = moment.end_ns - moment.begin_ns;
        if ns > 0 {
            args.insert("GB/s".to_owned(), (moment.bytes as f64 / ns as f64).into());
        }
    }
    json!({
        "name": moment.what,
        "cat": category(moment.lane),
        "ph": "X",
        "ts": microseconds(moment.begin_ns),
        "dur": microseconds(moment.end_ns - moment.begin_ns),
        "pid": PROCESS,
        "tid": tid,
        "args": args,
    })
}

fn column(column: &LayerColumn) -> Value {
    json!({ "label": column.label, "layers": column.layers })
}

/// The least number of microseconds that a reader which truncates takes for at least `ns` nanoseconds.
fn microseconds(ns: u64) -> f64 {
    let exact = ns as f64 / 1e3;
    if nanoseconds(exact) < ns { exact.next_up() } else { exact }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "truncates and saturates on purpose"
)]
fn nanoseconds(microseconds: f64) -> u64 {
    (microseconds * 1e3) as u64
}

/// Why a file is not a recording of ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotATrace(&'static str);

impl fmt::Display for NotATrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a trace of flint-rt bench --trace: {}", self.0)
    }
}

impl std::error::Error for NotATrace {}

/// Reads back what [`to_json`] gave.
///
/// # Errors
/// When it is something else.
pub(crate) fn from_json(file: &Value) -> Result<Recorded, NotATrace> {
    let other = &file["otherData"];
    if other["program"] != "flint-rt" {
        return Err(NotATrace("otherData.program is not \"flint-rt\""));
    }
    let events = file["traceEvents"].as_array().ok_or(NotATrace("traceEvents is no array"))?;
    let moments = events.iter().filter(|event| event["ph"] == "X").map(moment);
    let columns = other["layer_uses"].as_array().map_or(&[][..], Vec::as_slice).iter().map(|column| {
        let layers = serde_json::from_value(column["layers"].clone());
        Ok(LayerColumn {
            label: column["label"].as_str().unwrap_or_default().to_owned(),
            layers: layers
                .map_err(|_| NotATrace("layer_uses holds something else than [layer, hits, misses]"))?,
        })
    });
    Ok(Recorded {
        title: other["title"].as_str().unwrap_or_default().to_owned(),
        moments: moments.collect::<Result<_, _>>()?,
        left_out: other["events_left_out"].as_u64().unwrap_or(0),
        tokens: columns.collect::<Result<_, _>>()?,
    })
}

fn moment(event: &Value) -> Result<Moment, NotATrace> {
    let lane =
        LANES.into_iter().find(|&lane| event["cat"] == category(lane)).ok_or(NotATrace("unknown cat"))?;
    let what = event["name"].as_str().ok_or(NotATrace("an event has no name"))?;
    let time = |key: &str| event[key].as_f64().filter(|us| (0.0..=1e15).contains(us));
    let begin_ns = nanoseconds(time("ts").ok_or(NotATrace("an event has no ts"))?);
    let args = &event["args"];
    Ok(Moment {
        lane,
        what: what.to_owned(),
        layer: args["layer"].as_u64().and_then(|layer| u32::try_from(layer).ok()),
        bytes: args["bytes"].as_u64().unwrap_or(0),
        begin_ns,
        end_ns: begin_ns + nanoseconds(time("dur").ok_or(NotATrace("an event has no dur"))?),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::report::made_up;

    #[test]
    fn every_event_has_the_formats_fields_and_no_track_overlaps() {
        let recorded = made_up::recorded();
        let text = serde_json::to_string(&to_json(&recorded)).expect("plain JSON");
        let file: Value = serde_json::from_str(&text).expect("JSON");
        let events = file["traceEvents"].as_array().expect("an array");
        let (mut named, mut ends, mut last_ts, mut count) = (BTreeMap::new(), BTreeMap::new(), 0.0, 0);
        for event in events {
            assert_eq!(event["pid"], PROCESS);
            assert!(event["args"].is_object() && event["name"].is_string(), "{event}");
            match event["ph"].as_str() {
                Some("M") => {
                    let key = if event["name"] == "thread_sort_index" { "sort_index" } else { "name" };
                    assert!(!event["args"][key].is_null(), "{event}");
                    if event["name"] == "thread_name" {
                        named.insert(event["tid"].as_u64(), event["args"]["name"].to_string());
                    }
                }
                Some("X") => {
                    count += 1;
                    let ts = event["ts"].as_f64().expect("a time");
                    assert!(ts >= last_ts, "in order of beginnings");
                    last_ts = ts;
                    let (begin, long) =
                        (nanoseconds(ts), nanoseconds(event["dur"].as_f64().expect("a length")));
                    assert!(
                        named.contains_key(&event["tid"].as_u64()),
                        "its track was named before: {event}"
                    );
                    let end = ends.entry(event["tid"].as_u64()).or_insert(0);
                    assert!(*end <= begin, "{event} begins before {end} of its track");
                    *end = begin + long;
                }
                other => panic!("{other:?} is no phase of ours"),
            }
        }
        assert_eq!(count, recorded.moments.len());
        assert!(named.values().any(|name| name == "\"reads 3\""), "reads overlap: {named:?}");
    }

    #[test]
    fn a_trace_is_read_back_as_it_was() {
        let mut recorded = made_up::recorded();
        recorded.title = made_up::HOSTILE.to_owned();
        let text = serde_json::to_string(&to_json(&recorded)).expect("plain JSON");
        let mut back = from_json(&serde_json::from_str(&text).expect("JSON")).expect("ours");
        // Events that begin together may stand in another order.
        let key = |moment: &Moment| (moment.begin_ns, moment.end_ns, moment.lane, moment.what.clone());
        back.moments.sort_by_key(key);
        recorded.moments.sort_by_key(key);
        assert_eq!(back, recorded);
    }

    #[test]
    fn what_is_no_trace_of_ours_is_refused() {
        for other in
            [json!([]), json!({}), json!({ "traceEvents": [] }), json!({ "otherData": { "program": "x" } })]
        {
            assert!(from_json(&other).is_err(), "{other}");
        }
        let mut damaged = to_json(&made_up::recorded());
        let last =
            damaged["traceEvents"].as_array_mut().and_then(|events| events.last_mut()).expect("events");
        last["dur"] = json!(-1.0);
        assert_eq!(from_json(&damaged), Err(NotATrace("an event has no dur")));
    }

    proptest! {
        #[test]
        fn no_nanosecond_is_lost_by_a_reader_that_truncates(ns in 0_u64..(1 << 50)) {
            prop_assert_eq!(nanoseconds(microseconds(ns)), ns);
        }
    }
}
