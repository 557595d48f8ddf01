//! What goes where in memory, decided before anything is taken. Pure.

use std::fmt;

use crate::base::host_memory::HostRoom;
use crate::base::units::display_bytes;
use crate::engine::EngineError;
use crate::engine::host_budget::{HostInput, HostMemory, HostPlan};
use crate::expert::slots_per_buffer;
use crate::model::hparams::FlintConfig;
use crate::model::kv_cache::cache_bytes;
use crate::model::scratch::scratch_bytes;

/// Device bytes left to the driver and to other programs: compiled kernels, descriptor pools, a desktop's next window.
const RESERVE_BYTES: u64 = 256 << 20;

/// What the plan is made from.
#[derive(Debug, Clone)]
pub struct BudgetInput {
    /// Device bytes that are free.
    pub free_bytes: u64,
    /// Whether the device's memory is the host's.
    pub is_shared: bool,
    /// What the host has.
    pub host: HostRoom,
    /// Host memory for experts that the pool does not hold.
    pub host_memory: HostMemory,
    /// Bytes of host memory that one of them takes.
    pub host_slot_bytes: u64,
    /// Bytes that the caller allows on device and host together, read buffers included.
    pub memory_bytes: Option<u64>,
    /// Device bytes that the caller allows; `None` for what is free less a reserve.
    pub allowed_bytes: Option<u64>,
    /// Slots that the caller asked for.
    pub pool_slots: Option<u32>,
    /// Tokens of a conversation.
    pub context_len: u32,
    /// Conversations that are open at a time.
    pub sessions: u32,
    /// Tokens of a chunk.
    pub prefill_chunk: u32,
    /// Splits of attention at decode.
    pub decode_splits: u32,
    /// Pairs of a tile of experts.
    pub tile_max: u32,
    /// Bytes of the dense weights.
    pub resident_bytes: u64,
    /// Bytes that a storage-buffer binding reaches.
    pub range_bytes: u64,
    /// Bytes of the host's staging ring.
    pub staging_bytes: u64,
    /// Bytes of the token table, which stays on disk and in the page cache.
    pub token_table_bytes: u64,
}

/// What goes where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Device bytes that may be used.
    pub budget_bytes: u64,
    /// Dense weights.
    pub resident_bytes: u64,
    /// KV caches of the conversations that are open at a time.
    pub kv_bytes: u64,
    /// How many these are.
    pub sessions: u32,
    /// Activations.
    pub scratch_bytes: u64,
    /// Expert slots.
    pub pool_slots: u32,
    /// Their bytes.
    pub pool_bytes: u64,
    /// Experts of the model.
    pub expert_total: u32,
    /// Experts that one token uses over all layers.
    pub experts_a_token: u32,
    /// Host bytes of the staging ring.
    pub staging_bytes: u64,
    /// Experts in host memory.
    pub host: HostPlan,
    /// Bytes of the token table, on disk.
    pub token_table_bytes: u64,
    /// Bytes of all expert records, on disk.
    pub experts_bytes: u64,
    /// Tokens of a conversation.
    pub context_len: u32,
    /// Tokens of a chunk.
    pub prefill_chunk: u32,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// The device's bytes, and the flag that gives more of them.
fn device_budget(input: &BudgetInput) -> Result<(u64, &'static str), EngineError> {
    let free_on_host = input.host.free().filter(|_| input.is_shared).map(|(bytes, _)| bytes);
    let free_bytes = input.free_bytes.min(free_on_host.unwrap_or(u64::MAX));
    if let Some(asked_bytes) = input.allowed_bytes.filter(|&bytes| bytes > free_bytes) {
        return Err(EngineError::GpuMemoryTooLarge { asked_bytes, free_bytes });
    }
    // The host's own programs need a share of what is theirs, too.
    let share_of_host = free_on_host.map_or(u64::MAX, |bytes| bytes - bytes / 4);
    let sensible_bytes = input.free_bytes.saturating_sub(RESERVE_BYTES).min(share_of_host);
    let budget_bytes = input.allowed_bytes.unwrap_or(sensible_bytes);
    Ok(within(budget_bytes, input.memory_bytes, host_first_bytes(input)))
}

/// What of a limit on device and host together is the host's before the device gets any.
fn host_first_bytes(input: &BudgetInput) -> u64 {
    match input.host_memory {
        HostMemory::Auto => input.staging_bytes,
        HostMemory::Bytes(bytes) => input.staging_bytes.saturating_add(bytes),
    }
}

/// What of `budget_bytes` a limit on both leaves behind the host's part.
fn within(budget_bytes: u64, memory_bytes: Option<u64>, host_bytes: u64) -> (u64, &'static str) {
    match memory_bytes.map(|bytes| bytes.saturating_sub(host_bytes)) {
        Some(left) if left < budget_bytes => (left, "--memory"),
        _ => (budget_bytes, "--gpu-memory"),
    }
}

/// Workgroups along one axis of a grid on the smallest device.
const GRID_MAX: u32 = 65_535;

