//! Pictures of a drive: bandwidth over depth, over block size, how long blocks took.
//!
//! - In: a [`DriveProfile`]. Out: [`Figure`]s, those for which it has rows.

use flint_rt::base::units::display_bytes;
use flint_rt::disk::profile::{DriveProfile, Pattern, ProfileRow};

use super::figure::Figure;
use super::frame::{Axis, HALF, NARROW, Series, lines, number};

/// Lines of a picture at most: more cannot be told apart.
const LINES_MAX: usize = 6;

/// All pictures of the profile.
pub(super) fn figures(profile: &DriveProfile) -> Vec<Figure> {
    [by_depth(profile), by_block(profile), latencies(profile), sustained(profile)]
        .into_iter()
        .flatten()
        .collect()
}

fn is_plain(row: &&ProfileRow) -> bool {
    row.part.is_none() && !row.with_uploads
}

fn depths(rows: &[&ProfileRow]) -> Vec<u32> {
    let mut depths: Vec<u32> = rows.iter().map(|row| row.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    depths
}

fn names(values: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
    values.into_iter().map(|value| value.to_string()).collect()
}

/// Records over reads under way, a line a read path.
fn by_depth(profile: &DriveProfile) -> Option<Figure> {
    let rows: Vec<&ProfileRow> = profile
        .rows
        .iter()
        .filter(is_plain)
        .filter(|row| row.is_record && row.pattern == Pattern::Random)
        .collect();
    let depths = depths(&rows);
    if depths.len() < 2 {
        return None;
    }
    let mut engines: Vec<_> = Vec::new();
    for row in &rows {
        if !engines.contains(&row.engine) {
            engines.push(row.engine);
        }
    }
    let place = |depth| depths.iter().position(|other| *other == depth).map_or(0.0, |place| place as f64);
    let series: Vec<Series> = engines
        .into_iter()
        .take(LINES_MAX)
        .enumerate()
        .map(|(index, engine)| {
            let of = rows.iter().filter(|row| row.engine == engine);
            let points = means(of.map(|row| (place(row.depth), row.gb_s)));
            Series::measured(index, engine.name(), points)
        })
        .collect();
    let title = "Bandwidth over depth";
    let record = display_bytes(profile.record_bytes);
    let note = format!("Random reads of one expert record, {record}, by how many are under way at a time.");
    Some(chart(title, "GB/s", note, &Axis::named("records under way", &names(&depths)), series))
}

/// Random reads over block size, a line a depth.
fn by_block(profile: &DriveProfile) -> Option<Figure> {
    let engine = profile.engine();
    let rows: Vec<&ProfileRow> = profile
        .rows
        .iter()
        .filter(is_plain)
        .filter(|row| row.engine == engine && row.pattern == Pattern::Random)
        .collect();
    let mut blocks: Vec<u64> = rows.iter().map(|row| row.block_bytes).collect();
    blocks.sort_unstable();
    blocks.dedup();
    if blocks.len() < 2 {
        return None;
    }
    let place = |block| blocks.iter().position(|other| *other == block).map_or(0.0, |place| place as f64);
    let mut depths = depths(&rows);
    // Those with most blocks, the deepest first among equals.
    depths.sort_by_key(|depth| {
        std::cmp::Reverse((rows.iter().filter(|row| row.depth == *depth).count(), *depth))
    });
    depths.truncate(LINES_MAX);
    depths.sort_unstable();
    let series = depths.into_iter().enumerate().map(|(index, depth)| {
        let of = rows.iter().filter(|row| row.depth == depth);
        let points = means(of.map(|row| (place(row.block_bytes), row.gb_s)));
        Series::measured(index, format!("depth {depth}"), points)
    });
    let series = series.collect();
    let note = format!("Random reads by {}, by the size of a read.", engine.name());
    let axis = Axis::named("block", &names(blocks.iter().map(|&block| short_bytes(block))));
    Some(chart("Bandwidth over block size", "GB/s", note, &axis, series))
}

/// One point for each place, in order: the mean of what was measured there. A depth that the block size does not allow is
/// measured as a lower one, perhaps more than once.
fn means(values: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64, f64)> {
    let mut values: Vec<(f64, f64)> = values.collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let same = values.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq());
    same.map(|same| (same[0].0, same.iter().map(|value| value.1).sum::<f64>() / same.len() as f64, 0.0))
        .collect()
}

