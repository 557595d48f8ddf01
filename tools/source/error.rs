//! What can go wrong between a name and the bytes that it stands for.

use std::time::Duration;

use flint_rt::base::units::display_bytes;
use flint_rt::store::Sha256Digest;

/// Why the network gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No address of that name.
    Name,
    /// No connection, or one that broke.
    Connection,
    /// No trust: certificates, versions, or bytes that are no TLS.
    Tls,
    /// Silence for as long as is waited for.
    Silence,
}

/// Why a source cannot be read.
///
/// No variant holds a token, a password or the query of a URL, so each can be shown and logged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FetchError {
    /// The argument names nothing.
    #[error("{name:?} {reason}")]
    Name {
        /// What was given.
        name: String,
        /// What is wrong with it, and what to give instead.
        reason: &'static str,
    },
    /// A variable of the environment makes no sense.
    #[error("{variable} {reason}")]
    Environment {
        /// Which one.
        variable: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub's variable for working without a network is set.
    #[error("HF_HUB_OFFLINE is set, so nothing is fetched; unset it, or name a file that is here")]
    Offline,

    /// The network.
    #[error("{host}: {text}{}", advice(*cause))]
    Network {
        /// Whom it was tried to reach.
        host: String,
        /// What kind of failure.
        cause: Cause,
        /// What the client said.
        text: String,
    },
    /// The body ended early.
    #[error("{host} ended the transfer at byte {at_bytes}, {} early", display_bytes(*left_bytes))]
    Truncated {
        /// Who sent it.
        host: String,
        /// Where it ended.
        at_bytes: u64,
        /// What was to follow.
        left_bytes: u64,
    },
    /// The server is busy or broken, or wants fewer requests.
    #[error("{host} answered {status}")]
    Busy {
        /// Who.
        host: String,
        /// 408, 425, 429 or 5xx.
        status: u16,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// It asks for more patience than we have.
    #[error("{host} answered {status} and asks to wait for {} s; run this again then", retry_after.as_secs())]
    BusyForLong {
        /// Who.
        host: String,
        /// 429 or 503.
        status: u16,
        /// How long it asks to be left alone.
        retry_after: Duration,
    },
    /// Too many failures in a row that brought next to nothing.
    #[error("gave up after {tries} tries that brought next to nothing: {last}; run this again to continue")]
    GaveUp {
        /// How many.
        tries: u32,
        /// The last of them.
        last: Box<FetchError>,
    },
    /// The person asked to stop.
    #[error("interrupted")]
    Stopped,

    /// 401 or 403.
    #[error("{host} refuses access (status {status}{code}); {remedy}", code = in_words(code.as_deref()))]
    Access {
        /// Who.
        host: String,
        /// 401 or 403.
        status: u16,
        /// The hub's word for it.
        code: Option<String>,
        /// What to do about it.
        remedy: &'static str,
    },
    /// 404 or 410.
    #[error("{url} is not there (status {status}{code}); check the name and the revision", code = in_words(code.as_deref()))]
    Missing {
        /// What was asked for.
        url: String,
        /// 404 or 410.
        status: u16,
        /// The hub's word for it.
        code: Option<String>,
    },
    /// Any other status.
    #[error("{host} answered {status}, which is no answer to a request for a file")]
    Status {
        /// Who.
        host: String,
        /// What.
        status: u16,
    },
    /// A redirect that is not followed.
    #[error("{host} redirects {reason}; nothing was fetched")]
    Redirect {
        /// Who.
        host: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// 200 where 206 was asked for.
    #[error(
        "{host} sends the whole file where the bytes from {offset_bytes} on were asked for, so a transfer cannot be \
         continued; fetch the file otherwise and name it, or use another server"
    )]
    RangeIgnored {
        /// Who.
        host: String,
        /// From where.
        offset_bytes: u64,
    },
    /// Another part than asked for, or one that contradicts itself.
    #[error(
        "{host} sends a wrong part: asked for the bytes from {offset_bytes} on, {what}; use another server"
    )]
    WrongPart {
        /// Who.
        host: String,
        /// From where.
        offset_bytes: u64,
        /// What came.
        what: String,
    },
    /// The length is not said.
    #[error("{host} does not say how long the file is; use another server")]
    LengthUnknown {
        /// Who.
        host: String,
    },
    /// The length is not the one that is known.
    #[error(
        "{host} has a file of {found_bytes} B, wanted {wanted_bytes} B: it is not the file that was asked for"
    )]
    Length {
        /// Who.
        host: String,
        /// What it says.
        found_bytes: u64,
        /// What it must be.
        wanted_bytes: u64,
    },
    /// The content is not the one that is known.
    #[error("{host} has a file with SHA-256 {found}, wanted {wanted}: it is not the file that was asked for")]
    Digest {
        /// Who.
        host: String,
        /// What it says.
        found: Sha256Digest,
        /// What it must be.
        wanted: Sha256Digest,
    },
    /// A digest for each file, or for none.
    #[error("{name} has {count} files, but {found} SHA-256 were given; give one for each, in order")]
    DigestCount {
        /// The source.
        name: String,
        /// How many were given.
        found: usize,
        /// How many there must be.
        count: usize,
    },
    /// The bytes are not the file's.
    #[error("{host} sends the file in the encoding {encoding:?} although asked not to; use another server")]
    Encoding {
        /// Who.
        host: String,
        /// Which.
        encoding: String,
    },
    /// The file is another one by now.
    #[error("{host} has another file by now ({what}); nothing was published, begin again")]
    Changed {
        /// Who.
        host: String,
        /// By what it was noticed.
        what: String,
    },
}

impl FetchError {
    /// Whether trying again may help. Where nothing of a source was ever seen, a name that does not resolve and a
    /// server that cannot be reached or trusted are taken for mistakes, and said at once.
    pub(super) fn is_transient(&self, has_worked: bool) -> bool {
        match self {
            Self::Network { cause: Cause::Silence, .. } | Self::Truncated { .. } | Self::Busy { .. } => true,
            Self::Network { .. } => has_worked,
            _ => false,
        }
    }

    /// How long the server asks to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

fn advice(cause: Cause) -> &'static str {
    match cause {
        Cause::Name => "; check the name and the network",
        Cause::Connection => "; check the network and the proxy variables",
        Cause::Tls => {
            "; check the clock and the certificates (ca-certificates, or SSL_CERT_FILE for those of your own)"
        }
        Cause::Silence => "",
    }
}

fn in_words(code: Option<&str>) -> String {
    code.map(|code| format!(", {code}")).unwrap_or_default()
}
