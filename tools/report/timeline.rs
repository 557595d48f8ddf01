//! One token as a picture: who did what when, and how much of the reading was hidden.
//!
//! - In: a [`Recorded`]. Out: a [`Figure`], and sentences about the overlap.
//! - Invariants: the token shown is the one of median length, so neither the first nor a hiccup; reads that overlap have rows of
//!   their own.

use flint_rt::base::events::Lane;
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color as _, ShapeStyle};

use super::figure::{Figure, Key};
use super::frame::{FULL_WIDTHS, Size, number, picture, text};
use super::lanes::{Span, assign, length_ns, merge, overlap_ns};
use super::palette::{COPIES, Color, GRID, HOST, KERNELS, READS, WAITS};
use super::recorded::{Moment, Recorded};
use super::trace::lane_name;

const LEFT_PX: i32 = 70;
const BOTTOM_PX: i32 = 40;
const RIGHT_PX: i32 = 14;
/// Lanes of the picture from its top; dispatches only where they were timed.
const SHOWN: [Lane; 5] = [Lane::Host, Lane::Device, Lane::Dispatch, Lane::Copy, Lane::Drive];

/// The step of median length among those of a single token.
fn median_token(recorded: &Recorded) -> Option<Span> {
    let mut tokens: Vec<Span> = recorded
        .moments
        .iter()
        .filter(|moment| moment.lane == Lane::Step && moment.what == "token")
        .map(Moment::span)
        .filter(|(begin, end)| begin < end)
        .collect();
    tokens.sort_by_key(|(begin, end)| end - begin);
    let middle = tokens.len().checked_sub(1)? / 2;
    tokens.get(middle).copied()
}

/// What of a lane lies within the token, cut at its ends.
fn within(recorded: &Recorded, lane: Lane, token: Span) -> Vec<Moment> {
    let cut = |moment: &Moment| {
        let mut moment = moment.clone();
        moment.begin_ns = moment.begin_ns.clamp(token.0, token.1);
        moment.end_ns = moment.end_ns.clamp(token.0, token.1);
        moment
    };
    let touches =
        |moment: &&Moment| moment.lane == lane && moment.begin_ns < token.1 && moment.end_ns > token.0;
    recorded.moments.iter().filter(touches).map(cut).collect()
}

/// What the token's time holds, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overlap {
    pub(super) token: u64,
    /// Reads under way, kernels running, copies running; each moment once.
    pub(super) reads: u64,
    pub(super) kernels: u64,
    pub(super) copies: u64,
    /// Reads under way while kernels or copies ran.
    pub(super) hidden_reads: u64,
    /// The host waiting for reads.
    pub(super) read_waits: u64,
    /// Most reads at one time.
    pub(super) reads_at_once: usize,
    pub(super) read_bytes: u64,
}

fn overlap_of(recorded: &Recorded, token: Span) -> Overlap {
    let of = |lane| within(recorded, lane, token);
    let merged = |moments: &[Moment]| merge(moments.iter().map(Moment::span));
    let (reads, kernels, copies) = (of(Lane::Drive), of(Lane::Device), of(Lane::Copy));
    let (read, kernel, copy) = (merged(&reads), merged(&kernels), merged(&copies));
    let busy = merge(kernel.iter().chain(&copy).copied());
    let mut waits = of(Lane::Host);
    waits.retain(|moment| moment.what == "wait for reads");
    Overlap {
        token: token.1 - token.0,
        reads: length_ns(&read),
        kernels: length_ns(&kernel),
        copies: length_ns(&copy),
        hidden_reads: overlap_ns(&read, &busy),
        read_waits: length_ns(&merged(&waits)),
        reads_at_once: assign(&reads.iter().map(Moment::span).collect::<Vec<_>>())
            .into_iter()
            .max()
            .map_or(0, |lane| lane + 1),
        read_bytes: reads.iter().map(|moment| moment.bytes).sum(),
    }
}

