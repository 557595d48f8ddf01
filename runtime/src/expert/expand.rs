//! Recorded routes at another model's shape, by a rule that keeps what a cache sees of them.
//!
//! - Owns: nothing. In: a trace, a shape, a seed. Out: a trace of that shape, labelled with both.
//! - Invariants: pure and the same for the same seed on every machine. Contexts stay contexts. A pick is guessed a layer early
//!   if and only if the pick that it stands for was.
//!
//! The rule: layer `i` of `n` replays recorded layer `i * m / n` of `m`, under a permutation of its own. There each recorded
//! expert stands for a group of `experts / recorded experts` ids. Where the model picked experts A, B, C for a token, the new
//! routes use every member of the groups A, B and C once: first one of each, then the next of each, always in the group's own
//! order; and they are dealt to tokens in that order, as many as a token uses. So a recorded token becomes several (with
//! four and a half times as many experts, four and a half), a group is left alone for as large a part of all experts as its
//! expert was, and a pool of the same share of all experts hits as often. Where there are fewer experts than recorded, several
//! recorded ones fall on one id.
//!
//! What it cannot keep: picks of neighbouring tokens are distinct within a group's turn, so what the previous token used is
//! seldom used again at once, and time is stretched, for a half-life, too.

use std::collections::VecDeque;

use crate::base::limits::EXPERTS_USED_MAX;
use crate::base::split_mix::SplitMix;
use crate::expert::routes::{RouteError, RouteTrace, shape};

/// 0 to `count` - 1 in random order (Fisher and Yates); `count` is so small against 2^64 that the remainder does no harm.
fn permutation(random: &mut SplitMix, count: u32) -> Vec<u16> {
    let mut order: Vec<u16> =
        (0..count).map(|id| u16::try_from(id).expect("invariant: checked by the trace")).collect();
    for last in (1..order.len()).rev() {
        let other = random.next_u64() % (last as u64 + 1);
        order.swap(last, usize::try_from(other).expect("invariant: below the length"));
    }
    order
}

/// The ids that each recorded expert of one layer stands for.
struct Groups {
    ids: Vec<u16>,
    /// Of each recorded expert, where its members lie in `ids`.
    members: Vec<std::ops::Range<usize>>,
}

impl Groups {
    fn new(recorded: u32, experts: u32, random: &mut SplitMix) -> Self {
        let ids = permutation(random, experts);
        let (recorded_len, len) = (recorded as usize, ids.len());
        // The places are permuted, too: which groups are larger by one is then chance.
        let members = permutation(random, recorded)
            .into_iter()
            .map(|place| {
                let from = usize::from(place) * len / recorded_len;
                from..((usize::from(place) + 1) * len / recorded_len).max(from + 1)
            })
            .collect();
        Self { ids, members }
    }

    fn of(&self, expert: u16) -> &[u16] {
        &self.ids[self.members[usize::from(expert)].clone()]
    }
}

/// One pick to be dealt: which member of the group of which recorded expert of which recorded token.
#[derive(Clone, Copy)]
struct Item {
    token: u32,
    expert: u16,
    round: usize,
    id: u16,
}

/// One layer's rows, dealt token after token.
struct Dealer<'a> {
    recorded: &'a RouteTrace,
    layer: u32,
    groups: Groups,
    used: usize,
}

