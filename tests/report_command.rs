//! Pictures by the real binary: `bench --report` and `--trace` in one run, `report` from the files of that run, and what it
//! refuses. What the pages hold in detail is tested beside the code that draws them.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn run(home: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flint-rt"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("FLINT_RT_") && name != "FLINT_RT_DEVICE" && name != "FLINT_RT_VALIDATION" {
            command.env_remove(name);
        }
    }
    command
        .args(args)
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("XDG_DATA_HOME", home.path().join("data"))
        .env("XDG_STATE_HOME", home.path().join("state"))
        .env("XDG_CACHE_HOME", home.path().join("cache"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn captions(page: &str) -> Vec<String> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..roxmltree::ParsingOptions::default() };
    let document = roxmltree::Document::parse_with_options(page, options).unwrap();
    let titles = document.descendants().filter(|node| {
        node.has_tag_name("strong") && node.parent().is_some_and(|parent| parent.has_tag_name("figcaption"))
    });
    titles.map(|node| node.text().unwrap().to_owned()).collect()
}

#[test]
fn one_run_gives_rows_a_page_and_a_trace_and_files_give_the_page_again() {
    let home = tempfile::tempdir().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");
    let mut args = vec!["bench", "-m", model, "-p", "8", "-n", "4", "-r", "1", "--no-warmup", "-o", "jsonl"];
    args.extend(["-c", "64", "--sweep", "pool=12,48", "--report", "page.html", "--trace", "trace.json"]);
    let ran = run(&home, &args);
    if ran.status.code() == Some(4) {
        return println!("SKIPPED: no Vulkan device");
    }
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));

    let rows: Vec<Value> = String::from_utf8(ran.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let layers = row["layer_hits"].as_array().unwrap();
        let sum = |place: usize| layers.iter().map(|layer| layer[place].as_u64().unwrap()).sum::<u64>();
        assert_eq!((Some(sum(1)), Some(sum(2))), (row["hits"].as_u64(), row["misses"].as_u64()), "{row}");
    }

    let trace: Value = serde_json::from_slice(&fs::read(home.path().join("trace.json")).unwrap()).unwrap();
    let (mut ends, mut tokens) = (BTreeMap::<u64, f64>::new(), 0);
    for event in trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X") {
        let (ts, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        let end = ends.entry(event["tid"].as_u64().unwrap()).or_default();
        assert!(*end <= ts + 1e-6, "{event} begins before {end} of its track");
        *end = ts + dur;
        tokens += u32::from(event["name"] == "token");
    }
    assert_eq!(tokens, 32, "half of the pass is recorded");

    let page = fs::read_to_string(home.path().join("page.html")).unwrap();
    let titles = captions(&page);
    for title in ["Generation over pool size", "Hit rate over pool size", "Hits by layer", "One token"] {
        assert!(titles.iter().any(|other| other == title), "{title}: {titles:?}");
    }
    assert!(page.contains("No profile of the drive"));

    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    fs::write(home.path().join("rows.jsonl"), lines.join("\n")).unwrap();
    let again = run(&home, &["report", "rows.jsonl", "--timeline", "trace.json", "-o", "again.html"]);
    assert_eq!(again.status.code(), Some(0), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(fs::read_to_string(home.path().join("again.html")).unwrap(), page);
}

#[test]
fn what_is_no_result_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("rows.json"), r#"[{"schema_version":2,"test":"tg8"}]"#).unwrap();
    fs::write(home.path().join("later.json"), r#"[{"schema_version":99}]"#).unwrap();
    fs::write(home.path().join("other.json"), "{}").unwrap();
    let refused = [
        (vec!["missing.json"], "missing.json"),
        (vec!["later.json"], "schema version 99"),
        (vec!["other.json"], "other.json"),
        (vec!["rows.json", "--profile", "missing.json"], "missing.json"),
        (vec!["rows.json", "--timeline", "other.json"], "not a trace"),
        (vec!["rows.json", "--profile", "other.json"], "not what disk-profile prints"),
    ];
    for (args, word) in refused {
        let args: Vec<&str> = ["report"].into_iter().chain(args).chain(["-o", "out.html"]).collect();
        let ran = run(&home, &args);
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(word) && said.lines().count() == 1, "{args:?}: {said}");
        assert!(!home.path().join("out.html").exists());
    }
    assert_eq!(run(&home, &["report", "rows.json", "-o", "no/folder.html"]).status.code(), Some(1));
    // What goes in is never what is replaced, nor is a model.
    fs::write(home.path().join("model.gguf"), "GGUF and more").unwrap();
    for output in ["rows.json", "./rows.json", "model.gguf"] {
        let before = fs::read(home.path().join(output)).unwrap();
        assert_eq!(run(&home, &["report", "rows.json", "-o", output]).status.code(), Some(2), "{output}");
        assert_eq!(fs::read(home.path().join(output)).unwrap(), before, "{output}");
    }
    // A place that cannot be written is said before anything is measured.
    for flag in ["--report", "--trace", "--record-routes"] {
        assert_eq!(run(&home, &["bench", flag, "no/file", "-m", "nowhere"]).status.code(), Some(1), "{flag}");
    }
    // A store's files are a model, too, whatever their names end in.
    fs::create_dir(home.path().join("store")).unwrap();
    for name in ["manifest.json", "header.bin", "dense.bin", "experts.bin"] {
        fs::write(home.path().join("store").join(name), "of a store").unwrap();
    }
    for name in ["manifest.json", "experts.bin", "new.json"] {
        let path = format!("store/{name}");
        for flag in ["--report", "--trace", "--record-routes"] {
            let ran = run(&home, &["bench", flag, &path, "-m", "nowhere"]);
            assert_eq!(ran.status.code(), Some(2), "{flag} {path}");
        }
        assert_eq!(run(&home, &["report", "rows.json", "-o", &path]).status.code(), Some(2), "{path}");
    }
    assert_eq!(fs::read(home.path().join("store/manifest.json")).unwrap(), b"of a store");
    assert!(!home.path().join("store/new.json").exists());
    assert_eq!(run(&home, &["report", "rows.json", "-o", "out.html"]).status.code(), Some(0));
}
