//! From a name to the library's byte sources.
//!
//! - In: a [`SourceName`], the hub's variables. Out: [`Opened`]. Local files are opened by the library; of a hub, the
//!   length and the SHA-256 that are known beforehand are compared with what the server says.

use flint_rt::store::{ByteSource, LocalSource, Sha256Digest, SourceError, SourceStamp, StoreError};

use crate::source::SourceName;
use crate::source::error::FetchError;
use crate::source::http::{FetchOptions, HttpSource};
use crate::source::hub::Hub;
use crate::source::url::Url;

/// A model that can be read.
pub(crate) struct Opened {
    /// Its files, in order.
    pub(crate) files: Vec<Box<dyn ByteSource>>,
    /// The SHA-256 of each file, where all are known beforehand.
    pub(crate) sha256: Option<Vec<Sha256Digest>>,
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

/// Opens all files of `name`; `wanted` are the SHA-256 that they are to have, where somebody said so.
pub(crate) fn open(
    name: &SourceName,
    wanted: &[Sha256Digest],
    options: FetchOptions,
) -> Result<Opened, OpenError> {
    let parts = name.parts()?;
    if !wanted.is_empty() && wanted.len() != parts.len() {
        let (found, count) = (wanted.len(), parts.len());
        return Err(FetchError::DigestCount { name: name.to_string(), found, count }.into());
    }
    let hub = match name {
        SourceName::Local(_) => None,
        _ => Some(Hub::from_environment(&|variable| std::env::var(variable).ok())?),
    };
    let mut files: Vec<Box<dyn ByteSource>> = Vec::new();
    let mut sha256 = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let wanted = wanted.get(index).copied();
        match (part, &hub) {
            (SourceName::Local(path), _) => {
                files.push(Box::new(LocalSource::open(path)?));
                sha256.extend(wanted);
            }
            (_, hub) => {
                let hub = hub.as_ref().expect("invariant: parts lie where the whole lies");
                let file = Remote::open(part, hub, wanted, options)?;
                sha256.extend(file.sha256);
                files.push(Box::new(file));
            }
        }
    }
    let sha256 = Some(sha256).filter(|all| all.len() == files.len());
    Ok(Opened { files, sha256, is_remote: hub.is_some() })
}

/// A file on a server, as the library reads it.
struct Remote {
    source: HttpSource,
    shown: String,
    name: String,
    /// What it is to have, as far as anybody says.
    sha256: Option<Sha256Digest>,
    /// What the hub says that it has.
    told: Option<Sha256Digest>,
}

impl Remote {
    fn open(
        part: &SourceName,
        hub: &Hub,
        wanted: Option<Sha256Digest>,
        options: FetchOptions,
    ) -> Result<Self, FetchError> {
        let endpoint = Url::parse(&hub.endpoint)?;
        let (url, pin) = match part {
            SourceName::Hub(_) if hub.is_offline => return Err(FetchError::Offline),
            SourceName::Hub(file) => (file.url(&hub.endpoint)?, file.pin()),
            SourceName::Url(url) => (url.clone(), None),
            SourceName::Local(_) => unreachable!("invariant: the caller opens local files"),
        };
        // A hub names the content of its files; another server's headers of that name mean nothing.
        let is_hub = url.is_same_origin(&endpoint);
        let token = hub.token.clone().map(|token| (endpoint, token));
        let source = HttpSource::open(url, token, options)?;
        let (about, host) = (source.about(), source.url().host_and_port().to_owned());
        let told = about.sha256.as_deref().filter(|_| is_hub).and_then(|digits| digits.parse().ok());
        let pinned = pin.map(|pin| pin.sha256.parse().expect("invariant: the pin is a digest"));
        if let Some(wanted_bytes) = pin.map(|pin| pin.len_bytes).filter(|&len| len != about.len_bytes) {
            return Err(FetchError::Length { host, found_bytes: about.len_bytes, wanted_bytes });
        }
        let sha256 = wanted.or(pinned).or(told);
        if let (Some(wanted), Some(found)) = (sha256, told)
            && wanted != found
        {
            return Err(FetchError::Digest { host, found, wanted });
        }
        Ok(Self { shown: part.to_string(), name: part.file_name(), sha256, told, source })
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
        let content = self.told.map(|digest| format!("SHA-256 {digest}"));
        let tag = || about.etag.as_ref().map(|etag| format!("tag {etag}"));
        let date = || about.modified.as_ref().map(|date| format!("changed {date}"));
        // With nothing to tell two files apart, no later run may take one for the other, unless the content is known.
        let unknown = || match self.sha256 {
            Some(_) => String::new(),
            None => format!("not told, process {}", std::process::id()),
        };
        Ok(SourceStamp {
            kind: "http".to_owned(),
            location: self.shown.clone(),
            len_bytes: about.len_bytes,
            state: content.or_else(tag).or_else(date).unwrap_or_else(unknown),
        })
    }

    fn read_from(&mut self, offset_bytes: u64, target: &mut [u8]) -> Result<usize, SourceError> {
        self.source.fetch(offset_bytes, target).map_err(|error| match error {
            FetchError::Stopped => SourceError::Stopped,
            error => {
                SourceError::Read { location: self.shown.clone(), offset_bytes, source: Box::new(error) }
            }
        })
    }
}
