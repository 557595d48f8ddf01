//! The rows of a bench that a page shows: read from what `bench -o json` or `-o jsonl` prints.
//!
//! - In: JSON text. Out: [`Row`]s with the keys that the page uses. What is missing or null counts as not measured.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the keys that is understood.
const SCHEMA_VERSION: u64 = 1;

/// One test; the keys and their units are those of the bench's JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    pub(crate) test: String,
    pub(crate) test_time: String,
    pub(crate) program: String,
    pub(crate) build_version: String,
    pub(crate) build_commit: String,
    pub(crate) cpu_info: String,
    pub(crate) gpu_info: String,
    pub(crate) device_kind: String,
    pub(crate) driver: String,
    pub(crate) model_filename: String,
    pub(crate) model_type: String,
    pub(crate) model_size: u64,
    pub(crate) model_n_params: u64,
    pub(crate) model_source: String,
    pub(crate) context_len: u32,
    pub(crate) n_ubatch: u32,
    pub(crate) n_prompt: u32,
    pub(crate) n_gen: u32,
    pub(crate) avg_ts: f64,
    pub(crate) stddev_ts: f64,
    pub(crate) samples_ts: Vec<f64>,
    pub(crate) interrupted: bool,
    pub(crate) read_path: String,
    pub(crate) host_path: String,
    pub(crate) use_direct_io: bool,
    pub(crate) checked: bool,
    pub(crate) tokens: String,
    pub(crate) routes: String,
    pub(crate) cache: String,
    pub(crate) cache_policy: String,
    pub(crate) simulated_drive: Option<String>,
    pub(crate) simulated_late_reads: Option<u64>,
    pub(crate) record_bytes: u64,
    pub(crate) expert_total: u32,
    pub(crate) experts_a_token: u32,
    pub(crate) pool_slots: u32,
    pub(crate) pool_share: f64,
    pub(crate) pool_bytes: u64,
    pub(crate) hit_rate: Option<f64>,
    pub(crate) read_bytes_a_token: f64,
    pub(crate) disk_gb_s: Option<f64>,
    pub(crate) disk_share: Option<f64>,
    pub(crate) drive_gb_s: Option<f64>,
    pub(crate) drive_profile: String,
    pub(crate) disk_ns_a_token: f64,
    pub(crate) copy_ns_a_token: f64,
    pub(crate) gpu_ns_a_token: f64,
    pub(crate) host_ns_a_token: f64,
    pub(crate) disk_bound_ts: Option<f64>,
    pub(crate) memory_bound_ts: Option<f64>,
    pub(crate) memory_rate_source: String,
    pub(crate) bound: Option<String>,
    pub(crate) bound_share: Option<f64>,
    pub(crate) plan_ts: Option<f64>,
    /// `(model layer, hits, misses)` of the timed tokens.
    pub(crate) layer_hits: Vec<(u32, u64, u64)>,
}

impl Row {
    /// The lower bound of the two, in tokens a second.
    pub(super) fn bound_ts(&self) -> Option<f64> {
        let bounds = [self.disk_bound_ts, self.memory_bound_ts];
        bounds.into_iter().flatten().filter(|bound| *bound > 0.0).reduce(f64::min)
    }
}

/// Why a text holds no rows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowsError {
    /// Not JSON, or a value of another kind.
    #[error("not what bench -o json or -o jsonl prints: {0}")]
    Json(#[from] serde_json::Error),
    /// Another program's, or of another version.
    #[error(
        "row {number} has schema version {got}, this program reads {SCHEMA_VERSION}: measure again, or use the version that measured"
    )]
    Schema { number: usize, got: String },
    /// Nothing in it.
    #[error("it holds no row")]
    Empty,
}

/// Reads an array of rows, or one row a line.
///
/// # Errors
/// [`RowsError`].
pub(crate) fn parse(text: &str) -> Result<Vec<Row>, RowsError> {
    let mut values: Vec<Value> = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value? {
            Value::Array(rows) => values.extend(rows),
            row => values.push(row),
        }
    }
    of_values(values)
}

/// As [`parse`], from values.
///
/// # Errors
/// [`RowsError`].
pub(crate) fn of_values(values: Vec<Value>) -> Result<Vec<Row>, RowsError> {
    if values.is_empty() {
        return Err(RowsError::Empty);
    }
    let row = |(index, value): (usize, Value)| {
        if value["schema_version"].as_u64() != Some(SCHEMA_VERSION) {
            let got = value.get("schema_version").map_or("none".to_owned(), Value::to_string);
            return Err(RowsError::Schema { number: index + 1, got });
        }
        Ok(serde_json::from_value(value)?)
    };
    values.into_iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_and_lines_are_read_and_others_refused() {
        let row = r#"{"schema_version":1,"test":"tg8","avg_ts":2.5,"hit_rate":null,"a key of later":[1]}"#;
        let array = parse(&format!("[{row},{row}]")).expect("rows");
        let lines = parse(&format!("{row}\n{row}\n")).expect("rows");
        assert_eq!((array.len(), &array), (2, &lines));
        assert_eq!((array[0].test.as_str(), array[0].hit_rate), ("tg8", None));
        assert!(matches!(parse("[]"), Err(RowsError::Empty)));
        assert!(matches!(parse("nothing"), Err(RowsError::Json(_))));
        assert!(matches!(parse("[{}]"), Err(RowsError::Schema { number: 1, .. })));
        assert!(parse(r#"[{"schema_version":2}]"#).expect_err("later").to_string().contains("version 2"));
        assert!(matches!(parse(r#"[{"schema_version":1,"test":7}]"#), Err(RowsError::Json(_))));
    }

    #[test]
    fn the_lower_bound_is_the_bound() {
        let mut row = Row { disk_bound_ts: Some(5.0), memory_bound_ts: Some(90.0), ..Row::default() };
        assert_eq!(row.bound_ts(), Some(5.0));
        row.disk_bound_ts = Some(f64::INFINITY);
        assert_eq!(row.bound_ts(), Some(90.0));
        assert_eq!(Row::default().bound_ts(), None);
    }
}
