//! The sampler of one session; the order of its steps stands on the front page of [`super`].

use super::error::{OptionsError, SampleError};
use super::options::SamplerOptions;
use super::penalties::Recent;
use super::probability::check_finite;
use super::rng::Rng;
use super::select::{Candidate, better_first, gather_best, keep_sorted_front};
use crate::base::ids::TokenId;

/// Chooses tokens from rows of logits.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplerOptions,
    vocabulary: u32,
    rng: Rng,
    recent: Recent,
    /// Memory of the last call.
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

impl Sampler {
    /// A sampler for rows of `vocabulary` logits.
    ///
    /// # Errors
    /// An option out of its range.
    pub fn new(options: SamplerOptions, vocabulary: u32) -> Result<Self, OptionsError> {
        options.check(vocabulary)?;
        let rng = Rng::new(options.seed);
        let recent = Recent::new(options.penalty_last_n);
        Ok(Self { options, vocabulary, rng, recent, candidates: Vec::new(), weights: Vec::new() })
    }

    /// Its options.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Counts a token among the recent ones: each that was generated, and those of the prompt where penalties are to
    /// mind them too.
    pub fn accept(&mut self, id: TokenId) {
        self.recent.accept(id);
    }

    /// Takes the end of `context` for the recent tokens, in place of all earlier ones; draws go on.
    pub fn start_from(&mut self, context: &[TokenId]) {
        self.recent.clear();
        let first = context.len().saturating_sub(self.options.penalty_last_n as usize);
        context[first..].iter().for_each(|&id| self.recent.accept(id));
    }

    /// Begins again: the seed's first draw, no recent tokens.
    pub fn reset(&mut self) {
        self.rng = Rng::new(self.options.seed);
        self.recent.clear();
    }

    /// Chooses a token from `logits`, `[vocabulary]`, which penalties and bias change in place. The token is not yet
    /// accepted.
    ///
    /// # Errors
    /// A row of the wrong length, a logit that is not finite, or nothing that the bias leaves.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<TokenId, SampleError> {
        self.choose(logits, |_| {})
    }

    /// The same, but none of `forbidden` this time, whatever the bias says: what ends a reply that is not to end yet. Ids
    /// outside the row are skipped.
    ///
    /// # Errors
    /// As [`Self::sample`], and when everything is forbidden.
    pub fn sample_without(
        &mut self,
        logits: &mut [f32],
        forbidden: &[TokenId],
    ) -> Result<TokenId, SampleError> {
        self.choose(logits, |logits| {
            for id in forbidden {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        })
    }

    /// The same, but only one that `is_allowed`: what a form of the reply lets come next.
    ///
    /// # Errors
    /// As [`Self::sample`], and when nothing is allowed.
    pub fn sample_among(
        &mut self,
        logits: &mut [f32],
        is_allowed: impl Fn(TokenId) -> bool,
    ) -> Result<TokenId, SampleError> {
        self.choose(logits, |logits| {
            for (id, logit) in (0..).zip(logits) {
                if !is_allowed(id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        })
    }

    /// Chooses a token of those that `forbid` leaves, which it is asked for after penalties and bias.
    fn choose(
        &mut self,
        logits: &mut [f32],
        forbid: impl FnOnce(&mut [f32]),
    ) -> Result<TokenId, SampleError> {
        if u32::try_from(logits.len()) != Ok(self.vocabulary) {
            return Err(SampleError::WrongLength { found: logits.len(), wanted: self.vocabulary });
        }
        check_finite(logits)?;
        self.recent.penalise(&self.options, logits);
        for (id, bias) in &self.options.logit_bias {
            let logit = &mut logits[*id as usize];
            let biased = *logit + bias;
            *logit =
                if biased == f32::NEG_INFINITY && bias.is_finite() { f32::MIN } else { biased.min(f32::MAX) };
        }
        forbid(logits);
        if self.options.is_greedy() {
            return best(logits);
        }
        let allowed = (0..).zip(logits.iter().copied()).filter(|(_, logit)| *logit > f32::NEG_INFINITY);
        match self.options.top_k {
            0 => {
                self.candidates.clear();
                self.candidates.extend(allowed);
            }
            top_k => gather_best(allowed, top_k as usize, &mut self.candidates),
        }
        let max = self.filter()?;
        Ok(self.draw(max))
    }

    /// Cuts what top-k left by top-p and min-p, puts them in order of id, and gives their best logit.
    fn filter(&mut self) -> Result<f64, SampleError> {
        let SamplerOptions { top_p, min_p, temperature, .. } = self.options;
        let candidates = &mut self.candidates;
        let best = candidates.iter().copied().min_by(better_first).ok_or(SampleError::NothingAllowed)?;
        let max = f64::from(best.1);
        if top_p < 1.0 {
            // The whole in order of id, so that it does not depend on how the selection arranged the candidates.
            candidates.sort_unstable_by_key(|(id, _)| *id);
            let total: f64 = candidates.iter().map(|(_, logit)| weight(*logit, max, temperature)).sum();
            let enough = f64::from(top_p) * total;
            keep_sorted_front(candidates, |sorted| {
                let mut sum = 0.0;
                sorted
                    .iter()
                    .position(|(_, logit)| {
                        sum += weight(*logit, max, temperature);
                        sum >= enough
                    })
                    .map(|last| last + 1)
            });
        }
        if min_p > 0.0 {
            // The best weighs 1 by construction.
            candidates.retain(|(_, logit)| weight(*logit, max, temperature) >= f64::from(min_p));
        }
        candidates.sort_unstable_by_key(|(id, _)| *id);
        Ok(max)
    }

    /// Draws one of the candidates, which are in order of id and not empty.
    fn draw(&mut self, max: f64) -> TokenId {
        let temperature = self.options.temperature;
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|(_, logit)| weight(*logit, max, temperature)));
        let total: f64 = self.weights.iter().sum();
        let target = self.rng.next_unit() * total;
        let mut sum = 0.0;
        for ((id, _), weight) in self.candidates.iter().zip(&self.weights) {
            sum += weight;
            // Strictly, so that a token of weight zero is never drawn.
            if target < sum {
                return *id;
            }
        }
        // Only reached when rounding makes the target the total: the last that weighs anything.
        let mut weighted =
            self.candidates.iter().zip(&self.weights).rev().filter(|(_, weight)| **weight > 0.0);
        weighted.next().expect("invariant: the best candidate weighs 1").0.0
    }
}

