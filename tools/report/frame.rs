//! A chart's frame: sizes, axes, lines with marks. What is drawn is told by others.
//!
//! - In: axes, series of points. Out: SVG text that can stand in HTML.
//! - Invariants: points that are not finite, or not positive on a logarithmic axis, are left out; text is escaped by the drawing
//!   library.

use plotters::chart::ChartBuilder;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, Cross, EmptyElement, PathElement, Rectangle, TriangleMarker};
use plotters::prelude::SVGBackend;
use plotters::series::DashedLineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color as _, IntoFont, ShapeStyle, TextStyle};

use super::palette::{Color, GRID, INK};

/// The size of the text in pictures; the drawing library makes 12 pixels of it.
const TEXT_PX: i32 = 15;

/// The text of pictures, held at a corner or in the middle.
pub(super) fn text(h: HPos, v: VPos) -> TextStyle<'static> {
    ("sans-serif", TEXT_PX).into_font().color(&INK.rgb()).pos(Pos::new(h, v))
}

/// Pixels of a picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) width: u32,
    pub(super) height: u32,
}

/// Half a page, for wide windows.
pub(super) const HALF: Size = Size { width: 540, height: 300 };
/// A phone's page.
pub(super) const NARROW: Size = Size { width: 350, height: 260 };
/// Widths of pictures that take a page's whole width.
pub(super) const FULL_WIDTHS: [u32; 2] = [1120, NARROW.width];

/// What drawing says when it cannot: text of ours is all that goes in, so nobody sees it.
pub(super) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Where a picture is drawn.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws; `label` is what it is to those who do not see it.
pub(super) fn picture(size: Size, label: &str, draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (size.width, size.height)).into_drawing_area();
        draw(&area).expect("invariant: drawing into memory does not fail");
        area.present().expect("invariant: drawing into memory does not fail");
    }
    let label = label.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    text.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" "), 1)
}

