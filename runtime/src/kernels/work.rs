//! What a dispatch has to do: its shape in words, the bytes it cannot do without, its arithmetic. Pure.
//!
//! - In: what a dispatch was recorded with. Out: [`Work`].
//! - Invariants: read off push constants and specialization constants by their names, so a kernel with the same names is known as soon
//!   as there is one. What cannot be read off is `None`, never a guess.
//!
//! Bytes are the weights, once a tile of rows; activations lie in caches. A tile's rows count whole: of a tile of eight that holds five
//! tokens the arithmetic of eight.

use flint_shaders::layout::push_block;

use crate::gpu::DispatchLabel;

/// Bytes of a Q4_1 block, and its values.
const BLOCK: (u64, u64) = (20, 32);

/// What a dispatch has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// Matrix and rows, or workgroups, in words: `4096x2048`, `2x1024x2048, 8 rows`.
    pub shape: String,
    /// Bytes that it cannot do without.
    pub bytes: Option<u64>,
    /// Multiplications and additions.
    pub flops: Option<u64>,
}

/// A dispatch's push constant or specialization constant of this name.
fn value(label: &DispatchLabel, name: &str) -> Option<u32> {
    let constant = label.constants.iter().position(|&constant| constant == name);
    if let Some(&value) = constant.and_then(|index| label.values.get(index)) {
        return Some(value);
    }
    let field = push_block(label.name)?.fields.iter().find(|field| field.name == name)?;
    let at = field.offset_bytes as usize;
    let bytes = label.push.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().expect("invariant: four bytes")))
}

impl Work {
    /// Of a dispatch.
    pub fn of(label: &DispatchLabel) -> Self {
        if label.bytes > 0 {
            return Self { shape: "bytes".to_owned(), bytes: Some(label.bytes), flops: None };
        }
        let of = |name| value(label, name);
        if label.groups == [0; 3] {
            return Self { shape: "groups counted by the device".to_owned(), bytes: None, flops: None };
        }
        match (of("row_count"), of("column_count")) {
            (Some(rows), Some(columns)) => Self::of_matrix(label, rows, columns),
            _ => Self { shape: Self::words(label), bytes: None, flops: None },
        }
    }

    fn of_matrix(label: &DispatchLabel, rows: u32, columns: u32) -> Self {
        let is_pair = label.name.contains("gate_up");
        let is_of_experts = label.name.starts_with("expert_");
        let matrices = if is_pair { 2 } else { 1 };
        let [_, y, z] = label.groups.map(u64::from);
        let tile_rows = value(label, "TOKENS").map_or(1, u64::from);
        // Experts: a tile of one expert's rows along z. Others: tiles of rows along y, each of which reads the matrix.
        let (tiles, what) = if is_of_experts { (z, "experts") } else { (y, "rows") };
        let values = matrices * u64::from(rows) * u64::from(columns);
        let bytes_of_matrix = match label.name {
            "router" => values * 4,
            _ => values / BLOCK.1 * BLOCK.0,
        };
        let wanted = value(label, "token_count_max").filter(|&rows| rows > 0).map(u64::from);
        let token_rows = match is_of_experts {
            true => tiles * tile_rows,
            false => wanted.unwrap_or(tiles * tile_rows),
        };
        let head = if is_pair { format!("2x{rows}x{columns}") } else { format!("{rows}x{columns}") };
        let shape = match (is_of_experts, tiles, tile_rows, token_rows) {
            (false, _, _, 1) => head,
            // How many there are differs from step to step, and is in bytes and arithmetic.
            (true, _, 1, _) => format!("{head}, {what}"),
            (true, _, tile_rows, _) => format!("{head}, tiles of {tile_rows}"),
            (false, ..) => format!("{head}, {token_rows} {what}"),
        };
        // A matrix is read once, as far as caches hold it from tile to tile; a tile of experts has one of its own.
        let bytes = if is_of_experts { tiles * bytes_of_matrix } else { bytes_of_matrix };
        Self { shape, bytes: Some(bytes), flops: Some(2 * values * token_rows) }
    }

