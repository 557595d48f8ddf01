//! Writes GGUF files, right and wrong ones, and a tiny Flint from a seed.
//!
//! Shares no code with the reader, so that the two check each other. Include it with
//! `#[path = "support/tiny_gguf.rs"] mod tiny_gguf;`.

#![allow(dead_code, unreachable_pub, reason = "every test program includes this and uses its part of it")]
#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use half::f16;

/// GGUF numbers of the tensor types written here.
pub const F32: u32 = 0;
/// Blocks of 32 values in 20 bytes.
pub const Q4_1: u32 = 3;

/// A metadata value to be written.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(Vec<u8>),
    U64(u64),
    I64(i64),
    F64(f64),
    /// Elements of one scalar type, or strings; the number of the type is needed when there are none.
    Array(u32, Vec<Item>),
    /// Type and payload as they are.
    Raw(u32, Vec<u8>),
}

macro_rules! item_from {
    ($($source:ty => $variant:ident),*) => {
        $(impl From<$source> for Item {
            fn from(value: $source) -> Self {
                Self::$variant(value)
            }
        })*
    };
}
item_from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool);
item_from!(u64 => U64, i64 => I64, f64 => F64);

impl From<&str> for Item {
    fn from(text: &str) -> Self {
        Self::Str(text.as_bytes().to_vec())
    }
}

impl<T: Into<Item>> From<Vec<T>> for Item {
    /// An array, which must not be empty: its type is its first element's.
    fn from(elements: Vec<T>) -> Self {
        let elements: Vec<Item> = elements.into_iter().map(Into::into).collect();
        let kind = elements.first().expect("an empty array needs Item::Array and a type").kind();
        Self::Array(kind, elements)
    }
}

impl Item {
    /// The number of its type in a file.
    pub fn kind(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Str(_) => 8,
            Self::Array(..) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
            Self::Raw(kind, _) => *kind,
        }
    }

    fn write(&self, out: &mut Output) {
        match self {
            Self::U8(value) => out.put(&value.to_le_bytes()),
            Self::I8(value) => out.put(&value.to_le_bytes()),
            Self::U16(value) => out.put(&value.to_le_bytes()),
            Self::I16(value) => out.put(&value.to_le_bytes()),
            Self::U32(value) => out.put(&value.to_le_bytes()),
            Self::I32(value) => out.put(&value.to_le_bytes()),
            Self::F32(value) => out.put(&value.to_le_bytes()),
            Self::Bool(value) => out.put(&[u8::from(*value)]),
            Self::Str(bytes) => out.string(bytes),
            Self::U64(value) => out.put(&value.to_le_bytes()),
            Self::I64(value) => out.put(&value.to_le_bytes()),
            Self::F64(value) => out.put(&value.to_le_bytes()),
            Self::Array(kind, elements) => {
                out.put(&kind.to_le_bytes());
                out.put(&(elements.len() as u64).to_le_bytes());
                elements.iter().for_each(|element| element.write(out));
            }
            Self::Raw(_, payload) => out.put(payload),
        }
    }
}

/// A tensor to be written.
#[derive(Debug, Clone)]
pub struct TensorItem {
    pub name: String,
    pub kind: u32,
    /// Columns first.
    pub dims: Vec<u64>,
    pub data: Vec<u8>,
    /// What the table says instead of where the data really is, from the start of the data.
    pub offset: Option<u64>,
}

/// A GGUF file to be; every field may be changed, also to what no file should hold.
#[derive(Debug, Clone)]
pub struct GgufWriter {
    pub magic: [u8; 4],
    pub version: u32,
    /// Alignment of the tensors; the key `general.alignment` is not written by itself.
    pub alignment: u64,
    /// Instead of the true counts.
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    pub keys: Vec<(String, Item)>,
    pub tensors: Vec<TensorItem>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// A file with no keys and no tensors.
    pub fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            tensor_count: None,
            key_count: None,
            keys: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Sets `key`, in its place when it is there already.
    pub fn set(&mut self, key: &str, value: impl Into<Item>) -> &mut Self {
        let value = value.into();
        match self.keys.iter_mut().find(|(name, _)| name == key) {
            Some((_, place)) => *place = value,
            None => self.keys.push((key.to_owned(), value)),
        }
        self
    }

