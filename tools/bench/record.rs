//! The picks of a bench's timed tokens, as they come, put in the order of a trace. Pure.

use flint_rt::model::LayerRoutes;

/// Picks `[tokens, layers, experts_used]`, and where contexts begin.
pub(super) struct Recording {
    experts_used: usize,
    /// Of the chunk that is running: by layer, `[tokens, experts_used]`.
    chunk: Vec<Vec<u32>>,
    pub(super) picks: Vec<u16>,
    /// In tokens.
    pub(super) context_starts: Vec<u32>,
    layer_count: usize,
}

impl Recording {
    /// Of a model with so many layers of experts, of which a token uses so many in each.
    pub(super) fn new(layer_count: u32, experts_used: u32) -> Self {
        Self {
            experts_used: experts_used as usize,
            layer_count: layer_count as usize,
            chunk: Vec::new(),
            picks: Vec::new(),
            context_starts: Vec::new(),
        }
    }

    fn token_count(&self) -> usize {
        self.picks.len() / (self.layer_count * self.experts_used)
    }

    /// What comes next begins a context.
    pub(super) fn begin_context(&mut self) {
        let start = u32::try_from(self.token_count()).expect("invariant: few tokens are timed");
        self.context_starts.push(start);
    }

    /// Forgets the context that was begun last.
    pub(super) fn drop_context(&mut self) {
        self.chunk.clear();
        if let Some(start) = self.context_starts.pop() {
            self.picks.truncate(start as usize * self.layer_count * self.experts_used);
        }
    }

    /// The picks of the chunk's next layer.
    pub(super) fn add(&mut self, routes: &LayerRoutes) {
        self.chunk.push(routes.experts.clone());
    }

    /// The chunk's layers are all there.
    pub(super) fn end_chunk(&mut self) {
        assert_eq!(self.chunk.len(), self.layer_count, "a chunk goes through every layer");
        let used = self.experts_used;
        for token in 0..self.chunk[0].len() / used {
            for layer in &self.chunk {
                let picks = layer[token * used..][..used].iter();
                self.picks
                    .extend(picks.map(|&pick| u16::try_from(pick).expect("invariant: EXPERTS_MAX is a u16")));
            }
        }
        self.chunk.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_a_chunk_become_tokens() {
        let mut recording = Recording::new(2, 2);
        let layer =
            |layer, experts: &[u32]| LayerRoutes { layer, experts: experts.to_vec(), weights: vec![] };
        recording.begin_context();
        recording.add(&layer(3, &[1, 2, 3, 4]));
        recording.add(&layer(4, &[5, 6, 7, 8]));
        recording.end_chunk();
        assert_eq!(recording.picks, [1, 2, 5, 6, 3, 4, 7, 8]);
        recording.begin_context();
        recording.add(&layer(3, &[9, 1]));
        recording.add(&layer(4, &[9, 2]));
        recording.end_chunk();
        assert_eq!(recording.context_starts, [0, 2]);
        recording.drop_context();
        assert_eq!((recording.picks.len(), recording.context_starts.len()), (8, 1));
    }
}
