//! Files of a model hub by their names, with the environment variables that the hub's own tools use.
//!
//! - In: `owner/repo/file[@revision]`, `HF_ENDPOINT`, `HF_TOKEN` and where else tokens lie. Out: a URL, a [`Token`].
//! - Invariants: a token is never shown, and goes to the endpoint only.

use std::fmt;
use std::path::PathBuf;

use crate::source::error::FetchError;
use crate::source::url::Url;

const ENDPOINT: &str = "https://huggingface.co";
const REVISION: &str = "main";

/// The file of the full Flint: what is fetched when nothing is named.
pub(crate) const FLINT: Pin = Pin {
    owner: "RecursiveSI",
    repo: "flint-int4-gguf",
    file: "flint-int4-q4_1.gguf",
    revision: "9c47151036bc2c34331142dda04488bceab2bc9f",
    sha256: "43c07baccdba42eb7528a9630ee15699b1942c297291dc1b39a061f508ee1a4b",
    len_bytes: 25_992_966_976,
};

/// A file whose content is known beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pin {
    owner: &'static str,
    repo: &'static str,
    file: &'static str,
    revision: &'static str,
    /// SHA-256 in hexadecimal digits.
    pub(crate) sha256: &'static str,
    /// Its length.
    pub(crate) len_bytes: u64,
}

/// What the file must be that has this name and length, if it is one whose content is known beforehand.
pub(crate) fn pin_of(file_name: &str, len_bytes: u64) -> Option<Pin> {
    (FLINT.file == file_name && FLINT.len_bytes == len_bytes).then_some(FLINT)
}

impl Pin {
    /// Its name.
    pub(crate) fn name(&self) -> HubFile {
        HubFile {
            owner: self.owner.to_owned(),
            repo: self.repo.to_owned(),
            file: self.file.to_owned(),
            revision: Some(self.revision.to_owned()),
        }
    }
}

/// A file of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubFile {
    owner: String,
    repo: String,
    /// With folders, if it lies in some.
    file: String,
    revision: Option<String>,
}

impl HubFile {
    /// Reads `owner/repo/file[@revision]`. The pinned file is meant in its pinned revision, unless another is named.
    pub(crate) fn parse(text: &str) -> Result<Self, FetchError> {
        let refuse = |reason| FetchError::Name { name: text.to_owned(), reason };
        let (path, revision) = match text.split_once('@') {
            Some((path, revision)) => (path, Some(revision)),
            None => (text, None),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let [owner, repo, file @ ..] = parts.as_slice() else {
            return Err(refuse("is neither a file that is here nor a hub's owner/repo/file"));
        };
        if file.is_empty() {
            return Err(refuse(
                "is no file that is here; of a hub, name owner/repo/file, with the file's name",
            ));
        }
        let is_name = |part: &str| {
            let is_plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
            is_plain && !part.is_empty() && part.len() <= 96 && !part.starts_with('.')
        };
        let is_file = |part: &&str| !matches!(*part, "" | "." | "..") && !part.contains(char::is_control);
        if !is_name(owner) || !is_name(repo) || !file.iter().all(is_file) {
            return Err(refuse("is neither a file that is here nor a hub's owner/repo/file[@revision]"));
        }
        if revision
            .is_some_and(|name| name.is_empty() || name.contains(char::is_control) || name.contains(".."))
        {
            return Err(refuse("names no revision after the @"));
        }
        let mut named = Self {
            owner: (*owner).to_owned(),
            repo: (*repo).to_owned(),
            file: file.join("/"),
            revision: revision.map(str::to_owned),
        };
        let pinned = FLINT.name();
        let pinned = Self { revision: named.revision.clone().or(pinned.revision), ..pinned };
        if (&pinned.owner, &pinned.repo, &pinned.file) == (&named.owner, &named.repo, &named.file) {
            named = pinned;
        }
        Ok(named)
    }

    /// What is known of it beforehand.
    pub(crate) fn pin(&self) -> Option<Pin> {
        (FLINT.name() == *self).then_some(FLINT)
    }

    /// The file's name without folders.
    pub(crate) fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or_default()
    }

    /// The file beside it.
    pub(super) fn with_file_name(&self, name: &str) -> Self {
        let file = match self.file.rsplit_once('/') {
            Some((folder, _)) => format!("{folder}/{name}"),
            None => name.to_owned(),
        };
        Self { file, ..self.clone() }
    }

    /// Where it is, at this endpoint.
    pub(crate) fn url(&self, endpoint: &str) -> Result<Url, FetchError> {
        let file: Vec<String> = self.file.split('/').map(percent_encoded).collect();
        let revision = percent_encoded(self.revision.as_deref().unwrap_or(REVISION));
        let Self { owner, repo, .. } = self;
        Url::parse(&format!("{endpoint}/{owner}/{repo}/resolve/{revision}/{}", file.join("/")))
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.owner, self.repo, self.file)?;
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

fn percent_encoded(part: &str) -> String {
    let mut encoded = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// What opens the hub's gated files.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl Token {
    /// The value of the header `Authorization`.
    pub(super) fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(not shown)")
    }
}

/// The hub, as the environment describes it.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    /// Without a slash at its end.
    pub(crate) endpoint: String,
    pub(crate) token: Option<Token>,
    pub(crate) is_offline: bool,
}

impl Hub {
    /// Asks `variable` for each variable, and the file system for a token's file.
    pub(crate) fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, FetchError> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let is_on = |name: &str| {
            set(name).is_some_and(|value| {
                ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str())
            })
        };
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        if Url::parse(&endpoint).is_err() || endpoint.contains(['?', '#']) {
            let reason = "is no http or https URL without a password and a query".to_owned();
            return Err(FetchError::Environment { variable: "HF_ENDPOINT", reason });
        }
        let token = match is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            true => None,
            false => find_token(&set)?,
        };
        Ok(Self { endpoint, token, is_offline: is_on("HF_HUB_OFFLINE") })
    }
}

