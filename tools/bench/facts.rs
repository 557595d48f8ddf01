//! What a row says of the build, the machine and the model.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use flint_rt::gguf::Gguf;
use flint_rt::store::{Source, SourceKind};

use crate::date;

/// The commit that the program was built from, where the build says it.
pub(super) const BUILD_COMMIT: &str = match option_env!("FLINT_RT_BUILD_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// A model's file.
pub(super) struct ModelFacts {
    pub(super) filename: String,
    /// Name and the type of most of its bytes.
    pub(super) kind: String,
    pub(super) size_bytes: u64,
    pub(super) params: u64,
    pub(super) source: SourceKind,
}

impl ModelFacts {
    /// Of a model that is called `shown`, and by its own file `name`.
    pub(super) fn of(source: &Source, shown: String, name: &str) -> Self {
        let gguf = source.gguf();
        Self {
            filename: shown,
            kind: format!("{name} {}", main_kind(gguf)),
            size_bytes: gguf.tensors.iter().map(|tensor| tensor.len_bytes).sum(),
            params: gguf.tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum(),
            source: source.kind(),
        }
    }
}

fn main_kind(gguf: &Gguf) -> String {
    let mut bytes = BTreeMap::new();
    for tensor in gguf.tensors.iter() {
        *bytes.entry(tensor.kind.name()).or_insert(0) += tensor.len_bytes;
    }
    bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or_else(String::new, |(kind, _)| kind.to_owned())
}

/// The processor's name.
pub(super) fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    named.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

/// Processors that this program may use.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// This moment, as llama-bench writes it.
pub(super) fn now() -> String {
    date::timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}
