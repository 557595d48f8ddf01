//! How many layers of a step of many rows are handed to the device before the host looks again. Pure.
//!
//! As at decode: twice as many after a clean run, as many as were useful after a stop. A stop costs the device the layers behind it,
//! which do nothing, and the host nothing more than a look: so where every layer misses, every layer is looked at, and none is
//! handed over in vain.

use std::time::Duration;

/// The longest time for which the host is not to look, so that whoever wants a step to end is heard, and no device takes it for a hang.
const LOOK_AFTER_MAX: Duration = Duration::from_millis(250);

/// What the last steps of one kind have shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Layers to hand over; none where the host is to look first.
    layers: usize,
    /// Time of a layer, and the rows that it had.
    layer: Option<(Duration, u32)>,
}

impl Ahead {
    /// Layers to hand over for a step of `rows` rows with `left` layers to go.
    pub(super) fn layers(&self, rows: u32, left: usize) -> usize {
        let allowed = match self.layer {
            // Fewer rows may take as long: a layer's weights are read for any of them.
            Some((time, seen)) => {
                let expected = time.mul_f64(f64::from(rows.max(seen)) / f64::from(seen));
                let layers = LOOK_AFTER_MAX.as_nanos() / expected.as_nanos().max(1);
                usize::try_from(layers).unwrap_or(usize::MAX).max(1)
            }
            None => 1,
        };
        self.layers.min(left).min(allowed)
    }

    /// `layers` layers of `rows` rows ran within `elapsed` and missed nothing.
    pub(super) fn ran(&mut self, rows: u32, layers: usize, elapsed: Duration) {
        self.layers = (2 * layers).max(self.layers);
        self.layer = Some((elapsed / u32::try_from(layers).unwrap_or(u32::MAX).max(1), rows.max(1)));
    }

    /// The device stopped behind `useful` layers.
    pub(super) fn stopped(&mut self, useful: usize) {
        self.layers = useful;
    }

    /// The host looked at a layer by itself, and it `is_resident` or not.
    pub(super) fn looked(&mut self, is_resident: bool) {
        self.layers = usize::from(is_resident);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn clean_runs_double_and_a_stop_says_what_was_useful() {
        let mut ahead = Ahead::default();
        assert_eq!(ahead.layers(512, 47), 0, "nothing is known: the host looks");
        ahead.looked(true);
        let mut runs = Vec::new();
        let mut left = 47;
        while left > 0 {
            let layers = ahead.layers(512, left);
            runs.push(layers);
            ahead.ran(512, layers, MS * u32::try_from(layers).expect("few"));
            left -= layers;
        }
        assert_eq!(runs, [1, 2, 4, 8, 16, 16]);
        assert_eq!(ahead.layers(512, 47), 32, "the next step begins where this one was");
        ahead.stopped(3);
        assert_eq!(ahead.layers(512, 40), 3);
        ahead.stopped(0);
        assert_eq!(ahead.layers(512, 40), 0, "the host looks at each layer");
        ahead.looked(false);
        assert_eq!(ahead.layers(512, 40), 0);
    }

    #[test]
    fn a_run_is_no_longer_than_a_look_may_wait() {
        let mut ahead = Ahead::default();
        ahead.ran(512, 32, MS * 32 * 20);
        assert_eq!(ahead.layers(512, 47), 12, "layers of 20 ms");
        assert_eq!(ahead.layers(1024, 47), 6, "twice the rows");
        assert_eq!(ahead.layers(8, 47), 12, "fewer rows are not counted on to be faster");
        ahead.ran(512, 1, MS * 1000);
        assert_eq!(ahead.layers(512, 47), 1, "one layer is always handed over");
    }
}
