//! The recent tokens, and what they cost. Pure.

use std::collections::{HashMap, VecDeque};

use super::options::SamplerOptions;
use crate::base::ids::TokenId;

/// The last accepted tokens with their counts.
#[derive(Debug, Clone)]
pub(super) struct Recent {
    tokens: VecDeque<TokenId>,
    counts: HashMap<TokenId, u32>,
    limit: usize,
}

impl Recent {
    /// Keeps up to `limit` tokens.
    pub(super) fn new(limit: u32) -> Self {
        Self { tokens: VecDeque::new(), counts: HashMap::new(), limit: limit as usize }
    }

    /// Adds a token, and forgets the oldest when there are too many.
    pub(super) fn accept(&mut self, id: TokenId) {
        if self.limit == 0 {
            return;
        }
        if self.tokens.len() == self.limit
            && let Some(oldest) = self.tokens.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.tokens.push_back(id);
        *self.counts.entry(id).or_insert(0) += 1;
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.counts.clear();
    }

    /// Changes the logits of the recent tokens. Each is changed by itself, so the order of the table does not matter;
    /// results stay finite. Ids outside the row are skipped.
    pub(super) fn penalise(&self, options: &SamplerOptions, logits: &mut [f32]) {
        let SamplerOptions { repetition_penalty, presence_penalty, frequency_penalty, .. } = *options;
        if repetition_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0 {
            return;
        }
        for (id, count) in &self.counts {
            let Some(logit) = logits.get_mut(*id as usize) else { continue };
            let scaled = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            let reduced = scaled - presence_penalty - frequency_penalty * *count as f32;
            *logit = reduced.clamp(f32::MIN, f32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_tokens_are_counted_and_forgotten() {
        let options = SamplerOptions {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..SamplerOptions::default()
        };
        let mut recent = Recent::new(3);
        for id in [0, 1, 1, 2] {
            recent.accept(id);
        }
        let mut logits = [4.0, 4.0, -4.0, 4.0];
        recent.penalise(&options, &mut logits);
        assert_eq!(logits, [4.0, 2.0 - 0.5 - 0.5, -8.0 - 0.5 - 0.25, 4.0]);
        recent.clear();
        recent.penalise(&options, &mut logits);
        assert_eq!(logits[0], 4.0);
    }
}
