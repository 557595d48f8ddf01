//! A picture with its words, as the page takes it.

use serde::Serialize;

use super::frame::{Look, Series};
use super::palette::Color;

/// One entry of a legend.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Key {
    name: String,
    color: String,
    /// `mark0` to `mark3`, `limit` or `block`.
    shape: String,
}

impl Key {
    /// A block of colour.
    pub(super) fn block(name: &str, color: Color) -> Self {
        Self { name: name.to_owned(), color: color.hex(), shape: "block".to_owned() }
    }
}

/// A picture in two sizes.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) unit: String,
    /// What it shows, in a sentence.
    pub(super) note: String,
    /// For windows of a desk, and of a phone.
    pub(super) wide: String,
    pub(super) narrow: String,
    pub(super) keys: Vec<Key>,
    /// Whether it takes the page's whole width.
    pub(super) is_full: bool,
}

impl Figure {
    /// Lines.
    pub(super) fn of_series(
        title: &str,
        unit: &str,
        note: String,
        [wide, narrow]: [String; 2],
        series: &[Series],
    ) -> Self {
        let keys = series.iter().map(|one| Key {
            name: one.name.clone(),
            color: one.color.hex(),
            shape: match one.look {
                Look::Limit => "limit".to_owned(),
                Look::Measured => format!("mark{}", one.mark % 4),
            },
        });
        let keys = if series.len() > 1 { keys.collect() } else { Vec::new() };
        Self { title: title.to_owned(), unit: unit.to_owned(), note, wide, narrow, keys, is_full: false }
    }
}
