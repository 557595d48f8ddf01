//! The router's product in F32, and the choice of experts from it.

use flint_shaders::layout::{ForceRoutesPush, RoutePush, RouterPush};

use super::{Binder, TileBuffers, assert_holds, groups};
use crate::base::ids::LayerIndex;
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// `logits = W x`, `W` in F32.
pub struct Router {
    pipeline: Pipeline,
    bindings: Bindings,
    push: RouterPush,
    rows: u32,
    tokens_max: u32,
}

impl Router {
    /// `x` f32 `[tokens, embed_dim]`, `weight` f32 `[expert_count, embed_dim]`, `logits` f32 `[tokens, expert_count]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        x: &Buffer,
        weight: &Buffer,
        logits: &Buffer,
        embed_dim: u32,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let expert_count = pipelines.shape.expert_count;
        on.assert_rows("router", "x", x, u64::from(embed_dim));
        on.assert_rows("router", "logits", logits, u64::from(expert_count));
        assert_holds("router", "weight", weight, u64::from(expert_count) * u64::from(embed_dim));
        let pipeline = pipelines.router.clone();
        let bindings =
            gpu.bind(&pipeline, &[&[control.view()], &[x.view()], &[weight.view()], &[logits.view()]])?;
        let push = RouterPush { row_count: expert_count, column_count: embed_dim };
        Ok(Self { pipeline, bindings, push, rows: pipelines.tuning.rows_one, tokens_max })
    }

    /// Records it for `tokens` tokens.
    pub fn record(&self, recorder: &mut Recorder, tokens: u32) {
        assert!(tokens <= self.tokens_max, "router: {tokens} tokens of {}", self.tokens_max);
        let grid = [groups(self.push.row_count, self.rows), tokens, 1];
        recorder.dispatch(&self.pipeline, &self.bindings, self.push.bytes(), grid);
    }
}

/// Router logits rewritten so that the picks are those that the host says: for measuring with recorded routes.
pub struct ForceRoutes {
    pipeline: Pipeline,
    bindings: Bindings,
    push: ForceRoutesPush,
    tokens_max: u32,
}

impl ForceRoutes {
    /// Binds it to expert layer `moe_layer` of `layer_count`: `logits` f32 `[tokens, expert_count]`, `forced` u32
    /// `[tokens, layer_count, experts_used]`. Its pipeline is made here, as few models ever need it.
    ///
    /// # Errors
    /// When the driver cannot make it, or has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        logits: &Buffer,
        forced: &Buffer,
        layer_count: u32,
        moe_layer: u32,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let shape = pipelines.shape;
        on.assert_rows("force_routes", "logits", logits, u64::from(shape.expert_count));
        on.assert_rows(
            "force_routes",
            "forced",
            forced,
            u64::from(layer_count) * u64::from(shape.experts_used),
        );
        assert!(moe_layer < layer_count, "force_routes: layer {moe_layer} of {layer_count}");
        let pipeline = pipelines.force_routes(gpu)?;
        let bindings = gpu.bind(&pipeline, &[&[control.view()], &[logits.view()], &[forced.view()]])?;
        let push = ForceRoutesPush { expert_count: shape.expert_count, layer_count, moe_layer };
        Ok(Self { pipeline, bindings, push, tokens_max })
    }

    /// Records it for `tokens` tokens, between [`Router`] and [`Route`].
    pub fn record(&self, recorder: &mut Recorder, tokens: u32) {
        assert!(tokens <= self.tokens_max, "force_routes: {tokens} tokens of {}", self.tokens_max);
        recorder.dispatch(&self.pipeline, &self.bindings, self.push.bytes(), [tokens, 1, 1]);
    }
}

/// Logits to picks and weights and, for one token, to the slots of the picked experts.
pub struct Route {
    pipeline: Pipeline,
    bindings: Bindings,
    push: RoutePush,
    tokens_max: u32,
}

/// The buffers of [`Route`] beside its tiles.
pub struct RouteBuffers<'a> {
    /// f32 `[tokens, expert_count]`.
    pub logits: &'a Buffer,
    /// u32 `[moe_layers, expert_count]`: slot or `NO_SLOT`.
    pub table: &'a Buffer,
    /// u32 `[tokens, 2, experts_used]`.
    pub routes: &'a Buffer,
    /// What the host reads of it: of a step of as many tokens, u32 `[moe_layers, tokens, 2, experts_used]`.
    pub report: &'a Buffer,
}

/// The layer that [`Route`] serves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutePlace {
    /// The model's layer.
    pub layer: LayerIndex,
    /// Which of those with experts, from 0: its row of the table.
    pub moe_layer: u32,
    /// Factor on the normalised weights.
    pub weights_scale: f32,
}

impl RoutePlace {
    /// Asserts that each of `buffers` holds its shape; the word where the layer's row of the table begins.
    pub(super) fn check(&self, on: &Binder<'_>, kernel: &str, buffers: &RouteBuffers<'_>) -> u32 {
        let shape = on.pipelines.shape;
        let table_first = self.moe_layer * shape.expert_count;
        let route_words = 2 * u64::from(shape.experts_used);
        on.assert_rows(kernel, "logits", buffers.logits, u64::from(shape.expert_count));
        on.assert_rows(kernel, "routes", buffers.routes, route_words);
        on.assert_rows(kernel, "report", buffers.report, u64::from(self.moe_layer + 1) * route_words);
        assert_holds(kernel, "table", buffers.table, u64::from(table_first + shape.expert_count));
        table_first
    }

    /// Word of the report where its picks of one token start; of a step of more, as many times further on.
    pub(super) fn report_first(&self, experts_used: u32) -> u32 {
        self.moe_layer * 2 * experts_used
    }
}

impl Route {
    /// Binds it to the layer of `place`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        buffers: &RouteBuffers<'_>,
        tiles: &TileBuffers,
        place: RoutePlace,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let table_first = place.check(on, "route", buffers);
        let pipeline = pipelines.route.clone();
        let bindings = gpu.bind(
            &pipeline,
            &[
                &[control.view()],
                &[buffers.logits.view()],
                &[buffers.table.view()],
                &[buffers.routes.view()],
                &[tiles.tiles.view()],
                &[tiles.pairs.view()],
                &[buffers.report.view()],
            ],
        )?;
        let push = RoutePush {
            expert_count: pipelines.shape.expert_count,
            layer: place.layer.0,
            table_first,
            report_first: place.report_first(pipelines.shape.experts_used),
            is_resolved: 0,
            weights_scale: place.weights_scale,
        };
        Ok(Self { pipeline, bindings, push, tokens_max })
    }

    /// Records it for one token, whose picks are looked up in the table.
    pub fn record_resolved(&self, recorder: &mut Recorder) {
        let push = RoutePush { is_resolved: 1, ..self.push };
        recorder.dispatch(&self.pipeline, &self.bindings, push.bytes(), [1, 1, 1]);
    }

    /// Records it for one token of a layer to come: the picks go where this layer's part of the report is, and nothing is looked up.
    pub fn record_guess(&self, recorder: &mut Recorder) {
        recorder.dispatch(&self.pipeline, &self.bindings, self.push.bytes(), [1, 1, 1]);
    }

    /// Records it for `tokens` tokens, whose picks are looked up by others.
    pub fn record_unresolved(&self, recorder: &mut Recorder, tokens: u32) {
        assert!(tokens <= self.tokens_max, "route: {tokens} tokens of {}", self.tokens_max);
        let push = RoutePush { report_first: self.push.report_first * tokens, ..self.push };
        recorder.dispatch(&self.pipeline, &self.bindings, push.bytes(), [tokens, 1, 1]);
    }
}
