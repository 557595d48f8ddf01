//! The caches that are compared: the product's pool, the bound that knows the future, and what was tried beside them.
//!
//! - Owns: who is in a slot. In: the picks of a layer, in order. Out: those that were missing.
//! - Invariants: an expert of a wave is never the victim of that wave.

use std::collections::BTreeSet;

use crate::base::ids::ExpertIndex;
use crate::engine::simulate::{Setup, key};
use crate::expert::plan::Wave;
use crate::expert::pool::{ExpertSpace, Pool};
use crate::expert::{Policy, RouteTrace};

/// A cache to compare.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum CacheKind {
    /// The product's pool.
    Pool(Policy),
    /// Knows the future: drops the one whose next use lies furthest ahead. The bound.
    Belady,
    /// Drops what the pass before left first, and of one pass what its last layers used first: those are asked for again
    /// latest.
    LeastStale,
    /// The half-life policy, with an equal share of the slots for every layer.
    FairHalfLife {
        /// Half-life in steps.
        steps: u32,
    },
    /// The half-life policy, where a missed expert that is worth less than all in slots takes none: it would be read into a
    /// buffer of its own for the one use.
    BypassHalfLife {
        /// Half-life in steps.
        steps: u32,
    },
    /// The half-life policy that forgets an expert when it leaves.
    ResidentHalfLife {
        /// Half-life in steps.
        steps: u32,
    },
}

impl std::fmt::Display for CacheKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pool(policy) => policy.fmt(f),
            Self::Belady => f.write_str("belady"),
            Self::LeastStale => f.write_str("least-stale"),
            Self::FairHalfLife { steps } => write!(f, "half-life:{steps} per layer"),
            Self::BypassHalfLife { steps } => write!(f, "half-life:{steps} with bypass"),
            Self::ResidentHalfLife { steps } => write!(f, "half-life:{steps} of residents"),
        }
    }
}

/// How the picks of a token and layer are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// As the product does: a wave first finds all that are there, then makes room for the others, none of the wave for another.
    Waves,
    /// One expert after the other, best first: a pick may push out another of its own layer that comes after it or came before.
    OneByOne,
}

pub(super) struct Cache<'a> {
    trace: &'a RouteTrace,
    rule: Rule,
    kind: Kind,
}

enum Kind {
    Pool { pool: Box<Pool>, experts: Vec<ExpertIndex>, wave: Wave },
    Belady(Box<Belady>),
    Scan(Box<Scan>),
}

impl<'a> Cache<'a> {
    pub(super) fn new(trace: &'a RouteTrace, setup: &Setup) -> Self {
        let kind = match setup.cache {
            CacheKind::Pool(policy) => {
                let space = ExpertSpace {
                    layer_first: trace.expert_layer_first,
                    layer_count: trace.layer_count,
                    expert_count: trace.expert_count,
                };
                Kind::Pool {
                    pool: Box::new(Pool::new(setup.slots, policy, space)),
                    experts: Vec::with_capacity(trace.experts_used as usize),
                    wave: Wave::with_capacity(trace.experts_used as usize),
                }
            }
            CacheKind::Belady => Kind::Belady(Box::new(Belady::new(trace, setup.slots))),
            other => Kind::Scan(Box::new(Scan::new(trace, setup.slots, other))),
        };
        Self { trace, rule: setup.rule, kind }
    }

    pub(super) fn begin_step(&mut self) {
        match &mut self.kind {
            Kind::Pool { pool, .. } => pool.begin_step(),
            Kind::Belady(_) => {}
            Kind::Scan(scan) => scan.step += 1,
        }
    }

    pub(super) fn is_resident(&self, layer: u32, expert: u16) -> bool {
        let index = (layer * self.trace.expert_count) as usize + usize::from(expert);
        match &self.kind {
            Kind::Pool { pool, .. } => pool.lookup(key(self.trace, layer, expert)).is_some(),
            Kind::Belady(belady) => belady.next_use[index].is_some(),
            Kind::Scan(scan) => scan.experts[index].is_resident,
        }
    }

