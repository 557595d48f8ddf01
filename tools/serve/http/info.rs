//! What can be asked without the engine: health, models, slots, metrics, tokens, templates.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use flint_rt::base::ids::TokenId;
use flint_rt::text::Specials;
use hyper::header::HeaderName;
use hyper::{Request, Uri};
use serde_json::{Map, Value, json};

use super::generate::{Words, with_body};
use super::reply;
use super::state::Shown;
use crate::wire::anthropic;
use crate::wire::chat::fingerprint;
use crate::wire::error::{ApiError, Kind};
use crate::wire::fields::Fields;
use crate::wire::messages;
use crate::wire::model::{Model, tools};
use crate::wire::render::timings;

type Answer = Result<Response, ApiError>;

/// A handler's result with a fault in OpenAI's words.
pub(crate) fn told(answer: Answer) -> Response {
    answer.unwrap_or_else(|error| reply::openai_error(&error))
}

/// `GET /health`: whether it lives and can work.
pub(crate) async fn health(State(state): State<Shown>) -> Response {
    told(match state.shared.queue.closed() {
        // Whether it holds its memory, for those who give it back.
        None if state.shared.is_released() => {
            Ok(reply::json(&json!({ "status": "ok", "engine": "released" })))
        }
        None => Ok(reply::json(&json!({ "status": "ok" }))),
        Some(why) if state.model.get().is_none() => Err(ApiError {
            message: format!("{} ({} % of the weights)", why.message, state.shared.loading.percent()),
            ..why
        }),
        Some(why) => Err(why),
    })
}

/// `GET /ready`: whether a request would be taken now.
pub(crate) async fn ready(State(state): State<Shown>) -> Response {
    told(match state.shared.queue.closed() {
        Some(why) => Err(why),
        None if state.shared.queue.is_full() => {
            Err(ApiError::later(Kind::Unavailable, "the queue is full: try again in a while", 5))
        }
        None => Ok(reply::json(&json!({ "status": "ready" }))),
    })
}

/// A model's entry, with its context under every name that clients look for.
fn model_entry(state: &Shown, model: &Model) -> Value {
    let facts = &model.facts;
    json!({
        "id": model.name,
        "object": "model",
        "created": state.started_s,
        "owned_by": "flint-rt",
        "max_model_len": facts.context_len,
        "context_length": facts.context_len,
        "meta": {
            "n_ctx": facts.context_len,
            "n_ctx_train": facts.context_max,
            "n_vocab": facts.vocabulary,
            "size": facts.weight_bytes,
        },
    })
}

/// `GET /v1/models`
pub(crate) async fn models(State(state): State<Shown>) -> Response {
    told(state.model().map(|model| {
        let entry = model_entry(&state, model);
        reply::json(&json!({ "object": "list", "data": [entry] }))
    }))
}

/// `GET /v1/models/{id}`
pub(crate) async fn one_model(State(state): State<Shown>, Path(id): Path<String>) -> Response {
    told(state.model().and_then(|model| match id == model.name {
        true => Ok(reply::json(&model_entry(&state, model))),
        false => Err(ApiError::new(
            Kind::NotFound,
            format!("there is no model {id:?}, this server has {:?}", model.name),
        )),
    }))
}

/// `GET /props`: the server's settings, in llama-server's keys.
pub(crate) async fn props(State(state): State<Shown>) -> Response {
    told(state.model().map(|model| {
        let (facts, sampling) = (&model.facts, &model.defaults.sampling);
        reply::json(&json!({
            "default_generation_settings": {
                "n_ctx": facts.context_len,
                "params": {
                    "seed": sampling.seed,
                    "temperature": sampling.temperature,
                    "top_k": sampling.top_k,
                    "top_p": sampling.top_p,
                    "min_p": sampling.min_p,
                    "repeat_penalty": sampling.repetition_penalty,
                    "presence_penalty": sampling.presence_penalty,
                    "frequency_penalty": sampling.frequency_penalty,
                    "n_predict": model.defaults.tokens_max.map_or(-1, i64::from),
                },
            },
            "total_slots": state.shared.board.look().0.len(),
            "is_sleeping": state.shared.is_released(),
            "model_alias": model.name,
            "model_name": facts.name,
            "model_path": state.file_name,
            "chat_template": model.form.source().unwrap_or("built-in: flint"),
            "chat_template_caps": { "supports_system_role": true, "supports_tools": true },
            "modalities": { "vision": false, "audio": false },
            "device": facts.device,
            "build_info": fingerprint(),
        }))
    }))
}

/// `GET /slots`: what each is doing.
pub(crate) async fn slots(State(state): State<Shown>, uri: Uri) -> Response {
    told(state.model().and_then(|_| {
        let (slots, context_len) = state.shared.board.look();
        let wants_free =
            uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "fail_on_no_slot=1"));
        if wants_free && slots.iter().all(|slot| slot.job.is_some()) {
            return Err(ApiError::later(Kind::Unavailable, "no slot is free", 5));
        }
        let slots = slots.iter().enumerate().map(|(index, slot)| {
            let mut value = json!({
                "id": index,
                "n_ctx": context_len,
                "is_processing": slot.job.is_some(),
                "n_held": slot.held_tokens,
            });
            if let Some((job, numbers)) = &slot.job {
                value["id_task"] = (*job).into();
                value["n_prompt"] = numbers.prompt_tokens.into();
                value["n_decoded"] = numbers.reply_tokens.into();
                value["timings"] = timings(numbers);
            }
            value
        });
        Ok(reply::json(&slots.collect()))
    }))
}

