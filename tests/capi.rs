//! The C interface: the header against the library, C programs that use it, its examples, and what an install gives.
//!
//! Programs are compiled with `cc` against a library that `tools/install-capi` has installed. Where there is no compiler, the
//! tests say so and pass.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "capi/host_pool.rs"]
mod host_pool;
#[path = "support/program.rs"]
mod program;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use flint_rt::base::ids::ExpertKey;
use flint_rt::capi::types;
use flint_rt::capi::{ABI_VERSION, Status};
use flint_rt::disk::SourceFile;
use flint_rt::store::Source;
use flint_shaders::blocks;
use program::program;

const PROMPT: &str = "def is_even(n):";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn model() -> PathBuf {
    root().join("tools/flint-nano-q4_1.gguf")
}

/// The device that the tests run on; "-" where there is none.
fn device() -> String {
    static FOUND: LazyLock<String> = LazyLock::new(|| {
        let named = std::env::var("FLINT_RT_DEVICE").ok().filter(|name| !name.is_empty());
        let first = || Some(flint_rt::gpu::list_devices(false).ok()?.first()?.index.to_string());
        named.or_else(first).unwrap_or_else(|| "-".to_owned())
    });
    FOUND.clone()
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: no {program}");
    }
    found
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[track_caller]
fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Where the library was built: with the tests, so beside them.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// An installed tree, and what was compiled against it.
struct Installed {
    folder: tempfile::TempDir,
}

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        succeeds(
            Command::new(root().join("tools/install-capi"))
                .arg("--prefix")
                .arg(folder.path().join("usr"))
                .arg("--from")
                .arg(built()),
        );
        Self { folder }
    }

    fn lib(&self) -> PathBuf {
        self.folder.path().join("usr/lib")
    }

    /// What pkg-config says, or the same by hand where there is none.
    fn flags(&self) -> Vec<String> {
        if !has("pkg-config") {
            let include = self.folder.path().join("usr/include");
            return vec![
                format!("-I{}", include.display()),
                format!("-L{}", self.lib().display()),
                "-lflint_rt".to_owned(),
            ];
        }
        let asked = succeeds(
            Command::new("pkg-config")
                .args(["--cflags", "--libs", "flint_rt"])
                .env("PKG_CONFIG_PATH", self.lib().join("pkgconfig")),
        );
        text(&asked.stdout).split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a source of the tree.
    fn compile(&self, compiler: &str, standard: &str, source: &str) -> PathBuf {
        let target = self.folder.path().join(Path::new(source).file_stem().unwrap());
        succeeds(
            Command::new(compiler)
                .args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fno-builtin-malloc"])
                .arg(root().join(source))
                .args(self.flags())
                .args(["-lpthread", "-ldl", "-o"])
                .arg(&target),
        );
        target
    }

    fn run(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.lib());
        command
    }
}

/// The header without its comments.
fn header() -> String {
    let mut rest = fs::read_to_string(root().join("runtime/include/flint_rt.h")).unwrap();
    while let Some(begin) = rest.find("/*") {
        let end = rest[begin..].find("*/").expect("a comment ends") + begin + 2;
        rest.replace_range(begin..end, " ");
    }
    rest
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every prototype of the header, in one line each.
fn prototypes() -> BTreeSet<String> {
    let header = header();
    let parts = header.split("FLINT_RT_API ").skip(1);
    // The first are the two definitions of the word itself.
    let parts = parts.filter(|part| part.contains("flint_rt_") && !part.starts_with("__"));
    parts.map(|part| one_line(part.split(';').next().unwrap())).collect()
}

fn name_of(prototype: &str) -> &str {
    prototype.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap()
}

/// Name and value of each `#define` that has one.
fn constants() -> Vec<(String, String)> {
    let header = header();
    let defines = header.lines().filter_map(|line| line.trim().strip_prefix("#define FLINT_RT_"));
    let pairs = defines.filter_map(|line| line.split_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().trim_matches(['(', ')']).to_owned())).collect()
}

fn constant(name: &str) -> String {
    let found = constants().into_iter().find(|(other, _)| other == name);
    found.unwrap_or_else(|| panic!("the header defines no FLINT_RT_{name}")).1
}

