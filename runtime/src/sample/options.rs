//! Sampling options: plain data, checked once.

use super::error::OptionsError;
use crate::base::ids::TokenId;

/// How a token is chosen. The default is greedy, with everything else off.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerOptions {
    /// 0 for greedy; else logits are divided by it. At least 0, finite.
    pub temperature: f32,
    /// How many of the best logits stay; 0 for all.
    pub top_k: u32,
    /// Share of the probability that stays, best first: the fewest tokens that reach it, at least one. 0 to 1; 1 is off.
    pub top_p: f32,
    /// Least probability that stays, as a share of the best one's. 0 to 1; 0 is off.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of recent tokens. Above 0, finite; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of each recent token, once. -2 to 2; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from the logit of each recent token, as often as it occurs. -2 to 2; 0 is off.
    pub frequency_penalty: f32,
    /// How many of the last accepted tokens are recent; 0 for none.
    pub penalty_last_n: u32,
    /// Seed of the draws; equal seeds give equal draws.
    pub seed: u64,
    /// Added to the logits of single tokens; minus infinity forbids one. Several for one token add up.
    pub logit_bias: Vec<(TokenId, f32)>,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            seed: 0,
            logit_bias: Vec::new(),
        }
    }
}

impl SamplerOptions {
    /// What Flint's maker recommends: temperature 1, top-p 0.95, top-k 20.
    pub fn recommended(seed: u64) -> Self {
        Self { temperature: 1.0, top_p: 0.95, top_k: 20, seed, ..Self::default() }
    }

    /// Whether the best logit is taken without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether nothing stands between the logits and their maximum: greedy, no penalty, no bias.
    pub fn is_plain_argmax(&self) -> bool {
        let has_penalties = self.penalty_last_n > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0);
        self.is_greedy() && !has_penalties && self.logit_bias.is_empty()
    }

    /// Checks every option against its range, and the biased ids against the vocabulary.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn check(&self, vocabulary: u32) -> Result<(), OptionsError> {
        // Each test is written so that NaN fails it.
        let within = |option, found: f32, holds: bool, wanted| {
            if holds { Ok(()) } else { Err(OptionsError::OutOfRange { option, found, wanted }) }
        };
        let share = "0 to 1";
        let penalty = "-2 to 2";
        let t = self.temperature;
        within("temperature", t, t >= 0.0 && t.is_finite(), "a finite number, at least 0")?;
        within("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p), share)?;
        within("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), share)?;
        let r = self.repetition_penalty;
        within("repetition_penalty", r, r > 0.0 && r.is_finite(), "a finite number above 0")?;
        let p = self.presence_penalty;
        within("presence_penalty", p, (-2.0..=2.0).contains(&p), penalty)?;
        let f = self.frequency_penalty;
        within("frequency_penalty", f, (-2.0..=2.0).contains(&f), penalty)?;
        for (id, bias) in &self.logit_bias {
            if *id >= vocabulary {
                return Err(OptionsError::BiasId { id: *id, vocabulary });
            }
            if !bias.is_finite() && *bias != f32::NEG_INFINITY {
                return Err(OptionsError::Bias { id: *id, found: *bias });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_is_checked_by_name() {
        let refused = |change: fn(&mut SamplerOptions), name: &str| {
            let mut options = SamplerOptions::recommended(1);
            assert_eq!(options.check(10), Ok(()));
            change(&mut options);
            let error = options.check(10).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        };
        refused(|o| o.temperature = f32::NAN, "temperature");
        refused(|o| o.temperature = -0.1, "temperature");
        refused(|o| o.temperature = f32::INFINITY, "temperature");
        refused(|o| o.top_p = 1.01, "top_p");
        refused(|o| o.top_p = f32::NAN, "top_p");
        refused(|o| o.min_p = -0.01, "min_p");
        refused(|o| o.repetition_penalty = 0.0, "repetition_penalty");
        refused(|o| o.presence_penalty = 2.1, "presence_penalty");
        refused(|o| o.frequency_penalty = f32::NEG_INFINITY, "frequency_penalty");
        refused(|o| o.logit_bias = vec![(10, 1.0)], "logit_bias names token 10");
        refused(|o| o.logit_bias = vec![(3, f32::NAN)], "logit_bias of token 3");
        refused(|o| o.logit_bias = vec![(3, f32::INFINITY)], "logit_bias of token 3");
    }
}
