//! Which experts a model picked, token after token: recorded once, replayed by benches and the simulator.
//!
//! - Owns: the picks, and the guesses that were known a layer early.
//! - In: `NAME.json` (shape and origin) with `NAME.picks.u8` and, where guesses were recorded, `NAME.guess.u8` beside it;
//!   `.u16`, little endian, for models of more than 256 experts a layer.
//! - Out: the picks of a token and layer, best first; the same routes at another model's shape (`expand.rs`).
//! - Invariants: a trace that was loaded or passes [`RouteTrace::check`] has rows of distinct experts that exist, one row a
//!   token and layer; sizes are compared before anything is believed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::limits::EXPERTS_USED_MAX;

/// Longest header that is read, bytes: a thousand contexts take less than 20 KB.
const HEADER_BYTES_MAX: u64 = 1 << 20;

/// What is wrong with a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// A file cannot be read or written.
    #[error("{path}: {cause}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The header is no header of a trace.
    #[error("{path}: not a route trace's header: {cause}; name the NAME.json beside NAME.picks.u8", path = path.display())]
    Header {
        /// The header.
        path: PathBuf,
        /// What the parser said.
        cause: serde_json::Error,
    },
    /// A number does not fit the others.
    #[error("{path}: {what}: wanted {wanted}, got {got}; record the trace again", path = path.display())]
    Content {
        /// The file, or the name of the trace's model where it was never on a drive.
        path: PathBuf,
        /// The thing.
        what: String,
        /// What it should be.
        wanted: String,
        /// What it is.
        got: String,
    },
    /// No trace of that shape can be made.
    #[error(
        "routes of {from} cannot become routes of {to}: {reason}; use a trace of a model nearer in shape"
    )]
    Shape {
        /// The recorded shape.
        from: String,
        /// The shape asked for.
        to: String,
        /// Why not.
        reason: String,
    },
}

/// The experts that a model picked for a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteTrace {
    /// The model's file.
    pub model: String,
    /// SHA-256 of that file, in hex, where it was noted.
    pub model_sha256: Option<String>,
    /// The first layer with experts.
    pub expert_layer_first: u32,
    /// Layers with experts.
    pub layer_count: u32,
    /// Experts of a layer.
    pub expert_count: u32,
    /// Experts that a token uses of a layer.
    pub experts_used: u32,
    /// Expert ids, `[tokens, layer_count, experts_used]`, best first.
    pub picks: Vec<u16>,
    /// What the layer's router gave one layer early; the same shape.
    pub guesses: Option<Vec<u16>>,
    /// The tokens with which a new context begins, ascending from 0.
    pub context_starts: Vec<u32>,
    /// The text.
    pub source: String,
    /// What was done to the recorded routes, with the seed; nothing for a recording.
    pub expansion: Option<String>,
}

/// The file `NAME.json`; its key names are those of the recordings.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model_sha256: Option<String>,
    tokens: u32,
    layers: u32,
    first_layer: u32,
    experts: u32,
    topk: u32,
    picks: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    guess: Option<String>,
    dtype: String,
    #[serde(default)]
    order: Option<String>,
    context_starts: Vec<u32>,
    #[serde(default)]
    source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expansion: Option<String>,
}

const ORDER: &str = "best first";

fn content(path: &Path, what: &str, wanted: impl ToString, got: impl ToString) -> RouteError {
    RouteError::Content {
        path: path.to_owned(),
        what: what.to_owned(),
        wanted: wanted.to_string(),
        got: got.to_string(),
    }
}

impl RouteTrace {
    /// Reads the trace whose header is `path`, and checks all of it.
    ///
    /// # Errors
    /// When a file cannot be read, is of another size than the header says, or names experts that do not exist.
    pub fn load(path: &Path) -> Result<Self, RouteError> {
        let file = |cause| RouteError::File { path: path.to_owned(), cause };
        let len = fs::metadata(path).map_err(file)?.len();
        if len > HEADER_BYTES_MAX {
            return Err(content(
                path,
                "length of the header",
                format!("at most {HEADER_BYTES_MAX} B"),
                format!("{len} B"),
            ));
        }
        let text = fs::read(path).map_err(file)?;
        let header: Header = serde_json::from_slice(&text)
            .map_err(|cause| RouteError::Header { path: path.to_owned(), cause })?;
        if header.order.as_deref().is_some_and(|order| order != ORDER) {
            return Err(content(path, "order", ORDER, header.order.unwrap_or_default()));
        }
        let id_bytes = match header.dtype.as_str() {
            "u8" => 1,
            "u16" => 2,
            other => return Err(content(path, "dtype", "u8 or u16", other)),
        };
        let read = |name: &str| read_ids(path, name, &header, id_bytes);
        let picks = read(&header.picks)?;
        let guesses = header.guess.as_deref().map(read).transpose()?;
        let trace = Self {
            picks,
            guesses,
            model: header.model,
            model_sha256: header.model_sha256,
            expert_layer_first: header.first_layer,
            layer_count: header.layers,
            expert_count: header.experts,
            experts_used: header.topk,
            context_starts: header.context_starts,
            source: header.source,
            expansion: header.expansion,
        };
        trace.check_as(path)?;
        Ok(trace)
    }

