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

/// Tokens miss in every layer, in every other one, in every fourth: what stops cost depends on how far apart they are.
const EVERY: [u32; 3] = [1, 2, 4];

/// Tokens of which each misses one pick in some layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OneMisses {
    /// The first layer misses, and every so-manieth from there.
    pub(crate) every: u32,
    /// In turn: all picks but one are those of the resident token; that one it never picks, nor did the tokens right before.
    pub(crate) tokens: Vec<TokenId>,
}

/// The tokens of a rehearsal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Script {
    /// Its picks stay in slots.
    pub(crate) resident: TokenId,
    /// None where there are too few experts.
    pub(crate) one_misses: Vec<OneMisses>,
    /// In turn: no pick is shared with the one before. None where there are too few experts.
    pub(crate) all_miss: Vec<TokenId>,
    /// By token and layer, the experts that it picks, best first.
    picks: Vec<Vec<Vec<u32>>>,
}

impl Script {
    fn new(layers: u32, experts: u32, used: u32) -> Self {
        let resident: Vec<u32> = (0..used).collect();
        let same = |picks: &[u32]| vec![picks.to_vec(); layers as usize];
        let mut picks = vec![same(&resident)];
        let mut add = |all: Vec<Vec<Vec<u32>>>| -> Vec<TokenId> {
            let ids = (picks.len()..).take(all.len());
            let ids = ids.map(|id| TokenId::try_from(id).expect("invariant: few tokens")).collect();
            picks.extend(all);
            ids
        };
        let others = experts - used;
        let mut one_misses = Vec::new();
        for every in EVERY {
            // A pool has a slot more for each layer than a token uses: where only every fourth layer misses, four or five of the
            // experts that take turns there find theirs.
            if others < every + 2 || (every > 1 && layers <= every) {
                continue;
            }
            let last = (0..others.min(SETS_MAX)).map(|other| used + other);
            let tokens = last.map(|last| {
                let missing: Vec<u32> = (0..used - 1).chain([last]).collect();
                let of_layer = |layer| if layer % every == 0 { &missing } else { &resident };
                (0..layers).map(|layer| of_layer(layer).clone()).collect()
            });
            one_misses.push(OneMisses { every, tokens: add(tokens.collect()) });
        }
        // As many as the pool holds must come between a set and its return: two others do, one does not.
        let sets = if experts / used >= 3 { (experts / used).min(SETS_MAX) } else { 0 };
        let sets = (0..sets).map(|set| same(&(set * used..(set + 1) * used).collect::<Vec<_>>()));
        let all_miss = add(sets.collect());
        Self { resident: 0, one_misses, all_miss, picks }
    }
}

impl Script {
    /// Experts of a layer that its tokens pick, of all together.
    pub(crate) fn experts_touched(&self) -> u32 {
        let picks = self.picks.iter().flatten().flatten();
        picks.max().map_or(0, |most| most + 1)
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
    let script = Script::new(layers, config.expert_count, config.experts_used);
    let columns = shape.embed as usize;
    if script.picks.len() > columns {
        return Err(Failure::usage(format!("a model of width {columns} is too narrow to rehearse")));
    }
    fill(path, &layout, columns, config.lead_layer_count, &script)
        .map_err(|error| Failure::because(Exit::of_io(&error), path.display().to_string(), &error))?;
    Ok(script)
}

fn fill(path: &Path, layout: &Layout, columns: usize, lead_layers: u32, script: &Script) -> io::Result<()> {
    let file = File::create_new(path)?;
    file.set_len(layout.len_bytes())?;
    file.write_all_at(layout.header(), 0)?;
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
            name if name.ends_with("ffn_gate_inp.weight") => {
                let layer = name.split('.').nth(1).and_then(|number| number.parse::<u32>().ok());
                let layer = layer.expect("invariant: our own names have the layer's number");
                &router(columns, script, (layer - lead_layers) as usize)
            }
            _ => continue,
        };
        let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        file.write_all_at(&bytes, *offset_bytes)?;
    }
    Ok(())
}

/// f32 `[experts, columns]`: what makes each token pick its experts in this expert layer, best first.
fn router(columns: usize, script: &Script, layer: usize) -> Vec<f32> {
    let experts =
        script.picks.iter().flat_map(|picks| &picks[layer]).max().map_or(0, |last| *last as usize + 1);
    let mut weights = vec![0.0; experts * columns];
    for (token, picks) in script.picks.iter().enumerate() {
        let picks = &picks[layer];
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
        const LAYERS: u32 = 8;
        for (experts, used) in [(16, 4), (256, 6), (56, 6), (8, 2), (5, 2), (4, 4), (5, 4), (12, 1), (6, 4)] {
            let script = Script::new(LAYERS, experts, used);
            let ones = script.one_misses.iter().map(|kind| (&kind.tokens, LAYERS / kind.every));
            for (tokens, misses) in ones.chain([(&script.all_miss, LAYERS * used)]) {
                // The pool, least recently used first.
                let mut pool: Vec<(usize, u32)> = Vec::new();
                let mut missed = Vec::new();
                for token in tokens.iter().chain(tokens).chain(tokens) {
                    let mut count = 0;
                    for (layer, picks) in script.picks[*token as usize].iter().enumerate() {
                        assert!(picks.iter().all(|expert| *expert < experts), "{picks:?} of {experts}");
                        let keys: Vec<_> = picks.iter().map(|&expert| (layer, expert)).collect();
                        count += keys.iter().filter(|key| !pool.contains(key)).count();
                        pool.retain(|key| !keys.contains(key));
                        pool.extend(keys);
                        let over = pool.len().saturating_sub((LAYERS * (used + 1)) as usize);
                        pool.drain(..over);
                    }
                    missed.push(count);
                }
                assert!(
                    missed.iter().skip(tokens.len()).all(|found| *found == misses as usize),
                    "{experts}, {used}: {missed:?}, not {misses}"
                );
            }
            assert_eq!(script.one_misses.is_empty(), experts < used + 3, "{experts} experts, {used} used");
        }
    }
}