/// A struct that may grow: its name in the header, its size, and of its members name, offset and size.
type Layout = (&'static str, usize, &'static [(&'static str, usize, usize)]);

fn structs() -> Vec<Layout> {
    macro_rules! list {
        ($($c:literal $rust:ident;)*) => {
            vec![$(($c, size_of::<types::$rust>(), types::$rust::MEMBERS),)*]
        };
    }
    list! {
        "model_options" ModelOptions;
        "model_info" ModelInfo;
        "memory_plan" MemoryPlan;
        "model_stats" ModelStats;
        "device_info" DeviceInfo;
        "sampler_options" SamplerOptions;
        "generate_options" GenerateOptions;
        "generate_result" GenerateResult;
        "store_info" StoreInfo;
        "pool_options" PoolOptions;
        "pool_stats" PoolStats;
    }
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let declared: BTreeSet<String> =
        prototypes().iter().map(|prototype| name_of(prototype).to_owned()).collect();
    assert!(declared.len() > 40, "{declared:?}");
    for name in &declared {
        assert!(name.starts_with("flint_rt_"), "{name}");
    }
    for (name, _) in constants() {
        assert!(name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'), "{name}");
    }
    if !has("nm") {
        return;
    }
    let listed =
        succeeds(Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libflint_rt.so")));
    let exported: BTreeSet<String> =
        text(&listed.stdout).lines().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
    assert_eq!(exported, declared);
    let dynamic = succeeds(Command::new("readelf").arg("-d").arg(built().join("libflint_rt.so")));
    let dynamic = text(&dynamic.stdout);
    assert!(dynamic.contains(&format!("[libflint_rt.so.{ABI_VERSION}]")), "{dynamic}");
    // Vulkan is looked for when it is needed, so that the library loads where there is none.
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    for line in needed {
        let known = ["libgcc_s.so", "libm.so", "libc.so", "ld-linux"];
        assert!(known.iter().any(|name| line.contains(name)), "{line}");
    }
}

#[test]
fn versions_and_statuses_are_the_same_on_both_sides() {
    assert_eq!(constant("ABI_VERSION"), ABI_VERSION.to_string());
    let version = ["MAJOR", "MINOR", "PATCH"].map(|part| constant(&format!("VERSION_{part}"))).join(".");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    for status in Status::ALL {
        let mut name = String::new();
        for letter in format!("{status:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        if status != Status::Ok {
            name.insert_str(0, "ERR_");
            assert_eq!(constant(&name), (status as i32).to_string(), "{name}");
        }
    }
    let declared = constants().iter().filter(|(name, _)| name.starts_with("ERR_")).count();
    assert_eq!(declared, Status::ALL.len() - 1);
}

#[test]
fn structs_lie_in_memory_as_the_header_says() {
    if !has("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut source =
        "#include <stdio.h>\n#include <flint_rt.h>\n#define M(s, m) printf(\"%s %zu %zu\\n\", #m, offsetof(s, m), \
         sizeof(((s *)0)->m))\nint main(void) {\n"
            .to_owned();
    let mut wanted = String::new();
    let fixed = [
        ("message", size_of::<types::Message>()),
        ("logit_bias", size_of::<types::LogitBias>()),
        ("expert", size_of::<types::Expert>()),
        ("feed", size_of::<types::Feed>()),
    ];
    for (name, size) in fixed.into_iter().chain(structs().into_iter().map(|(name, size, _)| (name, size))) {
        let _ = writeln!(source, "printf(\"%zu\\n\", sizeof(flint_rt_{name}));");
        let _ = writeln!(wanted, "{size}");
    }
    for (name, size, members) in structs() {
        let mut end = 0;
        for (member, offset_bytes, len_bytes) in members {
            let _ = writeln!(source, "M(flint_rt_{name}, {member});");
            let _ = writeln!(wanted, "{member} {offset_bytes} {len_bytes}");
            assert_eq!(*offset_bytes, end, "{name} has padding in front of {member}");
            end = offset_bytes + len_bytes;
        }
        assert_eq!(end, size, "{name} has padding behind its last member");
        let declared = header();
        let body = declared.split(&format!("typedef struct flint_rt_{name} {{")).nth(1).unwrap();
        let in_header = body.split('}').next().unwrap().matches(';').count();
        assert_eq!(in_header, members.len(), "members of flint_rt_{name}");
    }
    source.push_str("return 0; }\n");
    let file = folder.path().join("layout.c");
    fs::write(&file, source).unwrap();
    let target = folder.path().join("layout");
    let include = root().join("runtime/include");
    succeeds(Command::new("cc").arg("-std=c99").arg("-I").arg(include).arg(&file).arg("-o").arg(&target));
    assert_eq!(text(&succeeds(&mut Command::new(&target)).stdout), wanted);
}

#[test]
fn the_header_is_good_in_every_language_it_names() {
    let header = root().join("runtime/include/flint_rt.h");
    for (compiler, language, standards) in
        [("cc", "c", &["c99", "c11"][..]), ("c++", "c++", &["c++11", "c++17", "c++20"][..])]
    {
        if !has(compiler) {
            continue;
        }
        for standard in standards {
            succeeds(
                Command::new(compiler)
                    .args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-x", language])
                    .arg(format!("-std={standard}"))
                    .arg(&header),
            );
        }
    }
}

/// Everything that a program which was built holds the library to, a line each.
fn interface() -> BTreeSet<String> {
    let mut lines: BTreeSet<String> =
        prototypes().into_iter().map(|line| format!("function {line}")).collect();
    lines.extend(
        constants()
            .into_iter()
            .filter(|(name, _)| !name.starts_with("VERSION_") && name != "API" && name != "H")
            .map(|(name, value)| format!("constant {name} {value}")),
    );
    for (name, _, members) in structs() {
        // Sizes may grow.
        for (member, offset_bytes, len_bytes) in members {
            lines.insert(format!("member {name}.{member} {offset_bytes} {len_bytes}"));
        }
    }
    let header = header();
    for part in header.split("typedef ").skip(1) {
        let declared = one_line(part.split(';').next().unwrap());
        if declared.contains("(*") {
            lines.insert(format!("callback {declared}"));
        }
    }
    lines
}

/// `tests/vectors/flint_rt.abi` is the interface as it was last released. Lines may be added to it; one that is gone or changed
/// breaks programs that were built, and asks for a new `ABI_VERSION`.
#[test]
fn nothing_of_the_released_interface_is_gone() {
    let file = root().join("tests/vectors/flint_rt.abi");
    let now = interface();
    if std::env::var("FLINT_RT_WRITE_ABI").is_ok_and(|value| value == "1") {
        let lines: Vec<&str> = now.iter().map(String::as_str).collect();
        fs::write(&file, lines.join("\n") + "\n").unwrap();
    }
    let released = fs::read_to_string(&file).unwrap();
    let released: BTreeSet<String> = released.lines().map(str::to_owned).collect();
    let abi = format!("constant ABI_VERSION {ABI_VERSION}");
    let is_same_abi = released.contains(&abi);
    let gone: Vec<_> = released.difference(&now).collect();
    assert!(!is_same_abi || gone.is_empty(), "ABI_VERSION must be raised, as these are gone: {gone:#?}");
    let added: Vec<_> = now.difference(&released).collect();
    assert!(added.is_empty(), "FLINT_RT_WRITE_ABI=1 writes {}, which lacks {added:#?}", file.display());
}

/// The continuation that the program gives; `None` without a device.
fn continued(arguments: &[&str]) -> Option<String> {
    if device() == "-" {
        println!("skipped: no Vulkan device");
        return None;
    }
    let ran = succeeds(
        program(&[]).args(["generate", "--device", &device(), "--model"]).arg(model()).args(arguments),
    );
    Some(text(&ran.stdout).trim_end().to_owned())
}

#[test]
fn examples_say_what_the_program_says() {
    if !has("cc") {
        return;
    }
    let installed = Installed::new();
    let Some(wanted) = continued(&["--predict", "24", PROMPT]) else { return };
    let mut examples = vec![installed.compile("cc", "-std=c99", "runtime/examples/c/generate.c")];
    if has("c++") {
        examples.push(installed.compile("c++", "-std=c++17", "runtime/examples/cpp/generate.cpp"));
    }
    for example in examples {
        let ran = succeeds(installed.run(&example).arg(model()).args([PROMPT, "24", &device()]));
        assert_eq!(text(&ran.stdout).trim_end(), wanted, "{example:?}");
        let refused = installed.run(&example).args(["/nowhere/model.gguf", PROMPT]).output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(text(&refused.stderr).contains("/nowhere/model.gguf"), "{}", text(&refused.stderr));
    }
}

#[test]
fn python_chats_and_looks_at_logits() {
    if !has("python3") {
        return;
    }
    let installed = Installed::new();
    let request = "Write a Python function is_even that checks if a number is even.";
    let Some(wanted) = continued(&["--predict", "24", "--chat", "--", request]) else { return };
    let python = |what: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(root().join("runtime/examples/python/flint_rt.py")).arg(what[0]).arg(model());
        command.args(&what[1..]).args(["--device", &device()]);
        command.env("FLINT_RT_LIBRARY", installed.lib().join(format!("libflint_rt.so.{ABI_VERSION}")));
        command
    };
    let lines = installed.folder.path().join("lines");
    fs::write(&lines, format!("{request}\nAnd is_odd?\n")).unwrap();
    let ran = succeeds(python(&["chat", "--tokens", "24"]).stdin(fs::File::open(&lines).unwrap()));
    let said = text(&ran.stdout);
    let rest = said.strip_prefix(&wanted).unwrap_or_else(|| panic!("{said}, wanted {wanted}"));
    assert!(!rest.trim().is_empty(), "the second request has no reply: {said}");

    let ran = succeeds(&mut python(&["next", PROMPT, "--top", "3"]));
    let best: Vec<String> = text(&ran.stdout).lines().map(str::to_owned).collect();
    assert_eq!(best.len(), 3);
    // Greedy generation begins with the token whose logit is largest.
    let first = continued(&["--predict", "1", PROMPT]).unwrap();
    assert!(best[0].contains(first.trim()), "{best:?}, wanted {first:?} first");
}

/// FNV-1a.
fn hash(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |state, &byte| (state ^ u64::from(byte)).wrapping_mul(1_099_511_628_211))
}

/// What the example of the streaming layer is to print: the same by plain reads of the file.
fn streamed() -> String {
    let source = Source::open(&model()).unwrap();
    let files: Vec<SourceFile> = source.files().iter().map(|path| SourceFile::open(path).unwrap()).collect();
    let layout = source.record();
    let mut lines = String::new();
    for layer in source.expert_layers() {
        for at in 0..3 {
            let expert = (layer.0 * 5 + at * 3) % source.expert_count();
            let mut record = vec![0; usize::try_from(layout.record_bytes()).unwrap()];
            for piece in source.expert_pieces(ExpertKey::new(layer.0, expert)).iter() {
                let begin = usize::try_from(piece.record_offset_bytes).unwrap();
                let len = usize::try_from(piece.span.len_bytes).unwrap();
                let file = &files[usize::from(piece.span.file.0)];
                file.read_exact_at(piece.span.offset_bytes, &mut record[begin..begin + len]).unwrap();
            }
            let config = flint_rt::model::hparams::FlintConfig::from_gguf(source.gguf()).unwrap();
            let row_bytes = config.embed_dim as usize / 32 * 20;
            let (words, _) = record[..row_bytes].as_chunks();
            let words: Vec<u32> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
            let sum: f64 = blocks::dequantise(&words).into_iter().map(f64::from).sum();
            let all = hash(14_695_981_039_346_656_037, &record);
            let _ = writeln!(lines, "{} {expert} {sum:.3} {all:016x}", layer.0);
        }
    }
    lines
}

#[test]
fn experts_stream_into_memory_of_the_caller() {
    if !has("cc") {
        return;
    }
    let installed = Installed::new();
    let example = installed.compile("cc", "-std=c99", "runtime/examples/c/stream_experts.c");
    // The sum is printed with more digits than a sum in another order has in common.
    let shorten = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let sum: f64 = words[2].parse().unwrap();
        format!("{} {} {sum:.3} {}\n", words[0], words[1], words[3])
    };
    for slots in ["3", "12"] {
        let ran = succeeds(installed.run(&example).arg(model()).arg(slots));
        let found: String = text(&ran.stdout).lines().map(shorten).collect();
        assert_eq!(found, streamed(), "{slots} slots");
    }
    // A store has the same experts, and their reads are checked.
    let store = installed.folder.path().join("store");
    flint_rt::store::ingest(&model(), &store, &mut |_| ControlFlow::Continue(())).unwrap();
    let ran = succeeds(installed.run(&example).arg(&store));
    assert_eq!(text(&ran.stdout).lines().map(shorten).collect::<String>(), streamed());
}

#[test]
fn every_promise_of_the_header_holds() {
    if !has("cc") || device() == "-" {
        return;
    }
    let installed = Installed::new();
    let behaviour = installed.compile("cc", "-std=gnu11", "tests/capi/behaviour.c");
    let ran = succeeds(installed.run(&behaviour).arg(model()).arg(device()).arg(installed.folder.path()));
    assert_eq!(text(&ran.stdout), "holds\n");
}

/// `FLINT_RT_CAPI_SEQUENCES` says how many; 10,000 take some twenty minutes on two cores. Under valgrind, where it is at hand, a few
/// that need no device: the software device's compiled code is too much for it.
#[test]
fn random_calls_neither_crash_nor_leak() {
    if !has("cc") {
        return;
    }
    let installed = Installed::new();
    let calls = installed.compile("cc", "-std=gnu11", "tests/capi/random_calls.c");
    let count = std::env::var("FLINT_RT_CAPI_SEQUENCES").unwrap_or_else(|_| "160".to_owned());
    for (seed, device) in [("1", "-"), ("2", device().as_str())] {
        let ran = succeeds(installed.run(&calls).arg(model()).args([seed, &count, device]));
        println!("seed {seed}: {}", text(&ran.stdout));
    }
    if has("valgrind") {
        succeeds(
            Command::new("valgrind")
                .args(["-q", "--leak-check=full", "--errors-for-leak-kinds=definite", "--error-exitcode=9"])
                .arg(&calls)
                .arg(model())
                .args(["3", "16", "-"])
                .env("LD_LIBRARY_PATH", installed.lib()),
        );
    }
}

#[test]
fn threads_find_what_one_alone_finds() {
    if !has("cc") {
        return;
    }
    let installed = Installed::new();
    let threads = installed.compile("cc", "-std=gnu11", "tests/capi/threads.c");
    let ran = succeeds(installed.run(&threads).arg(model()).arg(device()));
    assert_eq!(text(&ran.stdout), "holds\n");
}

/// "…: grown by 12 KiB and 34 heap bytes …"
fn growth(line: &str) -> (i64, i64) {
    let mut numbers = line.split("grown by").nth(1).unwrap().split(' ').filter_map(|word| word.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn loading_and_unloading_leaves_nothing_behind() {
    if !has("cc") {
        return;
    }
    let installed = Installed::new();
    let reload = installed.compile("cc", "-std=gnu11", "tests/capi/reload.c");
    let library = installed.lib().join("libflint_rt.so");
    // Where threads end later or sooner differs by some 100 KB from time to time, but does not add up: 160 times a KiB would.
    let ran = succeeds(Command::new(&reload).arg(library).arg(model()).args(["200", "-"]));
    let ran = text(&ran.stdout);
    println!("{ran}");
    for line in ran.lines() {
        let (resident_kib, heap_bytes) = growth(line);
        assert!(heap_bytes < 160 << 10, "{line}");
        assert!(resident_kib < 1 << 10, "{line}");
    }
}

#[test]
fn a_token_takes_nothing_of_the_heap() {
    if !has("cc") || device() == "-" {
        return;
    }
    let installed = Installed::new();
    let allocations = installed.compile("cc", "-std=gnu11", "tests/capi/allocations.c");
    let ran = succeeds(installed.run(&allocations).arg(model()).arg(device()));
    let ran = text(&ran.stdout);
    println!("{ran}");
    // In a reply what was read ahead of need may still come in.
    for line in ran.lines().skip(1).step_by(2) {
        let count: u64 = line.split(' ').find_map(|word| word.parse().ok()).unwrap();
        assert!(count <= if line.starts_with("generate") { 8 } else { 0 }, "of 32 tokens: {line}");
    }
}

#[test]
fn what_is_installed_serves_cmake_and_static_links() {
    if !has("cc") {
        return;
    }
    let installed = Installed::new();
    let project = installed.folder.path().join("project");
    fs::create_dir(&project).unwrap();
    let source = root().join("runtime/examples/c/stream_experts.c");
    if has("cmake") && has("make") {
        let list = format!(
            "cmake_minimum_required(VERSION 3.13)\nproject(uses C)\nfind_package(flint_rt {} REQUIRED)\n\
             foreach(kind flint_rt flint_rt_static)\nadd_executable(with_${{kind}} {})\n\
             target_link_libraries(with_${{kind}} flint_rt::${{kind}})\nendforeach()\n",
            constant("VERSION_MAJOR") + "." + &constant("VERSION_MINOR"),
            source.display()
        );
        fs::write(project.join("CMakeLists.txt"), list).unwrap();
        let build = project.join("build");
        succeeds(
            Command::new("cmake")
                .arg("-S")
                .arg(&project)
                .arg("-B")
                .arg(&build)
                .arg(format!("-DCMAKE_PREFIX_PATH={}", installed.folder.path().join("usr").display())),
        );
        succeeds(Command::new("cmake").arg("--build").arg(&build));
        let shared = succeeds(Command::new(build.join("with_flint_rt")).arg(model()));
        let alone = succeeds(Command::new(build.join("with_flint_rt_static")).arg(model()));
        assert_eq!(shared.stdout, alone.stdout);
        assert!(!shared.stdout.is_empty());
    }
    let refused = Command::new(root().join("tools/install-capi")).arg("--nonsense").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}
