//! What a model's cache looks like, as far as a snapshot has to know. Pure.

use std::fmt;

use crate::model::hparams::FlintConfig;

/// Keys and values of every layer: how long a row is, and which layers slide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheShape {
    /// Bytes of the keys of one position in one layer; of its values as many.
    pub row_bytes: u32,
    /// Of each layer the window, if it slides.
    pub windows: Vec<Option<u32>>,
}

impl CacheShape {
    /// Of a model.
    pub fn of(config: &FlintConfig) -> Self {
        Self {
            row_bytes: config.kv_head_count * config.head_dim * 2,
            windows: config.layers.iter().map(|layer| layer.window).collect(),
        }
    }

    /// The layers that keep every position, by number.
    pub fn full_layers(&self) -> impl Iterator<Item = usize> {
        self.windows.iter().enumerate().filter(|(_, window)| window.is_none()).map(|(layer, _)| layer)
    }

    /// The layers that slide, by number, with their windows.
    pub fn sliding_layers(&self) -> impl Iterator<Item = (usize, u32)> {
        self.windows.iter().enumerate().filter_map(|(layer, window)| Some((layer, (*window)?)))
    }

    /// Bytes of `tokens` positions on the full layers.
    pub fn full_bytes(&self, tokens: u32) -> u64 {
        2 * self.full_layers().count() as u64 * u64::from(tokens) * u64::from(self.row_bytes)
    }

    /// Bytes of a cut.
    pub fn cut_bytes(&self, mark: CutMark) -> u64 {
        let rows = |window| u64::from(mark.position - mark.first(window));
        2 * self.sliding_layers().map(|(_, window)| rows(window)).sum::<u64>() * u64::from(self.row_bytes)
    }
}

impl fmt::Display for CacheShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut windows: Vec<u32> = self.sliding_layers().map(|(_, window)| window).collect();
        let sliding = windows.len();
        windows.sort_unstable();
        windows.dedup();
        write!(
            f,
            "{} layers, {sliding} of them sliding (windows {windows:?}), rows of {} bytes",
            self.windows.len(),
            self.row_bytes
        )
    }
}

/// Where a conversation can be taken up: at `position`, and `slack` tokens back from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutMark {
    /// Tokens before it.
    pub position: u32,
    /// How far back from it one can go, too.
    pub slack: u32,
}

impl CutMark {
    /// The first position that a layer with this window has to hold for it.
    pub fn first(self, window: u32) -> u32 {
        self.position.saturating_sub(window.saturating_sub(1).saturating_add(self.slack))
    }

    /// The fewest tokens that can be kept by it.
    pub fn from(self, shape: &CacheShape) -> u32 {
        match shape.sliding_layers().all(|(_, window)| self.first(window) == 0) {
            true => 0,
            false => self.position - self.slack,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_holds_what_its_positions_see() {
        let shape = CacheShape { row_bytes: 4, windows: vec![None, Some(5), Some(3)] };
        for (position, slack) in [(20, 0), (20, 6), (4, 0), (2, 1), (7, 3)] {
            let mark = CutMark { position, slack };
            for kept in 0..=position {
                // The token behind `kept` others sees them as far as its window goes, itself counted.
                let is_held = shape
                    .sliding_layers()
                    .all(|(_, window)| (kept + 1).saturating_sub(window) >= mark.first(window));
                assert_eq!(is_held, kept >= mark.from(&shape), "{mark:?} at {kept}");
            }
        }
        let mark = CutMark { position: 20, slack: 2 };
        assert_eq!(shape.cut_bytes(mark), 2 * 4 * (6 + 4));
        assert_eq!(shape.full_bytes(20), 2 * 4 * 20);
        // Flint's: 14 full layers, 35 with windows of 513, rows of 4 heads of 128 in f16.
        let windows = (0..49).map(|layer| (layer % 7 < 5).then_some(513)).collect();
        let flint = CacheShape { row_bytes: 1024, windows };
        assert_eq!((flint.full_bytes(1), flint.full_layers().count()), (28_672, 14));
        assert_eq!(flint.cut_bytes(CutMark { position: 10_000, slack: 0 }), 36_700_160);
        let plain = CacheShape { row_bytes: 4, windows: vec![None, None] };
        assert_eq!((mark.from(&plain), plain.cut_bytes(mark)), (0, 0));
    }
}