    /// Uses the picks of a layer; those that were missing go to `missed`.
    pub(super) fn use_picks(&mut self, layer: u32, picks: &[u16], missed: &mut Vec<u16>) {
        match self.rule {
            Rule::Waves => self.use_wave(layer, picks, missed),
            Rule::OneByOne => {
                picks.iter().for_each(|pick| self.use_wave(layer, std::slice::from_ref(pick), missed));
            }
        }
    }

    fn use_wave(&mut self, layer: u32, picks: &[u16], missed: &mut Vec<u16>) {
        let first = (layer * self.trace.expert_count) as usize;
        match &mut self.kind {
            Kind::Pool { pool, experts, wave } => {
                experts.clear();
                experts.extend(picks.iter().map(|&pick| ExpertIndex(u32::from(pick))));
                pool.plan_wave_into(key(self.trace, layer, 0).layer, experts, wave);
                assert!(experts.is_empty(), "a pool holds a layer's picks");
                for load in &wave.loads {
                    pool.loaded(load.slot);
                    missed.push(u16::try_from(load.key.expert.0).expect("invariant: from the trace"));
                }
            }
            Kind::Belady(belady) => belady.use_wave(first, picks, missed),
            Kind::Scan(scan) => scan.use_wave(layer, first, picks, missed),
        }
    }
}

/// The bound: residents by their next use.
struct Belady {
    free: usize,
    /// Of each expert the places in the trace where it is used, the next one last.
    uses: Vec<Vec<u64>>,
    /// Of each resident its next use; `u64::MAX` for never.
    next_use: Vec<Option<u64>>,
    by_next: BTreeSet<(u64, usize)>,
}

impl Belady {
    fn new(trace: &RouteTrace, slots: u32) -> Self {
        let mut uses = vec![Vec::new(); trace.expert_total() as usize];
        let rows = trace.picks.chunks(trace.experts_used as usize).enumerate();
        for (number, row) in rows.collect::<Vec<_>>().into_iter().rev() {
            let layer = number % trace.layer_count as usize;
            for &pick in row {
                uses[layer * trace.expert_count as usize + usize::from(pick)].push(number as u64);
            }
        }
        let next_use = vec![None; uses.len()];
        Self { free: slots as usize, uses, next_use, by_next: BTreeSet::new() }
    }