    /// Writes the header to `path` (`NAME.json`), picks and guesses beside it. What stood there is replaced.
    ///
    /// # Errors
    /// When the trace does not pass [`RouteTrace::check`], or a file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), RouteError> {
        self.check_as(path)?;
        let dtype = if self.expert_count <= 256 { "u8" } else { "u16" };
        let beside = |kind: &str| path.with_extension(format!("{kind}.{dtype}"));
        let name_of = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let write = |file: &Path, ids: &[u16]| {
            let bytes: Vec<u8> = ids
                .iter()
                .flat_map(|id| id.to_le_bytes().into_iter().take(if dtype == "u8" { 1 } else { 2 }))
                .collect();
            fs::write(file, bytes).map_err(|cause| RouteError::File { path: file.to_owned(), cause })
        };
        write(&beside("picks"), &self.picks)?;
        if let Some(guesses) = &self.guesses {
            write(&beside("guess"), guesses)?;
        }
        let header = Header {
            model: self.model.clone(),
            model_sha256: self.model_sha256.clone(),
            tokens: self.token_count(),
            layers: self.layer_count,
            first_layer: self.expert_layer_first,
            experts: self.expert_count,
            topk: self.experts_used,
            picks: name_of(&beside("picks")),
            guess: self.guesses.as_ref().map(|_| name_of(&beside("guess"))),
            dtype: dtype.to_owned(),
            order: Some(ORDER.to_owned()),
            context_starts: self.context_starts.clone(),
            source: self.source.clone(),
            expansion: self.expansion.clone(),
        };
        let text = serde_json::to_string_pretty(&header).expect("invariant: numbers and strings");
        // Last, so that a header never names files that are not there.
        fs::write(path, text + "\n").map_err(|cause| RouteError::File { path: path.to_owned(), cause })
    }

    /// Tokens of the text.
    pub fn token_count(&self) -> u32 {
        let a_token = self.picks_a_token().max(1);
        u32::try_from(self.picks.len() / a_token).unwrap_or(u32::MAX)
    }

    /// Picks of a token in all layers: the fewest slots that keep anything for the next token.
    pub fn picks_a_token(&self) -> usize {
        self.layer_count as usize * self.experts_used as usize
    }

    /// Experts of all layers.
    pub fn expert_total(&self) -> u32 {
        self.layer_count * self.expert_count
    }

    fn row(&self, token: u32, layer: u32) -> std::ops::Range<usize> {
        assert!(layer < self.layer_count, "layer {layer} of {}", self.layer_count);
        let used = self.experts_used as usize;
        let from = token as usize * self.picks_a_token() + layer as usize * used;
        from..from + used
    }

    /// The picks of `token` in the `layer`-th layer with experts, best first.
    ///
    /// # Panics
    /// When there is no such token or layer.
    pub fn picks_of(&self, token: u32, layer: u32) -> &[u16] {
        &self.picks[self.row(token, layer)]
    }

    /// What was guessed for them one layer early, if that was recorded.
    ///
    /// # Panics
    /// When there is no such token or layer.
    pub fn guesses_of(&self, token: u32, layer: u32) -> Option<&[u16]> {
        self.guesses.as_ref().map(|guesses| &guesses[self.row(token, layer)])
    }

    /// The traces one after the other, as if their texts came in turn.
    ///
    /// # Errors
    /// When there is none, or their shapes differ.
    pub fn in_turn(traces: &[&Self]) -> Result<Self, RouteError> {
        let Some(first) = traces.first() else {
            return Err(content(Path::new("traces in turn"), "count", "at least 1", 0));
        };
        let mut all =
            Self { source: String::new(), picks: Vec::new(), context_starts: Vec::new(), ..(*first).clone() };
        for trace in traces {
            if trace.shape() != first.shape() || trace.guesses.is_some() != first.guesses.is_some() {
                return Err(content(
                    Path::new(&trace.model),
                    "shape of a trace in turn",
                    first.shape(),
                    trace.shape(),
                ));
            }
            let before = all.token_count();
            all.context_starts.extend(trace.context_starts.iter().map(|start| start + before));
            all.picks.extend_from_slice(&trace.picks);
            all.source += if all.source.is_empty() { "" } else { "; then " };
            all.source += &trace.source;
        }
        all.guesses = traces
            .iter()
            .map(|trace| trace.guesses.as_deref())
            .collect::<Option<Vec<_>>>()
            .map(|parts| parts.concat());
        Ok(all)
    }

    /// The shape in words.
    pub fn shape(&self) -> String {
        shape(self.layer_count, self.expert_count, self.experts_used)
    }

    /// Whether rows, ids and context starts are sound.
    ///
    /// # Errors
    /// With the first fault: thing, wanted, got.
    pub fn check(&self) -> Result<(), RouteError> {
        self.check_as(Path::new(&self.model))
    }

    fn check_as(&self, path: &Path) -> Result<(), RouteError> {
        let used = self.experts_used;
        if self.layer_count == 0 || self.layer_count > u32::from(u16::MAX) {
            return Err(content(path, "layers", "1 to 65535", self.layer_count));
        }
        if self.expert_count == 0 || self.expert_count > u32::from(u16::MAX) {
            return Err(content(path, "experts", "1 to 65535", self.expert_count));
        }
        if used == 0 || used > self.expert_count.min(EXPERTS_USED_MAX) {
            let most = self.expert_count.min(EXPERTS_USED_MAX);
            return Err(content(path, "experts used", format!("1 to {most}"), used));
        }
        let a_token = self.picks_a_token();
        if self.picks.is_empty() || !self.picks.len().is_multiple_of(a_token) {
            let wanted = format!("a multiple of {a_token}, at least one");
            return Err(content(path, "number of picks", wanted, self.picks.len()));
        }
        if let Some(guesses) = &self.guesses
            && guesses.len() != self.picks.len()
        {
            return Err(content(path, "number of guesses", self.picks.len(), guesses.len()));
        }
        let starts = &self.context_starts;
        let is_ascending = starts.windows(2).all(|pair| pair[0] < pair[1]);
        if starts.first() != Some(&0) || !is_ascending || starts.last() >= Some(&self.token_count()) {
            let wanted = format!("0, then ascending below {}", self.token_count());
            return Err(content(path, "context starts", wanted, format!("{starts:?}")));
        }
        self.check_rows(path, "picks", &self.picks)?;
        self.guesses.as_ref().map_or(Ok(()), |guesses| self.check_rows(path, "guesses", guesses))
    }

    fn check_rows(&self, path: &Path, what: &str, ids: &[u16]) -> Result<(), RouteError> {
        let mut seen_in = vec![usize::MAX; self.expert_count as usize];
        for (number, row) in ids.chunks(self.experts_used as usize).enumerate() {
            for &id in row {
                let at = || {
                    let (token, layer) =
                        (number / self.layer_count as usize, number % self.layer_count as usize);
                    format!("{what} of token {token}, expert layer {layer}")
                };
                let Some(seen) = seen_in.get_mut(usize::from(id)) else {
                    let wanted = format!("ids below {}", self.expert_count);
                    return Err(content(path, &at(), wanted, id));
                };
                if std::mem::replace(seen, number) == number {
                    return Err(content(path, &at(), "distinct ids", format!("{id} twice")));
                }
            }
        }
        Ok(())
    }
}

