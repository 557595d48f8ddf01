//! What an extra pass of a bench noted: events, and the uses of each layer's experts.
//!
//! - In: events of the engine, its counters by layer. Out: plain lists, for the trace file and for the page.

use flint_rt::base::events::{Event, Lane};

/// Something that took time; as [`Event`], but its name may come from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Where.
    pub(crate) lane: Lane,
    /// What, in a few words.
    pub(crate) what: String,
    /// The model layer that it belongs to.
    pub(crate) layer: Option<u32>,
    /// Bytes moved, or 0.
    pub(crate) bytes: u64,
    /// Nanoseconds from the recording's beginning.
    pub(crate) begin_ns: u64,
    /// Never before `begin_ns`.
    pub(crate) end_ns: u64,
}

impl Moment {
    /// From when until when, in nanoseconds.
    pub(super) fn span(&self) -> (u64, u64) {
        (self.begin_ns, self.end_ns)
    }
}

impl From<Event> for Moment {
    fn from(event: Event) -> Self {
        let Event { lane, what, layer, bytes, begin_ns, end_ns } = event;
        Self { lane, what: what.to_owned(), layer, bytes, begin_ns, end_ns: end_ns.max(begin_ns) }
    }
}

/// Hits and misses of all layers with experts at one place of the other axis.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LayerColumn {
    /// The token's number, or the pool's size.
    pub(crate) label: String,
    /// `(model layer, hits, misses)`.
    pub(crate) layers: Vec<(u32, u64, u64)>,
}

/// Adds uses to sums, layer by layer.
pub(crate) fn add_uses(sums: &mut Vec<(u32, u64, u64)>, uses: &[(u32, u64, u64)]) {
    for &(layer, hits, misses) in uses {
        match sums.iter_mut().find(|sum| sum.0 == layer) {
            Some(sum) => *sum = (layer, sum.1 + hits, sum.2 + misses),
            None => sums.push((layer, hits, misses)),
        }
    }
}

/// Counters less what they were before; a layer that was not there before counts whole.
pub(crate) fn uses_since(now: &[(u32, u64, u64)], before: &[(u32, u64, u64)]) -> Vec<(u32, u64, u64)> {
    let less = |&(layer, hits, misses): &(u32, u64, u64)| {
        let old = before.iter().find(|old| old.0 == layer).map_or((0, 0), |old| (old.1, old.2));
        (layer, hits.saturating_sub(old.0), misses.saturating_sub(old.1))
    };
    now.iter().map(less).collect()
}

/// A recording of some tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// What was run, in a few words: model, pool, tokens.
    pub(crate) title: String,
    /// What happened when, in order of beginnings.
    pub(crate) moments: Vec<Moment>,
    /// Moments that there was no room for.
    pub(crate) left_out: u64,
    /// Uses by layer, a column a token.
    pub(crate) tokens: Vec<LayerColumn>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_summed_by_layer() {
        let mut sums = vec![(1, 2, 3)];
        add_uses(&mut sums, &[(2, 1, 1), (1, 10, 20)]);
        assert_eq!(sums, [(1, 12, 23), (2, 1, 1)]);
    }

    #[test]
    fn counters_are_told_apart_by_their_layer() {
        let now = [(1, 10, 4), (2, 7, 7), (3, 1, 0)];
        assert_eq!(uses_since(&now, &[(2, 5, 7), (1, 9, 1)]), [(1, 1, 3), (2, 2, 0), (3, 1, 0)]);
    }
}
