//! A model to run a few tokens of: the shapes of a given one, fewer layers, and picks that are known beforehand.
//!
//! In: the numbers of a model, how many expert layers. Out: a GGUF that takes next to no room, as nearly all of its weights are
//! a hole and so zero, and the tokens to feed it.
//!
//! With matrices of zeros nothing is added to the residual stream, so a token arrives at every router as its own row of the token
//! table. Token `t` has a 1 in column `t`, and in that column routers hold what makes it pick its experts. Times do not depend
//! on the numbers: kernels compute zeros as they do others.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use flint_rt::base::ids::TokenId;
use flint_rt::model::hparams::FlintConfig;

use super::layout::Layout;
use super::shape::Shape;
use crate::exit::{Exit, Failure, Outcome};

/// Sets of picks that tokens go through, so that none is in a slot when it comes again.
const SETS_MAX: u32 = 8;

/// The tokens of a rehearsal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Script {
    /// Its picks stay in slots.
    pub(crate) resident: TokenId,
    /// In turn: all picks but one are those of `resident`. None where there are too few experts.
    pub(crate) one_misses: Vec<TokenId>,
    /// In turn: no pick is shared with the one before. None where there are too few experts.
    pub(crate) all_miss: Vec<TokenId>,
    /// By token, the experts that it picks in each layer, best first.
    picks: Vec<Vec<u32>>,
}

impl Script {
    fn new(experts: u32, used: u32) -> Self {
        let mut picks: Vec<Vec<u32>> = vec![(0..used).collect()];
        let ids = |from: usize, picks: &[Vec<u32>]| {
            (from..picks.len()).map(|id| TokenId::try_from(id).expect("invariant: few tokens")).collect()
        };
        let others = experts - used;
        // Two find their slots in a pool of one more a layer than a token uses, three do not.
        if others >= 2 {
            let last = (0..(others + 1).min(SETS_MAX)).map(|other| used - 1 + other);
            picks.extend(last.map(|last| (0..used - 1).chain([last]).collect()));
        }
        let one_misses = ids(1, &picks);
        let from = picks.len();
        // As many as the pool holds must come between a set and its return: two others do, one does not.
        if experts / used >= 3 {
            let sets = (experts / used).min(SETS_MAX);
            picks.extend((0..sets).map(|set| (set * used..(set + 1) * used).collect()));
        }
        let all_miss = ids(from, &picks);
        Self { resident: 0, one_misses, all_miss, picks }
    }
}

/// Slots with which a [`Script`] misses what it says, in a model of `layers` expert layers.
pub(crate) fn pool_slots(config: &FlintConfig, layers: u32) -> u32 {
    layers * (config.experts_used + 1).min(config.expert_count)
}

/// Writes a model with the shapes of `config` and `layers` expert layers to `path`.
///
/// # Errors
/// When there is no model of such dimensions, or the file cannot be written.
pub(crate) fn write(path: &Path, config: &FlintConfig, layers: u32) -> Outcome<Script> {
    let shape = Shape::like(config, layers)?;
    let layout = Layout::new("Flint (rehearsal)", &shape, 0, 0.0)?;
    let script = Script::new(config.expert_count, config.experts_used);
    let columns = shape.embed as usize;
    if script.picks.len() > columns {
        return Err(Failure::usage(format!("a model of width {columns} is too narrow to rehearse")));
    }
    fill(path, &layout, columns, &script)
        .map_err(|error| Failure::because(Exit::of_io(&error), path.display().to_string(), &error))?;
    Ok(script)
}

fn fill(path: &Path, layout: &Layout, columns: usize, script: &Script) -> io::Result<()> {
    let file = File::create_new(path)?;
    file.set_len(layout.len_bytes())?;
    file.write_all_at(layout.header(), 0)?;
    let router = router(columns, script);
    for (offset_bytes, tensor) in layout.tensors() {
        let floats: &[f32] = match tensor.name.as_str() {
            "token_embd.weight" => {
                for token in 0..script.picks.len() {
                    let place = offset_bytes + (token * columns + token) as u64 * 4;
                    file.write_all_at(&1_f32.to_le_bytes(), place)?;
                }
                continue;
            }
            name if name.ends_with("norm.weight") => &vec![1.0; (tensor.len_bytes / 4) as usize],
            name if name.ends_with("ffn_gate_inp.weight") => &router,
            _ => continue,
        };
        let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        file.write_all_at(&bytes, *offset_bytes)?;
    }
    Ok(())
}

/// f32 `[experts, columns]`: what makes each token pick its experts, best first.
fn router(columns: usize, script: &Script) -> Vec<f32> {
    let experts = script.picks.iter().flatten().max().map_or(0, |last| *last as usize + 1);
    let mut weights = vec![0.0; experts * columns];
    for (token, picks) in script.picks.iter().enumerate() {
        for (rank, expert) in picks.iter().enumerate() {
            // The norm in front makes the 1 the root of the width; logits of 1 to 2 are in any scoring's range.
            let logit = 2.0 - rank as f32 / picks.len() as f32;
            weights[*expert as usize * columns + token] = logit / (columns as f32).sqrt();
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_miss_as_often_as_they_say_in_the_pool_that_is_meant_for_them() {
        for (experts, used) in [(16, 4), (256, 6), (56, 6), (8, 2), (5, 2), (4, 4), (5, 4), (12, 1), (6, 4)] {
            let script = Script::new(experts, used);
            for (tokens, misses) in [(&script.one_misses, 1), (&script.all_miss, used as usize)] {
                // The pool, least recently used first.
                let mut pool: Vec<u32> = Vec::new();
                let mut missed = Vec::new();
                for token in tokens.iter().chain(tokens).chain(tokens) {
                    let picks = &script.picks[*token as usize];
                    assert!(picks.iter().all(|expert| *expert < experts), "{picks:?} of {experts}");
                    missed.push(picks.iter().filter(|expert| !pool.contains(expert)).count());
                    pool.retain(|expert| !picks.contains(expert));
                    pool.extend(picks);
                    let over = pool.len().saturating_sub(used as usize + 1);
                    pool.drain(..over);
                }
                assert!(
                    missed.iter().skip(tokens.len()).all(|found| *found == misses),
                    "{experts}, {used}: {missed:?}"
                );
            }
            assert_eq!(script.one_misses.is_empty(), experts < used + 2, "{experts} experts, {used} used");
        }
    }
}