    /// Adds `key`, even a second time.
    pub fn add(&mut self, key: &str, value: impl Into<Item>) -> &mut Self {
        self.keys.push((key.to_owned(), value.into()));
        self
    }

    /// Takes `key` out.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        let place = self.keys.iter().position(|(name, _)| name == key).expect("no such key");
        self.keys.remove(place);
        self
    }

    /// The value of `key`.
    ///
    /// # Panics
    /// When it is not there.
    pub fn key(&self, key: &str) -> &Item {
        &self.keys.iter().find(|(name, _)| name == key).expect("no such key").1
    }

    /// Adds a tensor.
    pub fn add_tensor(&mut self, name: &str, kind: u32, dims: &[u64], data: Vec<u8>) -> &mut Self {
        self.tensors.push(TensorItem {
            name: name.to_owned(),
            kind,
            dims: dims.to_vec(),
            data,
            offset: None,
        });
        self
    }

    /// The tensor `name`, to be changed.
    ///
    /// # Panics
    /// When it is not there.
    pub fn tensor(&mut self, name: &str) -> &mut TensorItem {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("no such tensor")
    }

    /// Takes the tensor `name` out.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove_tensor(&mut self, name: &str) -> TensorItem {
        let place = self.tensors.iter().position(|tensor| tensor.name == name).expect("no such tensor");
        self.tensors.remove(place)
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        self.write().bytes
    }

    /// The file, and the offset at which each field of its header begins, the first tensor's data and the file's end
    /// included.
    pub fn bytes_and_borders(&self) -> (Vec<u8>, Vec<usize>) {
        let mut out = self.write();
        out.borders.push(out.bytes.len());
        out.borders.dedup();
        (out.bytes, out.borders)
    }

    fn write(&self) -> Output {
        let mut out = Output::default();
        out.put(&self.magic);
        out.put(&self.version.to_le_bytes());
        out.put(&self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.put(&self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.string(key.as_bytes());
            out.put(&value.kind().to_le_bytes());
            value.write(&mut out);
        }
        let mut next = 0;
        let mut offsets = Vec::new();
        for tensor in &self.tensors {
            offsets.push(next);
            out.string(tensor.name.as_bytes());
            out.put(&u32::try_from(tensor.dims.len()).unwrap().to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.put(&dim.to_le_bytes()));
            out.put(&tensor.kind.to_le_bytes());
            out.put(&tensor.offset.unwrap_or(next).to_le_bytes());
            next = (next + tensor.data.len() as u64).next_multiple_of(self.alignment);
        }
        out.pad(self.alignment);
        out.borders.push(out.bytes.len());
        let start = out.bytes.len() as u64;
        for (tensor, offset) in self.tensors.iter().zip(offsets) {
            out.bytes.resize(usize::try_from(start + offset).unwrap(), 0);
            out.bytes.extend_from_slice(&tensor.data);
        }
        out
    }
}

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    borders: Vec<usize>,
}

