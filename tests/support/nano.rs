//! The bundled model and its reference vectors, for tests.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "vectors of ours, known to fit")]

use std::path::{Path, PathBuf};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, EngineError, EngineOptions, HostMemory};
use flint_rt::gpu::GpuError;
use flint_rt::model::prefill::{NoObserver, PrefillObserver};
use flint_rt::model::{LayerRoutes, Want};
use flint_rt::text::{Specials, Tokenizer};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The bundled model.
pub(crate) fn nano_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/flint-nano-q4_1.gguf")
}

/// Opens the bundled model with validation on, unless `FLINT_RT_VALIDATION=0` says that there is no layer; `None` where there is no
/// Vulkan device. What leaves the pool is read again, unless `change` says something else of host memory.
pub(crate) fn open_nano(change: impl FnOnce(&mut EngineOptions)) -> Option<Engine> {
    let validation = std::env::var("FLINT_RT_VALIDATION").as_deref() != Ok("0");
    let device = std::env::var("FLINT_RT_DEVICE").ok().filter(|name| !name.is_empty());
    let host_memory = HostMemory::Bytes(0);
    let mut options =
        EngineOptions { model: nano_path(), device, validation, host_memory, ..EngineOptions::default() };
    change(&mut options);
    match Engine::open(&options, &mut |_| {}) {
        Ok(engine) => Some(engine),
        Err(EngineError::Gpu(GpuError::LoaderMissing { .. } | GpuError::NoDevice { .. })) => None,
        Err(error) => panic!("the bundled model does not open: {error}"),
    }
}

/// The tokens that follow a chat's prompt, fed one by one: the first and `steps` more.
pub(crate) fn reply(engine: &mut Engine, steps: usize) -> Vec<TokenId> {
    let vectors = Vectors::read();
    let prompt = vectors.prompts.iter().find(|prompt| prompt.name == "chat").expect("a known prompt");
    let mut session = engine.session().expect("a session");
    let fed = engine.feed_prompt(&mut session, &prompt.ids, Want::Greedy, &mut NoObserver).expect("fed");
    let mut tokens = vec![fed.step.greedy.expect("wanted")];
    for _ in 0..steps {
        let last = *tokens.last().expect("never empty");
        let step = engine.feed_token(&mut session, last, Want::Greedy).expect("a step");
        tokens.push(step.greedy.expect("wanted"));
    }
    tokens
}

/// Says that a test could not run.
pub(crate) fn skip_without_device() {
    println!("skipped: no Vulkan device");
}

/// One prompt of the vectors.
pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) ids: Vec<TokenId>,
    pub(crate) top: Vec<(TokenId, f64)>,
    pub(crate) logit_mean: f64,
    pub(crate) argmax: Vec<TokenId>,
    pub(crate) argmax_near_tie: Vec<usize>,
    pub(crate) routes: Vec<LayerRoutes>,
    pub(crate) route_near_tie: Vec<u32>,
    pub(crate) greedy: Vec<TokenId>,
    pub(crate) assert_greedy: usize,
}

/// All of them, and the tolerances.
pub(crate) struct Vectors {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) logit_tolerance: f64,
    pub(crate) route_tolerance: f64,
    pub(crate) loss_tolerance: f64,
    pub(crate) loss: f64,
    pub(crate) loss_first: Vec<(usize, f64)>,
    heldout_tokens: usize,
    heldout_sha256: String,
}

fn ids(value: &Value) -> Vec<TokenId> {
    numbers(value).into_iter().map(|n| TokenId::try_from(n).expect("an id")).collect()
}

fn numbers(value: &Value) -> Vec<u64> {
    let array = value.as_array().expect("an array");
    array.iter().map(|n| n.as_u64().expect("a whole number")).collect()
}

fn float(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

impl Vectors {
    /// Reads them.
    pub(crate) fn read() -> Self {
        Self::parse(include_str!("../vectors/prompts.json"))
    }

    /// Reads those of another model, in the same form.
    pub(crate) fn parse(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).expect("valid JSON");
        let prompts = value["prompts"].as_array().expect("prompts").iter().map(Prompt::read).collect();
        let exact = &value["perplexity"]["exact"];
        let loss_first = exact["loss_first"].as_object().into_iter().flatten();
        Self {
            prompts,
            logit_tolerance: float(&value["tolerance"]["logit"]),
            route_tolerance: float(&value["tolerance"]["route_weight"]),
            loss_tolerance: float(&value["tolerance"]["loss"]),
            loss: exact["loss"].as_f64().unwrap_or(f64::NAN),
            loss_first: loss_first.map(|(n, loss)| (n.parse().expect("a count"), float(loss))).collect(),
            heldout_tokens: value["perplexity"]["tokens"].as_u64().unwrap_or(0) as usize,
            heldout_sha256: value["perplexity"]["ids_sha256"].as_str().unwrap_or("").to_owned(),
        }
    }

    /// The fixed text as ids, its beginning token in front; their hash is checked.
    pub(crate) fn heldout_ids(&self, engine: &Engine) -> Vec<TokenId> {
        let tokenizer: &Tokenizer = engine.tokenizer();
        let mut ids = vec![engine.config().bos.expect("the model has a beginning token")];
        ids.extend(tokenizer.encode(include_str!("../vectors/heldout.txt"), Specials::Plain));
        ids.truncate(self.heldout_tokens + 1);
        let mut hash = Sha256::new();
        ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, self.heldout_sha256, "ids of the fixed text");
        ids
    }
}

