//! `flint_rt_sampler_*`: logits to a token.

use super::guard::{self, LastError};
use super::handles::{self, Handle};
use super::lock::Exclusive;
use super::memory::{In, InArray, InOutArray, Out};
use super::model::Model;
use super::status::{Fault, Status};
use super::types::SamplerOptions;
use crate::base::ids::TokenId;
use crate::sample;

/// A sampler, and the row that it works on.
pub(super) struct Sampler {
    pub(super) state: Exclusive<State>,
    pub(super) errors: LastError,
}

pub(super) struct State {
    pub(super) sampler: sample::Sampler,
    row: Vec<f32>,
}

impl Sampler {
    /// Whether a call of this thread is using it.
    pub(super) fn is_held_here(&self) -> bool {
        self.state.is_held_here()
    }

    /// The next token, which is counted among the recent ones.
    pub(super) fn choose(&self, logits: &[f32]) -> Result<TokenId, Fault> {
        let mut state = self.state.enter()?;
        let State { sampler, row } = &mut *state;
        row.clear();
        row.extend_from_slice(logits);
        let token = sampler.sample(row)?;
        sampler.accept(token);
        Ok(token)
    }
}

/// Greedy, with nothing else.
pub(super) fn greedy(vocabulary: u32) -> Result<sample::Sampler, Fault> {
    Ok(sample::Sampler::new(sample::SamplerOptions::default(), vocabulary)?)
}

fn sampler_options(given: &SamplerOptions) -> Result<sample::SamplerOptions, Fault> {
    let biases = given.logit_bias.slice(given.logit_bias_count, "logit_bias")?;
    Ok(sample::SamplerOptions {
        temperature: given.temperature,
        top_k: given.top_k,
        top_p: given.top_p,
        min_p: given.min_p,
        repetition_penalty: given.repetition_penalty,
        presence_penalty: given.presence_penalty,
        frequency_penalty: given.frequency_penalty,
        penalty_last_n: given.penalty_last_n,
        seed: given.seed,
        logit_bias: biases.iter().map(|bias| (bias.token, bias.bias)).collect(),
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_sampler_options_init(
    options: Out<SamplerOptions>,
    struct_size: usize,
) -> Status {
    guard::run(None, || options.init(struct_size, "options"))
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_sampler_create(
    model: Handle,
    options: In<SamplerOptions>,
    sampler: Out<Handle>,
) -> Status {
    handles::with::<Model>(model, |model| {
        let target = sampler.need("sampler")?;
        target.set(0);
        let options = sampler_options(&options.read("options")?)?;
        let made = sample::Sampler::new(options, model.info.vocabulary)?;
        let row = Vec::with_capacity(model.info.vocabulary as usize);
        let state = Exclusive::with_callbacks("sampler", State { sampler: made, row });
        target.set(handles::add(Sampler { state, errors: LastError::default() }));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_sampler_free(sampler: Handle) -> Status {
    handles::free::<Sampler>(sampler)
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_sampler_reset(sampler: Handle) -> Status {
    handles::with::<Sampler>(sampler, |sampler| {
        sampler.state.enter()?.sampler.reset();
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_sampler_start(
    sampler: Handle,
    tokens: InArray<u32>,
    token_count: usize,
) -> Status {
    handles::with::<Sampler>(sampler, |sampler| {
        let tokens = tokens.slice(token_count, "tokens")?;
        sampler.state.enter()?.sampler.start_from(tokens);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_sampler_choose(
    sampler: Handle,
    mut logits: InOutArray<f32>,
    count: usize,
    token: Out<u32>,
) -> Status {
    handles::with::<Sampler>(sampler, |sampler| {
        let target = token.need("token")?;
        let logits = logits.slice(count, "logits")?;
        let mut state = sampler.state.enter()?;
        let chosen = state.sampler.sample(logits)?;
        state.sampler.accept(chosen);
        target.set(chosen);
        Ok(())
    })
}