/// Refuses a context or a chunk that a single binding or grid of this device cannot hold, whatever memory there is.
fn check_shape(config: &FlintConfig, input: &BudgetInput) -> Result<(), EngineError> {
    let range = display_bytes(input.range_bytes);
    let key_bytes = u64::from(config.kv_head_count) * u64::from(config.head_dim) * 2;
    let context_max = input.range_bytes / key_bytes;
    if u64::from(input.context_len) > context_max {
        return Err(EngineError::OutOfRange {
            what: "context size",
            got: input.context_len.into(),
            wanted: format!(
                "at most {context_max}, so that a layer's keys fit a binding of {range} of this device"
            ),
        });
    }

    let used = u64::from(config.experts_used);
    let widest = u64::from(config.embed_dim.max(config.expert_ffn_dim)) * used;
    let attended = u64::from(config.head_count) * u64::from(config.head_dim + 2);
    let token_bytes = 4 * widest.max(attended).max(u64::from(config.ffn_dim.max(config.expert_count)));
    // Tiles: one more an expert than full ones.
    let tiled = u64::from(GRID_MAX - config.expert_count) * u64::from(input.tile_max) / used;
    let chunk_max = (input.range_bytes / token_bytes).min(tiled);
    if u64::from(input.prefill_chunk) > chunk_max {
        return Err(EngineError::OutOfRange {
            what: "prefill chunk",
            got: input.prefill_chunk.into(),
            wanted: format!("at most {chunk_max} tokens on this device, whose bindings reach {range}"),
        });
    }
    Ok(())
}

/// A plan that does not fit, with what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryBill {
    /// Device bytes that may be used.
    pub budget_bytes: u64,
    /// What allows more.
    pub flag: &'static str,
    /// Bytes that a limit on device and host together gives to the host first: the read buffers, and what is asked for experts.
    pub host_first_bytes: u64,
    /// Dense weights.
    pub resident_bytes: u64,
    /// KV caches of the conversations that are open at a time.
    pub kv_bytes: u64,
    /// How many these are.
    pub sessions: u32,
    /// Tokens that each is for.
    pub context_len: u32,
    /// Activations.
    pub scratch_bytes: u64,
    /// Slots that are asked for, or without which nothing runs.
    pub slots: u32,
    /// Their bytes.
    pub pool_bytes: u64,
}

impl fmt::Display for MemoryBill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed_bytes = self.resident_bytes + self.kv_bytes + self.scratch_bytes + self.pool_bytes;
        write!(
            f,
            "{} of device memory cannot hold it: dense weights {}, KV cache {} ({}), work {} and {} expert slots {} \
             are {} together; give more with {}, or take a shorter --ctx-size or --prefill-chunk, or fewer \
             --pool-slots{}",
            display_bytes(self.budget_bytes),
            display_bytes(self.resident_bytes),
            display_bytes(self.kv_bytes),
            tokens_of(self.sessions, self.context_len),
            display_bytes(self.scratch_bytes),
            self.slots,
            display_bytes(self.pool_bytes),
            display_bytes(needed_bytes),
            self.flag,
            if self.sessions > 1 { " or conversations (--parallel)" } else { "" },
        )?;
        if self.flag == "--memory" {
            let host = display_bytes(self.host_first_bytes);
            let least = display_bytes(needed_bytes.saturating_add(self.host_first_bytes));
            write!(f, "; of --memory the host takes {host} first, so it is to be {least} at least")?;
        }
        Ok(())
    }
}

/// What a KV cache is for.
fn tokens_of(sessions: u32, context_len: u32) -> String {
    match sessions {
        1 => format!("{context_len} tokens"),
        _ => format!("{sessions} conversations of {context_len} tokens"),
    }
}

/// Tokens of chunks that are taken where they cost few slots, the longest first.
const CHUNKS_LONGER: [u32; 3] = [4096, 2048, 1024];

/// The share of the slots, on device and host each, that a longer chunk may cost at most: one of so many.
const CHUNK_SLOTS_SHARE: u32 = 16;

impl MemoryPlan {
    /// As [`Self::new`], with the longest chunk whose activations and rings cost few slots; `input`'s at least. Where experts are
    /// read, a chunk reads nearly all of them once, so twice the tokens read half as much each.
    ///
    /// # Errors
    /// As there.
    pub fn with_longest_chunk(config: &FlintConfig, input: &BudgetInput) -> Result<Self, EngineError> {
        let plan = Self::new(config, input)?;
        if plan.pool_slots == plan.expert_total {
            return Ok(plan);
        }
        let is_enough = |slots: u32, before: u32| slots >= before - before / CHUNK_SLOTS_SHARE;
        let longer = CHUNKS_LONGER
            .into_iter()
            .filter(|&tokens| tokens > input.prefill_chunk && tokens <= input.context_len)
            .filter_map(|prefill_chunk| {
                Self::new(config, &BudgetInput { prefill_chunk, ..input.clone() }).ok()
            })
            .find(|longer| {
                is_enough(longer.pool_slots, plan.pool_slots) && is_enough(longer.host.slots, plan.host.slots)
            });
        Ok(longer.unwrap_or(plan))
    }