impl Overlap {
    /// In words.
    fn sentence(&self) -> String {
        let ms = |ns: u64| number(ns as f64 / 1e6);
        let share = |ns: u64| number(100.0 * ns as f64 / self.token.max(1) as f64);
        let mut text = format!(
            "The token of median length among those recorded took {} ms. Kernels ran {} ms of it, {} %",
            ms(self.token),
            ms(self.kernels),
            share(self.kernels)
        );
        if self.reads == 0 {
            text.push_str("; it read nothing.");
            return text;
        }
        text.push_str(&format!(
            "; reads were under way {} ms, {} %, up to {} at once; {} ms of that lay beside kernels or copies. \
             The host waited for reads {} ms.",
            ms(self.reads),
            share(self.reads),
            self.reads_at_once,
            ms(self.hidden_reads),
            ms(self.read_waits)
        ));
        text
    }
}

/// The figure; nothing where no token was recorded.
pub(super) fn figure(recorded: &Recorded) -> Option<Figure> {
    let token = median_token(recorded)?;
    let overlap = overlap_of(recorded, token);
    let [wide, narrow] = FULL_WIDTHS.map(|width| draw(width, recorded, token));
    let keys = [
        ("kernels, by layer in two shades", KERNELS[0]),
        ("copies into slots", COPIES[0]),
        ("reads", READS[0]),
        ("host waits for kernels", WAITS[2]),
        ("for copies", WAITS[1]),
        ("for reads", WAITS[0]),
    ];
    Some(Figure {
        title: "One token".to_owned(),
        unit: String::new(),
        note: overlap.sentence(),
        wide,
        narrow,
        keys: keys.map(|(name, color)| Key::block(name, color)).to_vec(),
        is_full: true,
    })
}

fn color_of(moment: &Moment) -> Color {
    let shade = moment.layer.map_or(0, |layer| layer as usize % 2);
    match (moment.lane, moment.what.as_str()) {
        (Lane::Device, _) => KERNELS[shade],
        // Names of unlike lengths, so that neighbours are told apart.
        (Lane::Dispatch, name) => KERNELS[name.len() % 2],
        (Lane::Copy, _) => COPIES[shade],
        (Lane::Drive, _) => READS[shade],
        (_, "wait for reads") => WAITS[0],
        (_, "wait for copies") => WAITS[1],
        (_, "wait for kernels") => WAITS[2],
        _ => HOST,
    }
}

/// A lane of the picture: its moments with their tracks, the pixels of a track.
#[derive(Clone)]
struct Band {
    lane: Lane,
    moments: Vec<(Moment, i32)>,
    tracks: i32,
    track_px: i32,
}

impl Band {
    fn new(recorded: &Recorded, lane: Lane, token: Span) -> Self {
        let moments = within(recorded, lane, token);
        let tracks = assign(&moments.iter().map(Moment::span).collect::<Vec<_>>());
        let tracks: Vec<i32> = tracks.into_iter().map(|track| i32::try_from(track).unwrap_or(0)).collect();
        let count = tracks.iter().max().map_or(1, |track| track + 1);
        let track_px = (160 / count).clamp(4, 22);
        Self { lane, moments: moments.into_iter().zip(tracks).collect(), tracks: count, track_px }
    }

