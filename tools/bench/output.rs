//! Rows as they are printed: a table, JSON, CSV, JSON lines.
//!
//! In: [`Row`]s one after another. Out: text that is whole also when the run is ended early.

use std::fmt;
use std::io::{self, Write};

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::args::Format;
use super::result::Row;

/// Prints rows as they come.
pub(super) struct Printer<W: Write> {
    format: Format,
    out: W,
    row_count: usize,
}

/// Titles of the table, their width, and whether their values stand on the right.
const COLUMNS: [(&str, usize, bool); 17] = [
    ("model", 30, false),
    ("size", 10, true),
    ("params", 10, true),
    ("backend", 10, false),
    ("pool", 11, true),
    ("pl", 3, true),
    ("test", 15, true),
    ("t/s", 18, true),
    ("hit", 6, true),
    ("MB/tok", 8, true),
    ("disk GB/s", 9, true),
    ("of drive", 8, true),
    ("disk busy", 9, true),
    ("disk/copy/gpu/host ms/tok", 27, true),
    ("bound", 14, true),
    ("of bound", 8, true),
    ("plan t/s", 8, true),
];

impl<W: Write> Printer<W> {
    pub(super) fn new(format: Format, out: W) -> Self {
        Self { format, out, row_count: 0 }
    }

    /// What stands before the first row.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        match self.format {
            Format::Md => {
                let titles = COLUMNS.map(|(title, width, _)| format!(" {title:width$} "));
                writeln!(self.out, "|{}|", titles.join("|"))?;
                let rules = COLUMNS.map(|(_, width, is_right)| {
                    let width = if is_right { width - 1 } else { width };
                    format!(" {}{} ", "-".repeat(width), if is_right { ":" } else { "" })
                });
                writeln!(self.out, "|{}|", rules.join("|"))?;
            }
            Format::Json => write!(self.out, "[")?,
            Format::Csv | Format::Jsonl => {}
        }
        self.out.flush()
    }

    /// One more row.
    pub(super) fn row(&mut self, row: &Row) -> io::Result<()> {
        let json = || serde_json::to_string(row).map_err(io::Error::from);
        match self.format {
            Format::Md => {
                let cells = cells(row);
                let cells = COLUMNS.iter().zip(&cells).map(|(&(_, width, is_right), cell)| {
                    if is_right { format!(" {cell:>width$} ") } else { format!(" {cell:width$} ") }
                });
                writeln!(self.out, "|{}|", cells.collect::<Vec<_>>().join("|"))?;
            }
            Format::Json => {
                let text = serde_json::to_string_pretty(row).map_err(io::Error::from)?;
                write!(self.out, "{}\n{text}", if self.row_count > 0 { "," } else { "" })?;
            }
            Format::Jsonl => writeln!(self.out, "{}", json()?)?,
            Format::Csv => {
                let Fields(fields) = serde_json::from_str(&json()?).map_err(io::Error::from)?;
                // As with llama-bench, lists are left out.
                let fields: Vec<_> = fields.into_iter().filter(|(_, value)| !value.is_array()).collect();
                if self.row_count == 0 {
                    let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
                    writeln!(self.out, "{}", names.join(","))?;
                }
                let values: Vec<String> = fields.iter().map(|(_, value)| quoted(value)).collect();
                writeln!(self.out, "{}", values.join(","))?;
            }
        }
        self.row_count += 1;
        self.out.flush()
    }

    /// What stands behind the last row; `notes` are said under a table.
    pub(super) fn end(&mut self, notes: &[String]) -> io::Result<()> {
        match self.format {
            Format::Md => {
                writeln!(self.out)?;
                for note in notes {
                    writeln!(self.out, "{note}")?;
                }
            }
            Format::Json => writeln!(self.out, "{}]", if self.row_count > 0 { "\n" } else { "" })?,
            Format::Csv | Format::Jsonl => {}
        }
        self.out.flush()
    }
}

fn cells(row: &Row) -> [String; COLUMNS.len()] {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    let ms = |ns: f64| format!("{:.2}", ns / 1e6);
    let split =
        [row.disk_ns_a_token, row.copy_ns_a_token, row.gpu_ns_a_token, row.host_ns_a_token].map(ms).join("/");
    let bound = row.bound.as_ref().map(|name| {
        let bound = if name == "disk" { row.disk_bound_ts } else { row.memory_bound_ts };
        format!("{} {name}", or_dash(bound.map(|bound| format!("{bound:.1}"))))
    });
    [
        row.model_type.clone(),
        size(row.model_size),
        params(row.model_n_params),
        row.backends.clone(),
        format!("{} {:.0}%", row.pool_slots, 100.0 * row.pool_share),
        row.n_parallel.max(1).to_string(),
        row.test.clone(),
        format!("{:.2} ± {:.2}", row.avg_ts, row.stddev_ts),
        or_dash(row.hit_rate.map(percent)),
        format!("{:.2}", row.read_bytes_a_token / 1e6),
        or_dash(row.disk_gb_s.map(|rate| format!("{rate:.2}"))),
        or_dash(row.disk_share.map(percent)),
        percent(row.disk_busy_share),
        split,
        or_dash(bound),
        or_dash(row.bound_share.map(percent)),
        or_dash(row.plan_ts.map(|plan_ts| format!("{plan_ts:.1}"))),
    ]
}

/// As llama-bench writes it.
fn size(bytes: u64) -> String {
    let (mib, gib) = (bytes as f64 / f64::from(1 << 20), bytes as f64 / f64::from(1 << 30));
    if gib >= 1.0 { format!("{gib:.2} GiB") } else { format!("{mib:.2} MiB") }
}

/// As llama-bench writes it.
fn params(count: u64) -> String {
    let count = count as f64;
    if count >= 1e9 { format!("{:.2} B", count / 1e9) } else { format!("{:.2} M", count / 1e6) }
}

fn quoted(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Bool(is_true) => u8::from(*is_true).to_string(),
        other => other.to_string(),
    };
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// The members of an object, in its order.
struct Fields(Vec<(String, Value)>);

impl<'de> serde::Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        from.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_llama_bench_does() {
        assert_eq!(size(4_677_120_000), "4.36 GiB");
        assert_eq!(size(10_485_760), "10.00 MiB");
        assert_eq!(params(7_615_616_512), "7.62 B");
        assert_eq!(params(13_107_200), "13.11 M");
    }

    #[test]
    fn a_quote_in_a_csv_field_is_doubled() {
        assert_eq!(quoted(&Value::from("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!(quoted(&Value::Null), "\"\"");
        assert_eq!(quoted(&Value::from(true)), "\"1\"");
    }

    #[test]
    fn members_stay_in_order() {
        let Fields(fields) = serde_json::from_str(r#"{"z": 1, "a": [2]}"#).unwrap();
        assert_eq!(fields, [("z".to_owned(), Value::from(1)), ("a".to_owned(), serde_json::json!([2]))]);
    }
}
