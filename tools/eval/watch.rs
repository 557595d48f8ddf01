//! What is noted while a prompt goes through the layers.

use std::collections::BTreeMap;

use flint_rt::base::ids::TokenId;
use flint_rt::model::LayerRoutes;
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::sample::{SampleError, log_probabilities, top_n};

use crate::interrupt;

/// Logits of every position, and the picks of the last.
pub(super) struct PromptWatch {
    top_count: usize,
    experts_used: usize,
    /// The best of the last position, with logits.
    pub(super) top: Vec<(TokenId, f32)>,
    /// The best of every position.
    pub(super) argmax: Vec<TokenId>,
    /// The best of every position, with log-probabilities.
    pub(super) logprobs: Vec<Vec<(TokenId, f64)>>,
    /// By layer, the picks of the last position.
    pub(super) routes: BTreeMap<u32, (Vec<u32>, Vec<f32>)>,
    /// What was wrong with the logits, if anything.
    pub(super) error: Option<SampleError>,
}

impl PromptWatch {
    pub(super) fn new(top_count: usize, experts_used: u32) -> Self {
        Self {
            top_count,
            experts_used: experts_used as usize,
            top: Vec::new(),
            argmax: Vec::new(),
            logprobs: Vec::new(),
            routes: BTreeMap::new(),
            error: None,
        }
    }
}

impl PrefillObserver for PromptWatch {
    fn should_stop(&mut self) -> bool {
        self.error.is_some() || interrupt::is_requested()
    }

    fn routes(&mut self, routes: LayerRoutes) {
        let first = routes.experts.len().saturating_sub(self.experts_used);
        let last = (routes.experts[first..].to_vec(), routes.weights[first..].to_vec());
        self.routes.insert(routes.layer, last);
    }

    fn wants_logits(&self) -> bool {
        true
    }

    fn logits(&mut self, _index: u32, logits: &[f32], greedy: TokenId) {
        self.argmax.push(greedy);
        self.top = top_n(logits, self.top_count);
        let ids: Vec<TokenId> = self.top.iter().map(|(id, _)| *id).collect();
        match log_probabilities(logits, &ids) {
            Ok(probabilities) => self.logprobs.push(ids.into_iter().zip(probabilities).collect()),
            Err(error) => self.error = Some(error),
        }
    }
}

/// The loss of every position's next token.
pub(super) struct LossWatch<'a> {
    targets: &'a [TokenId],
    /// Tokens predicted so far.
    pub(super) predicted: usize,
    /// Their negative log-likelihoods, in nats.
    pub(super) loss_sum: f64,
    /// What was wrong with the logits, if anything.
    pub(super) error: Option<SampleError>,
}

impl<'a> LossWatch<'a> {
    pub(super) fn new(targets: &'a [TokenId]) -> Self {
        Self { targets, predicted: 0, loss_sum: 0.0, error: None }
    }
}

impl PrefillObserver for LossWatch<'_> {
    fn should_stop(&mut self) -> bool {
        self.error.is_some() || interrupt::is_requested()
    }

    fn wants_logits(&self) -> bool {
        true
    }

    fn logits(&mut self, _index: u32, logits: &[f32], _greedy: TokenId) {
        let Some(target) = self.targets.get(self.predicted) else { return };
        match log_probabilities(logits, &[*target]) {
            Ok(probabilities) => {
                self.loss_sum -= probabilities.iter().sum::<f64>();
                self.predicted += 1;
            }
            Err(error) => self.error = Some(error),
        }
    }
}
