//! From a name to the library's byte sources.
//!
//! - In: a [`SourceName`], the hub's variables. Out: [`Opened`]. Local files are opened by the library; of a hub, the
//!   length and the SHA-256 that are known beforehand are compared with what the server says.

use std::path::PathBuf;

use flint_rt::store::{ByteSource, LocalSource, Sha256Digest, SourceError, SourceStamp, StoreError};

use crate::source::error::FetchError;
use crate::source::http::{FetchOptions, HttpSource};
use crate::source::hub::{Hub, HubFile};
use crate::source::url::Url;
use crate::source::SourceName;

/// A model that can be read.
pub(crate) struct Opened {
    /// Its files, in order.
    pub(crate) files: Vec<Box<dyn ByteSource>>,
    /// The SHA-256 of its only file, where it is known beforehand.
    pub(crate) sha256: Option<Sha256Digest>,
    /// Whether a network lies between it and us.
    pub(crate) is_remote: bool,
}

/// Why a source does not open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Opens all files of `name`.
pub(crate) fn open(name: &SourceName, options: FetchOptions) -> Result<Opened, OpenError> {
    if let SourceName::Local(_) = name {
        let paths = name.parts()?;
        let open = |part: &SourceName| {
            let SourceName::Local(path) = part else { unreachable!("invariant: parts lie where the whole lies") };
            Ok::<_, StoreError>(Box::new(LocalSource::open(path)?) as Box<dyn ByteSource>)
        };
        let files = paths.iter().map(open).collect::<Result<_, _>>()?;
        return Ok(Opened { files, sha256: None, is_remote: false });
    }
    let hub = Hub::from_environment(&|variable| std::env::var(variable).ok())?;
    let mut remote = Vec::new();
    for part in name.parts()? {
        remote.push(Remote::open(&part, &hub, options)?);
    }
    let sha256 = match remote.as_slice() {
        [only] => only.sha256,
        _ => None,
    };
    let files = remote.into_iter().map(|file| Box::new(file) as Box<dyn ByteSource>).collect();
    Ok(Opened { files, sha256, is_remote: true })
}

/// A file on a server, as the library reads it.
struct Remote {
    source: HttpSource,
    shown: String,
    name: String,
    kind: &'static str,
    sha256: Option<Sha256Digest>,
}

impl Remote {
    fn open(part: &SourceName, hub: &Hub, options: FetchOptions) -> Result<Self, FetchError> {
        let (url, kind, pin) = match part {
            SourceName::Url(url) => (url.clone(), "http", None),
            SourceName::Hub(file) if hub.is_offline => {
                let _: &HubFile = file;
                return Err(FetchError::Offline);
            }
            SourceName::Hub(file) => (file.url(&hub.endpoint)?, "hub", file.pin()),
            SourceName::Local(_) => unreachable!("invariant: parts lie where the whole lies"),
        };
        let token = match &hub.token {
            Some(token) => Some((Url::parse(&hub.endpoint)?, token.clone())),
            None => None,
        };
        let source = HttpSource::open(url, token, options)?;
        let (about, host) = (source.about(), source.url().host_and_port().to_owned());
        let mut sha256 = match kind {
            // Only a hub is asked what its file is; any server could claim anything, but so could the hub.
            "hub" => about.sha256.as_deref().and_then(|digits| digits.parse().ok()),
            _ => None,
        };
        if let Some(pin) = pin {
            if about.len_bytes != pin.len_bytes {
                let (found_bytes, wanted_bytes) = (about.len_bytes, pin.len_bytes);
                return Err(FetchError::Length { host, found_bytes, wanted_bytes });
            }
            sha256 = Some(pin.sha256.parse().expect("invariant: the pin is a digest"));
        }
        Ok(Self { shown: part.to_string(), name: part.file_name(), kind, sha256, source })
    }
}

impl ByteSource for Remote {
    fn len_bytes(&self) -> u64 {
        self.source.about().len_bytes
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// Every answer was compared with the first, so what that said still holds.
    fn stamp(&self) -> Result<SourceStamp, SourceError> {
        let about = self.source.about();
        let date = || about.modified.as_ref().map(|date| format!("changed {date}"));
        let state = about.etag.as_ref().map(|etag| format!("tag {etag}")).or_else(date);
        Ok(SourceStamp {
            kind: self.kind.to_owned(),
            location: self.shown.clone(),
            len_bytes: about.len_bytes,
            // With nothing to tell two files apart, no later run may take one for the other.
            state: state.unwrap_or_else(|| format!("not told, in process {}", std::process::id())),
        })
    }

    fn read_from(&mut self, offset_bytes: u64, target: &mut [u8]) -> Result<usize, SourceError> {
        self.source.fetch(offset_bytes, target).map_err(|error| match error {
            FetchError::Stopped => SourceError::Stopped,
            error => SourceError::Read { location: self.shown.clone(), offset_bytes, source: Box::new(error) },
        })
    }
}

/// The paths of a local model, for what the library reads by path.
pub(crate) fn local_path(name: &SourceName) -> Option<PathBuf> {
    match name {
        SourceName::Local(path) => Some(path.clone()),
        _ => None,
    }
}
