//! What is measured, in which order. Pure.
//!
//! The set that people get without flags takes some fifteen seconds; direct reads come first, so that nothing that went through
//! the page cache stands before them.

use flint_rt::disk::profile::{Pattern, ReadEngine};

/// Depths of the set.
pub(super) const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The depth at which things other than depth are compared: enough for most drives, half of what the product has at most.
pub(super) const MIDDLE_DEPTH: u32 = 16;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// One row to measure; `None` as block is a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) engine: ReadEngine,
    pub(super) pattern: Pattern,
    pub(super) block_bytes: Option<u64>,
    pub(super) depth: u32,
}

/// The standard set; `engine` is the product's own here.
pub(super) fn standard(engine: ReadEngine) -> Vec<Step> {
    let step = |engine, pattern, block_bytes, depth| Step { engine, pattern, block_bytes, depth };
    let mut steps: Vec<Step> =
        DEPTHS.iter().map(|&depth| step(engine, Pattern::Random, None, depth)).collect();
    for block in [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB] {
        steps.push(step(engine, Pattern::Random, Some(block), 32));
    }
    for block in [64 * KIB, MIB, 4 * MIB] {
        steps.push(step(engine, Pattern::Sequential, Some(block), 8));
    }
    for other in ReadEngine::ALL.into_iter().filter(|&other| other != engine) {
        steps.push(step(other, Pattern::Random, None, MIDDLE_DEPTH));
    }
    steps
}

/// Every engine, block size and depth.
pub(super) fn full(engine: ReadEngine) -> Vec<Step> {
    let mut engines = vec![engine];
    engines.extend(ReadEngine::ALL.into_iter().filter(|&other| other != engine));
    let blocks =
        [None, Some(4 * KIB), Some(16 * KIB), Some(64 * KIB), Some(256 * KIB), Some(MIB), Some(4 * MIB)];
    let mut steps = Vec::new();
    for engine in engines {
        for block_bytes in blocks {
            for depth in DEPTHS {
                steps.push(Step { engine, pattern: Pattern::Random, block_bytes, depth });
            }
        }
        for block_bytes in &blocks[1..] {
            for depth in [1, 8, 32] {
                steps.push(Step { engine, pattern: Pattern::Sequential, block_bytes: *block_bytes, depth });
            }
        }
    }
    steps
}

/// Records of a burst: up to what a layer uses, all of which may be missing, and with `beyond` to what a prompt's wave asks.
pub(super) fn bursts(experts_used: u32, beyond: bool) -> Vec<u32> {
    let mut counts: Vec<u32> = [1, 2, 4, 8, 16].into_iter().filter(|&count| count < experts_used).collect();
    counts.push(experts_used);
    if beyond {
        counts.extend([8, 16, 32].into_iter().filter(|&count| count > experts_used));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_rise_to_what_a_layer_uses() {
        assert_eq!(bursts(4, false), [1, 2, 4]);
        assert_eq!(bursts(6, false), [1, 2, 4, 6]);
        assert_eq!(bursts(6, true), [1, 2, 4, 6, 8, 16, 32]);
        assert_eq!(bursts(1, false), [1]);
    }

    #[test]
    fn no_step_comes_twice_and_cached_ones_come_last() {
        for steps in [standard(ReadEngine::Pool), full(ReadEngine::Ring)] {
            for (index, step) in steps.iter().enumerate() {
                assert!(!steps[..index].contains(step), "twice: {step:?}");
            }
            let first_cached = steps.iter().position(|step| !step.engine.is_direct());
            assert!(first_cached.is_some_and(|at| steps[at..].iter().all(|step| !step.engine.is_direct())));
        }
        assert!(
            standard(ReadEngine::Pool)[..DEPTHS.len()].iter().all(|step| step.engine == ReadEngine::Pool)
        );
    }
}
