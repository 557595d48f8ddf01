//! What one layer computes, as bound kernels.
//!
//! ```text
//! x += Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), Wv n)          n = rms_norm(x, attn_norm)
//! x += Wdown swiglu(n)                             a lead layer;       n = rms_norm(x, ffn_norm)
//! x += sum_j w_j expert_j(n) + shared(n)           an expert layer
//! ```
//!
//! Recording is a list of dispatches with a barrier wherever one reads what another wrote. Nothing here decides anything.

use flint_shaders::layout::CONTROL_STOP;

use crate::base::ids::LayerIndex;
use crate::base::limits::STEP_SEQUENCES_MAX;
use crate::gpu::{Buffer, GpuError, Recorder};
use crate::kernels::router::RouteBuffers;
use crate::kernels::{
    AttentionShape, Binder, Combine, ExpertDown, ExpertGateUp, ExpertPool, ForceRoutes, GateUp, Group,
    Matmul, RmsNorm, Route, RoutePlace, Router, Rows, TileKinds,
};
use crate::model::Model;
use crate::model::attend::{Attend, AttendRows, record_all};
use crate::model::fused::FusedLayer;
use crate::model::kv_cache::LayerCache;
use crate::model::weights::LayerWeights;

/// One layer, bound to the model's scratch and to one sequence's cache.
pub struct Layer {
    attn_norm: RmsNorm,
    q: Matmul,
    k: Matmul,
    v: Matmul,
    /// Of a sequence that is alone in its step.
    alone: Attend,
    /// Of one whose rows lie among those of others.
    beside: Attend,
    o: Matmul,
    ffn_norm: RmsNorm,
    gate_up: GateUp,
    /// Into the residual on a lead layer, into the shared expert's buffer otherwise.
    down: Matmul,
    experts: Option<Experts>,
    /// What the layer behind may want, where it has experts.
    guess: Option<Guess>,
    /// The same in fewer dispatches, for next tokens.
    fused: Option<FusedLayer>,
}

/// The rows that a sequence has in a step, with its layer.
#[derive(Clone, Copy)]
pub struct LayerRows<'a> {
    /// The layer, bound to the sequence's cache.
    pub layer: &'a Layer,
    /// The first of its rows.
    pub first: u32,
    /// How many there are, and how they are summed.
    pub rows: Rows,
}

/// Tiles of one kind in a wave of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaveTiles {
    /// Pairs of a tile, at most.
    pub pairs: Rows,
    /// The first tile.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

/// What the device needs beside a layer to run all its experts by itself.
#[derive(Clone, Copy)]
pub struct Grouped<'a> {
    /// Groups picks by expert.
    pub group: &'a Group,
    /// The tiles that it makes.
    pub kinds: TileKinds,
    /// Where their workgroup counts lie.
    pub grids: &'a Buffer,
    /// The step's control words.
    pub control: &'a Buffer,
    /// Those of the sequences' own kernels, which are to stop with the others.
    pub others: &'a [&'a Buffer],
}

/// The next layer's router on this layer's input to its network: its picks one layer early, four of five of them right.
struct Guess {
    router: Router,
    route: Route,
}

