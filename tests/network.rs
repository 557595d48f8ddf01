//! Models over a network as it is: TLS with certificates of one's own, proxies, models in several files.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/authority.rs"]
mod authority;
#[path = "support/fault_server.rs"]
mod fault_server;
#[path = "support/ingest_run.rs"]
mod ingest_run;
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/tiny_gguf.rs"]
mod tiny_gguf;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use authority::{Authority, base64};
use fault_server::{Fault, FaultServer};
use ingest_run::{Home, Ran, files_in, model, sha256_of, wanted};
use proxy::Proxy;
use tiny_gguf::{GgufWriter, Item, tiny_flint};

/// An ingest of `url` by somebody who trusts `authority` alone.
fn run_trusting(home: &Home, authority: &Authority, url: &str, variables: &[(&str, &str)]) -> Ran {
    let file = home.0.path().join("authority.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    let mut command = home.command(url, &["--sha256", &sha256_of(&model())]);
    command.env("SSL_CERT_FILE", file).envs(variables.iter().copied());
    Ran::new(command.output().unwrap())
}

fn port(server: &FaultServer) -> &str {
    server.address().rsplit(':').next().unwrap()
}

#[test]
fn a_certificate_of_ones_own_is_trusted_where_it_is_named() {
    let authority = Authority::new("ours");
    let server =
        FaultServer::start_tls(authority.server("localhost", false), model(), |asked| match asked.number {
            0 => Fault::Drop(3_000_000),
            _ => Fault::None,
        });
    let url = format!("https://localhost:{}/m/flint-nano-q4_1.gguf", port(&server));
    let home = Home::new();
    run_trusting(&home, &authority, &url, &[]).gives(0);
    assert!(home.files() == wanted());
    assert!(server.asked().len() >= 2, "broke off and went on");
}

#[test]
fn a_server_that_cannot_be_trusted_is_refused_with_the_reason() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    for (what, signed_by, name, is_expired, words) in [
        ("another authority", &other, "localhost", false, "UnknownIssuer"),
        ("another name", &authority, "elsewhere.example", false, "not valid for name"),
        ("expired", &authority, "localhost", true, "expired"),
    ] {
        let server = FaultServer::start_tls(signed_by.server(name, is_expired), model(), |_| Fault::None);
        let url = format!("https://localhost:{}/m/flint-nano-q4_1.gguf", port(&server));
        let home = Home::new();
        let start = Instant::now();
        let ran = run_trusting(&home, &authority, &url, &[]).gives(1).says(words).says("SSL_CERT_FILE");
        assert_eq!(ran.stdout, "", "{what}");
        assert!(!home.store().exists(), "{what}");
        assert!(server.asked().is_empty(), "{what}: nothing was asked of it");
        assert!(start.elapsed() < Duration::from_secs(30), "{what}: not tried again");
    }
}

#[test]
fn a_certificate_file_without_certificates_is_named() {
    let home = Home::new();
    let empty = home.0.path().join("empty.pem");
    std::fs::write(&empty, "no certificate").unwrap();
    for file in [empty.to_str().unwrap(), "./not/here.pem"] {
        let mut command = home.command("https://localhost:1/x.gguf", &["--force-unverified"]);
        let ran = Ran::new(command.env("SSL_CERT_FILE", file).output().unwrap());
        ran.gives(2).says("SSL_CERT_FILE");
    }
}

#[test]
fn a_proxy_is_used_but_for_hosts_that_go_without() {
    let authority = Authority::new("ours");
    let secure = FaultServer::start_tls(authority.server("model.example", false), model(), |_| Fault::None);
    let plain = FaultServer::start(model(), |_| Fault::None);
    for (server, scheme, variable) in [(&secure, "https", "https_proxy"), (&plain, "http", "http_proxy")] {
        // The name means nothing here: only the proxy knows where it is.
        let url = format!("{scheme}://model.example/m/flint-nano-q4_1.gguf");
        let proxy = Proxy::start(server.address(), None);
        let with_user = format!("http://me:proxy_secret@{}", proxy.address);
        let home = Home::new();
        run_trusting(&home, &authority, &url, &[(variable, &with_user)]).gives(0);
        assert!(home.files() == wanted(), "{scheme}");
        let number = if scheme == "https" { 443 } else { 80 };
        let wanted = format!("CONNECT model.example:{number} HTTP/1.1");
        let user = format!("Basic {}", base64(b"me:proxy_secret"));
        for head in proxy.heads() {
            assert!(head.starts_with(&wanted), "{scheme}: {head}");
            assert!(head.contains(&user), "{scheme}: {head}");
        }
        assert!(!proxy.heads().is_empty(), "{scheme}");
        // The server behind it does not learn the user.
        assert!(server.asked().iter().all(|asked| asked.authorization.is_none()), "{scheme}");

        // A host that goes without it.
        let seen = proxy.heads().len();
        let direct = format!("http://127.0.0.1:{}/m/flint-nano-q4_1.gguf", port(&plain));
        let variables = [("http_proxy", with_user.as_str()), ("no_proxy", "other.example,127.0.0.1")];
        run_trusting(&Home::new(), &authority, &direct, &variables).gives(0);
        assert_eq!(proxy.heads().len(), seen, "{scheme}: no_proxy");

        // Who refuses, or is not there, is named, and its user is not (`Ran` looks for that).
        let refusing = Proxy::start(server.address(), Some(407));
        let with_user = format!("http://me:proxy_secret@{}", refusing.address);
        let ran = run_trusting(&Home::new(), &authority, &url, &[(variable, &with_user)]).gives(1);
        ran.says("407").says("proxy");
        let wrong = "gopher://me:proxy_secret@proxy.example";
        run_trusting(&Home::new(), &authority, &url, &[(variable, wrong)]).gives(2).says(variable);
    }
}

