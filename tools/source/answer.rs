//! What an answer's head says of the file, and whether it is what was asked for.
//!
//! - In: status and headers, and what is known of the file. Out: an [`Answer`], or why not.
//! - Invariants: pure. Bytes are taken only from an answer that names the file's length and the place of its first
//!   byte, both as expected, and that does not contradict what was known of the file.

use std::time::{Duration, SystemTime};

use ureq::http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, LAST_MODIFIED,
    RETRY_AFTER,
};

use crate::source::client::Reply;
use crate::source::error::FetchError;
use crate::source::retry::seconds_of;

/// By what a file is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The length of the whole file.
    pub(crate) len_bytes: u64,
    /// The server's tag for this content; a hub's is better than that of whom it redirects to.
    pub(crate) etag: Option<String>,
    /// When the file was changed last, as the server writes it.
    pub(crate) modified: Option<String>,
    /// The commit that a hub's revision means.
    pub(crate) commit: Option<String>,
    /// SHA-256 in hexadecimal digits, where a hub tells it.
    pub(crate) sha256: Option<String>,
}

impl Identity {
    /// By what `found` is seen to be another file.
    fn difference(&self, found: &Self) -> Option<String> {
        if self.len_bytes != found.len_bytes {
            return Some(format!("{} B, was {} B", found.len_bytes, self.len_bytes));
        }
        if self.etag.is_some() || found.etag.is_some() {
            let shown = |etag: &Option<String>| etag.clone().unwrap_or_else(|| "none".to_owned());
            let is_same = self.etag == found.etag;
            return (!is_same).then(|| format!("tag {}, was {}", shown(&found.etag), shown(&self.etag)));
        }
        let shown = |date: &Option<String>| date.clone().unwrap_or_else(|| "no date".to_owned());
        (self.modified != found.modified)
            .then(|| format!("of {}, was {}", shown(&found.modified), shown(&self.modified)))
    }

    /// What to send so that a server that has another file by now says so.
    pub(super) fn if_range(&self) -> Option<&str> {
        // A hub's own tag means nothing to whom it redirects to; a weak tag promises too little.
        match &self.etag {
            Some(etag) if self.sha256.is_none() && self.commit.is_none() && etag.starts_with('"') => {
                Some(etag)
            }
            Some(_) => None,
            None => self.modified.as_deref(),
        }
    }
}

/// A body that may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) identity: Identity,
    /// Where in the file the body ends.
    pub(super) end_bytes: u64,
}

/// Judges the answer to a request for the bytes from `offset_bytes` on.
pub(super) fn check(
    reply: &Reply,
    offset_bytes: u64,
    known: Option<&Identity>,
    url: &str,
) -> Result<Answer, FetchError> {
    let host = || reply.host.clone();
    match reply.status {
        200 | 206 => {}
        401 | 403 => {
            let remedy = match (reply.has_token, reply.is_redirected) {
                (_, true) => "it is another server than the one that was named: run this again",
                (true, _) => {
                    "the token was sent; ask for access on the page of the model, or use another token"
                }
                (false, _) => "if the file is on a hub, set HF_TOKEN to a token that may read it",
            };
            let code = hub_code(&reply.headers);
            return Err(FetchError::Access { host: host(), status: reply.status, code, remedy });
        }
        404 | 410 => {
            let code = hub_code(&reply.headers);
            return Err(FetchError::Missing { url: url.to_owned(), status: reply.status, code });
        }
        412 => return Err(FetchError::Changed { host: host(), what: "status 412".to_owned() }),
        416 => return Err(unsatisfiable(reply, offset_bytes, known)),
        status @ (408 | 425 | 429 | 500 | 502..=504 | 506..=599) => {
            let now = SystemTime::now();
            let retry_after =
                text(&reply.headers, RETRY_AFTER.as_str()).and_then(|text| seconds_of(text, now));
            return Err(FetchError::Busy {
                host: host(),
                status,
                retry_after: retry_after.map(Duration::from_secs),
            });
        }
        status => return Err(FetchError::Status { host: host(), status }),
    }
    if let Some(encoding) = text(&reply.headers, CONTENT_ENCODING.as_str()).filter(|&name| name != "identity")
    {
        return Err(FetchError::Encoding { host: host(), encoding: encoding.to_owned() });
    }
    let part = match reply.status {
        206 => part_of(reply, offset_bytes)?,
        _ => whole_of(reply)?,
    };
    let identity = identity_of(reply, part.total_bytes)?;
    // A file that was replaced is worse news than a server without ranges, and may come with it.
    if let Some(what) = known.and_then(|known| known.difference(&identity)) {
        return Err(FetchError::Changed { host: host(), what });
    }
    if reply.status == 200 && offset_bytes > 0 {
        return Err(FetchError::RangeIgnored { host: host(), offset_bytes });
    }
    Ok(Answer { identity, end_bytes: part.end_bytes })
}

struct Part {
    end_bytes: u64,
    total_bytes: u64,
}

