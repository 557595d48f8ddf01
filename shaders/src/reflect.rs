//! Reads from a SPIR-V module what the host must know of it: workgroup size, specialization constants, bindings and
//! the push-constant block.
//!
//! In: a module's bytes. Out: a [`Reflection`], or a [`ReflectError`] that says what in the module was not expected.
//!
//! Invariants: looks only at what `compile-shaders` can make (one entry point, `LocalSizeId` or `LocalSize`, blocks of
//! 32-bit scalars); anything else is an error, never a guess. Opcodes and layouts: SPIR-V 1.6 unified specification,
//! section 3.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::spirv::{Instruction, SpirvError, instructions, words};

const OP_NAME: u32 = 5;
const OP_MEMBER_NAME: u32 = 6;
const OP_ENTRY_POINT: u32 = 15;
const OP_EXECUTION_MODE: u32 = 16;
const OP_TYPE_INT: u32 = 21;
const OP_TYPE_FLOAT: u32 = 22;
const OP_TYPE_ARRAY: u32 = 28;
const OP_TYPE_STRUCT: u32 = 30;
const OP_TYPE_POINTER: u32 = 32;
const OP_CONSTANT: u32 = 43;
const OP_SPEC_CONSTANT: u32 = 50;
const OP_VARIABLE: u32 = 59;
const OP_DECORATE: u32 = 71;
const OP_MEMBER_DECORATE: u32 = 72;
const OP_EXECUTION_MODE_ID: u32 = 331;

const MODE_LOCAL_SIZE: u32 = 17;
const MODE_LOCAL_SIZE_ID: u32 = 38;

const DECORATION_SPEC_ID: u32 = 1;
const DECORATION_BINDING: u32 = 33;
const DECORATION_SET: u32 = 34;
const DECORATION_OFFSET: u32 = 35;

const STORAGE_PUSH_CONSTANT: u32 = 9;
const STORAGE_BUFFER: u32 = 12;

/// What the host must know of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reflection {
    /// Name of the entry point.
    pub entry_point: String,
    /// Workgroup size in x, y and z.
    pub local_size: [LocalSize; 3],
    /// Specialization constants by `constant_id`; the name is empty where the module has none.
    pub constants: BTreeMap<u32, String>,
    /// Storage buffers, in order of binding.
    pub bindings: Vec<Binding>,
    /// The push-constant block, if there is one.
    pub push: Option<Push>,
}

/// One dimension of the workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalSize {
    /// Written in the module.
    Fixed(u32),
    /// Chosen by the host through the specialization constant with this `constant_id`.
    Constant(u32),
}

/// One binding: a storage buffer or an array of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Descriptor set.
    pub set: u32,
    /// Binding number.
    pub binding: u32,
    /// Descriptors: 1, or the length of the array.
    pub count: u32,
}

/// A push-constant block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// Name of the struct that holds the members.
    pub name: String,
    /// Its members in order.
    pub members: Vec<Member>,
    /// End of the last member in bytes.
    pub size_bytes: u32,
}

/// One member of a push-constant block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its GLSL type: `uint` or `float`.
    pub glsl_type: &'static str,
    /// Where it starts in bytes.
    pub offset_bytes: u32,
}

/// Why a module cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReflectError {
    /// The bytes are damaged, or no SPIR-V at all.
    Spirv(SpirvError),
    /// The module has something that no kernel of ours may have.
    Unexpected {
        /// What it is.
        what: String,
    },
}

impl fmt::Display for ReflectError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spirv(error) => error.fmt(out),
            Self::Unexpected { what } => write!(out, "the kernel has {what}, which no kernel here may have"),
        }
    }
}

impl std::error::Error for ReflectError {}

impl From<SpirvError> for ReflectError {
    fn from(error: SpirvError) -> Self {
        Self::Spirv(error)
    }
}

fn unexpected(what: impl Into<String>) -> ReflectError {
    ReflectError::Unexpected { what: what.into() }
}

#[derive(Clone)]
enum Type {
    Uint,
    Float,
    Array { length_id: u32 },
    Struct { members: Vec<u32> },
    Pointer { target: u32 },
}