fn short_bytes(bytes: u64) -> String {
    if bytes < 1 << 20 {
        format!("{}K", number(bytes as f64 / 1024.0))
    } else {
        format!("{}M", number(bytes as f64 / 1_048_576.0))
    }
}

/// Percentiles of records, a line a depth.
fn latencies(profile: &DriveProfile) -> Option<Figure> {
    let mut rows: Vec<&ProfileRow> = profile.record_rows().collect();
    rows.sort_by_key(|row| row.depth);
    rows.dedup_by_key(|row| row.depth);
    while rows.len() > LINES_MAX {
        // The ends stay, and every second between them.
        let last = rows.len() - 1;
        let mut index = 0;
        rows.retain(|_| {
            index += 1;
            (index - 1) % 2 == 0 || index - 1 == last
        });
    }
    let of = |row: &ProfileRow| {
        let at = row.latency_us;
        [at.p50, at.p90, at.p99, at.p99_9, at.max].map(|us| us / 1e3)
    };
    let (min, max) = rows
        .iter()
        .flat_map(|row| of(row))
        .filter(|ms| *ms > 0.0)
        .fold((f64::INFINITY, 0.0_f64), |(min, max), ms| (min.min(ms), max.max(ms)));
    if max <= 0.0 {
        return None;
    }
    let series: Vec<Series> = rows
        .iter()
        .enumerate()
        .map(|(index, row)| {
            let points = of(row).iter().enumerate().map(|(place, &ms)| (place as f64, ms, 0.0)).collect();
            Series::measured(index, format!("depth {}", row.depth), points)
        })
        .collect();
    let x = Axis::named(
        "share of the records that took at most this",
        &names(["50 %", "90 %", "99 %", "99.9 %", "all"]),
    );
    let y = Axis::logarithmic("ms", min, max);
    let title = "Latency";
    let svgs = [HALF, NARROW].map(|size| lines(size, title, &x, &y, &series));
    let note = "From asking for a record to its last byte; the scale is logarithmic.".to_owned();
    Some(Figure::of_series(title, "ms", note, svgs, &series))
}

/// A long run over time.
fn sustained(profile: &DriveProfile) -> Option<Figure> {
    let points: Vec<_> = profile.sustained.iter().map(|sample| (sample.at_s, sample.gb_s, 0.0)).collect();
    let last = profile.sustained.last().filter(|_| points.len() > 2)?;
    let axis = Axis::linear("seconds", last.at_s);
    let note = "A drive that grows warm or fills its cache falls off in a long run.".to_owned();
    Some(chart("Bandwidth over time", "GB/s", note, &axis, vec![Series::measured(0, "records", points)]))
}

fn chart(title: &str, unit: &str, note: String, x: &Axis, series: Vec<Series>) -> Figure {
    let max = series.iter().flat_map(|one| &one.points).map(|point| point.1).fold(0.0, f64::max);
    let y = Axis::linear(unit, max);
    let svgs = [HALF, NARROW].map(|size| lines(size, title, x, &y, &series));
    Figure::of_series(title, unit, note, svgs, &series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::made_up;

    #[test]
    fn what_was_measured_twice_is_one_point() {
        let values = [(1.0, 4.0), (0.0, 1.0), (1.0, 2.0)];
        assert_eq!(means(values.into_iter()), [(0.0, 1.0, 0.0), (1.0, 3.0, 0.0)]);
    }

    #[test]
    fn a_picture_needs_rows() {
        let mut profile = made_up::profile();
        assert_eq!(figures(&profile).len(), 4);
        profile.sustained.clear();
        profile.rows.retain(|row| row.is_record && row.depth == 1);
        let titles: Vec<String> = figures(&profile).into_iter().map(|figure| figure.title).collect();
        assert_eq!(titles, ["Latency"], "one depth and one block make no curve");
        profile.rows.clear();
        assert!(figures(&profile).is_empty());
    }
}