fn find_token(set: &dyn Fn(&str) -> Option<String>) -> Result<Option<Token>, FetchError> {
    for variable in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(text) = set(variable) {
            return token(variable, &text).map(Some);
        }
    }
    // A file that is not there, or not for us to read, is no token.
    match token_path(set).and_then(|path| std::fs::read_to_string(path).ok()) {
        Some(text) if !text.trim().is_empty() => token("HF_TOKEN_PATH", &text).map(Some),
        _ => Ok(None),
    }
}

fn token_path(set: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let home = || set("HOME").map(PathBuf::from);
    let below_home = |path: String| match path.strip_prefix("~/") {
        Some(rest) => home().map_or_else(|| PathBuf::from(&path), |home| home.join(rest)),
        None => PathBuf::from(path),
    };
    if let Some(path) = set("HF_TOKEN_PATH") {
        return Some(below_home(path));
    }
    if let Some(folder) = set("HF_HOME") {
        return Some(below_home(folder).join("token"));
    }
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| home().map(|home| home.join(".cache")));
    Some(cache?.join("huggingface/token"))
}

fn token(variable: &'static str, text: &str) -> Result<Token, FetchError> {
    let text = text.trim();
    if text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Token(text.to_owned()));
    }
    let reason = "holds no token: it has characters that no token has".to_owned();
    Err(FetchError::Environment { variable, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(variables: &[(&str, &str)]) -> Result<Hub, FetchError> {
        let find =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Hub::from_environment(&find)
    }

    #[test]
    fn the_pinned_file_is_asked_for_by_its_commit() {
        let wanted = "https://huggingface.co/RecursiveSI/flint-int4-gguf/resolve/\
                      9c47151036bc2c34331142dda04488bceab2bc9f/flint-int4-q4_1.gguf";
        let endpoint = hub(&[]).unwrap().endpoint;
        assert_eq!(FLINT.name().url(&endpoint).unwrap().to_string(), wanted, "nothing named");
        let named = HubFile::parse("RecursiveSI/flint-int4-gguf/flint-int4-q4_1.gguf").unwrap();
        assert_eq!(named.url(&endpoint).unwrap().to_string(), wanted, "no revision named");
        assert_eq!(named.pin(), Some(FLINT), "known beforehand");
        let main = HubFile::parse("RecursiveSI/flint-int4-gguf/flint-int4-q4_1.gguf@main").unwrap();
        assert_eq!(main.pin(), None, "another revision may be another file");
    }

    #[test]
    fn a_file_here_is_the_pinned_one_by_name_and_length() {
        assert_eq!(pin_of("flint-int4-q4_1.gguf", 25_992_966_976), Some(FLINT), "it");
        assert_eq!(pin_of("flint-int4-q4_1.gguf", 25_992_966_975), None, "cut short, or another");
        assert_eq!(pin_of("other.gguf", 25_992_966_976), None, "another name");
    }

    #[test]
    fn names_become_urls_of_the_endpoint() {
        let endpoint = hub(&[("HF_ENDPOINT", "http://mirror.example:8080/hub/")]).unwrap().endpoint;
        for (name, wanted) in [
            ("o/r/f.gguf", "http://mirror.example:8080/hub/o/r/resolve/main/f.gguf"),
            (
                "o/r/a b/f+1.gguf@refs/pr/3",
                "http://mirror.example:8080/hub/o/r/resolve/refs%2Fpr%2F3/a%20b/f%2B1.gguf",
            ),
        ] {
            let named = HubFile::parse(name).unwrap();
            assert_eq!(named.url(&endpoint).unwrap().to_string(), wanted, "{name}");
            assert_eq!(named.to_string(), name, "shown as given");
        }
    }

    #[test]
    fn names_that_mean_nothing_are_refused() {
        for name in [
            "", "f.gguf", "o/r", "o//f", "../r/f", "o/../f", "o/r/../f", "o/r/", "o/r/f@", "o r/x/f",
            ".o/r/f",
        ] {
            assert!(HubFile::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_token_comes_from_where_the_hub_keeps_it_and_is_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "hf_file\n").unwrap();
        let (home, file) = (folder.path().to_str().unwrap(), path.to_str().unwrap());
        let bearer =
            |variables: &[(&str, &str)]| hub(variables).unwrap().token.map(|token| token.authorization());
        assert_eq!(bearer(&[]), None, "none");
        assert_eq!(bearer(&[("HF_HOME", home)]).as_deref(), Some("Bearer hf_file"), "folder");
        assert_eq!(bearer(&[("HF_TOKEN_PATH", file)]).as_deref(), Some("Bearer hf_file"), "file");
        assert_eq!(
            bearer(&[("HF_TOKEN", " hf_env "), ("HF_HOME", home)]).as_deref(),
            Some("Bearer hf_env"),
            "variable"
        );
        assert_eq!(bearer(&[("HF_TOKEN", "x"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None, "not wanted");
        let shown = format!("{:?}", hub(&[("HF_TOKEN", "hf_secret")]).unwrap());
        assert!(!shown.contains("hf_secret"), "{shown}");
        let error = hub(&[("HF_TOKEN", "hf_secret\u{1}x")]).unwrap_err().to_string();
        assert!(!error.contains("hf_secret"), "{error}");
        assert!(hub(&[("HF_ENDPOINT", "ftp://x")]).is_err(), "endpoint");
    }
}