pub(super) fn shape(layers: u32, experts: u32, used: u32) -> String {
    format!("{layers} layers of {experts} experts, {used} a token")
}

/// The ids in the file `name` beside the header.
fn read_ids(header_path: &Path, name: &str, header: &Header, id_bytes: u64) -> Result<Vec<u16>, RouteError> {
    if Path::new(name).file_name() != Some(name.as_ref()) {
        return Err(content(header_path, "name of a file", "a plain name beside the header", name));
    }
    let path = header_path.with_file_name(name);
    let file = |cause| RouteError::File { path: path.clone(), cause };
    let wanted = [header.layers, header.topk]
        .into_iter()
        .try_fold(u64::from(header.tokens) * id_bytes, |product, factor| {
            product.checked_mul(u64::from(factor))
        })
        .unwrap_or(u64::MAX);
    let got = fs::metadata(&path).map_err(file)?.len();
    if got != wanted {
        return Err(content(&path, "length", format!("{wanted} B"), format!("{got} B")));
    }
    let bytes = fs::read(&path).map_err(file)?;
    if bytes.len() as u64 != wanted {
        return Err(content(&path, "length", format!("{wanted} B"), format!("{} B", bytes.len())));
    }
    Ok(match id_bytes {
        1 => bytes.into_iter().map(u16::from).collect(),
        _ => bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> RouteTrace {
        RouteTrace {
            model: "a model".to_owned(),
            model_sha256: None,
            expert_layer_first: 1,
            layer_count: 2,
            expert_count: 300,
            experts_used: 2,
            picks: vec![0, 1, 299, 3, 2, 1, 0, 256],
            guesses: Some(vec![0, 1, 2, 3, 2, 3, 0, 1]),
            context_starts: vec![0, 1],
            source: "a text".to_owned(),
            expansion: None,
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let mut wanted = trace();
        for experts in [300, 256] {
            wanted.expert_count = experts;
            wanted.picks[2] = 255;
            wanted.picks[7] = 254;
            let path = folder.path().join(format!("of{experts}.json"));
            wanted.save(&path).unwrap();
            assert_eq!(RouteTrace::load(&path).unwrap(), wanted);
        }
        let sizes = ["of300.picks.u16", "of256.picks.u8", "of256.guess.u8"]
            .map(|name| fs::metadata(folder.path().join(name)).unwrap().len());
        assert_eq!(sizes, [16, 8, 8]);
        assert_eq!(wanted.picks_of(1, 0), [2, 1]);
        assert_eq!(wanted.guesses_of(0, 1), Some(&[2, 3][..]));
    }

    #[test]
    fn faults_are_named() {
        let fault = |change: fn(&mut RouteTrace)| {
            let mut trace = trace();
            change(&mut trace);
            trace.check().unwrap_err().to_string()
        };
        for (change, wanted) in [
            (
                (|t| t.picks[3] = 300) as fn(&mut RouteTrace),
                "picks of token 0, expert layer 1: wanted ids below 300, got 300",
            ),
            (|t| t.picks[5] = 2, "picks of token 1, expert layer 0: wanted distinct ids, got 2 twice"),
            (|t| t.guesses.as_mut().unwrap()[0] = 1, "guesses of token 0, expert layer 0"),
            (|t| t.guesses.as_mut().unwrap().truncate(4), "number of guesses: wanted 8, got 4"),
            (|t| t.picks.truncate(7), "number of picks: wanted a multiple of 4"),
            (|t| t.context_starts = vec![1], "context starts: wanted 0, then ascending below 2"),
            (|t| t.context_starts = vec![0, 2], "context starts"),
            (|t| t.experts_used = 0, "experts used"),
        ] {
            let got = fault(change);
            assert!(got.contains(wanted), "{got}, wanted {wanted}");
        }
    }

    #[test]
    fn files_that_do_not_fit_their_header_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let refused = |wanted: &str| {
            let got = RouteTrace::load(&path).unwrap_err().to_string();
            assert!(got.contains(wanted), "{got}, wanted {wanted}");
        };
        refused("No such file");
        fs::write(&path, "{}").unwrap();
        refused("not a route trace's header");
        trace().save(&path).unwrap();
        let header = fs::read_to_string(&path).unwrap();
        fs::write(folder.path().join("a.picks.u16"), [0; 15]).unwrap();
        refused("length: wanted 16 B, got 15 B");
        for (from, to, wanted) in [
            ("a.picks.u16", "../a.picks.u16", "a plain name beside the header"),
            ("\"u16\"", "\"f32\"", "dtype: wanted u8 or u16, got f32"),
            ("best first", "by id", "order: wanted best first"),
            ("\"tokens\": 2", "\"tokens\": 4294967295", "length: wanted"),
        ] {
            fs::write(&path, header.replace(from, to)).unwrap();
            refused(wanted);
        }
    }

    #[test]
    fn traces_in_turn_are_one_text_after_the_other() {
        let one = trace();
        let all = RouteTrace::in_turn(&[&one, &one]).unwrap();
        assert_eq!(all.context_starts, [0, 1, 2, 3]);
        assert_eq!(all.picks_of(3, 1), one.picks_of(1, 1));
        assert_eq!(all.guesses.as_ref().unwrap().len(), 16);
        all.check().unwrap();
        let mut other = trace();
        other.expert_count = 400;
        assert!(RouteTrace::in_turn(&[&one, &other]).is_err());
        assert!(RouteTrace::in_turn(&[]).is_err());
    }
}
