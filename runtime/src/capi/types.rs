//! The structs of the header, member by member. `tests/capi.rs` compares sizes and offsets with what a C compiler sees.
//!
//! Invariants: a struct that may grow begins with `struct_size`, and grows at its end. No padding is left between members, so
//! that what a caller set to zero is zero. What a member means is written in the header.

use std::ffi::{c_char, c_void};

use super::handles::Handle;
use super::memory::{InArray, InText, Versioned};

/// `flint_rt_progress_fn`.
pub type ProgressFn = extern "C" fn(user_data: *mut c_void, phase: i32, done: u64, total: u64) -> i32;
/// `flint_rt_log_fn`.
pub type LogFn = extern "C" fn(user_data: *mut c_void, level: i32, text: *const c_char, text_bytes: usize);
/// `flint_rt_token_fn`.
pub type TokenFn =
    extern "C" fn(user_data: *mut c_void, token: u32, text: *const c_char, text_bytes: usize) -> i32;
/// `flint_rt_prompt_fn`.
pub type PromptFn = extern "C" fn(user_data: *mut c_void, done: u32, total: u32) -> i32;

macro_rules! versioned {
    ($($(#[$note:meta])* $name:ident { $($field:ident: $kind:ty,)* } = { $($given:ident: $value:expr,)* })*) => {
        $(
            $(#[$note])*
            #[derive(Debug, Clone, Copy)]
            #[repr(C)]
            #[expect(missing_docs, reason = "the header says what each is")]
            pub struct $name {
                pub struct_size: usize,
                $(pub $field: $kind,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    #[derive(Default)]
                    struct Zero {
                        $($field: Zeroed<$kind>,)*
                    }
                    let zero = Zero::default();
                    #[allow(unused_mut, reason = "some have no member whose default is not zero")]
                    let mut value = Self { struct_size: size_of::<Self>(), $($field: zero.$field.0,)* };
                    $(value.$given = $value;)*
                    value
                }
            }

            // SAFETY: `repr(C)`, its size first, and behind it members of the kinds that `Versioned` lists.
            unsafe impl Versioned for $name {
                fn ends() -> impl Iterator<Item = usize> {
                    Self::MEMBERS.iter().map(|&(_, offset_bytes, len_bytes)| offset_bytes + len_bytes)
                }
            }

            impl $name {
                /// Name, offset and size of each member, for the test of the header.
                pub const MEMBERS: &[(&str, usize, usize)] = &[
                    ("struct_size", 0, size_of::<usize>()),
                    $((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$kind>()),)*
                ];
            }
        )*
    };
}

/// The value of a member that nobody set.
struct Zeroed<T>(T);

macro_rules! zeroed {
    ($($kind:ty = $value:expr;)*) => {
        $(impl Default for Zeroed<$kind> {
            fn default() -> Self {
                Self($value)
            }
        })*
    };
}

zeroed! {
    i32 = 0;
    u32 = 0;
    u64 = 0;
    usize = 0;
    f32 = 0.0;
    *mut c_void = std::ptr::null_mut();
    InText = InText::default();
    InArray<LogitBias> = InArray::default();
    Option<ProgressFn> = None;
    Option<LogFn> = None;
    Option<TokenFn> = None;
    Option<PromptFn> = None;
    [c_char; 64] = [0; 64];
    [c_char; 256] = [0; 256];
}

versioned! {
    /// `flint_rt_model_options`.
    ModelOptions {
        device: InText,
        cache_dir: InText,
        context_len: u32,
        sessions: u32,
        pool_slots: u32,
        prefill_chunk: u32,
        gpu_memory_bytes: u64,
        host_memory_bytes: u64,
        memory_bytes: u64,
        prefetch: i32,
        read_path: i32,
        skip_checks: i32,
        validation: i32,
        progress: Option<ProgressFn>,
        log: Option<LogFn>,
        user_data: *mut c_void,
    } = {}

    /// `flint_rt_model_info`.
    ModelInfo {
        vocabulary: u32,
        context_len: u32,
        context_len_trained: u32,
        layer_count: u32,
        expert_layer_count: u32,
        expert_count: u32,
        experts_used: u32,
        embed_dim: u32,
        bos_token: u32,
        eos_token: u32,
        is_store: i32,
        is_checked: i32,
        device: [c_char; 256],
    } = {}

    /// `flint_rt_memory_plan`.
    MemoryPlan {
        budget_bytes: u64,
        resident_bytes: u64,
        kv_bytes: u64,
        scratch_bytes: u64,
        pool_bytes: u64,
        staging_bytes: u64,
        host_bytes: u64,
        experts_bytes: u64,
        pool_slots: u32,
        host_slots: u32,
        expert_total: u32,
        experts_a_token: u32,
        context_len: u32,
        prefill_chunk: u32,
    } = {}

    /// `flint_rt_device_info`.
    DeviceInfo {
        index: u32,
        kind: i32,
        is_usable: i32,
        subgroup_size: u32,
        own_memory_bytes: u64,
        name: [c_char; 256],
        driver: [c_char; 256],
    } = {}

    /// `flint_rt_sampler_options`.
    SamplerOptions {
        temperature: f32,
        top_k: u32,
        top_p: f32,
        min_p: f32,
        repetition_penalty: f32,
        presence_penalty: f32,
        frequency_penalty: f32,
        penalty_last_n: u32,
        seed: u64,
        logit_bias: InArray<LogitBias>,
        logit_bias_count: usize,
    } = { top_p: 1.0, repetition_penalty: 1.0, penalty_last_n: 64, }

    /// `flint_rt_generate_options`.
    GenerateOptions {
        tokens_max: u32,
        ignore_stops: i32,
        token: Option<TokenFn>,
        prompt: Option<PromptFn>,
        user_data: *mut c_void,
    } = {}

    /// `flint_rt_generate_result`.
    GenerateResult {
        finish: i32,
        stop_token: u32,
        token_count: u32,
        prompt_fed: u32,
        prompt_reused: u32,
        reserved: u32,
        prompt_ns: u64,
        reply_ns: u64,
    } = {}

    /// `flint_rt_model_stats`.
    ModelStats {
        expert_hits: u64,
        expert_misses: u64,
        expert_evictions: u64,
        read_bytes: u64,
        load_ns: u64,
        demand_reads: u64,
        guesses_issued: u64,
        guesses_used: u64,
        guesses_used_late: u64,
        guesses_wasted: u64,
        host_hits: u64,
        host_kept: u64,
        drive_reads: u64,
        drive_failed: u64,
        drive_retries: u64,
        drive_read_bytes: u64,
        drive_busy_ns: u64,
        checked_bytes: u64,
        second_reads: u64,
    } = {}

    /// `flint_rt_store_info`.
    StoreInfo {
        layer_first: u32,
        layer_count: u32,
        expert_count: u32,
        experts_used: u32,
        embed_dim: u32,
        expert_ffn_dim: u32,
        is_store: i32,
        file_count: u32,
        record_bytes: u64,
        gate_bytes: u64,
        up_bytes: u64,
        down_bytes: u64,
        block_format: [c_char; 64],
    } = {}

    /// `flint_rt_pool_options`.
    PoolOptions {
        slots: u32,
        depth: u32,
        read_path: i32,
        skip_checks: i32,
        memory: *mut c_void,
        memory_bytes: usize,
    } = {}

    /// `flint_rt_pool_stats`.
    PoolStats {
        hits: u64,
        misses: u64,
        evictions: u64,
        requests: u64,
        resident: u64,
        drive_reads: u64,
        drive_failed: u64,
        drive_retries: u64,
        drive_read_bytes: u64,
        drive_busy_ns: u64,
        checked_bytes: u64,
        second_reads: u64,
    } = {}
}

/// `flint_rt_logit_bias`; never grows.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "the header says what each is")]
pub struct LogitBias {
    pub token: u32,
    pub bias: f32,
}

/// `flint_rt_message`; never grows.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "the header says what each is")]
pub struct Message {
    pub role: InText,
    pub content: InArray<c_char>,
    pub content_bytes: usize,
    pub reasoning: InArray<c_char>,
    pub reasoning_bytes: usize,
}

/// `flint_rt_feed`; never grows.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "the header says what each is")]
pub struct Feed {
    pub session: Handle,
    pub tokens: InArray<u32>,
    pub token_count: usize,
    pub status: i32,
    pub reserved: u32,
}

/// `flint_rt_expert`; never grows.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "the header says what each is")]
pub struct Expert {
    pub gate: *const c_void,
    pub up: *const c_void,
    pub down: *const c_void,
}

/// Copies `text` into a member of a fixed length, with a NUL behind it; what does not fit is left out.
pub(super) fn put_text(target: &mut [c_char], text: &str) {
    let len = text.floor_char_boundary(target.len() - 1);
    target.fill(0);
    target[..len].copy_from_slice(bytemuck::cast_slice(&text.as_bytes()[..len]));
}