/// The part that only expert layers have.
struct Experts {
    layer: LayerIndex,
    moe_layer: u32,
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
    /// Binds layer `index`; `control` are the sequence's own control words.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(model: &Model, index: u32, cache: &LayerCache, control: &Buffer) -> Result<Self, GpuError> {
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
        let attend = |on: &Binder<'_>| Attend::new(on, model, weights, cache, &shape);
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
            alone: attend(&on)?,
            beside: attend(&Binder { control, ..on })?,
            o: Matmul::new(&on, &scratch.attended, &weights.o, &scratch.x, true)?,
            ffn_norm: norm(&weights.ffn_norm)?,
            gate_up: GateUp::new(&on, &scratch.normed, &ffn.gate, &ffn.up, &scratch.hidden)?,
            down: Matmul::new(&on, &scratch.hidden, &ffn.down, down_target, experts.is_none())?,
            experts,
            guess: Guess::new(model, index)?,
            fused: FusedLayer::new(model, index)?,
        })
    }

    /// The kernels that do several stages in one, where `rows` are summed as next tokens are.
    fn fused(&self, rows: Rows) -> Option<&FusedLayer> {
        self.fused.as_ref().filter(|_| matches!(rows, Rows::Few(_)))
    }

    /// Attention of one token of one sequence, added to the residual, and the norm in front of what follows.
    pub fn record_attend_one(&self, recorder: &mut Recorder) {
        self.record_inputs(recorder, Rows::Few(1));
        self.alone.record_one(recorder);
        self.record_outputs(recorder, Rows::Few(1));
    }

    /// Attention of several sequences' rows, each over its own cache, added to the residual, and the norm in front of what follows.
    /// `parts` hold together the step's `rows`, pieces of prompts last.
    pub fn record_attend(parts: &[LayerRows<'_>], recorder: &mut Recorder, rows: Rows) {
        let any = parts[0].layer;
        any.record_inputs(recorder, rows);
        let attends: Vec<_> = parts
            .iter()
            .map(|part| AttendRows { attend: &part.layer.beside, first: part.first, rows: part.rows })
            .collect();
        record_all(&attends, recorder);
        any.record_outputs(recorder, rows);
    }

    /// The norm, queries, keys and values, and a barrier.
    fn record_inputs(&self, recorder: &mut Recorder, rows: Rows) {
        let fused = self.fused(rows);
        recorder.barrier();
        if !fused.is_some_and(|fused| fused.folds_norms) {
            self.attn_norm.record(recorder, rows.count(), 0, 0);
            recorder.barrier();
        }
        if let Some(fused) = fused {
            fused.qkv.record(recorder, rows.count());
        } else {
            self.q.record(recorder, rows);
            self.k.record(recorder, rows);
            self.v.record(recorder, rows);
        }
        recorder.barrier();
    }

    /// What attention gave, added to the residual, and the norm in front of what follows unless that folds it in.
    fn record_outputs(&self, recorder: &mut Recorder, rows: Rows) {
        recorder.barrier();
        self.o.record(recorder, rows);
        if !self.fused(rows).is_some_and(|fused| fused.folds_norms) {
            recorder.barrier();
            self.ffn_norm.record(recorder, rows.count(), 0, 0);
        }
    }

    /// The dense network of a lead layer, added to the residual; with `guesses`, beside it the next layer's picks.
    pub fn record_dense(&self, recorder: &mut Recorder, rows: Rows, guesses: bool) {
        assert!(self.experts.is_none(), "an expert layer has no dense network");
        recorder.barrier();
        if let Some(fused) = self.fused(rows) {
            fused.gate_up.record_dense(recorder, rows.count());
            if guesses {
                fused.record_guess(recorder, rows.count(), true);
            }
            recorder.barrier();
        } else {
            self.gate_up.record(recorder, rows);
            self.record_guess_logits(recorder, rows.count(), guesses);
            recorder.barrier();
            self.record_guess(recorder, guesses);
        }
        self.down.record(recorder, rows);
    }

    /// The router, and with `guesses` the next layer's; for one token the picks are looked up in the slot table (`is_resolved`), for
    /// many it is done behind it.
    pub fn record_route(&self, recorder: &mut Recorder, rows: Rows, is_resolved: bool, guesses: bool) {
        assert!(!is_resolved || rows.count() == 1, "the table resolves one token");
        recorder.barrier();
        match self.fused(rows) {
            Some(fused) => self.record_fused_route(fused, recorder, rows.count(), is_resolved, guesses),
            None => self.record_route_apart(recorder, rows.count(), is_resolved, guesses),
        }
    }

    fn record_fused_route(
        &self,
        fused: &FusedLayer,
        recorder: &mut Recorder,
        tokens: u32,
        is_resolved: bool,
        guesses: bool,
    ) {
        if guesses {
            fused.record_guess(recorder, tokens, is_resolved);
        }
        let pick = &fused.experts().pick;
        if self.experts().force.is_some() {
            // Picks that are dictated stand between router and choice, so these are two stages.
            if fused.folds_norms {
                self.ffn_norm.record(recorder, tokens, 0, 0);
                recorder.barrier();
            }
            self.record_route_apart(recorder, tokens, is_resolved, false);
        } else if is_resolved {
            pick.record_resolved(recorder);
        } else {
            pick.record_unresolved(recorder, tokens);
        }
    }

    fn record_route_apart(&self, recorder: &mut Recorder, tokens: u32, is_resolved: bool, guesses: bool) {
        let experts = self.experts();
        experts.router.record(recorder, tokens);
        self.record_guess_logits(recorder, tokens, guesses);
        recorder.barrier();
        if is_resolved {
            self.record_guess(recorder, guesses);
        } else if let (true, Some(guess)) = (guesses, &self.guess) {
            guess.route.record_unresolved(recorder, tokens);
        }
        if let Some(force) = &experts.force {
            force.record(recorder, tokens);
            recorder.barrier();
        }
        if is_resolved {
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
        if let Some(fused) = &self.fused {
            fused.gate_up.record_one(recorder);
            recorder.barrier();
            fused.experts().down.record_one(recorder);
            return;
        }
        self.gate_up.record(recorder, Rows::Few(1));
        experts.gate_up.record(recorder, Rows::Few(1), 0, experts.used);
        recorder.barrier();
        self.down.record(recorder, Rows::Few(1));
        experts.down.record(recorder, Rows::Few(1), 0, experts.used);
        recorder.barrier();
        experts.combine.record(recorder, 1);
    }

    /// Shared and routed experts of many rows whose picks are all in slots, and their sum: the device groups the picks itself, and
    /// where one is in no slot it stops.
    pub fn record_grouped_experts(&self, recorder: &mut Recorder, rows: Rows, with: Grouped<'_>) {
        let experts = self.experts();
        let grids: Vec<u32> = with
            .kinds
            .each()
            .flat_map(|(pairs, ..)| {
                let gate_up = match self.fused(pairs) {
                    Some(fused) => fused.gate_up.grid(pairs.count(), 0),
                    None => experts.gate_up.grid(pairs, 0),
                };
                [gate_up, experts.down.grid(pairs, 0)]
            })
            .flatten()
            .collect();
        recorder.update(with.grids, 0, bytemuck::cast_slice(&grids));
        recorder.barrier();
        // The shared expert fills the device, which a layer's grouping does not.
        with.group.record_pairs(recorder, rows.count());
        let fused = self.fused(rows);
        match fused {
            Some(fused) => fused.gate_up.record_dense(recorder, rows.count()),
            None => self.gate_up.record(recorder, rows),
        }
        recorder.barrier();
        with.group.record_resolve(recorder, with.kinds, experts.layer, experts.moe_layer);
        recorder.barrier_for_grids();
        // Not beside what may set the stop word: lanes of a workgroup could disagree about it.
        if fused.is_none() {
            self.down.record(recorder, rows);
        }
        for other in with.others {
            let stop_byte = u64::from(CONTROL_STOP) * 4;
            recorder.copy(with.control, stop_byte, other, stop_byte, 4);
        }
        for (pairs, first, [grid, _]) in with.kinds.each() {
            let grid = (with.grids, grid);
            match self.fused(pairs) {
                Some(fused) => fused.gate_up.record_routed_indirect(recorder, pairs.count(), first, grid),
                None => experts.gate_up.record_indirect(recorder, pairs, first, grid),
            }
        }
        recorder.barrier();
        for (pairs, first, [_, grid]) in with.kinds.each() {
            experts.down.record_indirect(recorder, pairs, first, (with.grids, grid));
        }
        recorder.barrier();
        match fused {
            Some(fused) => fused.experts().down.record_given(recorder, rows.count()),
            None => experts.combine.record(recorder, rows.count()),
        }
    }

    /// The tiles of one wave of experts.
    pub fn record_wave(&self, recorder: &mut Recorder, tiles: &[WaveTiles]) {
        let experts = self.experts();
        recorder.barrier();
        for kind in tiles {
            match self.fused(kind.pairs) {
                Some(fused) => {
                    fused.gate_up.record_routed(recorder, kind.pairs.count(), kind.first, kind.count);
                }
                None => experts.gate_up.record(recorder, kind.pairs, kind.first, kind.count),
            }
        }
        recorder.barrier();
        for kind in tiles {
            experts.down.record(recorder, kind.pairs, kind.first, kind.count);
        }
    }

    /// The shared expert, and the sum with the rows that all waves left.
    pub fn record_shared_and_combine(&self, recorder: &mut Recorder, rows: Rows) {
        recorder.barrier();
        if let Some(fused) = self.fused(rows) {
            fused.gate_up.record_dense(recorder, rows.count());
            recorder.barrier();
            fused.experts().down.record_given(recorder, rows.count());
            return;
        }
        self.gate_up.record(recorder, rows);
        recorder.barrier();
        self.down.record(recorder, rows);
        recorder.barrier();
        self.experts().combine.record(recorder, rows.count());
    }

    fn record_guess_logits(&self, recorder: &mut Recorder, tokens: u32, guesses: bool) {
        if let (true, Some(guess)) = (guesses, &self.guess) {
            guess.router.record(recorder, tokens);
        }
    }

    fn record_guess(&self, recorder: &mut Recorder, guesses: bool) {
        if let (true, Some(guess)) = (guesses, &self.guess) {
            guess.route.record_guess(recorder);
        }
    }

    fn experts(&self) -> &Experts {
        self.experts.as_ref().expect("invariant: called for expert layers only")
    }
}

impl Guess {
    /// Of the layer behind layer `index`; `None` when that has no experts, or there is none.
    fn new(model: &Model, index: u32) -> Result<Option<Self>, GpuError> {
        let (config, scratch) = (&model.config, &model.scratch);
        let next = index + 1;
        let Some(router) = model.weights.layers.get(next as usize).and_then(|layer| layer.router.as_ref())
        else {
            return Ok(None);
        };
        let on = model.binder(STEP_SEQUENCES_MAX);
        let apart = Binder { control: &scratch.guess_control, ..on };
        let moe_layer = next - config.lead_layer_count;
        let route = RouteBuffers {
            logits: &scratch.guess_logits,
            table: model.streamer.table(),
            routes: &scratch.guess_routes,
            report: &scratch.guess_report,
        };
        let place =
            RoutePlace { layer: LayerIndex(next), moe_layer, weights_scale: config.expert_weights_scale };
        Ok(Some(Self {
            router: Router::new(&on, &scratch.normed, router, &scratch.guess_logits, config.embed_dim)?,
            route: Route::new(&apart, &route, &scratch.guess_tiles, place)?,
        }))
    }
}

impl Experts {
    fn new(model: &Model, on: &Binder<'_>, index: u32, router: &Buffer) -> Result<Self, GpuError> {
        let (config, scratch) = (&model.config, &model.scratch);
        let (embed, ffn) = (config.embed_dim, config.expert_ffn_dim);
        let moe_layer = index - config.lead_layer_count;
        let pool = expert_pool(model);
        let route = RouteBuffers {
            logits: &scratch.router_logits,
            table: model.streamer.table(),
            routes: &scratch.routes,
            report: &scratch.route_report,
        };
        Ok(Self {
            layer: LayerIndex(index),
            moe_layer,
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
                RoutePlace {
                    layer: LayerIndex(index),
                    moe_layer,
                    weights_scale: config.expert_weights_scale,
                },
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

/// The pool's memory as kernels see it.
pub(super) fn expert_pool(model: &Model) -> ExpertPool {
    let memory = model.streamer.memory();
    ExpertPool {
        buffers: memory.buffers.clone(),
        slots_per_buffer: memory.slots_per_buffer,
        record_bytes: memory.record_bytes,
        gate_bytes: model.config.gate_bytes(),
    }
}
