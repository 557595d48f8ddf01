//! The host tier's table over random lives: who is claimed, kept, guessed and forgotten.

use std::collections::{HashMap, HashSet};

use flint_rt::base::ids::ExpertKey;
use flint_rt::expert::host_tier::{Claim, Found, HostSlot, HostTier};
use proptest::prelude::*;

/// What happens to the tier.
#[derive(Debug, Clone, Copy)]
enum Happens {
    Claim(u32, Claim),
    /// The read under way that began first, or another, ends well or not.
    ReadEnds(usize, bool),
    /// What is held is copied from.
    Lend(usize),
    GiveBack(usize),
    Keep(u32),
    Want(u32),
    DropGuesses(u32),
    ClearIdle,
    /// The memory of a slot beyond the first ones comes, or goes when it can.
    Come,
    Go(u32),
}

fn happens() -> impl Strategy<Value = Happens> {
    let expert = 0..24_u32;
    let claim = prop_oneof![Just(Claim::Demand), Just(Claim::Guess), Just(Claim::Keep)];
    prop_oneof![
        6 => (expert.clone(), claim).prop_map(|(expert, claim)| Happens::Claim(expert, claim)),
        6 => (0..8_usize, prop::bool::weighted(0.8)).prop_map(|(at, is_well)| Happens::ReadEnds(at, is_well)),
        3 => (0..24_usize).prop_map(Happens::Lend),
        3 => (0..8_usize).prop_map(Happens::GiveBack),
        2 => expert.clone().prop_map(Happens::Keep),
        2 => expert.clone().prop_map(Happens::Want),
        1 => expert.prop_map(Happens::DropGuesses),
        1 => Just(Happens::ClearIdle),
        1 => Just(Happens::Come),
        1 => (0..12_u32).prop_map(Happens::Go),
    ]
}

/// A tier all of whose slots have memory.
fn full(ring: u32, kept: u32, guesses_max: u32) -> HostTier {
    let mut tier = HostTier::new(ring, kept, guesses_max);
    while tier.add().is_some() {}
    tier
}

fn key(expert: u32) -> ExpertKey {
    ExpertKey::new(3, expert)
}

/// What the tier should know, kept in the plainest way.
#[derive(Default)]
struct Model {
    ring: u32,
    beyond: u32,
    reading: Vec<(HostSlot, u32)>,
    held: HashMap<u32, HostSlot>,
    lent: Vec<(HostSlot, u32)>,
}

impl Model {
    fn step(&mut self, tier: &mut HostTier, what: Happens) {
        match what {
            Happens::Claim(expert, claim) => {
                if tier.lookup(key(expert)).is_some() {
                    return;
                }
                let busy: HashSet<HostSlot> =
                    self.reading.iter().chain(&self.lent).map(|&(slot, _)| slot).collect();
                let Some(slot) = tier.claim(key(expert), claim) else {
                    let is_full = busy.len() + tier.kept_count() as usize >= tier.slot_count() as usize;
                    assert!(claim != Claim::Demand || is_full, "a demand was refused beside idle slots");
                    return;
                };
                assert!(!busy.contains(&slot), "{slot:?} was taken from under a read or a copy");
                self.held.retain(|_, other| *other != slot);
                if claim == Claim::Keep {
                    self.held.insert(expert, slot);
                    self.lent.push((slot, expert));
                } else {
                    self.reading.push((slot, expert));
                }
            }
            Happens::ReadEnds(at, is_well) => {
                if self.reading.is_empty() {
                    return;
                }
                let (slot, expert) = self.reading.remove(at % self.reading.len());
                if is_well {
                    tier.landed(slot);
                    self.held.insert(expert, slot);
                } else {
                    tier.failed(slot);
                    assert_eq!(tier.lookup(key(expert)), None, "what failed is nowhere");
                }
            }
            Happens::Lend(at) => {
                let mut held: Vec<(u32, HostSlot)> = self.held.iter().map(|(&e, &s)| (e, s)).collect();
                held.sort_unstable();
                if let Some(&(expert, slot)) = held.get(at % held.len().max(1)) {
                    tier.lend(slot);
                    self.lent.push((slot, expert));
                }
            }
            Happens::GiveBack(at) => {
                if !self.lent.is_empty() {
                    let (slot, _) = self.lent.remove(at % self.lent.len());
                    tier.give_back(slot);
                }
            }
            Happens::Keep(expert) => {
                let is_here = tier.keep(key(expert));
                assert_eq!(is_here, self.held.contains_key(&expert), "what is kept was here");
            }
            Happens::Want(expert) => {
                if let Some((slot, Found::Reading)) = tier.lookup(key(expert)) {
                    tier.want(slot);
                    assert!(!tier.is_unwanted_guess(slot), "it is wanted now");
                }
            }
            Happens::DropGuesses(below) => {
                tier.drop_guesses(|key| key.expert.0 < below);
            }
            Happens::Come => {
                tier.add();
            }
            Happens::Go(index) => {
                let slot = HostSlot(self.ring + index);
                if index < self.beyond && tier.is_idle(slot) {
                    tier.remove(slot);
                    self.held.retain(|_, other| *other != slot);
                }
            }
            Happens::ClearIdle => {
                tier.clear_idle();
                let lent: HashSet<u32> = self.lent.iter().map(|&(_, expert)| expert).collect();
                self.held.retain(|expert, _| lent.contains(expert));
            }
        }
    }

