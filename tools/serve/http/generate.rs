//! Requests for a reply: read, checked, queued, and answered whole or as a stream.

use std::sync::Arc;

use axum::body::Body;
use axum::extract;
use axum::response::Response;
use hyper::Request;
use serde_json::{Map, Value};

use super::body;
use super::events::EventBody;
use super::jobs::Jobs;
use super::reply;
use super::state::{Shown, now_s};
use super::talk::Talk;
use crate::engine::job::Event;
use crate::limits::{BLOCKING_BYTES, BODY_WORK_MIB};
use crate::random;
use crate::wire::error::{ApiError, Kind};
use crate::wire::fields;
use crate::wire::model::Model;
use crate::wire::render::{Prepared, Whole};

/// What an interface makes of a body.
pub(crate) type Prepare = fn(&Model, &Map<String, Value>, u64) -> Result<Prepared, ApiError>;

/// An interface: how it reads requests, and how it words a fault.
#[derive(Clone, Copy)]
pub(crate) struct Interface {
    pub(crate) prepare: Prepare,
    pub(crate) words: Words,
}

/// Whose words a fault is told in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    OpenAi,
    Anthropic,
}

impl Words {
    /// The answer to a fault.
    pub(crate) fn error(self, error: &ApiError) -> Response {
        match self {
            Self::OpenAi => reply::openai_error(error),
            Self::Anthropic => reply::error(error, &error.anthropic(&random::id("req_"))),
        }
    }
}

/// Answers one request.
pub(crate) async fn answer(
    interface: Interface,
    extract::State(state): extract::State<Shown>,
    request: Request<Body>,
) -> Response {
    match generate(interface, &state, request).await {
        Ok(response) => response,
        Err(error) => interface.words.error(&error),
    }
}

async fn generate(interface: Interface, state: &Shown, request: Request<Body>) -> Result<Response, ApiError> {
    let talk = request.extensions().get::<Arc<Talk>>().cloned().unwrap_or_default();
    let Prepared { generations, mut answer, streams, calls } =
        with_body(state, request, move |model, body| (interface.prepare)(model, &body, now_s())).await?;
    let mut jobs = Jobs::submit(&state.shared.queue, generations)?;
    if streams {
        // Before anything is computed: clients give up on a server that does not say so much for minutes.
        let events = EventBody::new(jobs, answer, calls, state.ping, talk.half_closed());
        return Ok(reply::stream(Body::new(events)));
    }
    let (mut replies, mut pieces) = (Vec::new(), Vec::new());
    while let Some((_, event, _)) = jobs.next().await {
        match event {
            Event::Progress(_) => {}
            Event::Piece(piece, _) => pieces.push(piece),
            Event::Done(summary) => {
                replies.push(Whole::new(std::mem::take(&mut pieces), summary, calls.clone()))
            }
            Event::Failed(error) => return Err(error),
        }
    }
    Ok(reply::json(&answer.whole(&replies)))
}

/// Fields by which a request may ask for a schema to be followed, which takes a while to prepare.
const SLOW_FIELDS: [&str; 4] = ["json_schema", "response_format", "text", "tools"];

/// Reads a body and has `work` done with it; where that may take long, on a thread where it holds nobody up.
pub(crate) async fn with_body<T: Send + 'static>(
    state: &Shown,
    request: Request<Body>,
    work: impl FnOnce(&Model, Map<String, Value>) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // Nobody has to send a long body to hear that nothing can be done with it.
    state.model()?;
    let bytes = body::read(request, state.body_bytes_max).await?;
    let done = if bytes.len() < BLOCKING_BYTES {
        let fields = fields::parse(&bytes)?;
        if !SLOW_FIELDS.iter().any(|name| fields.contains_key(*name)) {
            return work(state.model()?, fields);
        }
        let state = state.clone();
        tokio::task::spawn_blocking(move || work(state.model()?, fields)).await
    } else {
        let mib = bytes.len().div_ceil(1 << 20).clamp(1, BODY_WORK_MIB);
        let mib = u32::try_from(mib).expect("invariant: clamped");
        let turn = state.body_work.clone().acquire_many_owned(mib).await;
        let state = state.clone();
        tokio::task::spawn_blocking(move || {
            // Kept until the work is done, whether the client still waits or not.
            let _turn = turn;
            work(state.model()?, fields::parse(&bytes)?)
        })
        .await
    };
    done.unwrap_or_else(|_| Err(ApiError::new(Kind::Server, "the request could not be read; report it")))
}