/// A token's probability relative to the best one's.
fn weight(logit: f32, max: f64, temperature: f32) -> f64 {
    ((f64::from(logit) - max) / f64::from(temperature)).exp()
}

/// The best logit's id, of equal ones the lowest.
fn best(logits: &[f32]) -> Result<TokenId, SampleError> {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, logit) in (0..).zip(logits) {
        if *logit > best.1 {
            best = (id, *logit);
        }
    }
    if best.1 == f32::NEG_INFINITY { Err(SampleError::NothingAllowed) } else { Ok(best.0) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn draws(options: SamplerOptions, logits: &[f32], count: usize) -> Vec<TokenId> {
        let mut sampler = Sampler::new(options, u32::try_from(logits.len()).unwrap()).unwrap();
        (0..count).map(|_| sampler.sample(&mut logits.to_vec()).unwrap()).collect()
    }

    fn warm(seed: u64) -> SamplerOptions {
        SamplerOptions { temperature: 1.0, seed, ..SamplerOptions::default() }
    }

    #[test]
    fn greedy_takes_the_lowest_of_the_best() {
        assert_eq!(draws(SamplerOptions::default(), &[0.0, 2.0, 2.0], 2), [1, 1]);
        let banned = SamplerOptions { logit_bias: vec![(1, f32::NEG_INFINITY)], ..SamplerOptions::default() };
        assert_eq!(draws(banned, &[0.0, 2.0, 1.0], 1), [2]);
    }

    #[test]
    fn draws_follow_the_distribution_and_the_seed() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln).to_vec();
        let got = draws(warm(7), &logits, 40_000);
        for (id, share) in [(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.125)] {
            let count = got.iter().filter(|drawn| **drawn == id).count();
            assert!((count as f64 / 40_000.0 - share).abs() < 0.01, "token {id}: {count}");
        }
        assert_eq!(got, draws(warm(7), &logits, 40_000));
        assert_ne!(got, draws(warm(8), &logits, 40_000));
        // The draws of a seed are a promise between releases; these were computed apart from this code.
        assert_eq!(got[..12], [1, 0, 2, 3, 3, 2, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln).to_vec();
        let kept = |options: SamplerOptions| {
            let mut ids = draws(options, &logits, 2000);
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!(kept(SamplerOptions { top_k: 2, ..warm(1) }), [0, 1]);
        assert_eq!(kept(SamplerOptions { top_p: 0.69, ..warm(1) }), [0, 1]);
        assert_eq!(kept(SamplerOptions { top_p: 0.71, ..warm(1) }), [0, 1, 2]);
        assert_eq!(kept(SamplerOptions { top_p: 0.0, ..warm(1) }), [0]);
        assert_eq!(kept(SamplerOptions { min_p: 0.45, ..warm(1) }), [0, 1, 2]);
        assert_eq!(kept(SamplerOptions { min_p: 1.0, ..warm(1) }), [0]);
        // Top-p counts within what top-k left: 0.4 / 0.7 already reaches 0.55.
        assert_eq!(kept(SamplerOptions { top_k: 2, top_p: 0.55, ..warm(1) }), [0]);
        assert_eq!(kept(SamplerOptions { temperature: f32::MIN_POSITIVE, ..warm(1) }), [0]);
    }

    #[test]
    fn faults_are_named() {
        let mut sampler = Sampler::new(warm(1), 3).unwrap();
        let error = sampler.sample(&mut [0.0, 1.0, f32::NAN]).unwrap_err();
        assert!(matches!(error, SampleError::NotFinite { id: 2, .. }), "{error}");
        let error = sampler.sample(&mut [0.0, f32::INFINITY, 0.0]).unwrap_err();
        assert_eq!(error, SampleError::NotFinite { id: 1, found: f32::INFINITY });
        assert_eq!(sampler.sample(&mut [0.0]), Err(SampleError::WrongLength { found: 1, wanted: 3 }));
        for temperature in [0.0, 1.0] {
            let logit_bias = (0..3).map(|id| (id, f32::NEG_INFINITY)).collect();
            let options = SamplerOptions { temperature, logit_bias, ..SamplerOptions::default() };
            let mut sampler = Sampler::new(options, 3).unwrap();
            assert_eq!(sampler.sample(&mut [0.0; 3]), Err(SampleError::NothingAllowed));
        }
    }

    #[test]
    fn what_is_forbidden_once_is_not_drawn_and_not_remembered() {
        for temperature in [0.0, 1.0] {
            let bias = vec![(1, f32::MAX)];
            let options =
                SamplerOptions { temperature, seed: 5, logit_bias: bias, ..SamplerOptions::default() };
            let mut sampler = Sampler::new(options, 3).unwrap();
            assert_ne!(sampler.sample_without(&mut [0.0, 9.0, 0.0], &[1, 77]), Ok(1));
            assert_eq!(sampler.sample(&mut [0.0, 9.0, 0.0]), Ok(1));
            assert_eq!(sampler.sample_among(&mut [0.0, 9.0, 0.0], |id| id == 2), Ok(2));
            assert_eq!(sampler.sample_without(&mut [0.0; 3], &[0, 1, 2]), Err(SampleError::NothingAllowed));
        }
    }

    #[test]
    fn extreme_numbers_stay_numbers() {
        let options = SamplerOptions {
            repetition_penalty: f32::MAX,
            logit_bias: vec![(0, f32::MAX), (1, f32::MIN)],
            ..warm(3)
        };
        let mut sampler = Sampler::new(options, 3).unwrap();
        sampler.accept(1);
        let mut logits = [f32::MAX, f32::MIN, 0.0];
        assert_eq!(sampler.sample(&mut logits), Ok(0));
        assert_eq!(logits, [f32::MAX, f32::MIN, 0.0]);
    }

    proptest! {
        /// Partial selection equals a full sort, for rows wider than its first front.
        #[test]
        fn top_p_equals_a_full_sort(
            logits in proptest::collection::vec(-3i16..3, 300..2000),
            top_p in 0.01f32..0.999,
            seed in any::<u64>(),
        ) {
            let logits: Vec<f32> = logits.into_iter().map(|logit| f32::from(logit) / 4.0).collect();
            let mut sampler = Sampler::new(SamplerOptions { top_p, ..warm(seed) }, u32::try_from(logits.len()).unwrap()).unwrap();
            let drawn = sampler.sample(&mut logits.clone()).unwrap();
            let mut sorted: Vec<Candidate> = (0..).zip(logits.iter().copied()).collect();
            sorted.sort_by(better_first);
            let max = f64::from(sorted[0].1);
            let total: f64 = logits.iter().map(|logit| weight(*logit, max, 1.0)).sum();
            let mut sum = 0.0;
            let mut kept = Vec::new();
            for (id, logit) in sorted {
                kept.push(id);
                sum += weight(logit, max, 1.0);
                if sum >= f64::from(top_p) * total {
                    break;
                }
            }
            let got: Vec<TokenId> = sampler.candidates.iter().map(|(id, _)| *id).collect();
            kept.sort_unstable();
            prop_assert_eq!(got, kept.clone());
            prop_assert!(kept.contains(&drawn));
        }
    }
}
