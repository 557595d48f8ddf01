//! The slot pool and its plans, over random picks: against plain models of the policies, and for the invariants
//! that the device relies on.

#![allow(clippy::unwrap_used, clippy::missing_assert_message, reason = "a test may fail where it stands")]

use std::collections::HashSet;

use flint_rt::base::ids::{ExpertIndex, ExpertKey, LayerIndex, SlotIndex};
use flint_rt::expert::plan::Wave;
use flint_rt::expert::policy::Policy;
use flint_rt::expert::pool::{ExpertSpace, Pool, SWEEP_SLOTS};
use flint_rt::expert::slot::SlotState;
use proptest::prelude::*;

/// What one layer of one step asks for.
#[derive(Debug, Clone)]
struct Pick {
    layer: u32,
    experts: Vec<u32>,
}

fn picks() -> impl Strategy<Value = Vec<Pick>> {
    let pick = (0u32..4, proptest::collection::vec(0u32..12, 0..24)).prop_map(|(layer, mut experts)| {
        let mut seen = HashSet::new();
        experts.retain(|&expert| seen.insert(expert));
        Pick { layer, experts }
    });
    proptest::collection::vec(pick, 1..60)
}

fn pool(slot_count: u32, policy: Policy) -> Pool {
    Pool::new(slot_count, policy, ExpertSpace { layer_first: 0, layer_count: 4, expert_count: 12 })
}

/// The policies, each with a short and a long memory.
fn policies() -> impl Strategy<Value = Policy> {
    let all: Vec<_> = [1, 7, 64].into_iter().flat_map(Policy::all).collect();
    proptest::sample::select(all)
}

fn indexes(experts: &[u32]) -> Vec<ExpertIndex> {
    experts.iter().copied().map(ExpertIndex).collect()
}

/// Plans and "loads" all of a pick; gives its waves.
fn run(pool: &mut Pool, pick: &Pick) -> Vec<Wave> {
    let mut left = indexes(&pick.experts);
    let mut waves = Vec::new();
    while !left.is_empty() {
        let wave = pool.plan_wave(LayerIndex(pick.layer), &mut left);
        for load in &wave.loads {
            pool.loaded(load.slot);
        }
        assert!(!wave.experts.is_empty(), "nothing is pinned, so a wave holds something");
        waves.push(wave);
    }
    waves
}

/// Least recently used in its plainest form: a list, oldest first.
struct LruModel {
    slot_count: usize,
    oldest_first: Vec<ExpertKey>,
}

impl LruModel {
    /// The experts of the next wave, and the victims, in order.
    fn wave(&mut self, layer: u32, left: &mut Vec<u32>) -> (Vec<u32>, Vec<ExpertKey>) {
        let key = |expert: u32| ExpertKey::new(layer, expert);
        let (hits, missing): (Vec<u32>, Vec<u32>) =
            left.iter().partition(|&&expert| self.oldest_first.contains(&key(expert)));
        for &expert in &hits {
            self.oldest_first.retain(|&other| other != key(expert));
            self.oldest_first.push(key(expert));
        }
        let fit = missing.len().min(self.slot_count - hits.len());
        let mut victims = Vec::new();
        for &expert in &missing[..fit] {
            if self.oldest_first.len() == self.slot_count {
                victims.push(self.oldest_first.remove(0));
            }
            self.oldest_first.push(key(expert));
        }
        *left = missing[fit..].to_vec();
        (hits.into_iter().chain(missing[..fit].iter().copied()).collect(), victims)
    }
}

/// The counting policies in their plainest form: every use with its step, and every score summed anew.
struct CountModel {
    slot_count: usize,
    policy: Policy,
    step: u32,
    /// In order of time.
    uses: Vec<(ExpertKey, u32)>,
    resident: Vec<ExpertKey>,
}

impl CountModel {
    fn score(&self, key: ExpertKey) -> f64 {
        let steps: Vec<u32> = self.uses.iter().filter(|(of, _)| *of == key).map(|&(_, step)| step).collect();
        let halved = |halvings: f64| (-halvings).exp2();
        let age = |step: u32, life: u32| f64::from(self.step - step) / f64::from(life);
        match self.policy {
            Policy::Lfu => steps.len() as f64,
            // Whole lives since the use, by the clock on the wall.
            Policy::Ageing { steps: life } => {
                steps.iter().map(|step| halved(f64::from(self.step / life - step / life))).sum()
            }
            Policy::HalfLife { steps: life } => steps.iter().map(|&step| halved(age(step, life))).sum(),
            Policy::FrequencyRecency { steps: life } => {
                steps.last().map_or(0.0, |&last| steps.len() as f64 * halved(age(last, life)))
            }
            _ => steps.len() as f64,
        }
    }

