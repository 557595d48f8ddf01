//! What one layer computes, as bound kernels.
//!
//! ```text
//! x += Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), Wv n)          n = rms_norm(x, attn_norm)
//! x += Wdown swiglu(n)                             a lead layer;       n = rms_norm(x, ffn_norm)
//! x += sum_j w_j expert_j(n) + shared(n)           an expert layer
//! ```
//!
//! Recording is a list of dispatches with a barrier wherever one reads what another wrote. Nothing here decides anything.

use crate::base::ids::LayerIndex;
use crate::gpu::{GpuError, Recorder};
use crate::kernels::attention::RopeBuffers;
use crate::kernels::router::RouteBuffers;
use crate::kernels::{
    Attention, AttentionShape, Binder, Combine, ExpertDown, ExpertGateUp, ExpertPool, ForceRoutes, GateUp,
    Matmul, RmsNorm, Rope, Route, Router,
};
use crate::model::Model;
use crate::model::kv_cache::LayerCache;
use crate::model::weights::LayerWeights;

/// One layer, bound to the model's scratch and to one sequence's cache.
pub struct Layer {
    attn_norm: RmsNorm,
    q: Matmul,
    k: Matmul,
    v: Matmul,
    rope: Rope,
    attention: Attention,
    o: Matmul,
    ffn_norm: RmsNorm,
    gate_up: GateUp,
    /// Into the residual on a lead layer, into the shared expert's buffer otherwise.
    down: Matmul,
    experts: Option<Experts>,
}

/// The part that only expert layers have.
struct Experts {
    used: u32,
    router: Router,
    /// Only where the model was opened with a trace: otherwise nothing of it is recorded.
    force: Option<ForceRoutes>,
    route: Route,
    gate_up: ExpertGateUp,
    down: ExpertDown,
    combine: Combine,
}

impl Layer {
    /// Binds layer `index`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(model: &Model, index: u32, cache: &LayerCache) -> Result<Self, GpuError> {
        let (config, scratch) = (&model.config, &model.scratch);
        let on = model.binder(scratch.tokens_max);
        let weights = &model.weights.layers[index as usize];
        let kind = config.layers[index as usize];
        let shape = AttentionShape {
            head_count: config.head_count,
            kv_head_count: config.kv_head_count,
            head_dim: config.head_dim,
            window: kind.window.unwrap_or(0),
            is_rotated: kind.rope,
            ring_rows: cache.rows,
            epsilon: config.norm_epsilon,
        };
        let norm = |weight| {
            RmsNorm::new(&on, &scratch.x, weight, &scratch.normed, config.embed_dim, config.norm_epsilon)
        };
        let rope = RopeBuffers {
            q: &scratch.q,
            k: &scratch.k,
            v: &scratch.v,
            q_norm: &weights.q_norm,
            k_norm: &weights.k_norm,
            angles: &scratch.angles,
            k_cache: &cache.keys,
            v_cache: &cache.values,
        };
        let attention =
            [&scratch.q, &cache.keys, &cache.values, &scratch.partial, &weights.sinks, &scratch.attended];
        let experts = match &weights.router {
            Some(router) => Some(Experts::new(model, &on, index, router)?),
            None => None,
        };
        let down_target = if experts.is_some() { &scratch.shared } else { &scratch.x };
        let LayerWeights { ffn, .. } = weights;
        Ok(Self {
            attn_norm: norm(&weights.attn_norm)?,
            q: Matmul::new(&on, &scratch.normed, &weights.q, &scratch.q, false)?,
            k: Matmul::new(&on, &scratch.normed, &weights.k, &scratch.k, false)?,
            v: Matmul::new(&on, &scratch.normed, &weights.v, &scratch.v, false)?,
            rope: Rope::new(&on, &rope, &shape)?,
            attention: Attention::new(&on, attention, &shape)?,
            o: Matmul::new(&on, &scratch.attended, &weights.o, &scratch.x, true)?,
            ffn_norm: norm(&weights.ffn_norm)?,
            gate_up: GateUp::new(&on, &scratch.normed, &ffn.gate, &ffn.up, &scratch.hidden)?,
            down: Matmul::new(&on, &scratch.hidden, &ffn.down, down_target, experts.is_none())?,
            experts,
        })
    }

    /// Attention, added to the residual, and the norm in front of what follows.
    pub fn record_attend(&self, recorder: &mut Recorder, tokens: u32) {
        recorder.barrier();
        self.attn_norm.record(recorder, tokens, 0, 0);
        recorder.barrier();
        self.q.record(recorder, tokens);
        self.k.record(recorder, tokens);
        self.v.record(recorder, tokens);
        recorder.barrier();
        self.rope.record(recorder, tokens);
        recorder.barrier();
        self.attention.record(recorder, tokens);
        recorder.barrier();
        self.o.record(recorder, tokens);
        recorder.barrier();
        self.ffn_norm.record(recorder, tokens, 0, 0);
    }

    /// The dense network of a lead layer, added to the residual.
    pub fn record_dense(&self, recorder: &mut Recorder, tokens: u32) {
        assert!(self.experts.is_none(), "an expert layer has no dense network");
        recorder.barrier();
        self.gate_up.record(recorder, tokens);
        recorder.barrier();
        self.down.record(recorder, tokens);
    }

    /// The router; for one token the picks are looked up in the slot table (`is_resolved`), for many the host does it.
    pub fn record_route(&self, recorder: &mut Recorder, tokens: u32, is_resolved: bool) {
        let experts = self.experts();
        recorder.barrier();
        experts.router.record(recorder, tokens);
        recorder.barrier();
        if let Some(force) = &experts.force {
            force.record(recorder, tokens);
            recorder.barrier();
        }
        if is_resolved {
            assert_eq!(tokens, 1, "the table resolves one token");
            experts.route.record_resolved(recorder);
        } else {
            experts.route.record_unresolved(recorder, tokens);
        }
    }

    /// The picks of one token looked up again, from the same router logits.
    pub fn record_lookup(&self, recorder: &mut Recorder) {
        self.experts().route.record_resolved(recorder);
    }

    /// Shared and routed experts of one token whose picks are all in slots, and their sum.
    pub fn record_experts_of_one(&self, recorder: &mut Recorder) {
        let experts = self.experts();
        recorder.barrier();
        self.gate_up.record(recorder, 1);
        experts.gate_up.record_one(recorder, experts.used);
        recorder.barrier();
        self.down.record(recorder, 1);
        experts.down.record_one(recorder, experts.used);
        recorder.barrier();
        experts.combine.record(recorder, 1);
    }

    /// The tiles of one wave of experts, for many tokens.
    pub fn record_wave(&self, recorder: &mut Recorder, tile_first: u32, tiles: u32) {
        let experts = self.experts();
        recorder.barrier();
        experts.gate_up.record_many(recorder, tile_first, tiles);
        recorder.barrier();
        experts.down.record_many(recorder, tile_first, tiles);
    }

    /// The shared expert, and the sum with the rows that all waves left.
    pub fn record_shared_and_combine(&self, recorder: &mut Recorder, tokens: u32) {
        recorder.barrier();
        self.gate_up.record(recorder, tokens);
        recorder.barrier();
        self.down.record(recorder, tokens);
        recorder.barrier();
        self.experts().combine.record(recorder, tokens);
    }

    fn experts(&self) -> &Experts {
        self.experts.as_ref().expect("invariant: called for expert layers only")
    }
}

