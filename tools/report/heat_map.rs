//! Hits by layer: a cell for each layer and token, or pool size.
//!
//! - In: columns of uses. Out: a [`Figure`], or nothing where nothing was used.
//! - Invariants: a cell's shade is the share of its own uses; columns that are joined to fit are summed, not averaged.

use plotters::element::{Rectangle, Text};
use plotters::style::Color as _;
use plotters::style::text_anchor::{HPos, VPos};

use super::figure::{Figure, Key};
use super::frame::{FULL_WIDTHS, Size, picture, text};
use super::palette::{EMPTY, heat};
use super::recorded::{LayerColumn, add_uses};

/// Pixels of the labels left of and below the cells.
const LEFT_PX: i32 = 46;
const BOTTOM_PX: i32 = 42;
/// Pixels that a cell is wide at least.
const CELL_PX_MIN: i32 = 8;

/// The figure; `axis` says what columns are: `token` or `pool`.
pub(super) fn figure(columns: &[LayerColumn], axis: &str, note: String) -> Option<Figure> {
    let mut layers: Vec<u32> =
        columns.iter().flat_map(|column| column.layers.iter().map(|cell| cell.0)).collect();
    layers.sort_unstable();
    layers.dedup();
    let is_used =
        columns.iter().flat_map(|column| &column.layers).any(|&(_, hits, misses)| hits + misses > 0);
    if layers.is_empty() || !is_used {
        return None;
    }
    let [wide, narrow] = FULL_WIDTHS.map(|width| draw(width, columns, &layers, axis));
    Some(Figure {
        title: "Hits by layer".to_owned(),
        unit: String::new(),
        note,
        wide,
        narrow,
        keys: [(0.0, "0 %"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1.0, "100 % hits")]
            .map(|(share, name)| Key::block(name, heat(share)))
            .into_iter()
            .chain([Key::block("not used", EMPTY)])
            .collect(),
        is_full: true,
    })
}

/// Joins neighbours until at most `max` columns are left.
fn joined(columns: &[LayerColumn], max: usize) -> Vec<LayerColumn> {
    let together = columns.len().div_ceil(max.max(1)).max(1);
    columns.chunks(together).map(join).collect()
}

fn join(columns: &[LayerColumn]) -> LayerColumn {
    let mut joined = LayerColumn { label: columns[0].label.clone(), layers: Vec::new() };
    columns.iter().for_each(|column| add_uses(&mut joined.layers, &column.layers));
    joined
}

fn pixels(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX / 4)
}

fn draw(width: u32, columns: &[LayerColumn], layers: &[u32], axis: &str) -> String {
    let room = i32::try_from(width).expect("invariant: a page's width") - LEFT_PX - 12;
    let columns = joined(columns, usize::try_from(room / CELL_PX_MIN).unwrap_or(1));
    let cell_width = room / pixels(columns.len());
    let cell_height = (420 / pixels(layers.len())).clamp(6, 22);
    let height = cell_height * pixels(layers.len()) + BOTTOM_PX;
    let size = Size { width, height: u32::try_from(height).expect("invariant: layers are few") };
    picture(size, "Hits by layer", |area| {
        let right = text(HPos::Right, VPos::Center);
        let centre = text(HPos::Center, VPos::Top);
        let every = layers.len().div_ceil(usize::try_from(height / 16).unwrap_or(1).max(1)).max(1);
        for (row, layer) in layers.iter().enumerate() {
            let top = pixels(row) * cell_height;
            if row % every == 0 {
                area.draw(&Text::new(
                    layer.to_string(),
                    (LEFT_PX - 6, top + cell_height / 2),
                    right.clone(),
                ))?;
            }
            for (place, column) in columns.iter().enumerate() {
                let left = LEFT_PX + pixels(place) * cell_width;
                let cell = column.layers.iter().find(|cell| cell.0 == *layer);
                let color = match cell {
                    Some(&(_, hits, misses)) if hits + misses > 0 => {
                        heat(hits as f64 / (hits + misses) as f64)
                    }
                    _ => EMPTY,
                };
                // A pixel's gap between cells, that of the paper.
                let corners = [(left, top), (left + cell_width - 1, top + cell_height - 1)];
                area.draw(&Rectangle::new(corners, color.rgb().filled()))?;
            }
        }
        let bottom = cell_height * pixels(layers.len()) + 5;
        let longest = columns.iter().map(|column| column.label.chars().count()).max().unwrap_or(1);
        let label_px = 8 * pixels(longest) + 10;
        let every = usize::try_from(label_px / cell_width.max(1) + 1).unwrap_or(1);
        for (place, column) in columns.iter().enumerate().step_by(every) {
            let middle = LEFT_PX + pixels(place) * cell_width + cell_width / 2;
            area.draw(&Text::new(column.label.clone(), (middle, bottom), centre.clone()))?;
        }
        let middle = LEFT_PX + room / 2;
        area.draw(&Text::new(format!("layer by {axis}"), (middle, bottom + 18), centre))?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(label: &str, layers: &[(u32, u64, u64)]) -> LayerColumn {
        LayerColumn { label: label.to_owned(), layers: layers.to_vec() }
    }

    #[test]
    fn joined_columns_are_summed() {
        let columns =
            [column("1", &[(2, 1, 3)]), column("2", &[(2, 4, 0), (3, 1, 1)]), column("3", &[(2, 0, 1)])];
        assert_eq!(joined(&columns, 2), [column("1", &[(2, 5, 3), (3, 1, 1)]), column("3", &[(2, 0, 1)])]);
        assert_eq!(joined(&columns, 9), columns);
    }

    #[test]
    fn a_cell_is_a_rectangle_of_its_shade() {
        let columns = [column("1", &[(2, 0, 4), (3, 0, 0)]), column("2", &[(2, 4, 0)])];
        let figure = figure(&columns, "token", String::new()).expect("uses");
        assert_eq!(figure.wide.matches("<rect").count(), 4);
        assert_eq!(figure.wide.matches(&heat(0.0).hex()).count(), 1);
        assert_eq!(figure.wide.matches(&heat(1.0).hex()).count(), 1);
        assert_eq!(figure.wide.matches(&EMPTY.hex()).count(), 2);
        assert!(super::figure(&[column("1", &[(2, 0, 0)])], "token", String::new()).is_none());
    }
}