fn part_of(reply: &Reply, offset_bytes: u64) -> Result<Part, FetchError> {
    let wrong = |what: String| FetchError::WrongPart { host: reply.host.clone(), offset_bytes, what };
    let kind = text(&reply.headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    if kind.starts_with("multipart/") {
        return Err(wrong("got several parts".to_owned()));
    }
    let said = text(&reply.headers, CONTENT_RANGE.as_str())
        .ok_or_else(|| wrong("got no Content-Range".to_owned()))?;
    let (first, last, total_bytes) =
        content_range(said).ok_or_else(|| wrong(format!("got Content-Range {said:?}")))?;
    let len_bytes = content_length(&reply.headers);
    let is_whole = first == offset_bytes && first <= last && last < total_bytes;
    if !is_whole || len_bytes.is_some_and(|len_bytes| len_bytes != last - first + 1) {
        let len = len_bytes.map(|len_bytes| format!(" with Content-Length {len_bytes}")).unwrap_or_default();
        return Err(wrong(format!("got Content-Range {said:?}{len}")));
    }
    Ok(Part { end_bytes: last + 1, total_bytes })
}

fn whole_of(reply: &Reply) -> Result<Part, FetchError> {
    let len_bytes = content_length(&reply.headers);
    let total_bytes = len_bytes.ok_or_else(|| FetchError::LengthUnknown { host: reply.host.clone() })?;
    Ok(Part { end_bytes: total_bytes, total_bytes })
}

/// 416: the file is shorter than it was, or the server is confused.
fn unsatisfiable(reply: &Reply, offset_bytes: u64, known: Option<&Identity>) -> FetchError {
    let host = reply.host.clone();
    let said = text(&reply.headers, CONTENT_RANGE.as_str()).unwrap_or_default();
    let total = said.strip_prefix("bytes */").and_then(|total| total.parse::<u64>().ok());
    match (total, known) {
        (Some(total), Some(known)) if total != known.len_bytes => {
            FetchError::Changed { host, what: format!("{total} B, was {} B", known.len_bytes) }
        }
        _ => FetchError::WrongPart { host, offset_bytes, what: "got status 416".to_owned() },
    }
}

fn identity_of(reply: &Reply, len_bytes: u64) -> Result<Identity, FetchError> {
    // Where a hub redirects, it says beforehand what its file is. Whom it redirects to need not know these headers.
    let linked = |name: &str| text(&reply.first_headers, name).or_else(|| text(&reply.headers, name));
    if let Some(wanted_bytes) = linked("x-linked-size").and_then(|text| text.parse().ok())
        && wanted_bytes != len_bytes
    {
        return Err(FetchError::Length { host: reply.host.clone(), found_bytes: len_bytes, wanted_bytes });
    }
    let linked_etag = linked("x-linked-etag");
    let bare = linked_etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
    let is_sha256 = |text: &&str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(Identity {
        len_bytes,
        etag: linked_etag.or_else(|| text(&reply.headers, ETAG.as_str())).map(str::to_owned),
        modified: text(&reply.headers, LAST_MODIFIED.as_str()).map(str::to_owned),
        commit: linked("x-repo-commit").map(str::to_owned),
        sha256: bare.filter(is_sha256).map(str::to_ascii_lowercase),
    })
}

/// `bytes FIRST-LAST/TOTAL`.
fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
    let (span, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = span.split_once('-')?;
    Some((number(first)?, number(last)?, number(total)?))
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    text(headers, CONTENT_LENGTH.as_str())?.parse().ok()
}

/// What the hub calls the reason of a refusal.
fn hub_code(headers: &HeaderMap) -> Option<String> {
    let code = text(headers, "x-error-code")?;
    (code.len() <= 40 && code.bytes().all(|byte| byte.is_ascii_alphanumeric())).then(|| code.to_owned())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read_strictly() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, 9, 10)), "plain");
        for text in [
            "bytes 5-9/*",
            "bytes */10",
            "5-9/10",
            "bytes=5-9/10",
            "bytes +5-9/10",
            "bytes 5-/10",
            "bytes -9/10",
        ] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    #[test]
    fn a_file_is_another_when_length_tag_or_date_differ() {
        let file = |len_bytes, etag: Option<&str>, modified: Option<&str>| Identity {
            len_bytes,
            etag: etag.map(str::to_owned),
            modified: modified.map(str::to_owned),
            commit: None,
            sha256: None,
        };
        let is_same = |a: &Identity, b: &Identity| a.difference(b).is_none();
        let tagged = file(9, Some("\"a\""), Some("Monday"));
        assert!(is_same(&tagged, &file(9, Some("\"a\""), Some("Tuesday"))), "a tag says more than a date");
        assert!(!is_same(&tagged, &file(9, Some("\"b\""), Some("Monday"))), "tag");
        assert!(!is_same(&tagged, &file(8, Some("\"a\""), Some("Monday"))), "length");
        assert!(!is_same(&tagged, &file(9, None, Some("Monday"))), "no tag any more");
        assert!(!is_same(&file(9, None, Some("Monday")), &file(9, None, Some("Tuesday"))), "date");
        assert!(is_same(&file(9, None, None), &file(9, None, None)), "nothing but the length to go by");
        assert_eq!(tagged.if_range(), Some("\"a\""), "strong");
        assert_eq!(file(9, Some("W/\"a\""), None).if_range(), None, "weak");
        assert_eq!(file(9, None, Some("Monday")).if_range(), Some("Monday"), "date");
    }
}