    /// Decides.
    ///
    /// # Errors
    /// When what was asked for cannot work, with the numbers.
    pub fn new(config: &FlintConfig, input: &BudgetInput) -> Result<Self, EngineError> {
        check_shape(config, input)?;
        let moe_layers = config.layer_count - config.lead_layer_count;
        let expert_total = moe_layers * config.expert_count;
        let experts_a_token = moe_layers * config.experts_used;
        let record_bytes = config.record_bytes();
        let kv_bytes =
            u64::from(input.sessions) * cache_bytes(config, input.context_len, input.prefill_chunk);
        let scratch_bytes = scratch_bytes(config, input.decode_splits, input.prefill_chunk);
        let (budget_bytes, flag) = device_budget(input)?;
        let fixed_bytes = input.resident_bytes + kv_bytes + scratch_bytes;
        let too_small = |slots: u32| {
            EngineError::MemoryTooSmall(Box::new(MemoryBill {
                budget_bytes,
                flag,
                host_first_bytes: host_first_bytes(input),
                resident_bytes: input.resident_bytes,
                kv_bytes,
                sessions: input.sessions,
                context_len: input.context_len,
                scratch_bytes,
                slots,
                pool_bytes: u64::from(slots) * record_bytes,
            }))
        };

        let bindable = u64::from(crate::base::limits::POOL_BUFFERS_MAX) * (input.range_bytes / record_bytes);
        let affordable = budget_bytes.saturating_sub(fixed_bytes) / record_bytes;
        let pool_slots = match input.pool_slots {
            Some(slots) => {
                if slots < config.experts_used || slots > expert_total {
                    return Err(EngineError::OutOfRange {
                        what: "pool size in slots",
                        got: slots.into(),
                        wanted: format!(
                            "from {}, one token's picks of a layer, to {expert_total}, all experts",
                            config.experts_used
                        ),
                    });
                }
                if u64::from(slots) > affordable {
                    return Err(too_small(slots));
                }
                slots
            }
            None => {
                let slots = affordable.min(bindable).min(u64::from(expert_total));
                u32::try_from(slots).expect("invariant: at most all experts")
            }
        };
        if pool_slots < config.experts_used {
            return Err(too_small(config.experts_used));
        }
        slots_per_buffer(pool_slots, record_bytes, input.range_bytes)?;

        let pool_bytes = u64::from(pool_slots) * record_bytes;
        let device_bytes = fixed_bytes + pool_bytes;
        let mut host = HostPlan::new(&HostInput {
            wanted: input.host_memory,
            room: &input.host,
            staging_bytes: input.staging_bytes,
            shared_bytes: if input.is_shared { device_bytes } else { 0 },
            both_left_bytes: input
                .memory_bytes
                .map(|bytes| bytes.saturating_sub(device_bytes + input.staging_bytes)),
            slot_bytes: input.host_slot_bytes,
            outside: expert_total - pool_slots,
        })?;

        let mut warnings = std::mem::take(&mut host.warnings);
        if pool_slots < experts_a_token {
            warnings.push(format!(
                "{pool_slots} expert slots are fewer than the {experts_a_token} that one token uses: little stays for the \
                 next token, which reads most of {} from {}",
                display_bytes(u64::from(experts_a_token) * record_bytes),
                if host.slots < experts_a_token { "disk" } else { "host memory or disk" },
            ));
        }
        Ok(Self {
            budget_bytes,
            resident_bytes: input.resident_bytes,
            kv_bytes,
            sessions: input.sessions,
            scratch_bytes,
            pool_slots,
            pool_bytes,
            expert_total,
            experts_a_token,
            staging_bytes: input.staging_bytes,
            host,
            token_table_bytes: input.token_table_bytes,
            experts_bytes: u64::from(expert_total) * record_bytes,
            context_len: input.context_len,
            prefill_chunk: input.prefill_chunk,
            warnings,
        })
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |place: &str, what: &str, bytes: u64, note: String| {
            writeln!(f, "  {place:<7} {what:<16} {:>11}  {note}", display_bytes(bytes))
        };
        line("device", "dense weights", self.resident_bytes, String::new())?;
        line("device", "KV cache", self.kv_bytes, tokens_of(self.sessions, self.context_len))?;
        line("device", "work", self.scratch_bytes, format!("chunks of {} tokens", self.prefill_chunk))?;
        let of_experts = |slots: u32| {
            let share = 100.0 * f64::from(slots) / f64::from(self.expert_total);
            format!("{slots} of {} experts ({share:.0} %)", self.expert_total)
        };
        line("device", "expert slots", self.pool_bytes, of_experts(self.pool_slots))?;
        line("host", "staging ring", self.staging_bytes, String::new())?;
        let available = match self.host.available_bytes {
            Some(bytes) => format!("; {} were available", display_bytes(bytes)),
            None => String::new(),
        };
        line("host", "kept experts", self.host.bytes(), of_experts(self.host.slots) + &available)?;
        line("disk", "token table", self.token_table_bytes, "one row a token is read".to_owned())?;
        let a_token = format!("{} experts a token", self.experts_a_token);
        line("disk", "experts", self.experts_bytes, a_token)
    }
}
