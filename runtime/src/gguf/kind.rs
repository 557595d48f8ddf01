//! How the values of a tensor are stored.

/// The storage types of GGUF tensors, by ggml's names.
///
/// All that are found in files are known, so that the size of every tensor can be checked; which of them run is a
/// question for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorKind {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 4-bit blocks with a scale.
    Q4_0,
    /// 4-bit blocks with a scale and an offset: 32 values in 20 bytes. What Flint's matrices are.
    Q4_1,
    /// 5-bit blocks with a scale.
    Q5_0,
    /// 5-bit blocks with a scale and an offset.
    Q5_1,
    /// 8-bit blocks with a scale.
    Q8_0,
    /// 2-bit superblocks.
    Q2K,
    /// 3-bit superblocks.
    Q3K,
    /// 4-bit superblocks.
    Q4K,
    /// 5-bit superblocks.
    Q5K,
    /// 6-bit superblocks.
    Q6K,
    /// Codebook, 2.06 bits.
    Iq2Xxs,
    /// Codebook, 2.31 bits.
    Iq2Xs,
    /// Codebook, 3.06 bits.
    Iq3Xxs,
    /// Codebook, 1.56 bits.
    Iq1S,
    /// 4-bit blocks with values from a table.
    Iq4Nl,
    /// Codebook, 3.44 bits.
    Iq3S,
    /// Codebook, 2.56 bits.
    Iq2S,
    /// 4-bit superblocks with values from a table.
    Iq4Xs,
    /// 8-bit integers.
    I8,
    /// 16-bit integers.
    I16,
    /// 32-bit integers.
    I32,
    /// 64-bit integers.
    I64,
    /// 64-bit floats.
    F64,
    /// Codebook, 1.75 bits.
    Iq1M,
    /// 16-bit floats with eight bits of exponent.
    Bf16,
    /// Ternary, 1.69 bits.
    Tq1_0,
    /// Ternary, 2.06 bits.
    Tq2_0,
    /// 4-bit floats with a shared exponent.
    Mxfp4,
}

/// Type, its number in the file, its name, values of a block, bytes of a block.
///
/// Source: `enum ggml_type` and the block structs of ggml. Numbers left out were withdrawn, or name the form of
/// activations, which no file holds.
const KINDS: [(TensorKind, u32, &str, u64, u64); 30] = [
    (TensorKind::F32, 0, "F32", 1, 4),
    (TensorKind::F16, 1, "F16", 1, 2),
    (TensorKind::Q4_0, 2, "Q4_0", 32, 18),
    (TensorKind::Q4_1, 3, "Q4_1", 32, 20),
    (TensorKind::Q5_0, 6, "Q5_0", 32, 22),
    (TensorKind::Q5_1, 7, "Q5_1", 32, 24),
    (TensorKind::Q8_0, 8, "Q8_0", 32, 34),
    (TensorKind::Q2K, 10, "Q2_K", 256, 84),
    (TensorKind::Q3K, 11, "Q3_K", 256, 110),
    (TensorKind::Q4K, 12, "Q4_K", 256, 144),
    (TensorKind::Q5K, 13, "Q5_K", 256, 176),
    (TensorKind::Q6K, 14, "Q6_K", 256, 210),
    (TensorKind::Iq2Xxs, 16, "IQ2_XXS", 256, 66),
    (TensorKind::Iq2Xs, 17, "IQ2_XS", 256, 74),
    (TensorKind::Iq3Xxs, 18, "IQ3_XXS", 256, 98),
    (TensorKind::Iq1S, 19, "IQ1_S", 256, 50),
    (TensorKind::Iq4Nl, 20, "IQ4_NL", 32, 18),
    (TensorKind::Iq3S, 21, "IQ3_S", 256, 110),
    (TensorKind::Iq2S, 22, "IQ2_S", 256, 82),
    (TensorKind::Iq4Xs, 23, "IQ4_XS", 256, 136),
    (TensorKind::I8, 24, "I8", 1, 1),
    (TensorKind::I16, 25, "I16", 1, 2),
    (TensorKind::I32, 26, "I32", 1, 4),
    (TensorKind::I64, 27, "I64", 1, 8),
    (TensorKind::F64, 28, "F64", 1, 8),
    (TensorKind::Iq1M, 29, "IQ1_M", 256, 56),
    (TensorKind::Bf16, 30, "BF16", 1, 2),
    (TensorKind::Tq1_0, 34, "TQ1_0", 256, 54),
    (TensorKind::Tq2_0, 35, "TQ2_0", 256, 66),
    (TensorKind::Mxfp4, 39, "MXFP4", 32, 17),
];

impl TensorKind {
    /// The type with the number `code`, if this reader knows it.
    pub fn from_code(code: u32) -> Option<Self> {
        KINDS.iter().find(|kind| kind.1 == code).map(|kind| kind.0)
    }

    /// Its number in a file.
    pub fn code(self) -> u32 {
        self.row().1
    }

    /// Its name, as ggml's tools print it.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Values of a block; a row is a whole number of blocks.
    pub fn block_len(self) -> u64 {
        self.row().3
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> u64 {
        self.row().4
    }

    fn row(self) -> &'static (TensorKind, u32, &'static str, u64, u64) {
        KINDS.iter().find(|kind| kind.0 == self).expect("invariant: every type has its row")
    }
}
