//! Models from a server that fails in every way: the bytes are the file's, or there is a clear error and no store.
//!
//! The first part reads through the source of `tools/source`, the second runs the real binary.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/fault_server.rs"]
mod fault_server;
#[allow(dead_code, unused_imports, reason = "of the program's module this test uses a part")]
#[path = "../tools/source/mod.rs"]
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fault_server::{Asked, Fault, FaultServer};
use flint_rt::store::Sha256Digest;
use serde_json::Value;
use source::{FetchError, FetchOptions, HttpSource, Patience, Url};
use tempfile::TempDir;

// ---- The source by itself.

fn content() -> Arc<Vec<u8>> {
    let mut state = 7u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    Arc::new((0..3_000_001).map(next).collect())
}

fn options() -> FetchOptions {
    FetchOptions {
        patience: Patience {
            tries_max: 4,
            first_wait: Duration::from_millis(5),
            silence: Duration::from_millis(400),
        },
        is_stopped: || false,
        note: |_| {},
    }
}

fn open(server: &FaultServer) -> Result<HttpSource, FetchError> {
    HttpSource::open(Url::parse(&server.url("/model.gguf")).unwrap(), None, options())
}

fn read_from(source: &mut HttpSource, start: usize) -> Result<Vec<u8>, FetchError> {
    let mut read = Vec::new();
    let mut chunk = vec![0; 300_000];
    // Reads of many lengths, so that chunks and reads end at different places.
    for len in (1..).map(|step| step * 7919 % 300_000) {
        let got = source.fetch((start + read.len()) as u64, &mut chunk[..len])?;
        if got == 0 {
            break;
        }
        read.extend_from_slice(&chunk[..got]);
    }
    Ok(read)
}

/// What reading all gives when the first requests go wrong like this, and the others do not.
fn read_with(faults: Vec<Fault>) -> (Result<Vec<u8>, FetchError>, Vec<Asked>) {
    let server = FaultServer::start(content(), move |asked| {
        faults.get(asked.number).cloned().unwrap_or(Fault::None)
    });
    let read = open(&server).and_then(|mut source| read_from(&mut source, 0));
    (read, server.asked())
}

#[test]
fn what_breaks_off_is_continued_at_the_next_byte() {
    let faults = [
        Fault::Drop(0),
        Fault::Drop(1),
        Fault::Drop(1_234_567),
        Fault::Stall(500_000),
        Fault::Short(1),
        Fault::Short(700_000),
        Fault::Slow(400_000),
        Fault::Chunked,
        Fault::Whole,
        Fault::None,
    ];
    for fault in faults {
        let (read, asked) = read_with(vec![fault.clone()]);
        assert!(read.unwrap_or_else(|error| panic!("{fault:?}: {error}")) == *content(), "{fault:?}");
        assert!(asked.len() <= 2, "{fault:?}: {} requests", asked.len());
        assert!(asked.iter().all(|asked| asked.accept_encoding.as_deref() == Some("identity")), "{fault:?}");
        for asked in &asked[1..] {
            assert_eq!(asked.if_range.as_deref(), Some("\"first\""), "{fault:?}");
            assert!(asked.first_byte.is_some(), "{fault:?}");
        }
    }
    // Many in a row, each after some bytes.
    let (read, asked) = read_with((1..20).map(|step| Fault::Drop(step * 10_000)).collect());
    assert!(read.unwrap() == *content());
    assert_eq!(asked.len(), 20);
}

#[test]
fn a_busy_or_mute_server_is_asked_again() {
    let faults = [
        Fault::Status(429, "Retry-After: 0"),
        Fault::Status(500, ""),
        Fault::Status(502, ""),
        Fault::Status(503, "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT"),
        Fault::Status(504, ""),
        Fault::Status(408, ""),
        Fault::Mute,
    ];
    for fault in faults {
        // At the first request, and in the middle.
        let (read, asked) = read_with(vec![fault.clone(), Fault::Drop(1_000_000), fault.clone(), fault.clone()]);
        assert!(read.unwrap_or_else(|error| panic!("{fault:?}: {error}")) == *content(), "{fault:?}");
        assert_eq!(asked.len(), 5, "{fault:?}");
    }
    let start = Instant::now();
    let (read, _) = read_with(vec![Fault::Status(429, "Retry-After: 1")]);
    assert!(read.unwrap() == *content());
    assert!(start.elapsed() >= Duration::from_secs(1), "the server's wish is obeyed");
    let (read, asked) = read_with(vec![Fault::Status(429, "Retry-After: 86400")]);
    assert!(matches!(read, Err(FetchError::BusyForLong { .. })), "{read:?}");
    assert_eq!(asked.len(), 1);
}

#[test]
fn a_server_that_gives_nothing_is_given_up() {
    for fault in [Fault::Refuse, Fault::Drop(0), Fault::Status(503, ""), Fault::Mute] {
        let mut faults = vec![Fault::Drop(1_000_000)];
        faults.resize(50, fault.clone());
        let (read, asked) = read_with(faults);
        assert!(matches!(read, Err(FetchError::GaveUp { tries: 4, .. })), "{fault:?}: {read:?}");
        assert!((4..=5).contains(&asked.len()), "{fault:?}: {} requests", asked.len());
    }
}

