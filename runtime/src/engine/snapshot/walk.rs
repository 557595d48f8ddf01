//! The order in which rows are copied, in slices. Pure.

/// Positions of one layer's keys or values, and the bytes in host memory that they are copied to or from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// The layer.
    pub layer: usize,
    /// Values, else keys.
    pub is_values: bool,
    /// Which host bytes.
    pub plane: usize,
    /// The position at which these begin.
    pub plane_first: u32,
    /// First position to copy.
    pub from: u32,
    /// The one behind the last.
    pub to: u32,
}

/// Rows that lie one behind the other on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The layer.
    pub layer: usize,
    /// Values, else keys.
    pub is_values: bool,
    /// Which host bytes.
    pub plane: usize,
    /// The row among these.
    pub plane_row: u32,
    /// The row of the layer's cache.
    pub row: u32,
    /// How many rows.
    pub count: u32,
}

/// What is left to copy.
#[derive(Debug)]
pub struct Walk {
    /// The next one last.
    left: Vec<Stretch>,
}

impl Walk {
    /// Over all of these, in their order.
    pub fn new(mut stretches: Vec<Stretch>) -> Self {
        stretches.retain(|stretch| stretch.from < stretch.to);
        stretches.reverse();
        Self { left: stretches }
    }

    /// Whether everything has been given out.
    pub fn is_done(&self) -> bool {
        self.left.is_empty()
    }

    /// The next runs, of `rows_max` rows together at most. `rows_of` says how many rows a layer's cache has, over which positions
    /// go round.
    pub fn next_slice(&mut self, rows_max: u32, rows_of: impl Fn(usize) -> u32) -> Vec<Run> {
        let (mut runs, mut room) = (Vec::new(), rows_max);
        while let Some(stretch) = self.left.last_mut().filter(|_| room > 0) {
            let rows = rows_of(stretch.layer);
            let row = stretch.from % rows;
            let count = (stretch.to - stretch.from).min(rows - row).min(room);
            let Stretch { layer, is_values, plane, .. } = *stretch;
            let plane_row = stretch.from - stretch.plane_first;
            runs.push(Run { layer, is_values, plane, plane_row, row, count });
            stretch.from += count;
            room -= count;
            if stretch.from == stretch.to {
                self.left.pop();
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_copied_once_to_its_row() {
        let stretch = |layer, plane, plane_first, from, to| Stretch {
            layer,
            is_values: false,
            plane,
            plane_first,
            from,
            to,
        };
        let stretches = [
            stretch(0, 0, 0, 0, 23),
            stretch(1, 1, 14, 14, 23),
            stretch(1, 2, 5, 8, 8),
            stretch(0, 3, 4, 6, 9),
        ];
        let rows_of = |layer| [64, 10][layer];
        for rows_max in [1, 2, 7, 1000] {
            let mut walk = Walk::new(stretches.to_vec());
            let mut copied = Vec::new();
            while !walk.is_done() {
                let runs = walk.next_slice(rows_max, rows_of);
                let sum: u32 = runs.iter().map(|run| run.count).sum();
                assert!((1..=rows_max).contains(&sum), "{sum} rows of {rows_max}");
                for run in runs {
                    assert!(run.row + run.count <= rows_of(run.layer), "a run stays in its cache");
                    copied.extend((0..run.count).map(|n| (run.plane, run.plane_row + n, run.row + n)));
                }
            }
            let wanted: Vec<_> = stretches
                .iter()
                .flat_map(|s| (s.from..s.to).map(|p| (s.plane, p - s.plane_first, p % rows_of(s.layer))))
                .collect();
            assert_eq!(copied, wanted, "slices of {rows_max}");
        }
    }
}