impl Prompt {
    fn read(value: &Value) -> Self {
        let routes = value["routes"].as_array().expect("routes").iter();
        Self {
            name: value["name"].as_str().expect("a name").to_owned(),
            ids: ids(&value["ids"]),
            top: value["top"]
                .as_array()
                .expect("top")
                .iter()
                .map(|pair| (TokenId::try_from(pair[0].as_u64().expect("an id")).unwrap(), float(&pair[1])))
                .collect(),
            logit_mean: float(&value["logit_mean"]),
            argmax: ids(&value["argmax"]),
            argmax_near_tie: ids(&value["argmax_near_tie"]).into_iter().map(|n| n as usize).collect(),
            routes: routes
                .map(|route| LayerRoutes {
                    layer: u32::try_from(route["layer"].as_u64().expect("a layer")).unwrap(),
                    experts: ids(&route["experts"]),
                    weights: route["weights"].as_array().unwrap().iter().map(|w| float(w) as f32).collect(),
                })
                .collect(),
            route_near_tie: ids(&value["route_near_tie"]),
            greedy: ids(&value["greedy"]),
            assert_greedy: usize::try_from(value["assert_greedy"].as_u64().expect("a count")).unwrap(),
        }
    }

    /// The largest logits of the last position.
    pub(crate) fn check_top(&self, logits: &[f32], vectors: &Vectors) {
        for &(id, wanted) in &self.top {
            let got = f64::from(logits[id as usize]);
            assert!(
                (got - wanted).abs() < vectors.logit_tolerance,
                "{}: logit of token {id}: {got}, wanted {wanted}",
                self.name
            );
        }
    }

    /// The picks of the last position.
    pub(crate) fn check_routes(&self, got: &[LayerRoutes], vectors: &Vectors) {
        assert_eq!(got.len(), self.routes.len(), "{}: one route a layer", self.name);
        for (wanted, got) in self.routes.iter().zip(got) {
            if self.route_near_tie.contains(&wanted.layer) {
                continue;
            }
            assert_eq!(got.experts, wanted.experts, "{}: picks of layer {}", self.name, wanted.layer);
            for (got, wanted_weight) in got.weights.iter().zip(&wanted.weights) {
                let distance = f64::from((got - wanted_weight).abs());
                assert!(distance < vectors.route_tolerance, "{}: layer {}", self.name, wanted.layer);
            }
        }
    }
}

/// Keeps what a prompt gives.
pub(crate) struct Collected {
    experts_used: usize,
    pub(crate) argmax: Vec<TokenId>,
    pub(crate) last_logits: Vec<f32>,
    pub(crate) last_routes: Vec<LayerRoutes>,
}

impl Collected {
    /// For a model that picks `experts_used` a token.
    pub(crate) fn of(experts_used: usize) -> Self {
        Self { experts_used, argmax: Vec::new(), last_logits: Vec::new(), last_routes: Vec::new() }
    }
}

impl Default for Collected {
    /// For the bundled model.
    fn default() -> Self {
        Self::of(4)
    }
}

impl PrefillObserver for Collected {
    fn routes(&mut self, routes: LayerRoutes) {
        let used = self.experts_used;
        let last = LayerRoutes {
            layer: routes.layer,
            experts: routes.experts[routes.experts.len() - used..].to_vec(),
            weights: routes.weights[routes.weights.len() - used..].to_vec(),
        };
        self.last_routes.retain(|kept| kept.layer != last.layer);
        self.last_routes.push(last);
    }

    fn wants_logits(&self) -> bool {
        true
    }

    fn logits(&mut self, _index: u32, logits: &[f32], greedy: TokenId) {
        self.argmax.push(greedy);
        self.last_logits = logits.to_vec();
    }
}

/// Sums up how well each next token was foreseen.
pub(crate) struct Losses<'a> {
    ids: &'a [TokenId],
    pub(crate) losses: Vec<f64>,
}

impl<'a> Losses<'a> {
    /// For the text `ids`.
    pub(crate) fn new(ids: &'a [TokenId]) -> Self {
        Self { ids, losses: Vec::new() }
    }
}

impl PrefillObserver for Losses<'_> {
    fn wants_logits(&self) -> bool {
        true
    }

    fn logits(&mut self, _index: u32, logits: &[f32], _greedy: TokenId) {
        let next = self.ids[self.losses.len() + 1];
        let log = flint_rt::sample::log_probabilities(logits, &[next]).expect("finite logits");
        self.losses.push(-log[0]);
    }
}
