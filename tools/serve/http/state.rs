//! What every request sees.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::door::Door;
use tokio::sync::Semaphore;

use crate::engine::shared::Shared;
use crate::wire::error::{ApiError, Kind};
use crate::wire::model::Model;

/// What does not change while the server runs, and the way to the engine.
pub(crate) struct State {
    pub(crate) shared: Arc<Shared>,
    pub(crate) door: Door,
    /// Set when the model is loaded.
    pub(crate) model: OnceLock<Model>,
    pub(crate) body_bytes_max: usize,
    /// A permit for each MiB of the long bodies that are being worked on.
    pub(crate) body_work: Arc<Semaphore>,
    pub(crate) ping: Duration,
    pub(crate) started_s: u64,
    /// The model's file, by its name alone.
    pub(crate) file_name: String,
    /// The folder of files that slots are saved to.
    pub(crate) slot_files: Option<PathBuf>,
}

/// As handlers have it.
pub(crate) type Shown = Arc<State>;

impl State {
    /// The model.
    ///
    /// # Errors
    /// While it is loading, and when nothing can be computed any more.
    pub(crate) fn model(&self) -> Result<&Model, ApiError> {
        match self.model.get() {
            Some(model) => Ok(model),
            None => Err(self.shared.queue.closed().unwrap_or_else(|| {
                ApiError::later(Kind::Unavailable, "the model is loading: try again in a while", 5)
            })),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
