//! `POST /slots/{id}?action=save|restore|erase`, in llama-server's words.

use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::extract::{self, State};
use axum::response::Response;
use flint_rt::engine::snapshot::file::is_snapshot;
use hyper::{Request, Uri};
use serde_json::{Map, Value, json};

use super::generate::with_body;
use super::info::told;
use super::reply;
use super::state::{Shown, State as Server};
use crate::engine::prefix_store::requests::{Action, Done, plain_name};
use crate::wire::error::{ApiError, Kind};
use crate::wire::fields::Fields;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Save,
    Restore,
    Erase,
}

/// Answers one request.
pub(crate) async fn act(
    State(state): State<Shown>,
    extract::Path(id): extract::Path<String>,
    request: Request<Body>,
) -> Response {
    told(answer(&state, &id, request).await.map(|value| reply::json(&value)))
}

async fn answer(state: &Shown, id: &str, request: Request<Body>) -> Result<Value, ApiError> {
    state.model()?;
    let verb = verb(request.uri())?;
    let slots = state.shared.board.look().0.len();
    let slot = id.parse::<usize>().ok().filter(|slot| *slot < slots).ok_or_else(|| {
        ApiError::new(Kind::Invalid, format!("there is no slot {id:?}: this server has 0 to {}", slots - 1))
    })?;
    if verb == Verb::Erase {
        let done = ask(state, slot, Action::Erase).await?;
        return Ok(json!({ "id_slot": slot, "n_erased": done.tokens }));
    }
    let folder = folder(state)?;
    let name = with_body(state, request, |_, body| name_of(&body)).await?;
    let path = folder.join(&name);
    match verb {
        Verb::Save => {
            check_target(&path)?;
            let done = ask(state, slot, Action::Save(path)).await?;
            Ok(json!({
                "id_slot": slot,
                "filename": name,
                "n_saved": done.tokens,
                "n_written": done.bytes,
                "timings": { "save_ms": millis(&done) },
            }))
        }
        Verb::Restore | Verb::Erase => {
            check_source(&path)?;
            let done = ask(state, slot, Action::Restore(path)).await?;
            Ok(json!({
                "id_slot": slot,
                "filename": name,
                "n_restored": done.tokens,
                "n_read": done.bytes,
                "timings": { "restore_ms": millis(&done) },
            }))
        }
    }
}

fn millis(done: &Done) -> f64 {
    done.time.as_secs_f64() * 1e3
}

fn verb(uri: &Uri) -> Result<Verb, ApiError> {
    let query = uri.query().unwrap_or_default();
    let action = query.split('&').find_map(|pair| pair.strip_prefix("action="));
    match action {
        Some("save") => Ok(Verb::Save),
        Some("restore") => Ok(Verb::Restore),
        Some("erase") => Ok(Verb::Erase),
        Some(_) => Err(ApiError::new(Kind::Invalid, "action: wanted save, restore or erase")),
        None => {
            Err(ApiError::new(Kind::Invalid, "action is missing: ask for ?action=save, restore or erase"))
        }
    }
}

fn folder(state: &Server) -> Result<&PathBuf, ApiError> {
    state.slot_files.as_ref().ok_or_else(|| {
        ApiError::new(
            Kind::NotSupported,
            "slots are saved and restored where the server was started with --slot-save-path DIR",
        )
    })
}

fn name_of(body: &Map<String, Value>) -> Result<String, ApiError> {
    let fields = Fields::new(body);
    let name = fields.text("filename")?.ok_or_else(|| fields.refuse("filename", "is missing"))?;
    plain_name(name).map(str::to_owned).map_err(|why| fields.refuse("filename", why))
}

/// Refuses names that are taken by anything but a saved slot, so that nobody's model is overwritten.
fn check_target(path: &Path) -> Result<(), ApiError> {
    match std::fs::symlink_metadata(path) {
        Ok(_) if !is_snapshot(path) => Err(ApiError::new(
            Kind::Invalid,
            "filename: the name is taken by something that is no saved slot: choose another",
        )),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn check_source(path: &Path) -> Result<(), ApiError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => Err(ApiError::new(Kind::Invalid, "filename: that name is no file")),
        Err(_) => Err(ApiError::new(
            Kind::Invalid,
            "filename: there is no such file: save a slot under this name first",
        )),
    }
}

async fn ask(state: &Server, slot: usize, action: Action) -> Result<Done, ApiError> {
    if let Some(why) = state.shared.queue.closed() {
        return Err(why);
    }
    let answered = state.shared.slot_requests.submit(slot, action)?;
    state.shared.queue.wake();
    answered.await.unwrap_or_else(|_| {
        Err(ApiError::new(Kind::Unavailable, "the slot was not reached; the server's log says why"))
    })
}
