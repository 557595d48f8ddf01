//! What a layer runs for next tokens where stages are done together: as [`crate::model::layer`] says, in fewer dispatches.
//!
//! ```text
//! q, k, v | rotation, cache, attention, its splits joined | o | router and picks | gate_up of all networks | down of all, and their sum
//! ```
//!
//! Norms stand in front of the first and the fourth, unless they are folded into what reads them (`kernels::Fusion`).

use crate::base::ids::LayerIndex;
use crate::base::limits::STEP_SEQUENCES_MAX;
use crate::gpu::{GpuError, Recorder};
use crate::kernels::router::RouteBuffers;
use crate::kernels::{
    Binder, FfnDown, FfnDownBuffers, FfnGateUp, FoldedNorm, Fusion, NormMatmul, PickExperts, RoutePlace,
    RoutedExperts,
};
use crate::model::Model;
use crate::model::layer::expert_pool;
use crate::model::weights::LayerWeights;

/// One layer's kernels for next tokens, bound to the model's scratch.
pub(super) struct FusedLayer {
    /// Norms are folded in: nobody else need do them.
    pub(super) folds_norms: bool,
    pub(super) qkv: NormMatmul,
    pub(super) gate_up: FfnGateUp,
    pub(super) experts: Option<FusedExperts>,
    /// What the layer behind may want, where it has experts.
    guess: Option<PickExperts>,
}

/// The part that only expert layers have.
pub(super) struct FusedExperts {
    pub(super) pick: PickExperts,
    pub(super) down: FfnDown,
}

impl FusedLayer {
    /// Binds layer `index`; `None` where the tuning wants every stage apart.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub(super) fn new(model: &Model, index: u32) -> Result<Option<Self>, GpuError> {
        let fusion = model.pipelines.tuning().fusion;
        if fusion == Fusion::Nothing {
            return Ok(None);
        }
        let (config, scratch) = (&model.config, &model.scratch);
        let on = model.binder(scratch.tokens_max.min(STEP_SEQUENCES_MAX));
        let folds_norms = fusion == Fusion::StagesAndNorms;
        let x = if folds_norms { &scratch.x } else { &scratch.normed };
        let weights = &model.weights.layers[index as usize];
        let norm = |weight| FoldedNorm { weight, epsilon: config.norm_epsilon };
        let LayerWeights { ffn, .. } = weights;
        let pool = expert_pool(model);
        let routed = RoutedExperts {
            pool: &pool,
            tiles: &scratch.tiles,
            hidden: &scratch.expert_hidden,
            ffn_dim: config.expert_ffn_dim,
        };
        let ffn_norm = norm(&weights.ffn_norm);
        let experts = match &weights.router {
            Some(_) => Some(FusedExperts {
                pick: pick_experts(model, &on, ffn_norm, index, false)?.expect("invariant: it has a router"),
                down: FfnDown::new(
                    &on,
                    routed,
                    &ffn.down,
                    &FfnDownBuffers {
                        rows: &scratch.expert_rows,
                        routes: &scratch.routes,
                        dense_hidden: &scratch.hidden,
                        x: &scratch.x,
                    },
                )?,
            }),
            None => None,
        };
        Ok(Some(Self {
            folds_norms,
            qkv: NormMatmul::new_three(
                &on,
                x,
                norm(&weights.attn_norm),
                [&weights.q, &weights.k, &weights.v],
                [&scratch.q, &scratch.k, &scratch.v],
            )?,
            gate_up: FfnGateUp::new(&on, x, ffn_norm, routed, [&ffn.gate, &ffn.up], &scratch.hidden)?,
            experts,
            guess: pick_experts(model, &on, ffn_norm, index + 1, true)?,
        }))
    }

    /// The next layer's picks for `tokens` tokens, on this layer's input to its network; `is_one` where the report holds those of all
    /// layers of one token.
    pub(super) fn record_guess(&self, recorder: &mut Recorder, tokens: u32, is_one: bool) {
        match &self.guess {
            Some(guess) if is_one => guess.record_guess(recorder),
            Some(guess) => guess.record_unresolved(recorder, tokens),
            None => {}
        }
    }

    /// The part that only expert layers have.
    pub(super) fn experts(&self) -> &FusedExperts {
        self.experts.as_ref().expect("invariant: called for expert layers only")
    }
}

/// Router and picks of layer `index`, or as a guess at them; `None` where there is no such layer, or it has no experts. A guess reads
/// what goes into the network of the layer before, so it takes that layer's norm.
fn pick_experts(
    model: &Model,
    on: &Binder<'_>,
    norm: FoldedNorm<'_>,
    index: u32,
    is_guess: bool,
) -> Result<Option<PickExperts>, GpuError> {
    let (config, scratch) = (&model.config, &model.scratch);
    let Some(router) = model.weights.layers.get(index as usize).and_then(|layer| layer.router.as_ref())
    else {
        return Ok(None);
    };
    let x =
        if model.pipelines.tuning().fusion == Fusion::StagesAndNorms { &scratch.x } else { &scratch.normed };
    let moe_layer = index - config.lead_layer_count;
    let place =
        RoutePlace { layer: LayerIndex(index), moe_layer, weights_scale: config.expert_weights_scale };
    let table = model.streamer.table();
    let (route, control, tiles, counters) = if is_guess {
        let route = RouteBuffers {
            logits: &scratch.guess_logits,
            table,
            routes: &scratch.guess_routes,
            report: &scratch.guess_report,
        };
        (route, &scratch.guess_control, &scratch.guess_tiles, scratch.guess_counters())
    } else {
        let route = RouteBuffers {
            logits: &scratch.router_logits,
            table,
            routes: &scratch.routes,
            report: &scratch.route_report,
        };
        (route, on.control, &scratch.tiles, scratch.pick_counters())
    };
    let on = Binder { control, ..*on };
    PickExperts::new(&on, x, norm, (router, config.embed_dim), &route, tiles, place, counters).map(Some)
}
