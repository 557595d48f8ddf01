//! Every upper bound of the runtime, each with the sum or the source behind it.

use std::time::Duration;

/// Metadata keys, and tensors, of one GGUF. The full Flint has about 50 and 779.
pub const GGUF_ENTRIES_MAX: u64 = 65_536;

/// Bytes of a GGUF key or tensor name.
pub const GGUF_KEY_BYTES_MAX: u64 = 64 << 10;

/// Bytes of one GGUF string value; the chat template is the longest, a few KiB.
pub const GGUF_STRING_BYTES_MAX: u64 = 64 << 20;

/// Elements of one GGUF array; Flint's merges are about 300,000.
pub const GGUF_ARRAY_LEN_MAX: u64 = 16 << 20;

/// Largest `general.alignment` that is believed.
pub const GGUF_ALIGNMENT_MAX: u32 = 1 << 20;

/// Layers of a model. Flint has 49.
pub const LAYERS_MAX: u32 = 512;

/// Experts of a layer. Flint has 256.
pub const EXPERTS_MAX: u32 = 4096;

/// Experts used a token. Flint uses 6; the route kernel keeps them in a fixed array.
pub const EXPERTS_USED_MAX: u32 = 32;

/// Tokens of a vocabulary. Flint has 150,144.
pub const VOCABULARY_MAX: u32 = 1 << 20;

/// Storage buffers over which the expert pool may spread.
///
/// A binding reaches 4 GiB - 1 on large devices, so 16 hold 64 GiB, more than twice all of Flint's experts; on a device
/// with 128 MiB ranges they hold 2 GiB. The limit of buffers a stage is 32 on the smallest device known.
pub const POOL_BUFFERS_MAX: u32 = 16;

/// Reads in flight at once.
///
/// The kernel cuts a 1.97 MB record into several device commands, so six of them saturate most drives; 32 leave room for
/// drives that want more and for records of 30 KiB. The staging ring has a buffer for each.
pub const READS_IN_FLIGHT_MAX: u32 = 32;
const _: () = assert!(READS_IN_FLIGHT_MAX.is_power_of_two(), "io_uring rounds up to one");

/// The deepest read queue.
///
/// Deeper than the product's own reads go, for measuring what depth gives: 64 records of a GGUF in place are 192 reads.
pub const READ_DEPTH_MAX: u32 = 256;
const _: () = assert!(READ_DEPTH_MAX.is_power_of_two(), "io_uring rounds up to one");

/// Threads of the pread pool, which stands in where io_uring is not to be had.
pub const POOL_THREADS_MAX: usize = 16;

/// Retries of a read that the drive failed.
pub const READ_RETRIES_MAX: u32 = 2;

/// Largest width of a vector: a matrix of so many rows fits a grid of 65,535 workgroups whatever its tiles are, and the width
/// is whole blocks of 32. Flint's widest has 6,144.
pub const WIDTH_MAX: u32 = 65_504;

/// Width of a head that the attention kernels have registers for. Flint's is 128.
pub const HEAD_DIM_MAX: u32 = 256;

/// Query heads of a layer. Flint has 32.
pub const HEADS_MAX: u32 = 1024;

/// Positions that a 32-bit float holds exactly, as the rotary angle needs.
pub const CONTEXT_MAX: u32 = 1 << 24;

/// Dimensions of a tensor. The format allows for more; ggml and all its files keep to four.
pub const DIMENSIONS_MAX: u32 = 4;

/// Bytes of a whole header. Flint's has 5.5 MB; an array of 16 Mi strings of 24 bytes has half of this.
pub const HEADER_BYTES_MAX: u64 = 1 << 30;

/// Longest manifest that is read. Flint's has about 100 KB.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// The longest registered buffer: the kernel refuses one byte more with EFAULT.
pub const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// Registered buffers of one ring; the kernel allows 16,384.
///
/// With [`STAGING_PART_BYTES`] in each, 4,096 are 256 GiB of host memory; the empty table takes 32 KiB of the kernel's.
pub const REGISTERED_PIECES_MAX: u16 = 4096;

/// Host memory for records is taken, and given back, in parts of this size.
///
/// Whole huge pages, so that a part of Flint is 34 records. 26 GB of experts are 400 parts: a tenth of the allocations that
/// the smallest Vulkan device allows, and of the registered buffers above.
pub const STAGING_PART_BYTES: usize = 64 << 20;

/// The longest that a `poll` waits without one read ending.
///
/// A drive that resets itself after a fault needs up to 30 s (the kernel's time-out of a command), so a shorter
/// limit would report a drive that is about to come back.
pub const READ_STALL_MAX: Duration = Duration::from_secs(60);

/// Events of a timeline that wait to be taken.
///
/// A token of Flint in which every pick misses has about 500: this is room for 2,000 of them, in 64 MB.
pub const EVENTS_MAX: usize = 1 << 20;

/// Stamps of a device's clock for the times of dispatches: 1 MB at eight bytes each.
///
/// A token's commands of Flint, recorded with guesses and without, take about 3,000; so there are enough for all of [`SESSIONS_MAX`]
/// that are likely to be open while somebody measures.
pub const STAMPS_MAX: u32 = 1 << 17;

/// Times of dispatches that wait to be taken: more than 1,000 tokens of Flint.
pub const DISPATCHES_MAX: usize = 1 << 20;

/// Longest chunk: grids have 65,535 workgroups along a token axis on the smallest device.
pub const PREFILL_CHUNK_MAX: u32 = 65_535;

/// Conversations that an engine holds open: each has some hundred descriptor sets and a cache of its own.
pub const SESSIONS_MAX: u32 = 64;

/// Sequences of one step at most: each gets a row of logits.
pub const STEP_SEQUENCES_MAX: u32 = 32;

/// Commands of one submission. A token of a 49-layer model in two halves a layer is about 100.
pub const COMMANDS_PER_SUBMIT_MAX: usize = 256;
