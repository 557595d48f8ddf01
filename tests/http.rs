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
#[path = "support/ingest_run.rs"]
mod ingest_run;
#[allow(dead_code, unused_imports, reason = "of the program's module this test uses a part")]
#[path = "../tools/source/mod.rs"]
mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fault_server::{Asked, Fault, FaultServer};
use ingest_run::{Home, Ran, model, sha256_of, wanted};
use serde_json::Value;
use source::http::HttpSource;
use source::{FetchError, FetchOptions, Patience, Url};

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
    let server =
        FaultServer::start(content(), move |asked| faults.get(asked.number).cloned().unwrap_or(Fault::None));
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
        let (read, asked) =
            read_with(vec![fault.clone(), Fault::Drop(1_000_000), fault.clone(), fault.clone()]);
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
    type IsRight = fn(&FetchError) -> bool;
    let faults: Vec<(Fault, IsRight)> = vec![
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
    for fault in [Fault::ShiftedRange(1), Fault::OtherLength(1), Fault::NoRange, Fault::NoLength, Fault::Gzip]
    {
        let (read, _) = read_with(vec![fault.clone()]);
        assert!(read.is_err(), "{fault:?}");
    }
}

#[test]
fn a_server_that_drips_is_given_up() {
    // 409 bytes in 400 ms would be enough; this gives 8.
    let (read, asked) = read_with(vec![Fault::Drip(1_000_000)]);
    assert!(read.unwrap() == *content(), "once: gone on with");
    assert_eq!(asked.len(), 2);
    let start = Instant::now();
    let mut faults = vec![Fault::Drop(1_000_000)];
    faults.resize(50, Fault::Drip(0));
    let (read, asked) = read_with(faults);
    let error = read.expect_err("a drip was waited for");
    assert!(matches!(error, FetchError::GaveUp { tries: 4, .. }), "{error}");
    assert!(error.to_string().contains("came in 0."), "{error}");
    assert_eq!(asked.len(), 4);
    assert!(start.elapsed() < Duration::from_secs(60));
    // Parts of one byte are a drip, too.
    let (read, _) = read_with(vec![Fault::Short(1); 50]);
    assert!(matches!(read, Err(FetchError::GaveUp { tries: 4, .. })), "{read:?}");
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
        assert!(start.elapsed() < Duration::from_secs(30), "{url}");
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
    assert!(start.elapsed() < Duration::from_secs(15));
}

// ---- The real binary.

const PATH: &str = "/m/flint-nano-q4_1.gguf";

#[test]
fn a_store_from_a_bad_line_is_the_store_from_the_file() {
    let (wanted, sha256) = (wanted(), sha256_of(&model()));
    let scripts = [
        vec![],
        vec![Fault::Drop(3_000_000), Fault::Status(503, ""), Fault::Drop(10_000), Fault::Stall(2_000_000)],
        vec![Fault::Mute, Fault::Short(5_000_000), Fault::Chunked],
        vec![Fault::Redirect(307, format!("{PATH}?key=signed_secret")), Fault::Slow(100_000)],
        vec![Fault::Whole],
        vec![Fault::NoTag],
    ];
    for script in scripts {
        let faults = script.clone();
        let server = FaultServer::start(model(), move |asked| {
            faults.get(asked.number).cloned().unwrap_or(Fault::None)
        });
        let home = Home::new();
        let ran = home.run(&server.url(PATH), &["--sha256", &sha256, "--json"]).gives(0);
        assert!(home.files() == wanted, "{script:?}");
        let events: Vec<Value> =
            ran.stdout.lines().map(|line| serde_json::from_str(line).expect("one event a line")).collect();
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last["event"], "done", "{script:?}");
        assert_eq!(last["source_sha256"], sha256.as_str(), "{script:?}");
        assert!(before.iter().any(|event| event["event"] == "progress"), "{script:?}");
    }
}