impl Experts {
    fn new(
        model: &Model,
        on: &Binder<'_>,
        index: u32,
        router: &crate::gpu::Buffer,
    ) -> Result<Self, GpuError> {
        let (config, scratch) = (&model.config, &model.scratch);
        let (embed, ffn) = (config.embed_dim, config.expert_ffn_dim);
        let moe_layer = index - config.lead_layer_count;
        let memory = model.streamer.memory();
        let pool = ExpertPool {
            buffers: memory.buffers.clone(),
            slots_per_buffer: memory.slots_per_buffer,
            record_bytes: memory.record_bytes,
            gate_bytes: config.gate_bytes(),
        };
        let route = RouteBuffers {
            logits: &scratch.router_logits,
            table: model.streamer.table(),
            routes: &scratch.routes,
            report: &scratch.route_report,
        };
        Ok(Self {
            used: config.experts_used,
            router: Router::new(on, &scratch.normed, router, &scratch.router_logits, embed)?,
            force: match &model.forced {
                Some(forced) => Some(ForceRoutes::new(
                    on,
                    &scratch.router_logits,
                    &forced.buffer,
                    forced.layer_count(),
                    moe_layer,
                )?),
                None => None,
            },
            route: Route::new(
                on,
                &route,
                &scratch.tiles,
                LayerIndex(index),
                moe_layer,
                moe_layer * 2 * config.experts_used,
                config.expert_weights_scale,
            )?,
            gate_up: ExpertGateUp::new(
                on,
                &scratch.normed,
                &scratch.tiles,
                &scratch.expert_hidden,
                &pool,
                ffn,
                embed,
            )?,
            down: ExpertDown::new(
                on,
                &scratch.expert_hidden,
                &scratch.tiles,
                &scratch.expert_rows,
                &pool,
                ffn,
                embed,
            )?,
            combine: Combine::new(
                on,
                [&scratch.routes, &scratch.expert_rows, &scratch.shared, &scratch.x],
                embed,
            )?,
        })
    }
}
