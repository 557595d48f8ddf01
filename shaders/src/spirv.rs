//! SPIR-V as words and instructions, without their meaning.
//!
//! In: a module's bytes. Out: its words, and its [`Instruction`]s in order, or a [`SpirvError`] that says where the module
//! is damaged. (SPIR-V 1.6 unified specification, section 2.3.)
//!
//! Invariants: no read past the end, whatever the bytes are.

use std::fmt;

/// First word of every module.
pub(crate) const MAGIC: u32 = 0x0723_0203;

/// Words before the first instruction.
pub const HEADER_WORDS: usize = 5;

/// Where a module is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpirvError {
    /// The bytes are no SPIR-V module.
    NotSpirv,
    /// An instruction is longer than what is left of the module, or has no length.
    Truncated {
        /// Word of the module where the instruction starts.
        word: usize,
    },
    /// An instruction has fewer operands than it must have.
    Operands {
        /// Word of the module where the instruction starts.
        word: usize,
        /// Its opcode.
        opcode: u32,
    },
}

impl fmt::Display for SpirvError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSpirv => write!(out, "not a SPIR-V module: run compile-shaders"),
            Self::Truncated { word } => write!(
                out,
                "truncated SPIR-V: the instruction at word {word} does not end within the module, run compile-shaders"
            ),
            Self::Operands { word, opcode } => {
                write!(
                    out,
                    "damaged SPIR-V: opcode {opcode} at word {word} lacks operands, run compile-shaders"
                )
            }
        }
    }
}

impl std::error::Error for SpirvError {}

/// One instruction: its operands without the word that holds length and opcode.
#[derive(Clone, Copy, Debug)]
pub struct Instruction<'a> {
    /// The opcode.
    pub opcode: u32,
    /// Word of the module where it starts.
    pub word: usize,
    /// All its words, the first included.
    pub words: &'a [u32],
}

impl Instruction<'_> {
    /// Operand `index`.
    ///
    /// # Errors
    /// [`SpirvError::Operands`] when the instruction has fewer.
    pub(crate) fn operand(&self, index: usize) -> Result<u32, SpirvError> {
        self.words
            .get(index + 1)
            .copied()
            .ok_or(SpirvError::Operands { word: self.word, opcode: self.opcode })
    }

    /// The nul-terminated string that starts at operand `index`.
    pub(crate) fn text(&self, index: usize) -> String {
        let words = self.words.get(index + 1..).unwrap_or_default();
        let bytes: Vec<u8> =
            words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The little-endian words of a module.
///
/// # Errors
/// [`SpirvError::NotSpirv`] when the length, the header or the magic number is wrong.
pub fn words(spirv: &[u8]) -> Result<Vec<u32>, SpirvError> {
    let (chunks, rest) = spirv.as_chunks::<4>();
    let words: Vec<u32> = chunks.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    if !rest.is_empty() || words.len() < HEADER_WORDS || words[0] != MAGIC {
        return Err(SpirvError::NotSpirv);
    }
    Ok(words)
}

/// The instructions of a module in order.
///
/// # Errors
/// [`SpirvError::Truncated`] when an instruction does not end within the module.
pub fn instructions(words: &[u32]) -> Result<Vec<Instruction<'_>>, SpirvError> {
    let mut list = Vec::new();
    let mut word = HEADER_WORDS;
    while word < words.len() {
        let length = (words[word] >> 16) as usize;
        if length == 0 || word + length > words.len() {
            return Err(SpirvError::Truncated { word });
        }
        list.push(Instruction { opcode: words[word] & 0xFFFF, word, words: &words[word..word + length] });
        word += length;
    }
    Ok(list)
}