    /// A dispatch without a matrix.
    fn words(label: &DispatchLabel) -> String {
        let of = |name| value(label, name);
        let [x, y, z] = label.groups;
        if label.name == "attention" {
            let rows = if z == 1 { String::new() } else { format!(", {z} rows") };
            return match (of("window"), of("splits")) {
                (Some(0), Some(splits)) => format!("full, {splits} splits{rows}"),
                (Some(window), Some(splits)) => format!("window {window}, {splits} splits{rows}"),
                _ => format!("{x}x{y}x{z} groups"),
            };
        }
        format!("{x}x{y}x{z} groups")
    }
}

#[cfg(test)]
mod tests {
    use flint_shaders::layout::{AttentionPush, ExpertGateUpPush, MatmulPush, RmsNormPush, RouterPush};

    use super::*;

    fn label(
        name: &'static str,
        constants: &'static [&'static str],
        values: &[u32],
        push: &[u8],
        groups: [u32; 3],
    ) -> DispatchLabel {
        DispatchLabel { name, constants, values: values.into(), push: push.into(), groups, bytes: 0 }
    }

    #[test]
    fn a_matrix_counts_once_and_its_arithmetic_by_rows() {
        let push = MatmulPush { row_count: 4096, column_count: 2048, ..MatmulPush::default() };
        let constants = &["WORKGROUP", "SUBGROUP", "ROWS", "TOKENS", "ADD"];
        let one = Work::of(&label("matmul", constants, &[32, 32, 2, 1, 0], push.bytes(), [2048, 1, 1]));
        let (values, bytes) = (4096 * 2048, 4096 * 2048 / 32 * 20);
        assert_eq!(one, Work { shape: "4096x2048".into(), bytes: Some(bytes), flops: Some(2 * values) });
        let many = Work::of(&label("matmul", constants, &[32, 32, 2, 8, 0], push.bytes(), [2048, 2, 1]));
        assert_eq!(many.shape, "4096x2048, 16 rows");
        assert_eq!((many.bytes, many.flops), (Some(bytes), Some(2 * values * 16)));
        let push = MatmulPush { token_count_max: 3, ..push };
        let three = Work::of(&label("matmul", constants, &[32, 32, 2, 4, 0], push.bytes(), [2048, 1, 1]));
        assert_eq!((three.shape.as_str(), three.flops), ("4096x2048, 3 rows", Some(2 * values * 3)));
    }

    #[test]
    fn every_tile_of_experts_reads_its_own() {
        let push = ExpertGateUpPush { row_count: 512, column_count: 2048, ..ExpertGateUpPush::default() };
        let constants = &["WORKGROUP", "SUBGROUP", "ROWS", "TOKENS"];
        let six = Work::of(&label("expert_gate_up", constants, &[32, 32, 1, 1], push.bytes(), [512, 1, 6]));
        let bytes = 2 * 512 * 2048 / 32 * 20;
        assert_eq!((six.shape.as_str(), six.bytes), ("2x512x2048, experts", Some(6 * bytes)));
        let tiles = Work::of(&label("expert_gate_up", constants, &[32, 32, 1, 8], push.bytes(), [512, 1, 6]));
        assert_eq!((tiles.shape.as_str(), tiles.bytes), ("2x512x2048, tiles of 8", Some(6 * bytes)));
        assert_eq!(tiles.flops, six.flops.map(|flops| 8 * flops));
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let push = AttentionPush { window: 513, splits: 16, ..AttentionPush::default() };
        let attention = Work::of(&label("attention", &[], &[], push.bytes(), [4, 16, 1]));
        assert_eq!(attention, Work { shape: "window 513, 16 splits".into(), bytes: None, flops: None });
        let norm = Work::of(&label("rms_norm", &[], &[], RmsNormPush::default().bytes(), [1, 1, 1]));
        assert_eq!((norm.shape.as_str(), norm.bytes), ("1x1x1 groups", None));
        let router = RouterPush { row_count: 256, column_count: 2048 };
        let router = Work::of(&label("router", &[], &[], router.bytes(), [128, 1, 1]));
        assert_eq!(router.bytes, Some(256 * 2048 * 4), "it is in F32");
        let strange = Work::of(&label("no such kernel", &[], &[], &[1, 2], [1, 2, 3]));
        assert_eq!(strange.shape, "1x2x3 groups");
    }
}
