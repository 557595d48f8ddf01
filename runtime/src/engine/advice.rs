//! What a model's file says of how its tokens are best drawn: the keys `general.sampling.*`, as llama.cpp writes them.

use crate::gguf::{GgufError, Metadata};
use crate::sample::SamplerOptions;

/// Options that somebody has given; the others are left to whoever comes before.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingAdvice {
    /// `general.sampling.temp`
    pub temperature: Option<f32>,
    /// `general.sampling.top_k`
    pub top_k: Option<u32>,
    /// `general.sampling.top_p`
    pub top_p: Option<f32>,
    /// `general.sampling.min_p`
    pub min_p: Option<f32>,
    /// `general.sampling.penalty_repeat`
    pub repetition_penalty: Option<f32>,
    /// `general.sampling.penalty_last_n`
    pub penalty_last_n: Option<u32>,
}

impl SamplingAdvice {
    /// Of a file's metadata.
    ///
    /// # Errors
    /// When a key has a value of another type.
    pub fn of(metadata: &Metadata) -> Result<Self, GgufError> {
        Ok(Self {
            temperature: metadata.f32_opt("general.sampling.temp")?,
            top_k: metadata.u32_opt("general.sampling.top_k")?,
            top_p: metadata.f32_opt("general.sampling.top_p")?,
            min_p: metadata.f32_opt("general.sampling.min_p")?,
            repetition_penalty: metadata.f32_opt("general.sampling.penalty_repeat")?,
            penalty_last_n: metadata.u32_opt("general.sampling.penalty_last_n")?,
        })
    }

    /// `options` with what is given here in their place.
    pub fn over(&self, options: SamplerOptions) -> SamplerOptions {
        SamplerOptions {
            temperature: self.temperature.unwrap_or(options.temperature),
            top_k: self.top_k.unwrap_or(options.top_k),
            top_p: self.top_p.unwrap_or(options.top_p),
            min_p: self.min_p.unwrap_or(options.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(options.repetition_penalty),
            penalty_last_n: self.penalty_last_n.unwrap_or(options.penalty_last_n),
            ..options
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_takes_the_place_of_the_rest() {
        let recommended = SamplerOptions::recommended(7);
        assert_eq!(SamplingAdvice::default().over(recommended.clone()), recommended);
        let advice = SamplingAdvice { temperature: Some(0.6), top_k: Some(40), ..SamplingAdvice::default() };
        let got = advice.over(recommended.clone());
        assert_eq!(got, SamplerOptions { temperature: 0.6, top_k: 40, ..recommended });
    }
}