#[test]
fn what_fails_publishes_nothing_and_goes_on_later() {
    let (wanted, sha256) = (wanted(), sha256_of(&model()));
    let other: Arc<Vec<u8>> = Arc::new(model().iter().map(|byte| byte ^ 1).collect());
    let faults = [
        Fault::Refuse,
        Fault::Status(500, ""),
        Fault::Status(404, ""),
        Fault::Status(429, "Retry-After: 7200"),
        Fault::Other(other),
        Fault::OtherTag,
        Fault::Whole,
        Fault::ShiftedRange(4096),
        Fault::OtherTotal(1),
        Fault::OtherLength(1),
        Fault::Gzip,
        Fault::Mute,
    ];
    for fault in faults {
        let home = Home::new();
        let is_well = Arc::new(AtomicBool::new(false));
        let (heals, broken) = (Arc::clone(&is_well), fault.clone());
        let server = FaultServer::start(model(), move |asked| match asked.number {
            _ if heals.load(Ordering::SeqCst) => Fault::None,
            0 => Fault::Drop(9_000_000),
            _ => broken.clone(),
        });
        let ran = home.run(&server.url(PATH), &["--sha256", &sha256]);
        assert!(matches!(ran.code, Some(1 | 3)), "{fault:?}: {:?} {}", ran.code, ran.stderr);
        assert_eq!(ran.stdout, "", "{fault:?}");
        assert!(!home.store().exists(), "{fault:?}");
        is_well.store(true, Ordering::SeqCst);
        home.run(&server.url(PATH), &["--sha256", &sha256]).gives(0);
        assert!(home.files() == wanted, "{fault:?}");
    }
}

#[test]
fn a_content_that_nobody_vouches_for_needs_a_word() {
    let server = FaultServer::start(model(), |_| Fault::None);
    let (home, url) = (Home::new(), server.url(PATH));
    home.run(&url, &[]).gives(2).says("--sha256");
    assert!(!home.store().exists());
    home.run(&url, &["--sha256", &"0".repeat(64)]).gives(3).says("wanted 0000");
    assert!(!home.store().exists());
    home.run(&url, &["--sha256", "123"]).gives(2);
    let home = Home::new();
    home.run(&url, &["--force-unverified"]).gives(0);
    assert!(home.files() == wanted());
}

#[test]
fn a_file_of_a_hub_is_checked_by_what_the_hub_says_of_it() {
    let sha256 = sha256_of(&model());
    let storage = FaultServer::start(model(), |_| Fault::None);
    let place = storage.url("/blob?Signature=signed_secret");
    let told = sha256.clone();
    let hub = FaultServer::start(model(), move |asked| match asked.authorization.as_deref() {
        Some("Bearer hf_secret") => Fault::HubRedirect(place.clone(), told.clone()),
        _ => Fault::Status(401, "X-Error-Code: GatedRepo"),
    });
    let name = "o/r/q4/flint-nano-q4_1.gguf@v1.0";
    let run = |home: &Home, token: Option<&str>| {
        let mut command = home.command(name, &[]);
        command.env("HF_ENDPOINT", hub.url("/")).envs(token.map(|token| ("HF_TOKEN", token)));
        Ran::new(command.output().unwrap())
    };
    let home = Home::new();
    run(&home, None).gives(3).says("HF_TOKEN");
    run(&home, Some("hf_other")).gives(3).says("ask for access");
    run(&home, Some("hf_secret")).gives(0);
    assert!(home.files() == wanted());
    assert!(hub.asked().iter().all(|asked| asked.path == "/o/r/resolve/v1.0/q4/flint-nano-q4_1.gguf"));
    assert!(!storage.asked().is_empty());
    assert!(storage.asked().iter().all(|asked| asked.authorization.is_none()), "the token stays at the hub");

    // A hub that says something else than what its storage sends.
    let place = storage.url("/blob");
    let hub = FaultServer::start(model(), move |_| Fault::HubRedirect(place.clone(), "1".repeat(64)));
    let home = Home::new();
    let mut command = home.command(name, &[]);
    command.env("HF_ENDPOINT", hub.url("/"));
    Ran::new(command.output().unwrap()).gives(3).says("wanted 1111");
    assert!(!home.store().exists());
}