    fn height(&self) -> i32 {
        (self.tracks * self.track_px).max(16)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a share of a picture's width")]
fn draw(width: u32, recorded: &Recorded, token: Span) -> String {
    const GAP_PX: i32 = 10;
    let mut bands = SHOWN.map(|lane| Band::new(recorded, lane, token)).to_vec();
    bands.retain(|band| band.lane != Lane::Dispatch || !band.moments.is_empty());
    let body = bands.iter().map(|band| band.height() + GAP_PX).sum::<i32>();
    let size = Size { width, height: u32::try_from(body + BOTTOM_PX).expect("invariant: tracks are few") };
    let room = i32::try_from(width).expect("invariant: a page's width") - LEFT_PX - RIGHT_PX;
    let long = (token.1 - token.0) as f64;
    let x = |ns: u64| LEFT_PX + ((ns - token.0) as f64 / long * f64::from(room)) as i32;
    picture(size, "One token over time", |area| {
        for (at_ns, name) in ticks(token, usize::try_from(room / 80).unwrap_or(1)) {
            let at = x(at_ns);
            area.draw(&PathElement::new(vec![(at, 0), (at, body)], ShapeStyle::from(GRID.rgb())))?;
            area.draw(&Text::new(name, (at, body + 4), text(HPos::Center, VPos::Top)))?;
        }
        area.draw(&Text::new("ms", (LEFT_PX + room / 2, body + 22), text(HPos::Center, VPos::Top)))?;
        let mut top = 0;
        for band in &bands {
            let middle = top + band.height() / 2;
            let label = text(HPos::Right, VPos::Center);
            area.draw(&Text::new(lane_name(band.lane), (LEFT_PX - 6, middle), label))?;
            for (moment, track) in &band.moments {
                let (left, right) = (x(moment.begin_ns), x(moment.end_ns));
                let above = top + track * band.track_px;
                // What is short is still to be seen, and neighbours are told apart.
                let gap = i32::from(band.track_px > 5);
                let corners = [(left, above), ((right).max(left + 1), above + band.track_px - gap)];
                area.draw(&Rectangle::new(corners, color_of(moment).rgb().filled()))?;
            }
            top += band.height() + GAP_PX;
        }
        Ok(())
    })
}

/// Round moments of the token, at most `max` and the beginning, and their names in milliseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the token")]
fn ticks(token: Span, max: usize) -> Vec<(u64, String)> {
    let long_ms = (token.1 - token.0) as f64 / 1e6;
    let rough = long_ms / max.max(1) as f64;
    let decade = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|by| by * decade).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let count = (long_ms / step) as u32;
    (0..=count)
        .map(|i| f64::from(i) * step)
        .map(|ms| (token.0 + (ms * 1e6) as u64, number(ms)))
        .filter(|(at, _)| *at <= token.1)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::made_up;

    #[test]
    fn the_token_of_median_length_is_shown() {
        let step = |begin_ns, end_ns, what: &str| Moment {
            lane: Lane::Step,
            what: what.to_owned(),
            layer: None,
            bytes: 0,
            begin_ns,
            end_ns,
        };
        let moments = vec![
            step(0, 900, "prompt"),
            step(900, 1400, "token"),
            step(1400, 1500, "token"),
            step(1500, 1700, "token"),
        ];
        let mut recorded = Recorded { moments, ..Recorded::default() };
        assert_eq!(median_token(&recorded), Some((1500, 1700)));
        recorded.moments.truncate(1);
        assert_eq!(median_token(&recorded), None, "a prompt is no token");
        assert!(figure(&recorded).is_none());
    }

    #[test]
    fn overlap_counts_what_lies_in_the_token() {
        let moment = |lane, what: &str, begin_ns, end_ns, bytes| Moment {
            lane,
            what: what.to_owned(),
            layer: Some(1),
            bytes,
            begin_ns,
            end_ns,
        };
        let moments = vec![
            moment(Lane::Drive, "read", 50, 150, 10),
            moment(Lane::Step, "token", 100, 200, 0),
            moment(Lane::Device, "layer", 100, 130, 0),
            moment(Lane::Drive, "read", 120, 160, 10),
            moment(Lane::Host, "wait for reads", 130, 160, 0),
            moment(Lane::Copy, "copy", 155, 165, 20),
            moment(Lane::Drive, "read", 250, 260, 10),
        ];
        let recorded = Recorded { moments, ..Recorded::default() };
        let wanted = Overlap {
            token: 100,
            reads: 60,
            kernels: 30,
            copies: 10,
            hidden_reads: 30 + 5,
            read_waits: 30,
            reads_at_once: 2,
            read_bytes: 20,
        };
        assert_eq!(overlap_of(&recorded, (100, 200)), wanted);
    }

    #[test]
    fn every_moment_is_drawn() {
        let recorded = made_up::recorded();
        let token = median_token(&recorded).expect("a token");
        let count = SHOWN.map(|lane| within(&recorded, lane, token).len()).into_iter().sum::<usize>();
        assert!(count > 10, "{count}");
        assert_eq!(draw(1120, &recorded, token).matches("<rect").count(), count);
    }

    #[test]
    fn ticks_are_round() {
        let names = |token, max| ticks(token, max).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names((5_000_000, 12_300_000), 4), ["0", "2", "4", "6"]);
        assert_eq!(names((0, 450_000), 3), ["0", "0.2", "0.4"]);
    }
}