impl Output {
    fn put(&mut self, bytes: &[u8]) {
        self.borders.push(self.bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    fn string(&mut self, bytes: &[u8]) {
        self.put(&(bytes.len() as u64).to_le_bytes());
        self.put(bytes);
    }

    fn pad(&mut self, alignment: u64) {
        self.borders.push(self.bytes.len());
        let len = (self.bytes.len() as u64).next_multiple_of(alignment);
        self.bytes.resize(usize::try_from(len).unwrap(), 0);
    }
}

/// The numbers of a small Flint.
#[derive(Debug, Clone)]
pub struct TinyShape {
    pub layers: u32,
    pub lead_layers: u32,
    pub embed: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub ffn: u32,
    pub experts: u32,
    pub experts_used: u32,
    pub expert_ffn: u32,
    pub shared_ffn: u32,
    pub window: u32,
    pub context: u32,
    /// One entry a layer; the two need not be alike.
    pub slides: Vec<bool>,
    pub rotates: Vec<bool>,
}

impl Default for TinyShape {
    /// Every combination of window and rotation stands once, so that no program can take one for the other.
    fn default() -> Self {
        Self {
            layers: 4,
            lead_layers: 1,
            embed: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            ffn: 96,
            experts: 8,
            experts_used: 3,
            expert_ffn: 32,
            shared_ffn: 64,
            window: 9,
            context: 512,
            slides: vec![true, false, true, false],
            rotates: vec![true, false, false, true],
        }
    }
}

/// A valid Flint of a few hundred KiB, the same for the same seed.
pub fn tiny_flint(seed: u64) -> GgufWriter {
    tiny_flint_of(seed, &TinyShape::default())
}

/// A valid Flint of the given shape, the same for the same seed.
pub fn tiny_flint_of(seed: u64, shape: &TinyShape) -> GgufWriter {
    let mut writer = GgufWriter::new();
    let vocabulary = tiny_vocabulary();
    put_keys(&mut writer, shape, &vocabulary);
    put_tensors(&mut writer, shape, vocabulary.tokens.len() as u64, &mut Random(seed));
    writer
}

fn put_keys(writer: &mut GgufWriter, shape: &TinyShape, vocabulary: &TinyVocabulary) {
    writer.set("general.architecture", "flint");
    writer.set("general.type", "model");
    writer.set("general.name", "Flint tiny (random)");
    writer.set("flint.context_length", shape.context);
    writer.set("flint.vocab_size", u32::try_from(vocabulary.tokens.len()).unwrap());
    writer.set("flint.block_count", shape.layers);
    writer.set("flint.leading_dense_block_count", shape.lead_layers);
    writer.set("flint.embedding_length", shape.embed);
    writer.set("flint.feed_forward_length", shape.ffn);
    writer.set("flint.attention.head_count", shape.heads);
    writer.set("flint.attention.head_count_kv", shape.kv_heads);
    writer.set("flint.attention.key_length", shape.head_dim);
    writer.set("flint.attention.value_length", shape.head_dim);
    writer.set("flint.rope.dimension_count", shape.head_dim);
    writer.set("flint.rope.freq_base", 10000.0f32);
    writer.set("flint.attention.layer_norm_rms_epsilon", 1e-6f32);
    writer.set("flint.attention.sliding_window", shape.window);
    writer.set("flint.attention.sliding_window_pattern", shape.slides.clone());
    writer.set("flint.attention.rope_pattern", shape.rotates.clone());
    writer.set("flint.expert_count", shape.experts);
    writer.set("flint.expert_used_count", shape.experts_used);
    writer.set("flint.expert_feed_forward_length", shape.expert_ffn);
    writer.set("flint.expert_shared_feed_forward_length", shape.shared_ffn);
    writer.set("flint.expert_weights_scale", 1.0f32);
    writer.set("flint.expert_weights_norm", true);
    writer.set("flint.expert_gating_func", 2u32);
    writer.set("general.quantization_version", 2u32);
    writer.set("general.file_type", 3u32);
    writer.set("tokenizer.ggml.model", "gpt2");
    writer.set("tokenizer.ggml.pre", "flint");
    let texts = |texts: &[String]| Item::from(texts.iter().map(String::as_str).collect::<Vec<_>>());
    writer.set("tokenizer.ggml.tokens", texts(&vocabulary.tokens));
    writer.set("tokenizer.ggml.token_type", vocabulary.types.clone());
    writer.set("tokenizer.ggml.merges", texts(&vocabulary.merges));
    writer.set("tokenizer.ggml.bos_token_id", 0u32);
    writer.set("tokenizer.ggml.eos_token_id", 1u32);
    writer.set("tokenizer.ggml.add_bos_token", false);
}

/// Weights with which the model does not collapse: blocks have mean zero, and what is added to the residual stream is
/// small beside it, so that different tokens keep different directions and choose different experts.
fn put_tensors(writer: &mut GgufWriter, shape: &TinyShape, vocabulary: u64, random: &mut Random) {
    const INTO_RESIDUAL: f32 = 0.25;
    let embed = u64::from(shape.embed);
    let head = u64::from(shape.head_dim);
    let (query, key) = (u64::from(shape.heads) * head, u64::from(shape.kv_heads) * head);
    let experts = u64::from(shape.experts);
    let norm = |random: &mut Random, len| random.floats(len, 1.0, 0.2);

    writer.add_tensor(
        "token_embd.weight",
        F32,
        &[embed, vocabulary],
        random.floats(embed * vocabulary, 0.0, 1.0),
    );
    writer.add_tensor("output_norm.weight", F32, &[embed], norm(random, embed));
    matrix(writer, random, "output.weight", &[embed, vocabulary], 3.0);
    for layer in 0..shape.layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        writer.add_tensor(&name("attn_norm"), F32, &[embed], norm(random, embed));
        matrix(writer, random, &name("attn_q"), &[embed, query], 1.0);
        matrix(writer, random, &name("attn_k"), &[embed, key], 1.0);
        matrix(writer, random, &name("attn_v"), &[embed, key], 1.0);
        matrix(writer, random, &name("attn_output"), &[query, embed], INTO_RESIDUAL);
        writer.add_tensor(&name("attn_q_norm"), F32, &[head], norm(random, head));
        writer.add_tensor(&name("attn_k_norm"), F32, &[head], norm(random, head));
        writer.add_tensor(
            &name("attn_sinks"),
            F32,
            &[shape.heads.into()],
            random.floats(shape.heads.into(), 0.5, 1.0),
        );
        writer.add_tensor(&name("ffn_norm"), F32, &[embed], norm(random, embed));
        if layer < shape.lead_layers {
            let ffn = shape.ffn.into();
            matrix(writer, random, &name("ffn_gate"), &[embed, ffn], 1.0);
            matrix(writer, random, &name("ffn_up"), &[embed, ffn], 1.0);
            matrix(writer, random, &name("ffn_down"), &[ffn, embed], INTO_RESIDUAL);
            continue;
        }
        let (expert, shared) = (shape.expert_ffn.into(), shape.shared_ffn.into());
        let spread = 2.0 / (shape.embed as f32).sqrt();
        writer.add_tensor(
            &name("ffn_gate_inp"),
            F32,
            &[embed, experts],
            random.floats(embed * experts, 0.0, spread),
        );
        matrix(writer, random, &name("ffn_gate_exps"), &[embed, expert, experts], 1.0);
        matrix(writer, random, &name("ffn_up_exps"), &[embed, expert, experts], 1.0);
        matrix(writer, random, &name("ffn_down_exps"), &[expert, embed, experts], INTO_RESIDUAL);
        matrix(writer, random, &name("ffn_gate_shexp"), &[embed, shared], 1.0);
        matrix(writer, random, &name("ffn_up_shexp"), &[embed, shared], 1.0);
        matrix(writer, random, &name("ffn_down_shexp"), &[shared, embed], INTO_RESIDUAL);
    }
}

/// Adds a Q4_1 tensor whose values have a deviation of about `gain` over the root of its columns.
fn matrix(writer: &mut GgufWriter, random: &mut Random, name: &str, dims: &[u64], gain: f32) {
    // Nibbles from 0 to 15, all as likely, have a deviation of 4.61.
    let step = gain / (dims[0] as f32).sqrt() / 4.61;
    let blocks = dims.iter().product::<u64>() / 32;
    let mut data = Vec::with_capacity(usize::try_from(blocks).unwrap() * 20);
    for _ in 0..blocks {
        let step = step * (0.8 + 0.4 * random.unit());
        data.extend_from_slice(&f16::from_f32(step).to_le_bytes());
        data.extend_from_slice(&f16::from_f32(-7.5 * step).to_le_bytes());
        data.extend_from_slice(&random.bits().to_le_bytes());
        data.extend_from_slice(&random.bits().to_le_bytes());
    }
    writer.add_tensor(name, Q4_1, dims, data);
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// `count` floats as bytes, near enough normal.
    fn floats(&mut self, count: u64, mean: f32, deviation: f32) -> Vec<u8> {
        (0..count)
            .flat_map(|_| {
                // Three uniform numbers have a variance of 1/4 together.
                let sum = self.unit() + self.unit() + self.unit();
                (mean + deviation * (sum - 1.5) * 2.0).to_le_bytes()
            })
            .collect()
    }
}

/// A byte-level vocabulary with the control tokens of Flint in front.
pub struct TinyVocabulary {
    pub tokens: Vec<String>,
    /// 3 for a control token, 1 for others.
    pub types: Vec<i32>,
    /// In the order of their rank.
    pub merges: Vec<String>,
}

/// The control tokens, at the ids at which the small trained models have them.
pub const CONTROL_TOKENS: [&str; 11] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|system|>",
    "<|developer|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
    "<tool_response>",
    "</tool_response>",
];

