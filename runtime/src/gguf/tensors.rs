//! The tensor table: name, shape, type and byte range of every tensor, each checked against the file and the others.

use super::error::GgufError;
use super::kind::TensorKind;
use super::source::Source;
use crate::base::limits::{DIMENSIONS_MAX, GGUF_KEY_BYTES_MAX};

/// Least bytes of a table entry: length and one byte of name, dimension count, one dimension, type, offset.
pub(super) const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// One tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its dimensions in the file's order: columns, which lie side by side, then rows, then matrices. 1 to 4 of them,
    /// none of them zero.
    pub dims: Vec<u64>,
    /// How its values are stored.
    pub kind: TensorKind,
    /// Where its data begins, from the start of the file.
    pub offset_bytes: u64,
    /// How many bytes it has.
    pub len_bytes: u64,
}

impl Tensor {
    /// Where its data ends, from the start of the file.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.len_bytes
    }
}

/// All tensors, in the order of the file. No name stands twice and no two share a byte.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TensorTable {
    tensors: Vec<Tensor>,
    /// Indexes of `tensors`, ordered by name.
    by_name: Vec<u32>,
}

impl TensorTable {
    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The tensors in the order of the file's table.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// The tensor `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let order = |&index: &u32| self.tensors[index as usize].name.as_str().cmp(name);
        let place = self.by_name.binary_search_by(order).ok()?;
        Some(&self.tensors[self.by_name[place] as usize])
    }

    /// Reads `count` entries. Offsets count from the start of the data until [`Self::place`] has moved them.
    pub(super) fn read(source: &mut Source<'_>, count: u64) -> Result<Self, GgufError> {
        let mut tensors = Vec::new();
        for _ in 0..count {
            tensors.push(read_entry(source)?);
        }
        Self::of(tensors)
    }

    /// The tables of several files as one, each with its offsets moved by the number beside it.
    pub(super) fn join(tables: Vec<(u64, Self)>) -> Result<Self, GgufError> {
        let tensors = tables.into_iter().flat_map(|(start_bytes, table)| {
            table.tensors.into_iter().map(move |mut tensor| {
                tensor.offset_bytes += start_bytes;
                tensor
            })
        });
        Self::of(tensors.collect())
    }

    /// The table of `tensors`, whose names must differ.
    fn of(tensors: Vec<Tensor>) -> Result<Self, GgufError> {
        let mut by_name: Vec<u32> =
            (0..u32::try_from(tensors.len()).expect("invariant: the tensor count has a limit")).collect();
        by_name.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        let twice =
            by_name.windows(2).find(|pair| tensors[pair[0] as usize].name == tensors[pair[1] as usize].name);
        if let Some(pair) = twice {
            return Err(GgufError::DuplicateTensor { tensor: tensors[pair[0] as usize].name.clone() });
        }
        Ok(Self { tensors, by_name })
    }

    /// Makes the offsets absolute, and checks every tensor against the file and against its neighbours.
    pub(super) fn place(
        &mut self,
        data_start: u64,
        alignment: u32,
        file_len_bytes: u64,
    ) -> Result<(), GgufError> {
        for tensor in &mut self.tensors {
            tensor.len_bytes = len_bytes(tensor, file_len_bytes)?;
            let offset_bytes = tensor.offset_bytes;
            if !offset_bytes.is_multiple_of(alignment.into()) {
                return Err(GgufError::Unaligned { tensor: tensor.name.clone(), offset_bytes, alignment });
            }
            let start = data_start.checked_add(offset_bytes);
            let end = start.and_then(|start| start.checked_add(tensor.len_bytes));
            match (start, end) {
                (Some(start), Some(end)) if end <= file_len_bytes => tensor.offset_bytes = start,
                _ => {
                    return Err(GgufError::BeyondFile {
                        tensor: tensor.name.clone(),
                        offset_bytes,
                        len_bytes: tensor.len_bytes,
                        data_start,
                        file_len_bytes,
                    });
                }
            }
        }
        self.check_overlap()
    }

    fn check_overlap(&self) -> Result<(), GgufError> {
        let mut by_offset: Vec<&Tensor> = self.tensors.iter().collect();
        by_offset.sort_unstable_by_key(|tensor| tensor.offset_bytes);
        // No tensor is empty, so it is enough to compare neighbours.
        match by_offset.windows(2).find(|pair| pair[0].end_bytes() > pair[1].offset_bytes) {
            None => Ok(()),
            Some(pair) => Err(GgufError::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
                end_bytes: pair[0].end_bytes(),
                offset_bytes: pair[1].offset_bytes,
            }),
        }
    }
}

fn read_entry(source: &mut Source<'_>) -> Result<Tensor, GgufError> {
    let name = source.name(GGUF_KEY_BYTES_MAX, "the length of a tensor name")?;
    let offset_bytes = source.offset_bytes();
    let found = source.u32("the dimension count of a tensor")?;
    if !(1..=DIMENSIONS_MAX).contains(&found) {
        return Err(GgufError::DimensionCount { tensor: name, offset_bytes, found, limit: DIMENSIONS_MAX });
    }
    let mut dims = Vec::with_capacity(found as usize);
    for _ in 0..found {
        dims.push(source.u64("a dimension of a tensor")?);
    }
    let code = source.u32("the type of a tensor")?;
    let Some(kind) = TensorKind::from_code(code) else {
        return Err(GgufError::TensorType { tensor: name, found: code });
    };
    let offset_bytes = source.u64("the offset of a tensor")?;
    Ok(Tensor { name, dims, kind, offset_bytes, len_bytes: 0 })
}

/// Bytes of `tensor`, which must fit into the file.
///
/// The product grows a dimension at a time and stops at the first that makes it too large: so it cannot wrap, and the
/// message can name that dimension.
fn len_bytes(tensor: &Tensor, file_len_bytes: u64) -> Result<u64, GgufError> {
    let dims = &tensor.dims;
    if let Some(dimension) = dims.iter().position(|&dim| dim == 0) {
        return Err(GgufError::ZeroDimension { tensor: tensor.name.clone(), dimension, dims: dims.clone() });
    }
    let (block, block_bytes) = (tensor.kind.block_len(), tensor.kind.block_bytes());
    if !dims[0].is_multiple_of(block) {
        return Err(GgufError::PartialBlock {
            tensor: tensor.name.clone(),
            dims: dims.clone(),
            kind: tensor.kind.name(),
            block,
        });
    }
    let mut bytes = block_bytes;
    for (dimension, &dim) in dims.iter().enumerate() {
        let factor = if dimension == 0 { dim / block } else { dim };
        match bytes.checked_mul(factor) {
            Some(product) if product <= file_len_bytes => bytes = product,
            _ => {
                return Err(GgufError::TensorTooLarge {
                    tensor: tensor.name.clone(),
                    dimension,
                    dims: dims.clone(),
                    file_len_bytes,
                });
            }
        }
    }
    Ok(bytes)
}
