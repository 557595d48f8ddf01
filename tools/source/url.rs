//! A place on the network, and how it may be shown.
//!
//! Invariants: http or https, with a host; no user or password in it. What is shown of it has no query, because that is
//! where signed URLs carry their key.

use std::fmt;

use ureq::http::Uri;

use crate::source::error::FetchError;

/// An http or https URL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url(Uri);

impl Url {
    /// Reads it.
    pub(crate) fn parse(text: &str) -> Result<Self, FetchError> {
        let refuse = |reason| FetchError::Name { name: without_query(text).to_owned(), reason };
        let uri: Uri = text.parse().map_err(|_| {
            refuse("is no URL; blanks and letters outside ASCII are written as %20 and the like")
        })?;
        match (uri.scheme_str(), uri.authority()) {
            (Some("http" | "https"), Some(authority)) => {
                if authority.as_str().contains('@') {
                    let name = format!("{}://...", uri.scheme_str().unwrap_or_default());
                    let reason = "has a user or a password in it, which others can read off the command line";
                    return Err(FetchError::Name { name, reason });
                }
                if authority.host().is_empty() {
                    return Err(refuse("has no host"));
                }
                Ok(Self(uri))
            }
            _ => Err(refuse("is no http or https URL")),
        }
    }

    /// What a redirect from here to `location` means.
    pub(super) fn join(&self, location: &str) -> Result<Self, FetchError> {
        let (scheme, authority) = (self.scheme(), self.host_and_port());
        let is_absolute = location
            .split_once("://")
            .is_some_and(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        let path = self.0.path();
        let text = if is_absolute {
            location.to_owned()
        } else if location.starts_with("//") {
            format!("{scheme}:{location}")
        } else if location.starts_with('/') {
            format!("{scheme}://{authority}{location}")
        } else if location.starts_with('?') {
            format!("{scheme}://{authority}{path}{location}")
        } else {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{location}")
        };
        Self::parse(&text)
    }

    /// `http` or `https`.
    pub(super) fn scheme(&self) -> &str {
        self.0.scheme_str().unwrap_or_default()
    }

    /// Host, and port if one is written.
    pub(super) fn host_and_port(&self) -> &str {
        self.0.authority().map(|authority| authority.as_str()).unwrap_or_default()
    }

    /// Whether both are the same server in the sense of the web: scheme, host and port.
    pub(super) fn is_same_origin(&self, other: &Self) -> bool {
        let origin = |url: &Self| {
            let port = url.0.port_u16().unwrap_or(if url.scheme() == "https" { 443 } else { 80 });
            (url.scheme().to_owned(), url.0.host().unwrap_or_default().to_ascii_lowercase(), port)
        };
        origin(self) == origin(other)
    }

    /// Whether what is sent there can be read on the way: plain http to another machine.
    pub(super) fn is_overheard(&self) -> bool {
        let host = self.0.host().unwrap_or_default();
        let is_here = host == "localhost" || host == "[::1]" || host.starts_with("127.");
        self.scheme() == "http" && !is_here
    }

    /// The last part of the path, as the file's name; with percent signs where it has them.
    pub(crate) fn file_name(&self) -> &str {
        self.0.path().rsplit('/').next().unwrap_or_default()
    }

    /// The URL of the file beside this one.
    pub(super) fn with_file_name(&self, name: &str) -> Result<Self, FetchError> {
        let folder = self.0.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        let query = self.0.query().map(|query| format!("?{query}")).unwrap_or_default();
        Self::parse(&format!("{}://{}{folder}/{name}{query}", self.scheme(), self.host_and_port()))
    }

    /// As it is asked for.
    pub(super) fn uri(&self) -> &Uri {
        &self.0
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.host_and_port(), self.0.path())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn without_query(text: &str) -> &str {
    text.split(['?', '#']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn a_query_is_asked_for_and_not_shown() {
        let signed = url("https://cdn.example/a/b.gguf?Signature=secret&Expires=1");
        assert_eq!(signed.to_string(), "https://cdn.example/a/b.gguf", "shown");
        assert!(signed.uri().to_string().contains("Signature=secret"), "asked for");
        assert_eq!(signed.file_name(), "b.gguf", "name");
    }

    #[test]
    fn what_is_no_plain_web_address_is_refused_without_its_secrets() {
        for text in ["ftp://a/b", "file:///b", "https://", "https:///x", "nothing", "https://a/b c"] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
        let error = Url::parse("https://me:hunter2@host/x?key=hunter2").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn redirects_are_joined_as_browsers_do() {
        let from = url("https://hub.example/o/r/resolve/main/f.gguf");
        for (location, wanted) in [
            ("https://cdn.example/x?k=1", "https://cdn.example/x?k=1"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("/a/x", "https://hub.example/a/x"),
            ("g.gguf", "https://hub.example/o/r/resolve/main/g.gguf"),
            ("?again=1", "https://hub.example/o/r/resolve/main/f.gguf?again=1"),
        ] {
            assert_eq!(from.join(location).unwrap().uri().to_string(), wanted, "{location}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let hub = url("https://hub.example/a");
        assert!(hub.is_same_origin(&url("https://HUB.example:443/b")), "the port is the scheme's");
        for other in ["http://hub.example/a", "https://hub.example:8443/a", "https://hub.example.evil/a"] {
            assert!(!hub.is_same_origin(&url(other)), "{other}");
        }
        assert!(
            url("http://mirror.example/").is_overheard() && !url("http://127.0.0.1:1/").is_overheard(),
            "plain"
        );
    }
}
