//! What `ingest` and `plan` can read a model from: a file that is here, a URL, a file of a hub.
//!
//! - Owns: names, and the way to the network. In: an argument, the environment. Out: [`Opened`]: byte sources for the
//!   library, and what is known of their content.
//! - Invariants: the library needs no network, so all of it is here. Nothing of a name that could be a secret is shown:
//!   no token, no query of a URL. Several files come only from a split GGUF.

mod answer;
mod client;
mod error;
pub(crate) mod http;
mod hub;
mod remote;
mod retry;
mod stream;
mod url;

use std::fmt;
use std::path::{Path, PathBuf};

use flint_rt::store::{part_name, split_name};

pub(crate) use error::FetchError;
pub(crate) use http::FetchOptions;
pub(crate) use hub::{FLINT, HubFile, pin_of};
pub(crate) use remote::{OpenError, Opened, open};
pub(crate) use retry::Patience;
pub(crate) use url::Url;

/// A model's place, by the name that a person gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SourceName {
    /// A file that is here, or should be.
    Local(PathBuf),
    /// http or https.
    Url(Url),
    /// `owner/repo/file[@revision]`.
    Hub(HubFile),
}

impl SourceName {
    /// What `text` means: with `://` a URL; what exists, a path; else what has two slashes, a hub's file, unless it can
    /// only be a path. Nothing is the pinned Flint.
    pub(crate) fn parse(text: Option<&Path>) -> Result<Self, FetchError> {
        let Some(path) = text else { return Ok(Self::Hub(FLINT.name())) };
        let local = || Ok(Self::Local(path.to_owned()));
        let Some(name) = path.to_str() else { return local() };
        if name.contains("://") {
            return Url::parse(name).map(Self::Url);
        }
        // A file that is missing from a folder that is here is a mistake in typing, and no reason to ask a network.
        let folder = name.split('/').next().unwrap_or_default();
        let is_path = name.starts_with(['/', '.', '~']) || !name.contains('/') || Path::new(folder).exists();
        match is_path || path.exists() {
            true => local(),
            false => HubFile::parse(name).map(Self::Hub),
        }
    }

    /// The file's name without its ending and, of a split GGUF, without the part's number.
    pub(crate) fn stem(&self) -> String {
        let name = self.file_name();
        match split_name(&name) {
            Some((stem, ..)) => stem.to_owned(),
            None => Path::new(&name).file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    fn file_name(&self) -> String {
        match self {
            Self::Local(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Url(url) => url.file_name().to_owned(),
            Self::Hub(file) => file.file_name().to_owned(),
        }
    }

    /// The files that belong to it: itself, or all parts of the split GGUF of which it is one.
    fn parts(&self) -> Result<Vec<Self>, FetchError> {
        let name = self.file_name();
        let Some((stem, number, count)) = split_name(&name) else { return Ok(vec![self.clone()]) };
        if !(1..=count).contains(&number) || count > PARTS_MAX {
            let reason = "has a part's number that makes no sense";
            return Err(FetchError::Name { name: self.to_string(), reason });
        }
        let part = |number| {
            let name = part_name(stem, number, count);
            Ok(match self {
                Self::Local(path) => Self::Local(path.with_file_name(name)),
                Self::Url(url) => Self::Url(url.with_file_name(&name)?),
                Self::Hub(file) => Self::Hub(file.with_file_name(&name)),
            })
        };
        (1..=count).map(part).collect()
    }
}

/// Most files of a split GGUF.
const PARTS_MAX: u32 = 1000;

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
            Self::Url(url) => url.fmt(f),
            Self::Hub(file) => file.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> SourceName {
        SourceName::parse(Some(Path::new(text))).unwrap()
    }

    #[test]
    fn a_name_is_a_url_a_path_or_a_hubs_file() {
        assert!(matches!(named("https://h/x/y.gguf?k=1"), SourceName::Url(_)), "URL");
        assert!(matches!(named("o-that-is-not-here/r/y.gguf"), SourceName::Hub(_)), "hub");
        for path in
            ["x.gguf", "./o/r/x.gguf", "../o/r/x.gguf", "/nowhere/r/x.gguf", "tools/r/x.gguf", "~/o/r/x"]
        {
            assert!(matches!(named(path), SourceName::Local(_)), "{path}");
        }
        assert_eq!(SourceName::parse(None).unwrap(), SourceName::Hub(FLINT.name()), "nothing");
        for wrong in ["ftp://h/x", "o-that-is-not-here/r", "o-that-is-not-here/r/"] {
            assert!(SourceName::parse(Some(Path::new(wrong))).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_part_names_all_parts() {
        assert_eq!(named("https://h/m-q4.gguf?k=1").stem(), "m-q4", "whole");
        let split = named("https://h/x/m-00002-of-00003.gguf?k=1");
        assert_eq!(split.stem(), "m", "of a part");
        let parts: Vec<_> = split.parts().unwrap().iter().map(SourceName::to_string).collect();
        let wanted = ["1", "2", "3"].map(|number| format!("https://h/x/m-0000{number}-of-00003.gguf"));
        assert_eq!(parts, wanted, "of a URL");
        let hub = named("o-that-is-not-here/r/q4/m-00001-of-00002.gguf@v1");
        assert_eq!(
            hub.parts().unwrap()[1].to_string(),
            "o-that-is-not-here/r/q4/m-00002-of-00002.gguf@v1",
            "hub"
        );
        assert!(named("https://h/m-00004-of-00003.gguf").parts().is_err(), "beyond the last");
    }
}