impl Dealer<'_> {
    /// The rows of one context.
    fn deal(&self, tokens: std::ops::Range<u32>) -> Vec<Vec<Item>> {
        let mut rows = Vec::new();
        let mut queue = VecDeque::new();
        for token in tokens {
            self.append(token, &mut queue);
            while let Some(row) = self.take_row(&mut queue) {
                rows.push(row);
            }
        }
        rows
    }

    /// Every member of the groups that `token` picked, round by round.
    fn append(&self, token: u32, queue: &mut VecDeque<Item>) {
        let picks = self.recorded.picks_of(token, self.layer);
        let rounds = picks.iter().map(|&expert| self.groups.of(expert).len()).max().unwrap_or(0);
        let begin = queue.len();
        for round in 0..rounds {
            for &expert in picks {
                let Some(&id) = self.groups.of(expert).get(round) else { continue };
                // Two recorded experts of a token may fall on one id.
                if queue.iter().skip(begin).all(|item| item.id != id) {
                    queue.push_back(Item { token, expert, round, id });
                }
            }
        }
    }

    /// The first distinct picks of the queue, as many as a token uses; what would be there twice stays in front.
    fn take_row(&self, queue: &mut VecDeque<Item>) -> Option<Vec<Item>> {
        let mut row: Vec<Item> = Vec::with_capacity(self.used);
        let mut taken = Vec::with_capacity(self.used);
        for (at, item) in queue.iter().enumerate() {
            if row.iter().all(|other| other.id != item.id) {
                row.push(*item);
                taken.push(at);
            }
            if row.len() == self.used {
                for at in taken.into_iter().rev() {
                    queue.remove(at);
                }
                return Some(row);
            }
        }
        None
    }

    /// What was guessed for a row: its picks whose recorded ones were guessed, and members of the wrong guesses' groups for the
    /// rest; by the guesses' order.
    fn guess(&self, row: &[Item]) -> Vec<u16> {
        let guesses_of = |token| {
            self.recorded.guesses_of(token, self.layer).expect("invariant: asked for where there are guesses")
        };
        let rank = |item: &Item| guesses_of(item.token).iter().position(|&guess| guess == item.expert);
        let mut found: Vec<(usize, u16)> =
            row.iter().filter_map(|item| rank(item).map(|rank| (rank, item.id))).collect();
        let is_free = |id: u16, found: &[(usize, u16)]| {
            row.iter().all(|item| item.id != id) && found.iter().all(|&(_, other)| other != id)
        };
        let rounds = self.groups.members.iter().map(ExactSizeIterator::len).max().unwrap_or(1);
        let mut seen: Vec<&Item> = Vec::new();
        for item in row {
            if seen.iter().all(|other| other.token != item.token) {
                seen.push(item);
            }
        }
        // Wrong guesses first; if all were right and the row spans two tokens, other members of right ones; at last anyone.
        for is_wrong in [true, false] {
            for further in 0..rounds {
                for item in &seen {
                    let picks = self.recorded.picks_of(item.token, self.layer);
                    for (rank, &guess) in guesses_of(item.token).iter().enumerate() {
                        let members = self.groups.of(guess);
                        let id = members[(item.round + further) % members.len()];
                        let fits = picks.contains(&guess) != is_wrong && is_free(id, &found);
                        if fits && found.len() < self.used {
                            found.push((rank, id));
                        }
                    }
                }
            }
        }
        for &id in &self.groups.ids {
            if found.len() < self.used && is_free(id, &found) {
                found.push((usize::MAX, id));
            }
        }
        // Where a token uses nearly all experts, only its picks are left to be guessed.
        for item in row {
            if found.len() < self.used && found.iter().all(|&(_, id)| id != item.id) {
                found.push((usize::MAX, item.id));
            }
        }
        found.sort_by_key(|&(rank, _)| rank);
        found.into_iter().map(|(_, id)| id).collect()
    }
}