/// `GET /metrics`
pub(crate) async fn metrics(State(state): State<Shown>) -> Response {
    let busy = state.shared.board.look().0.iter().filter(|slot| slot.job.is_some()).count();
    let text = state.shared.metrics.text(state.shared.queue.len(), busy);
    let mut response =
        reply::with_type("application/openmetrics-text; version=1.0.0; charset=utf-8", Body::from(text));
    let name = HeaderName::from_static("process-start-time-unix");
    response.headers_mut().insert(name, state.started_s.into());
    response
}

/// What all paths take and give.
pub(crate) const OPENAPI: &str = include_str!("../openapi.json");

/// `GET /openapi.json`
pub(crate) async fn openapi() -> Response {
    reply::with_type("application/json", Body::from(OPENAPI))
}

/// `POST /tokenize`: `content` to `tokens`.
pub(crate) async fn tokenize(State(state): State<Shown>, request: Request<Body>) -> Response {
    told(
        with_body(&state, request, |model, body| tokens_of(model, &body))
            .await
            .map(|value| reply::json(&value)),
    )
}

fn tokens_of(model: &Model, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let fields = Fields::new(body);
    let text = fields.text("content")?.ok_or_else(|| fields.refuse("content", "is missing"))?;
    let specials = match fields.flag("parse_special")? {
        Some(false) => Specials::Plain,
        Some(true) | None => Specials::Parse,
    };
    let tokenizer = &model.facts.tokenizer;
    let mut ids = Vec::new();
    if fields.flag("add_special")?.unwrap_or(false) {
        ids.extend(tokenizer.special_id("<|begin_of_text|>"));
    }
    ids.append(&mut tokenizer.encode(text, specials));
    if !fields.flag("with_pieces")?.unwrap_or(false) {
        return Ok(json!({ "tokens": ids }));
    }
    let piece = |id: &TokenId| {
        let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
        // What is no text by itself is told as bytes.
        let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
        json!({ "id": id, "piece": piece })
    };
    Ok(json!({ "tokens": ids.iter().map(piece).collect::<Value>() }))
}

/// `POST /detokenize`: `tokens` to `content`.
pub(crate) async fn detokenize(State(state): State<Shown>, request: Request<Body>) -> Response {
    told(
        with_body(&state, request, |model, body| text_of(model, &body))
            .await
            .map(|value| reply::json(&value)),
    )
}

fn text_of(model: &Model, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let fields = Fields::new(body);
    let list = fields.list("tokens")?.ok_or_else(|| fields.refuse("tokens", "is missing"))?;
    let ids: Option<Vec<TokenId>> =
        list.iter().map(|id| id.as_u64().and_then(|id| TokenId::try_from(id).ok())).collect();
    let ids = ids.ok_or_else(|| fields.refuse("tokens", "wanted a list of token ids"))?;
    let tokenizer = &model.facts.tokenizer;
    tokenizer.check_ids(&ids).map_err(|error| fields.refuse("tokens", error))?;
    Ok(json!({ "content": tokenizer.decode(&ids) }))
}

/// `POST /apply-template`: `messages` to `prompt`.
pub(crate) async fn apply_template(State(state): State<Shown>, request: Request<Body>) -> Response {
    told(
        with_body(&state, request, |model, body| prompt_of(model, &body))
            .await
            .map(|value| reply::json(&value)),
    )
}

fn prompt_of(model: &Model, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let fields = Fields::new(body);
    let messages = messages::openai(&fields)?;
    let opens_reply = fields.flag("add_generation_prompt")?.unwrap_or(true);
    let (thought, extra) = (model.thought(&fields)?, fields.object("chat_template_kwargs")?);
    let rendered = model.render(&messages, &tools(&fields)?, thought.thinking, opens_reply, extra)?;
    Ok(json!({ "prompt": rendered.text }))
}

/// `POST /v1/messages/count_tokens`
pub(crate) async fn count_tokens(State(state): State<Shown>, request: Request<Body>) -> Response {
    let counted = with_body(&state, request, |model, body| anthropic::count_tokens(model, &body)).await;
    match counted {
        Ok(value) => reply::json(&value),
        Err(error) => Words::Anthropic.error(&error),
    }
}

/// `POST /v1/embeddings` and others that this server does not have.
pub(crate) async fn not_supported() -> Response {
    reply::openai_error(&ApiError::new(
        Kind::NotSupported,
        "this server has one model, which writes text: use an embedding model's server for this",
    ))
}

/// A path that there is not.
pub(crate) async fn not_found() -> Response {
    reply::openai_error(&ApiError::new(
        Kind::NotFound,
        "there is no such path: /v1/chat/completions, /v1/completions, /v1/messages, /v1/responses and /v1/models are some",
    ))
}

/// A path with another method.
pub(crate) async fn wrong_method() -> Response {
    reply::openai_error(&ApiError::new(Kind::Method, "this path has another method"))
}