    /// The victims of a wave, in order.
    fn wave(&mut self, layer: u32, picks: &[u32]) -> Vec<ExpertKey> {
        let keys: Vec<_> = picks.iter().map(|&expert| ExpertKey::new(layer, expert)).collect();
        let (hits, missing): (Vec<ExpertKey>, Vec<ExpertKey>) =
            keys.iter().partition(|key| self.resident.contains(key));
        self.uses.extend(hits.iter().map(|&key| (key, self.step)));
        let mut victims = Vec::new();
        for &key in &missing {
            if self.resident.len() == self.slot_count {
                let last = |key: &ExpertKey| self.uses.iter().rposition(|(of, _)| of == key);
                let victim =
                    self.resident.iter().copied().filter(|other| !keys.contains(other)).min_by(|a, b| {
                        let (one, other) = (self.score(*a), self.score(*b));
                        // Equal sums may differ in the last bits when they are taken in another way.
                        let is_equal = (one - other).abs() <= 1e-9 * one.max(other);
                        if is_equal { last(a).cmp(&last(b)) } else { one.total_cmp(&other) }
                    });
                let victim = victim.expect("a wave fits");
                self.resident.retain(|&other| other != victim);
                victims.push(victim);
            }
            self.resident.push(key);
            self.uses.push((key, self.step));
        }
        victims
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_pick_is_served_once_and_never_by_its_own_wave_s_victims(
        slot_count in 1u32..30, picks in picks(), policy in policies(),
    ) {
        let mut pool = pool(slot_count, policy);
        for pick in &picks {
            if pick.layer == 0 {
                pool.begin_step();
            }
            let mut served = Vec::new();
            let before: HashSet<_> = pool.resident().map(|(key, _)| key).collect();
            let waves = run(&mut pool, pick);
            pool.assert_consistent();
            for (number, wave) in waves.iter().enumerate() {
                prop_assert!(wave.experts.len() <= slot_count as usize);
                let slots: HashSet<_> = wave.experts.iter().map(|&(_, slot)| slot).collect();
                prop_assert_eq!(slots.len(), wave.experts.len(), "a slot each");
                let members: HashSet<_> =
                    wave.experts.iter().map(|&(expert, _)| ExpertKey { layer: LayerIndex(pick.layer), expert }).collect();
                for (load, &(expert, slot)) in wave.loads.iter().zip(&wave.experts[wave.hit_count()..]) {
                    prop_assert_eq!((load.key.expert, load.slot), (expert, slot));
                    prop_assert!(load.victim.is_none_or(|victim| !members.contains(&victim)));
                }
                if number == 0 {
                    for &(expert, _) in &wave.experts[..wave.hit_count()] {
                        let key = ExpertKey { layer: LayerIndex(pick.layer), expert };
                        prop_assert!(before.contains(&key));
                    }
                }
                // Only a full wave leaves something for the next one.
                if number + 1 < waves.len() {
                    prop_assert_eq!(wave.experts.len(), slot_count as usize);
                }
                served.extend(wave.experts.iter().map(|&(expert, _)| expert.0));
            }
            served.sort_unstable();
            let mut wanted = pick.experts.clone();
            wanted.sort_unstable();
            prop_assert_eq!(served, wanted);
            // The last wave's experts are all there.
            if let Some(wave) = waves.last() {
                for &(expert, slot) in &wave.experts {
                    let key = ExpertKey { layer: LayerIndex(pick.layer), expert };
                    prop_assert_eq!(pool.lookup(key), Some(slot));
                    prop_assert_eq!(pool.state(slot), SlotState::Ready(key));
                }
            }
        }
    }

    #[test]
    fn it_is_least_recently_used(slot_count in 1u32..30, picks in picks()) {
        let mut pool = pool(slot_count, Policy::Lru);
        let mut model = LruModel { slot_count: slot_count as usize, oldest_first: Vec::new() };
        for pick in &picks {
            let mut left = pick.experts.clone();
            for wave in run(&mut pool, pick) {
                let (experts, victims) = model.wave(pick.layer, &mut left);
                prop_assert_eq!(wave.experts.iter().map(|&(expert, _)| expert.0).collect::<Vec<_>>(), experts);
                prop_assert_eq!(wave.loads.iter().filter_map(|load| load.victim).collect::<Vec<_>>(), victims);
            }
            prop_assert!(left.is_empty());
            let resident: HashSet<_> = pool.resident().map(|(key, _)| key).collect();
            prop_assert_eq!(resident, model.oldest_first.iter().copied().collect::<HashSet<_>>());
        }
    }

    #[test]
    fn it_drops_the_least_worth_by_the_plainest_sum(
        slot_count in 12u32..30, picks in picks(), steps in 1u32..9, which in 1usize..5,
    ) {
        // Sums that are equal in theory differ in their last bits unless weights are powers of two.
        let steps = if matches!(Policy::all(1)[which], Policy::HalfLife { .. }) { 1 } else { steps };
        let policy = Policy::all(steps)[which];
        let mut pool = pool(slot_count, policy);
        let mut model =
            CountModel { slot_count: slot_count as usize, policy, step: 0, uses: Vec::new(), resident: Vec::new() };
        for (number, pick) in picks.iter().enumerate() {
            if number % 2 == 0 {
                pool.begin_step();
                model.step += 1;
            }
            let wanted = model.wave(pick.layer, &pick.experts);
            let waves = run(&mut pool, pick);
            let got: Vec<_> = waves.iter().flat_map(|wave| &wave.loads).filter_map(|load| load.victim).collect();
            prop_assert_eq!(got, wanted, "{}, pick {}", policy, number);
        }
    }

    #[test]
    fn equal_picks_give_equal_plans(slot_count in 1u32..30, picks in picks(), policy in policies()) {
        let all = |pool: &mut Pool| picks.iter().map(|pick| run(pool, pick)).collect::<Vec<_>>();
        let first = all(&mut pool(slot_count, policy));
        prop_assert_eq!(first, all(&mut pool(slot_count, policy)));
    }

    /// Loads end late and some fail, waves stay pinned while later ones are planned: what is pinned or loading stays,
    /// and the table never disagrees with the slots.
    #[test]
    fn pins_and_loads_under_way_are_respected(
        slot_count in 1u32..20,
        picks in picks(),
        fates in proptest::collection::vec(any::<u8>(), 1..200),
        policy in policies(),
    ) {
        let mut fates = fates.into_iter().cycle();
        let mut fate = || fates.next().expect("cycled");
        let mut pool = pool(slot_count, policy);
        let mut pinned: Vec<SlotIndex> = Vec::new();
        let mut loading: Vec<SlotIndex> = Vec::new();
        for pick in &picks {
            let mut left = indexes(&pick.experts);
            let held: Vec<_> = pinned.iter().chain(&loading).map(|&slot| (slot, pool.state(slot))).collect();
            if fate() % 3 == 0 {
                pool.begin_step();
                pool.touch(ExpertKey::new(pick.layer, 0));
            }
            let wave = pool.plan_wave(LayerIndex(pick.layer), &mut left);
            pool.assert_consistent();
            for (slot, state) in held {
                prop_assert_eq!(pool.state(slot), state);
            }
            prop_assert_eq!(wave.experts.len() + left.len(), pick.experts.len());
            if wave.experts.len() < pick.experts.len() && pinned.is_empty() && loading.is_empty() {
                prop_assert_eq!(wave.experts.len(), slot_count as usize);
            }
            loading.extend(wave.loads.iter().map(|load| load.slot));
            loading.retain(|&slot| match fate() % 4 {
                0 => { pool.load_failed(slot); false }
                1 => true,
                _ => { pool.loaded(slot); false }
            });
            pinned.retain(|&slot| if fate() % 2 == 0 { pool.unpin(slot); false } else { true });
            for &(_, slot) in &wave.experts {
                if matches!(pool.state(slot), SlotState::Ready(_)) && fate() % 2 == 0 {
                    pool.pin(slot);
                    pinned.push(slot);
                }
            }
            pool.assert_consistent();
        }
    }
}

#[test]
fn a_touch_saves_from_eviction() {
    let mut pool = pool(2, Policy::Lru);
    run(&mut pool, &Pick { layer: 0, experts: vec![0, 1] });
    pool.touch(ExpertKey::new(0, 0));
    pool.touch(ExpertKey::new(7, 7));
    let waves = run(&mut pool, &Pick { layer: 1, experts: vec![0] });
    assert_eq!(waves[0].loads[0].victim, Some(ExpertKey::new(0, 1)));
}

#[test]
fn with_all_slots_pinned_a_wave_is_empty_and_nothing_is_lost() {
    let mut pool = pool(1, Policy::Lru);
    run(&mut pool, &Pick { layer: 0, experts: vec![3] });
    pool.pin(SlotIndex(0));
    let mut left = indexes(&[4, 5]);
    assert_eq!(pool.plan_wave(LayerIndex(0), &mut left), Wave::default());
    assert_eq!(left, indexes(&[4, 5]));
    pool.unpin(SlotIndex(0));
    assert_eq!(pool.plan_wave(LayerIndex(0), &mut left).experts, [(ExpertIndex(4), SlotIndex(0))]);
    assert_eq!(left, indexes(&[5]));
}

#[test]
#[should_panic(expected = "named twice")]
fn an_expert_named_twice_is_our_mistake() {
    let mut pool = pool(4, Policy::Lru);
    pool.plan_wave(LayerIndex(0), &mut indexes(&[1, 2, 1]));
}

#[test]
#[should_panic(expected = "named twice")]
fn a_resident_expert_named_twice_is_our_mistake() {
    let mut pool = pool(4, Policy::Lru);
    run(&mut pool, &Pick { layer: 0, experts: vec![1] });
    pool.plan_wave(LayerIndex(0), &mut indexes(&[1, 1]));
}

/// Scores are scaled down every 256 half-lives: the order must outlive that, and what was used long ago must leave first.
#[test]
fn the_order_outlives_a_long_time() {
    for policy in
        [Policy::HalfLife { steps: 2 }, Policy::FrequencyRecency { steps: 2 }, Policy::Ageing { steps: 2 }]
    {
        let mut pool = pool(3, policy);
        run(&mut pool, &Pick { layer: 0, experts: vec![0, 1, 2] });
        for step in 0..5_000 {
            pool.begin_step();
            pool.touch(ExpertKey::new(0, step % 2));
            pool.assert_consistent();
        }
        let waves = run(&mut pool, &Pick { layer: 1, experts: vec![0] });
        assert_eq!(waves[0].loads[0].victim, Some(ExpertKey::new(0, 2)), "{policy}");
    }
}

#[test]
fn what_left_is_remembered() {
    let mut pool = pool(2, Policy::HalfLife { steps: 100 });
    let mut ask = |expert| {
        pool.begin_step();
        run(&mut pool, &Pick { layer: 0, experts: vec![expert] })[0].loads.first().map(|load| load.victim)
    };
    for expert in [0, 0, 0, 1, 1] {
        ask(expert);
    }
    assert_eq!(ask(2), Some(Some(ExpertKey::new(0, 1))), "two uses are less than three");
    assert_eq!(ask(1), Some(Some(ExpertKey::new(0, 2))), "one use is less than three");
    assert_eq!(
        ask(2),
        Some(Some(ExpertKey::new(0, 0))),
        "one use is less than three and three, of which the older goes"
    );
}

#[test]
fn a_sweep_leaves_what_was_there() {
    let space = ExpertSpace { layer_first: 0, layer_count: 10, expert_count: 100 };
    let sweep = |pool: &mut Pool| {
        pool.begin_sweep();
        let (mut hits, mut loads) = (0, 0);
        for layer in 0..space.layer_count {
            for first in (0..space.expert_count).step_by(32) {
                let experts = (first..space.expert_count.min(first + 32)).collect();
                for wave in run(pool, &Pick { layer, experts }) {
                    hits += wave.experts.len() - wave.loads.len();
                    loads += wave.loads.len();
                }
            }
            pool.assert_consistent();
        }
        assert_eq!(hits + loads, 1000);
        hits
    };
    for policy in Policy::all(64) {
        // Single tokens use the same thirty experts of each layer.
        let mut pool = Pool::new(300, policy, space);
        for _ in 0..20 {
            pool.begin_step();
            for layer in 0..space.layer_count {
                for experts in [0..10, 10..20, 20..30].map(Iterator::collect) {
                    run(&mut pool, &Pick { layer, experts });
                }
            }
        }
        let hits: Vec<usize> = (0..3).map(|_| sweep(&mut pool)).collect();
        assert!(hits[0] >= 300 - SWEEP_SLOTS, "{policy}: {hits:?} hits");
        assert!(
            hits[1] >= 300 - 2 * SWEEP_SLOTS && hits[2] >= 300 - 2 * SWEEP_SLOTS,
            "{policy}: {hits:?} hits"
        );
        let stayed = (0..10).flat_map(|layer| (0..30).map(move |expert| ExpertKey::new(layer, expert)));
        let stayed = stayed.filter(|&key| pool.lookup(key).is_some()).count();
        assert!(stayed >= 300 - 3 * SWEEP_SLOTS, "{policy}: {stayed} of 300 stayed");
        // The next token finds victims among what has passed.
        pool.begin_step();
        run(&mut pool, &Pick { layer: 3, experts: vec![50, 51, 52] });
        pool.assert_consistent();
    }
}

#[test]
fn a_sweep_through_few_slots_goes_on() {
    for slots in [1, 4, 63, 64, 65] {
        let space = ExpertSpace { layer_first: 0, layer_count: 2, expert_count: 100 };
        let mut pool = Pool::new(slots, Policy::default(), space);
        for _ in 0..3 {
            pool.begin_sweep();
            for layer in 0..2 {
                run(&mut pool, &Pick { layer, experts: (0..100).collect() });
                pool.assert_consistent();
            }
        }
    }
}
