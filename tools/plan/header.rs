//! The header of the model that a plan is for: all that is read of it.

use std::path::PathBuf;

use flint_rt::gguf::Gguf;
use flint_rt::store::{Source, SourceKind};

use crate::args::{ModelArgs, PlanArgs};
use crate::exit::{Failure, Outcome};
use crate::model;

/// A header, and where it is from.
pub(super) struct Header {
    /// What the user calls it.
    pub(super) shown: String,
    /// `store`, `gguf`, or what it is fetched by.
    pub(super) kind: &'static str,
    /// The header.
    pub(super) gguf: Gguf,
    /// Its path, if it is on a drive.
    pub(super) path: Option<PathBuf>,
    /// Its tables, if it is on a drive.
    pub(super) source: Option<Source>,
    /// Holds a folder that lives as long as this process.
    _temporary: Option<tempfile::TempDir>,
}

/// Reads it.
pub(super) fn read(args: &PlanArgs) -> Outcome<Header> {
    let named = &args.engine.model;
    let wanted = args.positional.clone().or_else(|| named.model.clone());
    let model = ModelArgs { model: wanted, store_dir: named.store_dir.clone() };
    let found = model::find(&model, None)?;
    let shown = found.shown();
    let source = Source::open(&found.path).map_err(|error| Failure::from(error).about(shown.clone()))?;
    Ok(Header {
        shown,
        kind: match source.kind() {
            SourceKind::Store => "store",
            SourceKind::Gguf => "gguf",
        },
        gguf: source.gguf().clone(),
        path: Some(found.path),
        source: Some(source),
        _temporary: found._temporary,
    })
}
