//! Every upper bound of the runtime, each with the sum or the source behind it.

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
/// The kernel cuts a 1.97 MB record into several device commands, so six of them saturate most drives; 64 leave room
/// for drives that want a depth of 32 and for records of 30 KiB.
pub const READS_IN_FLIGHT_MAX: u32 = 64;
const _: () = assert!(READS_IN_FLIGHT_MAX.is_power_of_two(), "io_uring rounds up to one");

/// Threads of the pread pool, which stands in where io_uring is not to be had.
pub const POOL_THREADS_MAX: usize = 16;

/// Retries of a read that the drive failed.
pub const READ_RETRIES_MAX: u32 = 2;
