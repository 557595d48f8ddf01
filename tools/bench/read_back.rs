//! Rows of an earlier bench, read back from what it printed as JSON or as JSON lines.
//!
//! - In: text. Out: [`Row`]s of this program's schema, at least one.

use serde_json::Value;

use super::result::{Row, SCHEMA_VERSION};

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
pub(crate) fn rows(text: &str) -> Result<Vec<Row>, RowsError> {
    let mut values: Vec<Value> = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value? {
            Value::Array(rows) => values.extend(rows),
            row => values.push(row),
        }
    }
    if values.is_empty() {
        return Err(RowsError::Empty);
    }
    let row = |(index, value): (usize, Value)| {
        if value["schema_version"].as_u64() != Some(SCHEMA_VERSION.into()) {
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
        let row = r#"{"schema_version":2,"test":"tg8","avg_ts":2.5,"hit_rate":null,"a key of later":[1]}"#;
        let array = rows(&format!("[{row},{row}]")).expect("rows");
        let lines = rows(&format!("{row}\n{row}\n")).expect("rows");
        assert_eq!((array.len(), &array), (2, &lines));
        assert_eq!((array[0].test.as_str(), array[0].hit_rate), ("tg8", None));
        assert!(matches!(rows("[]"), Err(RowsError::Empty)));
        assert!(matches!(rows("nothing"), Err(RowsError::Json(_))));
        assert!(matches!(rows("[{}]"), Err(RowsError::Schema { number: 1, .. })));
        assert!(rows(r#"[{"schema_version":3}]"#).expect_err("later").to_string().contains("version 3"));
        assert!(matches!(rows(r#"[{"schema_version":2,"test":7}]"#), Err(RowsError::Json(_))));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let row = Row { schema_version: SCHEMA_VERSION, layer_hits: vec![(2, 3, 4)], ..Row::default() };
        let text = serde_json::to_string(&row).expect("plain JSON");
        assert_eq!(rows(&text).expect("a row"), [row]);
    }
}
