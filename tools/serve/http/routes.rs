//! Which path leads where, and what every request passes on its way.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, HeaderValue, VARY,
};
use hyper::{Method, Request};

use super::door::Page;
use super::generate::{Interface, Words, answer};
use super::info;
use super::slots;
use super::state::Shown;
use super::talk::Talk;
use crate::wire::error::ApiError;
use crate::wire::{anthropic, chat, completions, native, responses};

/// Paths that need no key: what probes ask.
const OPEN: [&str; 3] = ["/health", "/v1/health", "/ready"];

const CHAT: Interface = Interface { prepare: chat::prepare, words: Words::OpenAi };
const MESSAGES: Interface = Interface { prepare: anthropic::prepare, words: Words::Anthropic };
const NATIVE: Interface = Interface { prepare: native::prepare, words: Words::OpenAi };
const RESPONSES: Interface = Interface { prepare: responses::prepare, words: Words::OpenAi };
const COMPLETIONS: Interface = Interface { prepare: completions::prepare, words: Words::OpenAi };

fn generates(interface: Interface) -> MethodRouter<Shown> {
    post(move |state: State<Shown>, request: Request<Body>| answer(interface, state, request))
}

/// A path, and what is done there by which method.
type Route = (&'static str, MethodRouter<Shown>);

/// What stands under `/v1`.
fn versioned() -> Vec<Route> {
    vec![
        (concat!("/chat", "/completions"), generates(CHAT)),
        ("/completions", generates(COMPLETIONS)),
        ("/messages", generates(MESSAGES)),
        (concat!("/messages", "/count_tokens"), post(info::count_tokens)),
        ("/responses", generates(RESPONSES)),
        ("/models", get(info::models)),
        ("/models/{id}", get(info::one_model)),
        ("/embeddings", post(info::not_supported)),
        ("/health", get(info::health)),
    ]
}

/// What has no version.
fn own() -> Vec<Route> {
    vec![
        ("/completion", generates(NATIVE)),
        ("/ready", get(info::ready)),
        ("/props", get(info::props)),
        ("/slots", get(info::slots)),
        ("/slots/{id}", post(slots::act)),
        ("/metrics", get(info::metrics)),
        ("/openapi.json", get(info::openapi)),
        ("/tokenize", post(info::tokenize)),
        ("/detokenize", post(info::detokenize)),
        ("/apply-template", post(info::apply_template)),
    ]
}

/// The whole server.
pub(crate) fn router(state: &Shown) -> Router {
    let of = |routes: Vec<Route>| {
        routes.into_iter().fold(Router::new(), |router, (path, method)| router.route(path, method))
    };
    // What has a version is also found without it, since many forget it.
    Router::new()
        .nest("/v1", of(versioned()))
        .merge(of(versioned()))
        .merge(of(own()))
        .fallback(info::not_found)
        .method_not_allowed_fallback(info::wrong_method)
        .layer(from_fn_with_state(state.clone(), pass))
        .with_state(state.clone())
}

/// In: the door. Out: what a page's browser has to know, and a count.
async fn pass(State(state): State<Shown>, request: Request<Body>, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let words = match request.uri().path().starts_with("/v1/messages") {
        true => Words::Anthropic,
        false => Words::OpenAi,
    };
    let is_by_file = request.extensions().get::<Arc<Talk>>().is_some_and(|talk| talk.is_by_file());
    let (mut response, page) = match state.door.check_page(request.headers(), is_by_file) {
        // A browser that asks first is told what is allowed, and that its page is not by what is left out.
        Err(_) if request.method() == Method::OPTIONS => (preflight(), Page::No),
        Err(error) => (words.error(&error), Page::No),
        Ok(page) => {
            let response = match enter(&state, &request) {
                Ok(()) if request.method() == Method::OPTIONS => preflight(),
                Ok(()) => next.run(request).await,
                Err(error) => words.error(&error),
            };
            (response, page)
        }
    };
    if let Page::Yes(origin) = page {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    // Paths that are none of ours are counted together: there is no end to them.
    let path = matched.as_deref().unwrap_or("other");
    let status = response.status().as_u16();
    state.shared.metrics.responded(path, status);
    // What was queued has its line when it ends; nothing of the request itself is told, not even a path of its own.
    if status >= 400 {
        tracing::info!(path, status, "refused");
    }
    response
}

fn enter(state: &Shown, request: &Request<Body>) -> Result<(), ApiError> {
    // A browser asks for leave without a key.
    if OPEN.contains(&request.uri().path()) || request.method() == Method::OPTIONS {
        return Ok(());
    }
    state.door.check_key(request.headers())
}

/// What a browser is told that asks before it asks. Whose page may ask is said by [`pass`].
fn preflight() -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, authorization"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn every_route_is_described() {
        let document: Value = serde_json::from_str(info::OPENAPI).unwrap();
        let described: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
        let served = versioned().into_iter().map(|(path, _)| format!("/v1{path}"));
        let served: BTreeSet<String> =
            served.chain(own().into_iter().map(|(path, _)| path.to_owned())).collect();
        // The one that probes ask without a version, too.
        let described: BTreeSet<String> = described.into_iter().filter(|path| path != "/health").collect();
        assert_eq!(described, served);
    }
}
