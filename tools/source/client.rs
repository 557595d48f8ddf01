//! One request, with its redirects: TLS, proxies, time limits, and who gets the token.
//!
//! - Owns: the connections' settings. In: a URL and where to begin. Out: a [`Reply`] whose body has not been read.
//! - Invariants: the token goes to its own origin only, never over plain http to another machine, and never along a
//!   redirect; a redirect from https to http is refused; nothing compressed is asked for.

use std::time::Duration;

use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, IF_RANGE, LOCATION, RANGE};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use crate::source::error::{Cause, FetchError};
use crate::source::hub::Token;
use crate::source::url::Url;

const REDIRECTS_MAX: u32 = 10;

/// Bytes of a read from a connection.
const BUFFER_BYTES: usize = 256 << 10;

/// A client for one source.
#[derive(Debug)]
pub(super) struct Client {
    direct: Agent,
    /// By scheme: http, https.
    proxied: [Option<Agent>; 2],
    no_proxy: Vec<String>,
    token: Option<(Url, Token)>,
}

/// What a server answered.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    /// Of the first answer; the hub says there what it redirects to.
    pub(super) first_headers: HeaderMap,
    /// Who answered in the end.
    pub(super) host: String,
    pub(super) is_redirected: bool,
    pub(super) has_token: bool,
    pub(super) body: Body,
}

impl Client {
    /// A client that waits for no byte longer than `silence`, and sends `token` to its origin.
    pub(super) fn new(
        silence: Duration,
        token: Option<(Url, Token)>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, FetchError> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let tls = TlsConfig::builder().root_certs(root_certs(&set)?).build();
        let agent = |proxy: Option<Proxy>| {
            let config = Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .user_agent(concat!("flint-rt/", env!("CARGO_PKG_VERSION")))
                .input_buffer_size(BUFFER_BYTES)
                .tls_config(tls.clone())
                .proxy(proxy)
                .timeout_resolve(Some(silence))
                .timeout_connect(Some(silence))
                .timeout_send_request(Some(silence))
                .timeout_recv_response(Some(silence))
                .timeout_per_read(Some(silence))
                .timeout_per_write(Some(silence));
            config.build().new_agent()
        };
        // HTTP_PROXY in capitals is not asked: web servers set it from a request's header.
        let proxied = [
            ["http_proxy", "all_proxy", "ALL_PROXY"].as_slice(),
            &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        ]
        .map(|names| names.iter().find_map(|name| Some((*name, set(name)?))));
        let [http, https] = proxied.map(|found| {
            let Some((variable, url)) = found else { return Ok(None) };
            let reason = "is no URL of an http proxy".to_owned();
            Proxy::new(&url)
                .map(|proxy| Some(agent(Some(proxy))))
                .map_err(|_| FetchError::Environment { variable, reason })
        });
        let no_proxy = set("no_proxy").or_else(|| set("NO_PROXY")).unwrap_or_default();
        let no_proxy = no_proxy.split(',').map(|name| name.trim().to_ascii_lowercase());
        Ok(Self {
            direct: agent(None),
            proxied: [http?, https?],
            no_proxy: no_proxy.filter(|name| !name.is_empty()).collect(),
            token,
        })
    }