#[test]
fn what_is_no_part_of_this_file_is_refused() {
    let other: Arc<Vec<u8>> = Arc::new(content().iter().map(|byte| byte ^ 1).collect());
    let shorter = Arc::new(content()[..2_000_000].to_vec());
    let cut = Arc::new(content()[..500_000].to_vec());
    // (what the second request meets, what it is called)
    let faults: Vec<(Fault, fn(&FetchError) -> bool)> = vec![
        (Fault::Whole, |error| matches!(error, FetchError::RangeIgnored { offset_bytes: 1_000_000, .. })),
        (Fault::NoLength, |error| matches!(error, FetchError::LengthUnknown { .. })),
        (Fault::Other(other), |error| matches!(error, FetchError::Changed { .. })),
        (Fault::Other(shorter), |error| matches!(error, FetchError::Changed { .. })),
        (Fault::Other(cut), |error| matches!(error, FetchError::Changed { .. })),
        (Fault::OtherTag, |error| matches!(error, FetchError::Changed { .. })),
        (Fault::NoTag, |error| matches!(error, FetchError::Changed { .. })),
        (Fault::Status(412, ""), |error| matches!(error, FetchError::Changed { .. })),
        (Fault::OtherTotal(1), |error| matches!(error, FetchError::Changed { .. })),
        (Fault::ShiftedRange(1), |error| matches!(error, FetchError::WrongPart { .. })),
        (Fault::ShiftedRange(-1_000_000), |error| matches!(error, FetchError::WrongPart { .. })),
        (Fault::OtherLength(1), |error| matches!(error, FetchError::WrongPart { .. })),
        (Fault::OtherLength(-1), |error| matches!(error, FetchError::WrongPart { .. })),
        (Fault::NoRange, |error| matches!(error, FetchError::WrongPart { .. })),
        (Fault::Gzip, |error| matches!(error, FetchError::Encoding { .. })),
        (Fault::Status(404, ""), |error| matches!(error, FetchError::Missing { status: 404, .. })),
        (Fault::Status(403, ""), |error| matches!(error, FetchError::Access { status: 403, .. })),
        (Fault::Status(204, ""), |error| matches!(error, FetchError::Status { status: 204, .. })),
        (Fault::Status(304, ""), |error| matches!(error, FetchError::Status { status: 304, .. })),
        (Fault::Redirect(302, "ftp://x/y".to_owned()), |error| matches!(error, FetchError::Redirect { .. })),
        (Fault::Redirect(302, "?again".to_owned()), |error| matches!(error, FetchError::Redirect { .. })),
    ];
    for (fault, is_right) in faults {
        let mut script = vec![Fault::Drop(1_000_000)];
        script.resize(20, fault.clone());
        let (read, asked) = read_with(script);
        let error = read.expect_err("wrong bytes were taken");
        assert!(is_right(&error), "{fault:?}: {error}");
        let is_loop = matches!(fault, Fault::Redirect(_, ref place) if place == "?again");
        assert!(asked.len() <= 2 || is_loop, "{fault:?}: {} requests", asked.len());
    }
    // At the first request there is nothing to compare with, but lies are seen.
    for fault in [Fault::ShiftedRange(1), Fault::OtherLength(1), Fault::NoRange, Fault::NoLength, Fault::Gzip] {
        let (read, _) = read_with(vec![fault.clone()]);
        assert!(read.is_err(), "{fault:?}");
    }
}

#[test]
fn a_source_reads_from_any_byte_on() {
    let server = FaultServer::start(content(), |_| Fault::None);
    let mut source = open(&server).unwrap();
    for start in [2_999_999, 0, 1, 1_500_000] {
        assert!(read_from(&mut source, start).unwrap() == content()[start..], "{start}");
    }
    assert_eq!(source.fetch(3_000_001, &mut [0; 8]).unwrap(), 0, "the end");
}

#[test]
fn mistakes_are_said_at_once() {
    // Nobody listens at a port that was just given back.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let garbage = FaultServer::start(content(), |_| Fault::Garbage);
    let plain = FaultServer::start(content(), |_| Fault::None);
    for (url, words) in [
        (format!("http://{closed}/x"), "check the network"),
        ("http://no-such-host.invalid/x".to_owned(), "check the name"),
        (garbage.url("/x"), "check the network"),
        (format!("https://{}/x", plain.address()), "certificates"),
    ] {
        let start = Instant::now();
        let error = HttpSource::open(Url::parse(&url).unwrap(), None, options()).err().expect("opened");
        assert!(error.to_string().contains(words), "{url}: {error}");
        assert!(start.elapsed() < Duration::from_secs(5), "{url}");
    }
}

#[test]
fn a_wait_ends_when_the_person_asks() {
    static IS_STOPPED: AtomicBool = AtomicBool::new(false);
    let server = FaultServer::start(content(), |_| Fault::Stall(100_000));
    let mut options = options();
    options.patience.silence = Duration::from_secs(20);
    options.is_stopped = || IS_STOPPED.load(Ordering::SeqCst);
    let mut source = HttpSource::open(Url::parse(&server.url("/x")).unwrap(), None, options).unwrap();
    let start = Instant::now();
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(300));
        IS_STOPPED.store(true, Ordering::SeqCst);
    });
    assert!(matches!(read_from(&mut source, 0), Err(FetchError::Stopped)));
    assert!(start.elapsed() < Duration::from_secs(2));
}