    fn use_wave(&mut self, first: usize, picks: &[u16], missed: &mut Vec<u16>) {
        let index = |pick: u16| first + usize::from(pick);
        let begin = missed.len();
        for &pick in picks {
            match self.next_use[index(pick)] {
                // Out of the order while the wave makes room.
                Some(next) => {
                    self.by_next.remove(&(next, index(pick)));
                }
                None => missed.push(pick),
            }
        }
        for _ in begin..missed.len() {
            match self.free.checked_sub(1) {
                Some(free) => self.free = free,
                None => {
                    let (_, victim) = self.by_next.pop_last().expect("invariant: a wave fits");
                    self.next_use[victim] = None;
                }
            }
        }
        for &pick in picks {
            self.uses[index(pick)].pop();
            let next = self.uses[index(pick)].last().copied().unwrap_or(u64::MAX);
            self.next_use[index(pick)] = Some(next);
            self.by_next.insert((next, index(pick)));
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Remembered {
    is_resident: bool,
    in_wave: u64,
    /// Sum of uses as it was at `step`, each halved since it happened.
    score: f64,
    step: u64,
    use_count: u64,
}

/// What was tried beside the product's policies: each victim by a look at all residents.
struct Scan {
    kind: CacheKind,
    slots: usize,
    layer_count: usize,
    expert_count: usize,
    experts_used: usize,
    experts: Vec<Remembered>,
    residents: Vec<usize>,
    of_layer: Vec<usize>,
    step: u64,
    wave: u64,
    use_count: u64,
}

impl Scan {
    fn new(trace: &RouteTrace, slots: u32, kind: CacheKind) -> Self {
        Self {
            kind,
            slots: slots as usize,
            layer_count: trace.layer_count as usize,
            expert_count: trace.expert_count as usize,
            experts_used: trace.experts_used as usize,
            experts: vec![Remembered::default(); trace.expert_total() as usize],
            residents: Vec::new(),
            of_layer: vec![0; trace.layer_count as usize],
            step: 0,
            wave: 0,
            use_count: 0,
        }
    }

    /// The expert's score now.
    fn score(&self, index: usize) -> f64 {
        let steps = match self.kind {
            CacheKind::FairHalfLife { steps }
            | CacheKind::BypassHalfLife { steps }
            | CacheKind::ResidentHalfLife { steps } => steps,
            _ => return 0.0,
        };
        let expert = &self.experts[index];
        expert.score * (-((self.step - expert.step) as f64) / f64::from(steps)).exp2()
    }

    fn note_use(&mut self, index: usize) {
        let score = self.score(index) + 1.0;
        self.use_count += 1;
        let expert = &mut self.experts[index];
        (expert.score, expert.step, expert.use_count, expert.in_wave) =
            (score, self.step, self.use_count, self.wave);
    }

    fn use_wave(&mut self, layer: u32, first: usize, picks: &[u16], missed: &mut Vec<u16>) {
        self.wave += 1;
        let begin = missed.len();
        for &pick in picks {
            let index = first + usize::from(pick);
            match self.experts[index].is_resident {
                true => self.note_use(index),
                false => missed.push(pick),
            }
        }
        for &pick in &missed[begin..] {
            let index = first + usize::from(pick);
            self.note_use(index);
            if self.residents.len() == self.slots && !self.make_room(layer as usize, index) {
                continue;
            }
            self.experts[index].is_resident = true;
            self.residents.push(index);
            self.of_layer[layer as usize] += 1;
        }
    }

    /// Drops one; false where the new one is the least worth and goes without.
    fn make_room(&mut self, layer: usize, new: usize) -> bool {
        let Some(at) = self.victim(layer) else { return false };
        let victim = self.residents[at];
        if matches!(self.kind, CacheKind::BypassHalfLife { .. }) && self.score(new) < self.score(victim) {
            return false;
        }
        self.residents.swap_remove(at);
        self.experts[victim].is_resident = false;
        self.of_layer[victim / self.expert_count] -= 1;
        if matches!(self.kind, CacheKind::ResidentHalfLife { .. }) {
            self.experts[victim].score = 0.0;
        }
        true
    }

    fn victim(&self, layer: usize) -> Option<usize> {
        let share = (self.slots / self.layer_count).max(self.experts_used);
        let is_full = self.of_layer[layer] >= share;
        let is_allowed = |index: usize| match self.kind {
            CacheKind::FairHalfLife { .. } => {
                let of = index / self.expert_count;
                if is_full { of == layer } else { self.of_layer[of] > share }
            }
            _ => true,
        };
        let least = |is_allowed: &dyn Fn(usize) -> bool| {
            let candidates = self
                .residents
                .iter()
                .enumerate()
                .filter(|&(_, &index)| self.experts[index].in_wave != self.wave && is_allowed(index));
            candidates.min_by(|&(_, &a), &(_, &b)| self.order(a, b, layer)).map(|(at, _)| at)
        };
        least(&is_allowed).or_else(|| least(&|_| true))
    }

    fn order(&self, a: usize, b: usize, layer: usize) -> std::cmp::Ordering {
        let (one, other) = (&self.experts[a], &self.experts[b]);
        if self.kind != CacheKind::LeastStale {
            return self.score(a).total_cmp(&self.score(b)).then(one.use_count.cmp(&other.use_count));
        }
        // Layers until it may be asked for again: the further ahead, the sooner it goes.
        let ahead =
            |index: usize| (index / self.expert_count + self.layer_count - layer - 1) % self.layer_count;
        one.step.cmp(&other.step).then(ahead(b).cmp(&ahead(a))).then(one.use_count.cmp(&other.use_count))
    }
}