/// A small model in three files, as its splitter names them.
fn parts() -> Vec<(String, Arc<Vec<u8>>)> {
    let mut whole = tiny_flint(3);
    let tensors = std::mem::take(&mut whole.tensors);
    let per_part = tensors.len().div_ceil(3);
    let total = i32::try_from(tensors.len()).unwrap();
    (0u16..)
        .zip(tensors.chunks(per_part))
        .map(|(number, tensors)| {
            let mut part = if number == 0 { std::mem::take(&mut whole) } else { GgufWriter::new() };
            part.set("split.no", Item::U16(number));
            part.set("split.count", Item::U16(3));
            part.set("split.tensors.count", Item::I32(total));
            part.tensors = tensors.to_vec();
            let name = format!("/m/tiny-{:05}-of-00003.gguf?key=signed_secret", number + 1);
            (name, Arc::new(part.bytes()))
        })
        .collect()
}

#[test]
fn a_model_in_three_files_is_fetched_as_one() {
    let parts = parts();
    let local = Home::new();
    for (path, bytes) in &parts {
        let name = path.trim_start_matches("/m/").split('?').next().unwrap();
        std::fs::write(local.0.path().join(name), bytes.as_slice()).unwrap();
    }
    let first = local.0.path().join("tiny-00001-of-00003.gguf");
    local.run(first.to_str().unwrap(), &[]).gives(0);
    let wanted = files_in(&local.0.path().join("stores/tiny"));
    let sha256: Vec<String> = parts.iter().map(|(_, bytes)| sha256_of(bytes)).collect();
    let sha256 = sha256.join(",");

    // Whichever part is named, and with connections that break.
    for named in 0..3 {
        let files = parts.clone();
        let find = move |path: &str| Some(Arc::clone(&files.iter().find(|(name, _)| name == path)?.1));
        let server = FaultServer::start_files(find, |asked| match asked.number % 3 {
            1 => Fault::Drop(20_000),
            _ => Fault::None,
        });
        let home = Home::new();
        home.run(&server.url(&parts[named].0), &["--sha256", &sha256]).gives(0);
        assert!(files_in(&home.0.path().join("stores/tiny")) == wanted, "part {named}");
    }

    // One of them is not there; a sum is missing.
    let files = parts.clone();
    let find = move |path: &str| Some(Arc::clone(&files[..2].iter().find(|(name, _)| name == path)?.1));
    let server = FaultServer::start_files(find, |_| Fault::None);
    let home = Home::new();
    home.run(&server.url(&parts[0].0), &["--sha256", &sha256]).gives(3).says("tiny-00003-of-00003.gguf");
    home.run(&server.url(&parts[0].0), &["--sha256", &sha256_of(&parts[0].1)]).gives(2).says("3 files");
}

#[test]
fn a_part_that_changes_between_two_runs_is_noticed() {
    let parts = parts();
    let sha256: Vec<String> = parts.iter().map(|(_, bytes)| sha256_of(bytes)).collect();
    let sha256 = sha256.join(",");
    for changed in 0..3 {
        let files = Arc::new(Mutex::new(parts.clone()));
        let served = Arc::clone(&files);
        let find = move |path: &str| {
            Some(Arc::clone(&served.lock().unwrap().iter().find(|(name, _)| name == path)?.1))
        };
        let (is_second_run, is_other) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let (runs, other) = (Arc::clone(&is_second_run), Arc::clone(&is_other));
        let name = parts[changed].0.clone();
        // In the first run the last part breaks off again and again; in the second one a part has another tag.
        let server = FaultServer::start_files(find, move |asked| match runs.load(Ordering::SeqCst) {
            false if asked.path.contains("00003-of") && asked.first_byte != Some(0) => Fault::Refuse,
            false if asked.path.contains("00003-of") => Fault::Drop(30_000),
            true if asked.path == name && other.load(Ordering::SeqCst) => Fault::OtherTag,
            _ => Fault::None,
        });
        let (home, url) = (Home::new(), server.url(&parts[0].0));
        home.run(&url, &["--sha256", &sha256]).gives(1);
        let store = home.0.path().join("stores/tiny");
        assert!(!store.exists());
        is_second_run.store(true, Ordering::SeqCst);
        // Its bytes differ, too, in the last byte, which is a weight.
        let mut bytes = parts[changed].1.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        files.lock().unwrap()[changed].1 = Arc::new(bytes);
        let ran = home.run(&url, &["--sha256", &sha256]);
        assert!(matches!(ran.code, Some(1 | 3)), "{changed}: {}", ran.stderr);
        assert!(!store.exists(), "{changed}: {}", ran.stderr);
        // As it was before, all is well.
        files.lock().unwrap()[changed].1 = Arc::clone(&parts[changed].1);
        is_other.store(false, Ordering::SeqCst);
        home.run(&url, &["--sha256", &sha256]).gives(0);
        assert!(store.exists());
    }
}