/// Pairs merged in the tiny vocabulary, by rank; the space is written as it is.
const MERGES: [(&str, &str); 34] = [
    (" ", " "),
    ("  ", "  "),
    ("i", "n"),
    ("r", "e"),
    ("o", "n"),
    (" ", "t"),
    ("e", "r"),
    ("s", "e"),
    ("a", "t"),
    (" ", "a"),
    ("o", "r"),
    ("l", "f"),
    ("se", "lf"),
    (" ", "s"),
    ("h", "e"),
    (" t", "he"),
    ("e", "n"),
    ("d", "e"),
    ("de", "f"),
    (" ", "="),
    ("re", "t"),
    ("u", "r"),
    ("ur", "n"),
    ("ret", "urn"),
    (" ", "i"),
    (" i", "n"),
    ("i", "on"),
    ("a", "l"),
    ("i", "t"),
    ("e", "l"),
    (" a", "n"),
    (" an", "d"),
    ("\n", "    "),
    ("l", "o"),
];

/// Control tokens, the 256 bytes, and what the merges make.
pub fn tiny_vocabulary() -> TinyVocabulary {
    let alphabet = byte_alphabet();
    let spell = |text: &str| text.bytes().map(|byte| alphabet[usize::from(byte)]).collect::<String>();
    let mut tokens: Vec<String> = CONTROL_TOKENS.iter().map(|&token| token.to_owned()).collect();
    let mut types = vec![3; tokens.len()];
    // In the order of the characters, as trained vocabularies have it, so ids are not byte values.
    let mut letters = alphabet.clone();
    letters.sort_unstable();
    tokens.extend(letters.iter().map(char::to_string));
    tokens.extend(MERGES.iter().map(|(left, right)| spell(left) + &spell(right)));
    types.resize(tokens.len(), 1);
    let merges = MERGES.iter().map(|(left, right)| format!("{} {}", spell(left), spell(right))).collect();
    TinyVocabulary { tokens, types, merges }
}

/// The printable character that stands for each byte (Radford et al. 2019, GPT-2): itself where it is printable, else
/// the next free one from U+0100 on.
fn byte_alphabet() -> Vec<char> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            33..=126 | 161..=172 | 174..=255 => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("below the surrogates")
            }
        })
        .collect()
}