#[test]
fn a_token_goes_to_its_hub_only() {
    let other = FaultServer::start(model(), |_| Fault::None);
    let elsewhere = other.url("/x/flint-nano-q4_1.gguf");
    let hub = FaultServer::start(model(), move |_| Fault::Redirect(301, elsewhere.clone()));
    let sha256 = sha256_of(&model());
    let run = |source: &str| {
        let home = Home::new();
        let mut command = home.command(source, &["--sha256", &sha256]);
        command.env("HF_ENDPOINT", hub.url("")).env("HF_TOKEN", "hf_secret");
        Ran::new(command.output().unwrap()).gives(0);
        // Not in the journal nor anywhere else, either.
        assert!(home.files().values().all(|bytes| !bytes.windows(9).any(|part| part == b"hf_secret")));
    };
    run("o/r/flint-nano-q4_1.gguf");
    run(&other.url(PATH));
    assert_eq!(hub.asked()[0].authorization.as_deref(), Some("Bearer hf_secret"));
    assert!(other.asked().len() >= 2 && other.asked().iter().all(|asked| asked.authorization.is_none()));
}

#[test]
fn nothing_named_is_the_pinned_file_and_no_other() {
    let hub = FaultServer::start(model(), |_| Fault::None);
    let home = Home::new();
    let mut command = home.command("", &[]);
    command.env("HF_ENDPOINT", hub.url(""));
    // This server has some file under that name; it is not the one.
    Ran::new(command.output().unwrap()).gives(3).says("wanted 25992966976 B");
    let wanted =
        "/RecursiveSI/flint-int4-gguf/resolve/9c47151036bc2c34331142dda04488bceab2bc9f/flint-int4-q4_1.gguf";
    assert_eq!(hub.asked()[0].path, wanted);
    let mut command = home.command("", &[]);
    command.env("HF_ENDPOINT", hub.url("")).env("HF_HUB_OFFLINE", "1");
    Ran::new(command.output().unwrap()).gives(1).says("HF_HUB_OFFLINE");
}

#[test]
fn names_that_mean_nothing_are_usage_faults_or_missing_files() {
    let home = Home::new();
    home.run("ftp://host/x.gguf", &[]).gives(2).says("no http or https URL");
    home.run("https://me:hf_secret@host/x.gguf", &[]).gives(2).says("password");
    home.run("owner/repo", &[]).gives(2).says("owner/repo/file");
    home.run("./not/here.gguf", &[]).gives(3).says("not/here.gguf");
}

#[test]
fn an_interrupted_fetch_ends_at_once_and_goes_on_where_it_was() {
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        a_signal_ends_a_fetch(signal, code);
    }
}

fn a_signal_ends_a_fetch(signal: i32, code: i32) {
    let sha256 = sha256_of(&model());
    let server = FaultServer::start(model(), |asked| match asked.number {
        0 => Fault::Stall(9_000_000),
        _ => Fault::None,
    });
    let home = Home::new();
    let mut command = home.command(&server.url(PATH), &["--sha256", &sha256, "--json"]);
    command.args(["--stall-timeout", "60"]);
    let child = command.spawn().unwrap();
    let start = Instant::now();
    while server.asked().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Until what came in was taken.
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    let id = i32::try_from(child.id()).unwrap();
    // SAFETY: sends a signal to a child of ours that was not waited for yet, so the number is still its own.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    let ran = Ran::new(child.wait_with_output().unwrap()).gives(code).says("the same command goes on");
    let last: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["exit"]), (&Value::from("error"), &Value::from(code)));
    assert!(start.elapsed() < Duration::from_secs(30));
    assert!(!home.store().exists());
    let ran = home.run(&server.url(PATH), &["--sha256", &sha256, "--json"]).gives(0);
    assert!(home.files() == wanted());
    let last: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert!(last["resumed_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{last}");
}
