//! Who may ask: the key, the `Host` header, and pages of other sites. Pure.
//!
//! A server on the loopback address is reached by every page that a browser shows, in two ways: by a request to
//! `127.0.0.1` from the page's own origin, which its `Origin` header gives away; and by a name of the page's own that is made to
//! lead here ("rebinding"), which the `Host` header gives away.

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN};
use subtle::{Choice, ConstantTimeEq};

use crate::wire::error::{ApiError, Kind};

/// Pages of which origins may ask.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origins {
    /// Of none but this server's own.
    #[default]
    None,
    /// Of every server on this machine, too.
    Localhost,
    /// Of these, as `https://example.org`, too.
    Listed(Vec<String>),
    /// Of all.
    Any,
}

/// Keys are compared as if all had this length, so that time tells nothing about them.
const KEY_BYTES: usize = 256;

/// The rules.
pub(crate) struct Door {
    keys: Vec<[u8; KEY_BYTES]>,
    origins: Origins,
    /// Whether only names of this machine may stand in `Host`.
    is_local: bool,
}

/// What the answer to a page's request says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Page {
    /// It was no page of another site.
    No,
    /// Of this origin, which may read the answer.
    Yes(HeaderValue),
}

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

impl Door {
    /// # Errors
    /// When a key is empty or too long.
    pub(crate) fn new(keys: &[String], origins: Origins, addresses: &[SocketAddr]) -> Result<Self, String> {
        let keys = keys.iter().map(|key| padded(key.as_bytes()).ok_or(key)).collect::<Result<_, _>>();
        let keys =
            keys.map_err(|key| format!("an API key has {} bytes, wanted 1 to {}", key.len(), KEY_BYTES - 1))?;
        Ok(Self { keys, origins, is_local: addresses.iter().all(|address| address.ip().is_loopback()) })
    }

    /// Whether the request comes from a page, and may; by a socket file, which has no name that could lead elsewhere, or not.
    ///
    /// # Errors
    /// When it may not.
    pub(crate) fn check_page(&self, headers: &HeaderMap, is_by_file: bool) -> Result<Page, ApiError> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        if self.is_local && !is_by_file && host.is_some_and(|host| !is_local_host(host)) {
            return Err(ApiError::new(
                Kind::Permission,
                "this server answers to names of this machine only: ask for localhost or 127.0.0.1",
            ));
        }
        let Some(origin) = headers.get(ORIGIN) else { return Ok(Page::No) };
        let text = origin.to_str().unwrap_or_default();
        let bare = text.split_once("://").map(|(_, host)| host);
        let is_own = bare.is_some() && bare == host;
        let is_allowed = match &self.origins {
            Origins::None => false,
            Origins::Localhost => bare.is_some_and(is_local_host),
            Origins::Listed(list) => list.iter().any(|listed| listed == text),
            Origins::Any => true,
        };
        match (is_own, is_allowed) {
            (true, _) | (_, true) => Ok(Page::Yes(origin.clone())),
            (false, false) => Err(ApiError::new(
                Kind::Permission,
                "pages of this origin may not ask: start the server with --cors-origins to let them",
            )),
        }
    }

    /// Checks the key, where one is needed: `Authorization: Bearer KEY` or `X-Api-Key: KEY`.
    ///
    /// # Errors
    /// The same for a missing and for a wrong one.
    pub(crate) fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let bearer = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).and_then(|value| {
            let (scheme, key) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
        });
        let given = bearer.or_else(|| headers.get(X_API_KEY).map(HeaderValue::as_bytes));
        let given = given.and_then(padded).unwrap_or([0; KEY_BYTES]);
        // All of them are compared, whichever fits. No key is all zeros.
        let fits = self.keys.iter().fold(Choice::from(0), |fits, key| fits | key.ct_eq(&given));
        match bool::from(fits) {
            true => Ok(()),
            false => Err(ApiError::new(
                Kind::Authentication,
                "wrong or missing API key: send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
            )),
        }
    }
}

/// A key's bytes with zeros behind, which no header may hold.
fn padded(key: &[u8]) -> Option<[u8; KEY_BYTES]> {
    if key.is_empty() || key.len() >= KEY_BYTES {
        return None;
    }
    let mut padded = [0; KEY_BYTES];
    padded[..key.len()].copy_from_slice(key);
    Some(padded)
}

/// Whether `host`, with or without a port, is a name of this machine.
fn is_local_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.trim_end_matches('.');
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(keys: &[&str], origins: Origins, address: &str) -> Door {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        Door::new(&keys, origins, &[address.parse().unwrap()]).unwrap()
    }

    fn headers(entries: &[(&str, &str)]) -> HeaderMap {
        let entry = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn keys_are_needed_where_there_are_some() {
        let door = door(&["abc", "other"], Origins::None, "127.0.0.1:1");
        let check = |entries: &[(&str, &str)]| door.check_key(&headers(entries));
        assert!(check(&[("authorization", "Bearer abc")]).is_ok());
        assert!(check(&[("authorization", "bearer other")]).is_ok());
        assert!(check(&[("x-api-key", "abc")]).is_ok());
        let long = "x".repeat(20_000);
        for wrong in [
            &[][..],
            &[("authorization", "Bearer ")],
            &[("authorization", "Bearer ab")],
            &[("authorization", "Bearer abcd")],
            &[("authorization", "Basic abc")],
            &[("authorization", "")],
            &[("x-api-key", "")],
            &[("x-api-key", &long)],
        ] {
            assert_eq!(check(wrong).unwrap_err().kind, Kind::Authentication, "{wrong:?}");
        }
        assert!(Door::new(&[String::new()], Origins::None, &[]).is_err());
    }

    #[test]
    fn names_of_other_machines_are_refused_on_loopback() {
        let local = door(&[], Origins::None, "127.0.0.1:8484");
        let check = |door: &Door, host| door.check_page(&headers(&[("host", host)]), false);
        for host in
            ["localhost", "localhost:8484", "127.0.0.1:8484", "[::1]:8484", "127.9.9.9", "a.localhost:1"]
        {
            assert_eq!(check(&local, host), Ok(Page::No), "{host}");
        }
        for host in ["evil.example:8484", "localhost.evil.com", "192.168.1.2:8484", "[::2]:1", ""] {
            assert_eq!(check(&local, host).unwrap_err().kind, Kind::Permission, "{host}");
        }
        assert!(check(&door(&["k"], Origins::None, "0.0.0.0:8484"), "server.example").is_ok());
    }

    #[test]
    fn pages_may_ask_as_the_rules_say() {
        let may = |origins: Origins, origin| {
            let headers = headers(&[("host", "127.0.0.1:8484"), ("origin", origin)]);
            door(&[], origins, "127.0.0.1:8484").check_page(&headers, false).is_ok()
        };
        assert!(may(Origins::None, "http://127.0.0.1:8484"));
        assert!(!may(Origins::None, "http://localhost:3000"));
        assert!(!may(Origins::None, "null"));
        assert!(may(Origins::Localhost, "http://localhost:3000"));
        assert!(!may(Origins::Localhost, "http://localhost.evil.com"));
        let listed = Origins::Listed(vec!["https://a.example".into()]);
        assert!(may(listed.clone(), "https://a.example") && !may(listed, "https://a.example.evil"));
        assert!(may(Origins::Any, "https://anywhere.example"));
    }
}