    fn check(&self, tier: &HostTier) {
        tier.assert_consistent();
        for &(slot, expert) in &self.reading {
            assert_eq!(tier.lookup(key(expert)), Some((slot, Found::Reading)), "expert {expert}");
        }
        for (&expert, &slot) in &self.held {
            assert_eq!(tier.lookup(key(expert)), Some((slot, Found::Held)), "expert {expert}");
        }
    }
}

proptest! {
    #[test]
    fn a_table_of_any_life_is_consistent(
        slots in 3..12_u32,
        kept_share in 0..3_u32,
        life in prop::collection::vec(happens(), 1..200),
    ) {
        let kept_max = (slots - 2) * kept_share / 3;
        let mut tier = full(slots - kept_max, kept_max, 1);
        let mut model = Model { ring: slots - kept_max, beyond: kept_max, ..Model::default() };
        for what in life {
            model.step(&mut tier, what);
            model.check(&tier);
        }
    }
}

#[test]
fn what_is_kept_outlives_guesses_and_copies() {
    let mut tier = full(4, 2, 2);
    let read = |tier: &mut HostTier, expert: u32, claim: Claim| {
        let slot = tier.claim(key(expert), claim).expect("a slot");
        tier.landed(slot);
        slot
    };
    for expert in 0..2 {
        read(&mut tier, expert, Claim::Demand);
        assert!(tier.keep(key(expert)), "it is here");
    }
    assert_eq!(tier.kept_count(), 2);
    for expert in 10..30 {
        read(&mut tier, expert, if expert % 2 == 0 { Claim::Guess } else { Claim::Demand });
        tier.assert_consistent();
    }
    assert!(tier.lookup(key(0)).is_some() && tier.lookup(key(1)).is_some(), "nothing pushed them out");
    // A third one pushes out the one kept first, and no other.
    read(&mut tier, 2, Claim::Demand);
    assert!(tier.keep(key(2)));
    for expert in 30..40 {
        read(&mut tier, expert, Claim::Demand);
    }
    assert!(tier.lookup(key(0)).is_none() && tier.lookup(key(1)).is_some() && tier.lookup(key(2)).is_some());
}

#[test]
fn what_was_kept_longest_does_not_hide_the_others() {
    let mut tier = full(4, 3, 1);
    for expert in 0..3 {
        let slot = tier.claim(key(expert), Claim::Keep).expect("there is room");
        tier.give_back(slot);
    }
    let order: Vec<_> = (0..4)
        .map(|_| {
            let oldest = tier.oldest_kept();
            tier.renew_oldest_kept();
            oldest
        })
        .collect();
    assert_eq!(order, [0, 1, 2, 0].map(|expert| Some(key(expert))));
    tier.assert_consistent();
}

#[test]
fn a_guess_that_is_wanted_is_a_guess_no_more() {
    let mut tier = HostTier::new(4, 0, 1);
    let first = tier.claim(key(1), Claim::Guess).expect("a slot");
    assert!(tier.is_unwanted_guess(first));
    assert_eq!(tier.claim(key(2), Claim::Guess), None, "one guess at a time, and that one is being read");
    tier.want(first);
    assert!(!tier.is_unwanted_guess(first));
    let second = tier.claim(key(2), Claim::Guess).expect("the first is no guess any more");
    tier.landed(second);
    tier.landed(first);
    assert!(tier.is_guess(second) && !tier.is_guess(first));
    assert_eq!(tier.drop_guesses(|_| true), 1);
    assert!(!tier.is_guess(second));
    assert_eq!(tier.lookup(key(2)), Some((second, Found::Held)), "its bytes are right all the same");
}
