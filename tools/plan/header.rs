//! The header of the model that a plan is for: all that is read of it.

use std::path::PathBuf;

use flint_rt::base::limits::HEADER_BYTES_MAX;
use flint_rt::gguf::{Gguf, Parsed};
use flint_rt::store::{ByteSource, Source, SourceKind, StoreError};

use crate::args::{ModelArgs, PlanArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::{self, Reply};
use crate::model;
use crate::source::{self, FetchOptions, Patience, SourceName};
use crate::terminal::{Bar, note};

/// Bytes of a file's beginning that are asked for first; a header of Flint has 5.5 MB, nearly all of it vocabulary.
const FIRST_BYTES: u64 = 1 << 20;

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
    /// What its store will be called, if it is somewhere else: nothing runs it before an ingest.
    pub(super) store: Option<String>,
    /// Its tables, if it is on a drive.
    pub(super) source: Option<Source>,
    /// Holds a folder that lives as long as this process.
    _temporary: Option<(tempfile::TempDir, interrupt::Working)>,
}

impl Header {
    /// How its experts will be read: what is not here yet is ingested into a store.
    pub(super) fn source_kind(&self) -> SourceKind {
        self.source.as_ref().map_or(SourceKind::Store, Source::kind)
    }
}

/// Reads it.
pub(super) fn read(args: &PlanArgs) -> Outcome<Header> {
    let named = &args.engine.model;
    let wanted = args.positional.clone().or_else(|| named.model.clone());
    if let Some(name) = &wanted {
        // What is neither a path nor a store's name may be a URL, or a file of a hub.
        let named = SourceName::parse(Some(name));
        let is_remote = matches!(named, Ok(SourceName::Url(_) | SourceName::Hub(_)));
        if is_remote || name.to_string_lossy().contains("://") {
            let shown = name.display().to_string();
            return remote(&named.map_err(|error| Failure::from(error).about(shown))?);
        }
    }
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
        store: None,
        source: Some(source),
        _temporary: found._temporary,
    })
}

/// Fetches the headers of a model that is somewhere else.
fn remote(name: &SourceName) -> Outcome<Header> {
    let shown = name.to_string();
    let _asked = Reply::begin();
    let options = FetchOptions { patience: Patience::default(), is_stopped: interrupt::is_requested, note };
    let opened =
        source::open(name, &[], options).map_err(|error| Failure::from(error).about(shown.clone()))?;
    let headers = opened.files.into_iter().map(|mut file| fetch(file.as_mut(), &shown));
    let headers = headers.collect::<Outcome<Vec<_>>>()?;
    let gguf = Gguf::join(headers).map_err(|error| Failure::from(error).about(shown.clone()))?;
    let kind = match name {
        SourceName::Hub(_) => "hub",
        _ => "http",
    };
    let store = Some(name.stem());
    Ok(Header { shown, kind, gguf, path: None, store, source: None, _temporary: None })
}

/// Fetches the beginning of a file until the header is whole: twice as much each time.
fn fetch(file: &mut dyn ByteSource, shown: &str) -> Outcome<Gguf> {
    let bar = Bar::bytes("reading header");
    let len_bytes = file.len_bytes();
    let mut bytes = Vec::new();
    let mut wanted_bytes = FIRST_BYTES.min(len_bytes);
    loop {
        let wanted = usize::try_from(wanted_bytes).map_err(|_| Failure::usage("a header beyond memory"))?;
        let mut have = bytes.len();
        bytes.resize(wanted, 0);
        while have < wanted {
            bar.set(have as u64, wanted_bytes);
            let got = file
                .read_from(have as u64, &mut bytes[have..])
                .map_err(|error| Failure::from(StoreError::from(error)).about(shown))?;
            if got == 0 {
                return Err(Failure::new(Exit::Model, format!("{shown}: it ends at byte {have}")));
            }
            have += got;
        }
        match Gguf::parse(&bytes, len_bytes).map_err(|error| Failure::from(error).about(shown))? {
            Parsed::Complete(gguf) => return Ok(*gguf),
            Parsed::Incomplete { need_bytes } => {
                wanted_bytes = need_bytes.max(2 * wanted_bytes).min(len_bytes);
                if need_bytes > wanted_bytes || wanted_bytes > HEADER_BYTES_MAX {
                    return Err(Failure::new(Exit::Model, format!("{shown}: its header does not end")));
                }
            }
        }
    }
}
