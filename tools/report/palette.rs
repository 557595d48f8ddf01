//! Colours: what each is for, and what it is where the reader's system is dark. Pure.
//!
//! A picture is drawn in the light scheme's colours. In the dark one the page's style sheet puts another colour in the place of
//! each, by its value; so each value has one purpose only.

use std::fmt::Write;

use plotters::style::RGBColor;

/// Red, green, blue.
type Rgb = (u8, u8, u8);

/// A colour of both schemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Color {
    light: Rgb,
    dark: Rgb,
}

const fn color(light: Rgb, dark: Rgb) -> Color {
    Color { light, dark }
}

/// Text and axes.
pub(super) const INK: Color = color((0x33, 0x3A, 0x45), (0xC9, 0xD1, 0xDB));
/// Lines behind the figures.
pub(super) const GRID: Color = color((0xE3, 0xE7, 0xEC), (0x2E, 0x36, 0x41));
/// Where there is nothing.
pub(super) const EMPTY: Color = color((0xF3, 0xF4, 0xF6), (0x1F, 0x25, 0x2D));

/// Lines of a chart, told apart by people of any colour vision (Okabe and Ito's set, dark enough for white paper).
pub(super) const SERIES: [Color; 6] = [
    color((0x00, 0x72, 0xB2), (0x56, 0xB4, 0xE9)),
    color((0xD5, 0x5E, 0x00), (0xFF, 0x9A, 0x4D)),
    color((0x00, 0x86, 0x64), (0x3D, 0xD0, 0xA6)),
    color((0xB1, 0x4F, 0x87), (0xE3, 0x9C, 0xC5)),
    color((0x7A, 0x6A, 0x00), (0xE6, 0xC8, 0x40)),
    color((0x5B, 0x5F, 0xC7), (0xA5, 0xA8, 0xFF)),
];

/// Work of a timeline: kernels, of layers by turns.
pub(super) const KERNELS: [Color; 2] =
    [color((0x1B, 0x6F, 0xA8), (0x4F, 0xA6, 0xDE)), color((0x6F, 0xB0, 0xDD), (0x2B, 0x72, 0xA6))];
/// Copies.
pub(super) const COPIES: [Color; 2] =
    [color((0x0B, 0x7A, 0x5B), (0x36, 0xBF, 0x97)), color((0x5F, 0xBF, 0xA2), (0x1B, 0x80, 0x62))];
/// Reads.
pub(super) const READS: [Color; 2] =
    [color((0xC2, 0x58, 0x06), (0xF2, 0x8C, 0x3E)), color((0xEC, 0xA0, 0x66), (0xA8, 0x58, 0x1C))];
/// Waits of the host.
pub(super) const WAITS: [Color; 3] = [
    color((0xDD, 0x77, 0x22), (0xE0, 0x80, 0x30)),
    color((0x2C, 0x9A, 0x78), (0x2A, 0xA8, 0x82)),
    color((0x48, 0x90, 0xC6), (0x3F, 0x92, 0xCB)),
];
/// Whatever else the host is noted for.
pub(super) const HOST: Color = color((0x8A, 0x92, 0x9E), (0x75, 0x7F, 0x8C));

/// Steps of a heat map between nothing and everything.
pub(super) const HEAT_STEPS: u8 = 20;
const HEAT_ENDS: [(Rgb, Rgb); 2] =
    [((0xDF, 0xEA, 0xF4), (0x08, 0x3D, 0x7A)), ((0x20, 0x3C, 0x60), (0x8C, 0xCB, 0xFF))];

/// Of a share between 0 and 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the steps")]
pub(super) fn heat(share: f64) -> Color {
    let step = (share.clamp(0.0, 1.0) * f64::from(HEAT_STEPS)).round() as u8;
    let of = |(from, to): (Rgb, Rgb)| {
        let mix = |from: u8, to: u8| {
            let (from, to) = (i32::from(from), i32::from(to));
            (from + (to - from) * i32::from(step) / i32::from(HEAT_STEPS)).clamp(0, 255) as u8
        };
        (mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
    };
    Color { light: of(HEAT_ENDS[0]), dark: of(HEAT_ENDS[1]) }
}

impl Color {
    /// As pictures are drawn.
    pub(super) fn rgb(self) -> RGBColor {
        RGBColor(self.light.0, self.light.1, self.light.2)
    }

    /// As pictures name it.
    pub(super) fn hex(self) -> String {
        hex(self.light)
    }
}

fn hex((red, green, blue): Rgb) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

fn all() -> Vec<Color> {
    let mut all = vec![INK, GRID, EMPTY, HOST];
    all.extend(SERIES.into_iter().chain(KERNELS).chain(COPIES).chain(READS).chain(WAITS));
    all.extend((0..=HEAT_STEPS).map(|step| heat(f64::from(step) / f64::from(HEAT_STEPS))));
    all
}

/// The rules that turn the light scheme's pictures into the dark one's.
pub(super) fn dark_rules() -> String {
    let mut rules = String::new();
    for color in all() {
        let (light, dark) = (hex(color.light), hex(color.dark));
        for property in ["fill", "stroke"] {
            let _ = writeln!(rules, "svg [{property}=\"{light}\"] {{ {property}: {dark}; }}");
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colour_has_one_purpose() {
        let mut lights: Vec<Rgb> = all().into_iter().map(|color| color.light).collect();
        let count = lights.len();
        lights.sort_unstable();
        lights.dedup();
        assert_eq!(lights.len(), count, "two purposes share a colour, and would share the dark one's");
    }

    #[test]
    fn text_and_lines_stand_out_from_both_backgrounds() {
        let part = |byte: u8| {
            let share = f64::from(byte) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        let luminance = |c: Rgb| 0.2126 * part(c.0) + 0.7152 * part(c.1) + 0.0722 * part(c.2);
        let contrast = |a: Rgb, b: Rgb| {
            let (a, b) = (luminance(a), luminance(b));
            (a.max(b) + 0.05) / (a.min(b) + 0.05)
        };
        let (paper, night) = ((0xFF, 0xFF, 0xFF), (0x16, 0x1B, 0x22));
        for color in SERIES {
            assert!(contrast(color.light, paper) >= 3.0, "{color:?}");
            assert!(contrast(color.dark, night) >= 3.0, "{color:?}");
        }
        assert!(contrast(INK.light, paper) >= 7.0 && contrast(INK.dark, night) >= 7.0, "text");
    }
}