impl RouteTrace {
    /// These routes as those of a model of `layers` expert layers of `experts` experts, of which a token uses `used`; the rule is
    /// this file's head. With the shape that they have they stay as they are.
    ///
    /// # Errors
    /// When a number is 0 or too large, or nothing is left of so short a trace.
    pub fn expand(&self, layers: u32, experts: u32, used: u32, seed: u64) -> Result<Self, RouteError> {
        let refused = |reason: &str| RouteError::Shape {
            from: self.shape(),
            to: shape(layers, experts, used),
            reason: reason.to_owned(),
        };
        self.check()?;
        if (layers, experts, used) == (self.layer_count, self.expert_count, self.experts_used) {
            return Ok(self.clone());
        }
        let is_possible = layers > 0 && used > 0 && used <= experts.min(EXPERTS_USED_MAX);
        if !is_possible || layers.max(experts) > u32::from(u16::MAX) {
            return Err(refused("no model has that shape"));
        }
        let dealers: Vec<Dealer<'_>> = (0..layers)
            .map(|layer| {
                let mut random = SplitMix(seed ^ (u64::from(layer) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                random.next_u64();
                Dealer {
                    recorded: self,
                    layer: layer * self.layer_count / layers,
                    groups: Groups::new(self.expert_count, experts, &mut random),
                    used: used as usize,
                }
            })
            .collect();
        let mut expanded = Self {
            layer_count: layers,
            expert_count: experts,
            experts_used: used,
            picks: Vec::new(),
            guesses: self.guesses.as_ref().map(|_| Vec::new()),
            context_starts: Vec::new(),
            expansion: Some(format!(
                "expanded from {} by groups in turn, seed {seed}{}",
                self.shape(),
                self.expansion.as_ref().map(|before| format!("; before that {before}")).unwrap_or_default()
            )),
            ..self.clone()
        };
        let ends = self.context_starts[1..].iter().copied().chain([self.token_count()]);
        for (start, end) in self.context_starts.iter().zip(ends) {
            let rows: Vec<_> = dealers.iter().map(|dealer| dealer.deal(*start..end)).collect();
            // Groups differ in size by one, so layers end a token or two apart.
            let len = rows.iter().map(Vec::len).min().unwrap_or(0);
            if len > 0 {
                expanded.context_starts.push(expanded.token_count());
            }
            for token in 0..len {
                for (dealer, rows) in dealers.iter().zip(&rows) {
                    let row = &rows[token];
                    expanded.picks.extend(row.iter().map(|item| item.id));
                    if let Some(guesses) = &mut expanded.guesses {
                        guesses.extend(dealer.guess(row));
                    }
                }
            }
        }
        if expanded.picks.is_empty() {
            return Err(refused("the trace is too short"));
        }
        expanded.check()?;
        Ok(expanded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 40 tokens in two contexts; picks that wander, guesses of which one is wrong.
    fn recorded() -> RouteTrace {
        let row = |token: u16, layer: u16, shift: u16| {
            (0..3).map(move |rank| (token / 3 + layer + rank * 2 + shift * (rank / 2)) % 9)
        };
        let all =
            |shift| (0..40).flat_map(|t| (0..2).flat_map(move |l| row(t, l, shift))).collect::<Vec<u16>>();
        RouteTrace {
            model: "wandering".to_owned(),
            model_sha256: None,
            expert_layer_first: 1,
            layer_count: 2,
            expert_count: 9,
            experts_used: 3,
            picks: all(0),
            guesses: Some(all(1)),
            context_starts: vec![0, 13],
            source: String::new(),
            expansion: None,
        }
    }

    fn recall(trace: &RouteTrace) -> f64 {
        let mut right = 0;
        for token in 0..trace.token_count() {
            for layer in 0..trace.layer_count {
                let guesses = trace.guesses_of(token, layer).unwrap();
                right += trace.picks_of(token, layer).iter().filter(|pick| guesses.contains(pick)).count();
            }
        }
        right as f64 / trace.picks.len() as f64
    }

    #[test]
    fn an_expanded_trace_is_sound_at_every_shape() {
        let recorded = recorded();
        for (layers, experts, used) in [(5, 40, 3), (2, 9, 4), (1, 4, 2), (7, 300, 8), (2, 18, 3), (3, 5, 5)]
        {
            let expanded = recorded.expand(layers, experts, used, 7).unwrap();
            expanded.check().unwrap();
            assert_eq!(
                (expanded.layer_count, expanded.expert_count, expanded.experts_used),
                (layers, experts, used)
            );
            assert_eq!(expanded.context_starts.len(), 2, "{}", expanded.shape());
            assert!(expanded.expansion.as_ref().unwrap().contains("seed 7"));
            assert_eq!(expanded, recorded.expand(layers, experts, used, 7).unwrap(), "a seed is all");
            assert_ne!(expanded.picks, recorded.expand(layers, experts, used, 8).unwrap().picks);
        }
        assert_eq!(recorded.expand(2, 9, 3, 7).unwrap(), recorded);
    }

    #[test]
    fn a_whole_multiple_stretches_time_by_it_and_keeps_the_guesses_worth() {
        let recorded = recorded();
        let expanded = recorded.expand(4, 36, 3, 1).unwrap();
        assert_eq!(expanded.token_count(), 4 * recorded.token_count());
        assert!(
            (recall(&expanded) - recall(&recorded)).abs() < 1e-12,
            "{} {}",
            recall(&expanded),
            recall(&recorded)
        );
        assert_ne!(expanded.picks_of(0, 0), expanded.picks_of(0, 1), "layers are permuted apart");
        // Four tokens on, all members of three groups have been used once.
        let mut first: Vec<u16> = (0..4).flat_map(|token| expanded.picks_of(token, 0).to_vec()).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 12);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let recorded = recorded();
        for (layers, experts, used) in [(0, 9, 3), (2, 9, 0), (2, 9, 10), (2, 70_000, 3), (2, 100, 33)] {
            let error = recorded.expand(layers, experts, used, 1).unwrap_err();
            assert!(matches!(error, RouteError::Shape { .. }), "{error}");
        }
        let short = RouteTrace {
            picks: recorded.picks[..6].to_vec(),
            guesses: None,
            context_starts: vec![0],
            ..recorded
        };
        assert!(short.expand(2, 9, 9, 1).is_err(), "three picks make no token of nine");
    }
}