/// An axis: how values become places, and which are named.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    name: String,
    is_logarithmic: bool,
    /// In places.
    from: f64,
    to: f64,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0 to a bit over `max`.
    pub(super) fn linear(name: &str, max: f64) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let rough = max / 5.0;
        let decade = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|by| by * decade).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let ticks = (0..=5).map(|i| f64::from(i) * step).filter(|at| *at <= 1.05 * max);
        Self {
            name: name.to_owned(),
            is_logarithmic: false,
            from: 0.0,
            to: 1.05 * max,
            ticks: ticks.map(|at| (at, number(at))).collect(),
        }
    }

    /// Shares of a whole, in per cent.
    pub(super) fn percent(name: &str) -> Self {
        Self { to: 102.0, ..Self::linear(name, 100.0) }
    }

    /// Powers of ten between `min` and `max`, and between them where there are few.
    pub(super) fn logarithmic(name: &str, min: f64, max: f64) -> Self {
        let (min, max) = (min.max(f64::MIN_POSITIVE), max.max(min).max(f64::MIN_POSITIVE));
        let (from, to) = (min.log10() - 0.08, max.log10() + 0.08);
        let inner: &[f64] = if to - from > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let mut ticks = Vec::new();
        let mut decade = from.floor();
        while decade <= to {
            ticks.extend(inner.iter().map(|by| (by.log10() + decade, number(by * 10_f64.powf(decade)))));
            decade += 1.0;
        }
        ticks.retain(|(at, _)| (from..=to).contains(at));
        Self { name: name.to_owned(), is_logarithmic: true, from, to, ticks }
    }

    /// Named places 0, 1, 2 and so on.
    pub(super) fn named(name: &str, names: &[String]) -> Self {
        let last = names.len().saturating_sub(1) as f64;
        let ticks = names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect();
        Self { name: name.to_owned(), is_logarithmic: false, from: -0.3, to: last + 0.3, ticks }
    }

    /// As many names as fit at most, evenly chosen.
    fn thinned(&self, max: usize) -> Self {
        let every = self.ticks.len().div_ceil(max.max(1)).max(1);
        let ticks = self.ticks.iter().step_by(every).cloned().collect();
        Self { ticks, ..self.clone() }
    }

    fn place(&self, value: f64) -> Option<f64> {
        let place = if self.is_logarithmic { value.log10() } else { value };
        place.is_finite().then_some(place)
    }

    fn tick(&self, at: f64) -> String {
        let found = self.ticks.iter().find(|(place, _)| (place - at).abs() < 1e-9);
        found.map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    #[expect(clippy::cast_possible_truncation, reason = "pixels of a picture")]
    fn map(&self, place: &f64, pixels: (i32, i32)) -> i32 {
        let share = (place - self.from) / (self.to - self.from);
        pixels.0 + (share * f64::from(pixels.1 - pixels.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(at, _)| *at).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

/// A number with about three digits.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        _ if size >= 100.0 || value == 0.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ if size >= 0.1 => 3,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// How points are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Joined, with marks.
    Measured,
    /// A broken line: a limit.
    Limit,
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) color: Color,
    pub(super) look: Look,
    /// Which mark.
    pub(super) mark: usize,
    /// x, y, and how far y spreads to both sides.
    pub(super) points: Vec<(f64, f64, f64)>,
}

impl Series {
    /// Measured points, of the colour and mark that are next.
    pub(super) fn measured(index: usize, name: impl Into<String>, points: Vec<(f64, f64, f64)>) -> Self {
        let color = super::palette::SERIES[index % super::palette::SERIES.len()];
        Self { name: name.into(), color, look: Look::Measured, mark: index, points }
    }

    /// A limit.
    pub(super) fn limit(name: &str, points: Vec<(f64, f64, f64)>) -> Self {
        Self { name: name.to_owned(), color: INK, look: Look::Limit, mark: 0, points }
    }
}

/// Lines over both axes.
pub(super) fn lines(size: Size, label: &str, x: &Axis, y: &Axis, series: &[Series]) -> String {
    let x = x.thinned(size.width as usize / 60);
    picture(size, label, |area| {
        let font = ("sans-serif", TEXT_PX).into_font().color(&INK.rgb());
        let widest = y.ticks.iter().map(|(_, name)| name.chars().count()).max().unwrap_or(1);
        let mut chart = ChartBuilder::on(area)
            .margin_top(10)
            .margin_right(16)
            .x_label_area_size(46)
            .y_label_area_size(16 + 8 * u32::try_from(widest).unwrap_or(8))
            .build_cartesian_2d(x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .light_line_style(plotters::style::TRANSPARENT)
            .bold_line_style(GRID.rgb())
            .axis_style(INK.rgb().mix(0.6))
            .label_style(font.clone())
            .axis_desc_style(font)
            .x_labels(x.ticks.len().max(1))
            .y_labels(y.ticks.len().max(1))
            .x_label_formatter(&|at| x.tick(*at))
            .y_label_formatter(&|at| y.tick(*at))
            .x_desc(x.name.clone())
            .draw()?;
        for one in series {
            let color = one.color.rgb();
            let placed: Vec<(f64, f64, f64)> = one
                .points
                .iter()
                .filter_map(|&(at, value, spread)| Some((x.place(at)?, y.place(value)?, spread)))
                .filter(|&(_, place, _)| place <= y.to && place >= y.from)
                .collect();
            let points = placed.iter().map(|&(at, value, _)| (at, value));
            if one.look == Look::Limit {
                chart.draw_series(DashedLineSeries::new(
                    points,
                    6,
                    4,
                    ShapeStyle::from(color).stroke_width(2),
                ))?;
                continue;
            }
            chart.draw_series([PathElement::new(
                points.clone().collect::<Vec<_>>(),
                ShapeStyle::from(color).stroke_width(2),
            )])?;
            if !y.is_logarithmic {
                let bars = placed.iter().filter(|point| point.2 > 0.0).map(|&(at, value, spread)| {
                    let ends = vec![(at, (value - spread).max(y.from)), (at, (value + spread).min(y.to))];
                    PathElement::new(ends, ShapeStyle::from(color).stroke_width(1))
                });
                chart.draw_series(bars)?;
            }
            let mark = ShapeStyle::from(color).filled();
            match one.mark % 4 {
                0 => chart.draw_series(points.map(|point| Circle::new(point, 4, mark)))?,
                1 => chart.draw_series(points.map(|point| TriangleMarker::new(point, 5, mark)))?,
                2 => {
                    chart
                        .draw_series(points.map(|point| {
                            EmptyElement::at(point) + Rectangle::new([(-4, -4), (4, 4)], mark)
                        }))?
                }
                _ => chart.draw_series(
                    points.map(|point| Cross::new(point, 4, ShapeStyle::from(color).stroke_width(2))),
                )?,
            };
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let names = |axis: &Axis| axis.ticks.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&Axis::linear("", 7.3)), ["0", "2", "4", "6"]);
        assert_eq!(names(&Axis::linear("", 0.042)), ["0", "0.01", "0.02", "0.03", "0.04"]);
        assert_eq!(names(&Axis::percent("")), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(names(&Axis::logarithmic("", 90.0, 2400.0)), ["100", "200", "500", "1000", "2000"]);
        assert_eq!(names(&Axis::linear("", f64::NAN)).len(), 6, "something to draw on");
    }

    #[test]
    fn what_cannot_be_placed_is_left_out() {
        let points = vec![(1.0, 2.0, 0.0), (2.0, f64::NAN, 0.0), (3.0, 0.0, 0.0), (4.0, 8.0, 0.0)];
        let svg = lines(
            HALF,
            "a \"label\" <b>",
            &Axis::linear("x", 4.0),
            &Axis::logarithmic("y", 1.0, 10.0),
            &[Series::measured(0, "one", points)],
        );
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        let document = roxmltree::Document::parse(&svg).expect("XML");
        assert_eq!(document.root_element().attribute("aria-label"), Some("a \"label\" <b>"));
    }
}