    /// Asks for the bytes from `offset_bytes` on; with `if_range`, if the file is still that one.
    pub(super) fn get(
        &self,
        url: &Url,
        offset_bytes: u64,
        if_range: Option<&str>,
    ) -> Result<Reply, FetchError> {
        let mut place = url.clone();
        let mut first_headers = None;
        for _ in 0..=REDIRECTS_MAX {
            let token = self.token_for(&place);
            let mut request = self.agent_for(&place).get(place.uri().clone());
            request =
                request.header(ACCEPT_ENCODING, "identity").header(RANGE, format!("bytes={offset_bytes}-"));
            if let Some(validator) = if_range {
                request = request.header(IF_RANGE, validator);
            }
            if let Some(token) = token {
                request = request.header(AUTHORIZATION, token.authorization());
            }
            let (parts, body) =
                request.call().map_err(|error| network_error(&error, place.host_and_port()))?.into_parts();
            let first = first_headers.get_or_insert_with(|| parts.headers.clone());
            let status = parts.status.as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return Ok(Reply {
                    status,
                    first_headers: std::mem::take(first),
                    headers: parts.headers,
                    host: place.host_and_port().to_owned(),
                    is_redirected: place != *url,
                    has_token: token.is_some(),
                    body,
                });
            }
            let refuse = |reason| FetchError::Redirect { host: place.host_and_port().to_owned(), reason };
            let location = parts.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            let location = location.ok_or_else(|| refuse("without saying where to"))?;
            let next = place.join(location).map_err(|_| refuse("to what is no http or https URL"))?;
            if place.scheme() == "https" && next.scheme() == "http" {
                return Err(refuse("from https to http"));
            }
            place = next;
        }
        Err(FetchError::Redirect { host: place.host_and_port().to_owned(), reason: "without an end" })
    }

    fn token_for(&self, place: &Url) -> Option<&Token> {
        let (origin, token) = self.token.as_ref()?;
        (place.is_same_origin(origin) && !place.is_overheard()).then_some(token)
    }

    fn agent_for(&self, place: &Url) -> &Agent {
        let host = place.uri().host().unwrap_or_default().to_ascii_lowercase();
        let proxied = &self.proxied[usize::from(place.scheme() == "https")];
        match proxied {
            Some(agent) if !self.no_proxy.iter().any(|name| is_covered(&host, name)) => agent,
            _ => &self.direct,
        }
    }
}

/// Whether an entry of `no_proxy` means `host`: itself, or a domain that it lies in.
fn is_covered(host: &str, entry: &str) -> bool {
    let domain = entry.trim_start_matches('*').trim_start_matches('.');
    let is_below = || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    entry == "*" || (!domain.is_empty() && (host == domain || is_below()))
}

/// The system's certificates, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name; where there are none, Mozilla's.
fn root_certs(set: &dyn Fn(&str) -> Option<String>) -> Result<RootCerts, FetchError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        // Whoever names certificates trusts those, and no others.
        let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().find(|name| set(name).is_some());
        let Some(variable) = named else { return Ok(RootCerts::WebPki) };
        let why = found.errors.first().map_or_else(|| "there is none".to_owned(), ToString::to_string);
        return Err(FetchError::Environment { variable, reason: format!("leads to no certificate: {why}") });
    }
    let certs = found.certs.iter().map(|der| Certificate::from_der(der).to_owned());
    Ok(RootCerts::new_with_certs(&certs.collect::<Vec<_>>()))
}

/// What the client says, in our words.
pub(super) fn network_error(error: &ureq::Error, host: &str) -> FetchError {
    let cause = match error {
        ureq::Error::HostNotFound => Cause::Name,
        ureq::Error::Timeout(_) => Cause::Silence,
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::TlsRequired => Cause::Tls,
        // The standard library has no kind for it, only these words.
        ureq::Error::Io(error) if error.to_string().starts_with("failed to lookup address") => Cause::Name,
        // What rustls finds wrong with a peer it says through the stream, as invalid data.
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => Cause::Tls,
        _ => Cause::Connection,
    };
    let text = match error {
        ureq::Error::HostNotFound => "there is no such host".to_owned(),
        ureq::Error::Timeout(what) => format!("no answer in time ({what})"),
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    };
    FetchError::Network { host: host.to_owned(), cause, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_without_proxy_covers_what_lies_in_it() {
        for (host, entry, wanted) in [
            ("a.example", "*", true),
            ("a.example", "a.example", true),
            ("b.a.example", "a.example", true),
            ("b.a.example", ".a.example", true),
            ("b.a.example", "*.a.example", true),
            ("ba.example", "a.example", false),
            ("a.example", ".", false),
        ] {
            assert_eq!(is_covered(host, entry), wanted, "{host} by {entry}");
        }
    }
}
