//! Pictures of a sweep: tokens a second and hit rate over the size of the pool.
//!
//! - In: rows. Out: [`Figure`]s; none where no test ran at two sizes.

use super::figure::Figure;
use super::frame::{Axis, HALF, NARROW, Series, lines};
use crate::bench::Row;

/// Lines of a picture at most.
const LINES_MAX: usize = 4;

/// A highest value of so many times the lowest calls for a logarithmic scale.
const WIDE_RANGE: f64 = 12.0;

/// Rows of one test of one model at several sizes, by size.
struct Curve<'a> {
    name: String,
    is_generation: bool,
    rows: Vec<&'a Row>,
}

/// All pictures of the sweep.
pub(super) fn figures(rows: &[Row]) -> Vec<Figure> {
    let curves = curves(rows);
    [speed(&curves, true), speed(&curves, false), hits(&curves)].into_iter().flatten().collect()
}

fn curves(rows: &[Row]) -> Vec<Curve<'_>> {
    let mut curves: Vec<Curve<'_>> = Vec::new();
    let models_differ = rows.iter().any(|row| row.model_filename != rows[0].model_filename);
    let chunks_differ = rows.iter().any(|row| row.n_ubatch != rows[0].n_ubatch);
    for row in rows.iter().filter(|row| row.pool_share > 0.0) {
        let mut name = row.test.clone();
        if chunks_differ {
            name = format!("{name}, chunk {}", row.n_ubatch);
        }
        if models_differ {
            name = format!("{name}, {}", row.model_filename.rsplit('/').next().unwrap_or_default());
        }
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.rows.push(row),
            None => {
                curves.push(Curve {
                    name,
                    is_generation: row.n_gen > 0 && row.n_prompt == 0,
                    rows: vec![row],
                });
            }
        }
    }
    for curve in &mut curves {
        curve.rows.sort_by(|a, b| a.pool_share.total_cmp(&b.pool_share));
    }
    curves.retain(|curve| {
        curve.rows.first().map(|row| row.pool_slots) != curve.rows.last().map(|row| row.pool_slots)
    });
    curves
}

fn axis() -> Axis {
    Axis::percent("pool: share of all experts, %")
}

fn speed(curves: &[Curve<'_>], is_generation: bool) -> Option<Figure> {
    let curves: Vec<_> =
        curves.iter().filter(|curve| curve.is_generation == is_generation).take(LINES_MAX).collect();
    let mut series: Vec<Series> = curves
        .iter()
        .enumerate()
        .map(|(index, curve)| {
            let of = |row: &&Row| (100.0 * row.pool_share, row.avg_ts, row.stddev_ts);
            Series::measured(index, curve.name.clone(), curve.rows.iter().map(of).collect())
        })
        .collect();
    let first = curves.first()?;
    let bound: Vec<_> =
        first.rows.iter().filter_map(|row| Some((100.0 * row.pool_share, row.bound_ts()?, 0.0))).collect();
    let has_bound = bound.len() > 1;
    if has_bound {
        series.push(Series::limit(&format!("bound of {}", first.name), bound));
    }
    let all = series.iter().flat_map(|one| &one.points).map(|point| point.1).filter(|ts| *ts > 0.0);
    let (min, max) = all.fold((f64::INFINITY, 0.0_f64), |(min, max), ts| (min.min(ts), max.max(ts)));
    if max <= 0.0 {
        return None;
    }
    let is_wide = max > WIDE_RANGE * min;
    let unit = "tokens a second";
    let y = if is_wide { Axis::logarithmic(unit, min, max) } else { Axis::linear(unit, max) };
    let title = if is_generation { "Generation over pool size" } else { "Prompts over pool size" };
    let svgs = [HALF, NARROW].map(|size| lines(size, title, &axis(), &y, &series));
    let mut note = if has_bound {
        "The broken line is what the drive or the memory would allow if nothing else took time, the lower of the two."
            .to_owned()
    } else {
        "No bound is drawn: nobody measured the drive's rate.".to_owned()
    };
    if is_wide {
        note.push_str(" The scale is logarithmic.");
    } else {
        note.push_str(" Bars are one standard deviation.");
    }
    Some(Figure::of_series(title, unit, note, svgs, &series))
}

fn hits(curves: &[Curve<'_>]) -> Option<Figure> {
    let series: Vec<Series> = curves
        .iter()
        .take(LINES_MAX)
        .enumerate()
        .map(|(index, curve)| {
            let of = |row: &&Row| Some((100.0 * row.pool_share, 100.0 * row.hit_rate?, 0.0));
            Series::measured(index, curve.name.clone(), curve.rows.iter().filter_map(of).collect())
        })
        .filter(|one| !one.points.is_empty())
        .collect();
    if series.is_empty() {
        return None;
    }
    let title = "Hit rate over pool size";
    let y = Axis::percent("%");
    let svgs = [HALF, NARROW].map(|size| lines(size, title, &axis(), &y, &series));
    let note = "Uses of an expert that found it in device memory.".to_owned();
    Some(Figure::of_series(title, "%", note, svgs, &series))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(test: &str, slots: u32, avg_ts: f64, bound: Option<f64>) -> Row {
        Row {
            test: test.to_owned(),
            n_gen: if test.starts_with("tg") { 8 } else { 0 },
            n_prompt: if test.starts_with("pp") { 8 } else { 0 },
            pool_slots: slots,
            pool_share: f64::from(slots) / 100.0,
            avg_ts,
            disk_bound_ts: bound,
            hit_rate: Some(0.5),
            ..Row::default()
        }
    }

    #[test]
    fn a_sweep_gives_curves_with_the_bound_and_one_size_gives_none() {
        assert!(figures(&[row("tg8", 50, 3.0, None), row("pp8", 50, 3.0, None)]).is_empty());
        let rows = [
            row("tg8", 100, 9.0, Some(20.0)),
            row("pp8", 100, 90.0, None),
            row("tg8", 50, 3.0, Some(4.0)),
            row("pp8", 50, 50.0, None),
        ];
        let figures = figures(&rows);
        let titles: Vec<_> = figures.iter().map(|figure| figure.title.as_str()).collect();
        assert_eq!(
            titles,
            ["Generation over pool size", "Prompts over pool size", "Hit rate over pool size"]
        );
        assert!(figures[0].note.contains("broken line") && !figures[1].note.contains("broken line"));
        assert_eq!(figures[0].keys.len(), 2, "the curve and its bound");
        assert_eq!(figures[0].wide.matches("<circle").count(), 2);
    }

    #[test]
    fn a_bound_far_away_does_not_flatten_the_curve() {
        let rows = [row("tg8", 50, 3.0, Some(900.0)), row("tg8", 100, 9.0, Some(9000.0))];
        assert!(figures(&rows)[0].note.contains("logarithmic"));
    }
}