/// The declarations of a module by result id.
#[derive(Default)]
struct Tables {
    names: HashMap<u32, String>,
    member_names: HashMap<(u32, u32), String>,
    decorations: HashMap<(u32, u32), u32>,
    member_offsets: HashMap<(u32, u32), u32>,
    types: HashMap<u32, Type>,
    constants: HashMap<u32, u32>,
    spec_constants: Vec<u32>,
    variables: Vec<(u32, u32, u32)>,
    entry_points: Vec<String>,
    local_size: Option<[u32; 3]>,
    local_size_ids: Option<[u32; 3]>,
}

impl Tables {
    fn read(list: &[Instruction<'_>]) -> Result<Self, SpirvError> {
        let mut tables = Self::default();
        for instruction in list {
            tables.take(instruction)?;
        }
        Ok(tables)
    }

    fn take(&mut self, at: &Instruction<'_>) -> Result<(), SpirvError> {
        let word = |index| at.operand(index);
        match at.opcode {
            OP_NAME => {
                self.names.insert(word(0)?, at.text(1));
            }
            OP_MEMBER_NAME => {
                self.member_names.insert((word(0)?, word(1)?), at.text(2));
            }
            OP_ENTRY_POINT => self.entry_points.push(at.text(2)),
            OP_EXECUTION_MODE if word(1)? == MODE_LOCAL_SIZE => {
                self.local_size = Some([word(2)?, word(3)?, word(4)?]);
            }
            OP_EXECUTION_MODE_ID if word(1)? == MODE_LOCAL_SIZE_ID => {
                self.local_size_ids = Some([word(2)?, word(3)?, word(4)?]);
            }
            OP_DECORATE if at.words.len() > 3 => {
                self.decorations.insert((word(0)?, word(1)?), word(2)?);
            }
            OP_MEMBER_DECORATE if word(2)? == DECORATION_OFFSET => {
                self.member_offsets.insert((word(0)?, word(1)?), word(3)?);
            }
            OP_TYPE_INT if word(1)? == 32 && word(2)? == 0 => {
                self.types.insert(word(0)?, Type::Uint);
            }
            OP_TYPE_FLOAT if word(1)? == 32 => {
                self.types.insert(word(0)?, Type::Float);
            }
            OP_TYPE_ARRAY => {
                self.types.insert(word(0)?, Type::Array { length_id: word(2)? });
            }
            OP_TYPE_STRUCT => {
                self.types.insert(word(0)?, Type::Struct { members: at.words[2..].to_vec() });
            }
            OP_TYPE_POINTER => {
                self.types.insert(word(0)?, Type::Pointer { target: word(2)? });
            }
            OP_CONSTANT => {
                self.constants.insert(word(1)?, word(2)?);
            }
            OP_SPEC_CONSTANT => {
                self.constants.insert(word(1)?, word(2)?);
                self.spec_constants.push(word(1)?);
            }
            OP_VARIABLE => self.variables.push((word(1)?, word(0)?, word(2)?)),
            _ => {}
        }
        Ok(())
    }

    fn name(&self, id: u32) -> String {
        self.names.get(&id).cloned().unwrap_or_default()
    }

    fn decoration(&self, id: u32, decoration: u32) -> Option<u32> {
        self.decorations.get(&(id, decoration)).copied()
    }

    fn local_size(&self) -> Result<[LocalSize; 3], ReflectError> {
        if let Some(sizes) = self.local_size {
            return Ok(sizes.map(LocalSize::Fixed));
        }
        let ids = self.local_size_ids.ok_or_else(|| unexpected("no workgroup size"))?;
        let mut sizes = [LocalSize::Fixed(0); 3];
        for (size, id) in sizes.iter_mut().zip(ids) {
            *size = match (self.decoration(id, DECORATION_SPEC_ID), self.constants.get(&id)) {
                (Some(constant), _) => LocalSize::Constant(constant),
                (None, Some(&value)) => LocalSize::Fixed(value),
                (None, None) => return Err(unexpected("a computed workgroup size")),
            };
        }
        Ok(sizes)
    }

    fn constants(&self) -> BTreeMap<u32, String> {
        let mut constants = BTreeMap::new();
        for &id in &self.spec_constants {
            if let Some(constant) = self.decoration(id, DECORATION_SPEC_ID) {
                // The workgroup's width can stand twice, once without a name: keep the name.
                let name: &mut String = constants.entry(constant).or_default();
                if name.is_empty() {
                    *name = self.name(id);
                }
            }
        }
        constants
    }

    fn target_of(&self, pointer: u32) -> Result<u32, ReflectError> {
        match self.types.get(&pointer) {
            Some(&Type::Pointer { target }) => Ok(target),
            _ => Err(unexpected("a variable that is no pointer")),
        }
    }

    fn bindings(&self) -> Result<Vec<Binding>, ReflectError> {
        let mut bindings = Vec::new();
        for &(id, pointer, storage) in &self.variables {
            let Some(binding) = self.decoration(id, DECORATION_BINDING) else { continue };
            if storage != STORAGE_BUFFER {
                return Err(unexpected(format!("binding {binding} that is no storage buffer")));
            }
            let count = match self.types.get(&self.target_of(pointer)?) {
                Some(Type::Array { length_id }) => *self
                    .constants
                    .get(length_id)
                    .ok_or_else(|| unexpected(format!("a computed array length at binding {binding}")))?,
                _ => 1,
            };
            let set = self.decoration(id, DECORATION_SET).unwrap_or(0);
            bindings.push(Binding { set, binding, count });
        }
        bindings.sort_by_key(|binding| (binding.set, binding.binding));
        Ok(bindings)
    }

    fn push(&self) -> Result<Option<Push>, ReflectError> {
        let mut blocks = self.variables.iter().filter(|variable| variable.2 == STORAGE_PUSH_CONSTANT);
        let Some(&(_, pointer, _)) = blocks.next() else { return Ok(None) };
        if blocks.next().is_some() {
            return Err(unexpected("two push-constant blocks"));
        }
        let outer = self.target_of(pointer)?;
        // A kernel's block holds one struct of layout.glsl; the struct's members are the block's.
        let inner = match self.types.get(&outer) {
            Some(Type::Struct { members }) if members.len() == 1 => {
                if let Some(Type::Struct { .. }) = self.types.get(&members[0]) { members[0] } else { outer }
            }
            _ => outer,
        };
        let Some(Type::Struct { members: types }) = self.types.get(&inner) else {
            return Err(unexpected("a push-constant block that is no struct"));
        };
        let start =
            if inner == outer { 0 } else { self.member_offsets.get(&(outer, 0)).copied().unwrap_or(0) };
        let mut members = Vec::new();
        for (index, type_id) in (0u32..).zip(types) {
            let glsl_type = match self.types.get(type_id) {
                Some(Type::Uint) => "uint",
                Some(Type::Float) => "float",
                _ => return Err(unexpected("a push constant that is neither uint nor float")),
            };
            let offset = self.member_offsets.get(&(inner, index));
            let offset = offset.ok_or_else(|| unexpected("a push constant without an offset"))?;
            let name = self.member_names.get(&(inner, index)).cloned().unwrap_or_default();
            members.push(Member { name, glsl_type, offset_bytes: start + offset });
        }
        let size_bytes = members.iter().map(|member| member.offset_bytes + 4).max().unwrap_or(0);
        Ok(Some(Push { name: self.name(inner), members, size_bytes }))
    }
}

/// Reads a module.
///
/// # Errors
/// When the bytes are no SPIR-V, are damaged, or hold something that no kernel of ours may have.
pub fn reflect(spirv: &[u8]) -> Result<Reflection, ReflectError> {
    let words = words(spirv)?;
    let tables = Tables::read(&instructions(&words)?)?;
    let [entry_point] = tables.entry_points.as_slice() else {
        return Err(unexpected(format!("{} entry points", tables.entry_points.len())));
    };
    Ok(Reflection {
        entry_point: entry_point.clone(),
        local_size: tables.local_size()?,
        constants: tables.constants(),
        bindings: tables.bindings()?,
        push: tables.push()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spirv::{HEADER_WORDS, MAGIC};

    /// A module by hand: `LocalSizeId` over a specialization constant, a buffer array, a nested push block.
    fn module() -> Vec<u32> {
        fn text(value: &str) -> Vec<u32> {
            let mut bytes = value.as_bytes().to_vec();
            bytes.resize(bytes.len() / 4 * 4 + 4, 0);
            bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
        }
        let mut words = vec![MAGIC, 0x0001_0600, 0, 30, 0];
        let mut push = |opcode: u32, operands: &[u32]| {
            words.push((u32::try_from(operands.len() + 1).unwrap() << 16) | opcode);
            words.extend_from_slice(operands);
        };
        push(OP_ENTRY_POINT, &[&[5, 1][..], &text("main")].concat());
        push(OP_EXECUTION_MODE_ID, &[1, MODE_LOCAL_SIZE_ID, 2, 3, 3]);
        push(OP_NAME, &[&[12][..], &text("DemoPush")].concat());
        push(OP_MEMBER_NAME, &[&[12, 0][..], &text("count")].concat());
        push(OP_MEMBER_NAME, &[&[12, 1][..], &text("epsilon")].concat());
        push(OP_NAME, &[&[4][..], &text("ROWS")].concat());
        push(OP_DECORATE, &[2, DECORATION_SPEC_ID, 0]);
        push(OP_DECORATE, &[4, DECORATION_SPEC_ID, 2]);
        push(OP_DECORATE, &[20, DECORATION_SET, 0]);
        push(OP_DECORATE, &[20, DECORATION_BINDING, 3]);
        push(OP_MEMBER_DECORATE, &[12, 0, DECORATION_OFFSET, 0]);
        push(OP_MEMBER_DECORATE, &[12, 1, DECORATION_OFFSET, 4]);
        push(OP_MEMBER_DECORATE, &[13, 0, DECORATION_OFFSET, 0]);
        push(OP_TYPE_INT, &[10, 32, 0]);
        push(OP_TYPE_FLOAT, &[11, 32]);
        push(OP_SPEC_CONSTANT, &[10, 2, 1]);
        push(OP_CONSTANT, &[10, 3, 1]);
        push(OP_SPEC_CONSTANT, &[10, 4, 8]);
        push(OP_CONSTANT, &[10, 5, 16]);
        push(OP_TYPE_STRUCT, &[12, 10, 11]);
        push(OP_TYPE_STRUCT, &[13, 12]);
        push(OP_TYPE_POINTER, &[14, STORAGE_PUSH_CONSTANT, 13]);
        push(OP_VARIABLE, &[14, 21, STORAGE_PUSH_CONSTANT]);
        push(OP_TYPE_STRUCT, &[15, 10]);
        push(OP_TYPE_ARRAY, &[16, 15, 5]);
        push(OP_TYPE_POINTER, &[17, STORAGE_BUFFER, 16]);
        push(OP_VARIABLE, &[17, 20, STORAGE_BUFFER]);
        words
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn reads_everything_a_kernel_declares() {
        let found = reflect(&bytes(&module())).unwrap();
        assert_eq!(found.entry_point, "main");
        assert_eq!(found.local_size, [LocalSize::Constant(0), LocalSize::Fixed(1), LocalSize::Fixed(1)]);
        assert_eq!(found.constants, BTreeMap::from([(0, String::new()), (2, "ROWS".to_owned())]));
        assert_eq!(found.bindings, [Binding { set: 0, binding: 3, count: 16 }]);
        let push = found.push.unwrap();
        assert_eq!((push.name.as_str(), push.size_bytes), ("DemoPush", 8));
        assert_eq!(push.members[1], Member { name: "epsilon".into(), glsl_type: "float", offset_bytes: 4 });
    }

    #[test]
    fn damage_is_an_error_at_every_cut() {
        let whole = bytes(&module());
        for end in 0..whole.len() {
            // A cut between instructions leaves a shorter module, which may be readable; it must not panic.
            let cut = reflect(&whole[..end]);
            if end < HEADER_WORDS * 4 || !end.is_multiple_of(4) {
                assert_eq!(cut, Err(SpirvError::NotSpirv.into()), "cut at byte {end}");
            }
        }
        let mut endless = module();
        endless[HEADER_WORDS] &= 0xFFFF;
        assert_eq!(reflect(&bytes(&endless)), Err(SpirvError::Truncated { word: HEADER_WORDS }.into()));
    }
}
