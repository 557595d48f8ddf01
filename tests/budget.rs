//! The memory plan of a full-size model, decided without a device.

use std::time::Instant;

use flint_rt::base::host_memory::{Group, GroupRoom, HostRoom};
use flint_rt::engine::budget::BudgetInput;
use flint_rt::engine::pressure::decide::Limits;
use flint_rt::engine::pressure::{LOOK_EVERY, Pressure};
use flint_rt::engine::{HostMemory, MemoryPlan};
use flint_rt::model::hparams::{FlintConfig, LayerKind};

/// Host memory of a record that is read as one piece from any offset.
const SLOT_BYTES: u64 = 1_966_080 + 4096;

/// Flint's dimensions.
fn flint() -> FlintConfig {
    let is_full = |layer: u32| layer == 0 || layer == 48 || layer % 4 == 1;
    FlintConfig {
        layer_count: 49,
        lead_layer_count: 2,
        embed_dim: 2048,
        head_count: 32,
        kv_head_count: 4,
        head_dim: 128,
        ffn_dim: 6144,
        expert_count: 256,
        experts_used: 6,
        expert_ffn_dim: 512,
        shared_ffn_dim: 1024,
        vocabulary: 150_144,
        context_len: 262_144,
        rope_base: 10_000.0,
        norm_epsilon: 1e-6,
        expert_weights_scale: 1.0,
        window: 513,
        layers: (0..49)
            .map(|layer| LayerKind {
                window: (!is_full(layer)).then_some(513),
                rope: !is_full(layer),
                is_moe: layer >= 2,
            })
            .collect(),
        bos: None,
        eos: None,
        name: "flint".to_owned(),
    }
}

fn input() -> BudgetInput {
    BudgetInput {
        free_bytes: 23 << 30,
        is_shared: false,
        host: HostRoom::default(),
        host_memory: HostMemory::Auto,
        host_slot_bytes: SLOT_BYTES,
        memory_bytes: None,
        allowed_bytes: None,
        pool_slots: None,
        context_len: 4096,
        sessions: 1,
        prefill_chunk: 512,
        decode_splits: 16,
        tile_max: 8,
        resident_bytes: 1_101_600_000,
        range_bytes: (4 << 30) - 1,
        staging_bytes: 64 << 20,
        token_table_bytes: 1_229_979_648,
    }
}

#[test]
fn a_record_of_flint_is_480_pages() {
    assert_eq!(flint().record_bytes(), 1_966_080);
    let full: Vec<u32> = (0..)
        .zip(&flint().layers)
        .filter(|(_, kind)| kind.window.is_none())
        .map(|(layer, _)| layer)
        .collect();
    assert_eq!(full, [0, 1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 48]);
}

#[test]
fn what_is_left_of_the_device_becomes_slots() {
    let plan = MemoryPlan::new(&flint(), &input()).expect("23 GiB are enough");
    assert_eq!(plan.expert_total, 12_032);
    assert_eq!(plan.experts_a_token, 282);
    let taken = plan.resident_bytes + plan.kv_bytes + plan.scratch_bytes + plan.pool_bytes;
    assert!(taken <= plan.budget_bytes && plan.budget_bytes - taken < 1_966_080, "{plan:?}");
    assert!((11_000..12_032).contains(&plan.pool_slots), "{plan:?}");
    // 14 full layers of 4,096 rows, 35 rings of 512 + 512: 2 KiB a row.
    assert_eq!(plan.kv_bytes, (14 * 4096 + 35 * 1024) * 2048);
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    // Each conversation has a cache of its own, which slots make room for.
    let four = MemoryPlan::new(&flint(), &BudgetInput { sessions: 4, ..input() }).expect("enough");
    assert_eq!(four.kv_bytes, 4 * plan.kv_bytes);
    assert!(four.pool_slots < plan.pool_slots, "{four:?}");

    let all = MemoryPlan::new(&flint(), &BudgetInput { free_bytes: 140 << 30, ..input() }).expect("enough");
    assert_eq!(all.pool_slots, 12_032, "never more than there are");
}

#[test]
fn a_small_pool_warns_and_one_that_cannot_work_is_refused_with_the_numbers() {
    let small = BudgetInput { pool_slots: Some(6), ..input() };
    let plan = MemoryPlan::new(&flint(), &small).expect("one layer's picks");
    assert!(plan.warnings[0].contains("282"), "{:?}", plan.warnings);
    let refused = |input: BudgetInput| MemoryPlan::new(&flint(), &input).expect_err("refused").to_string();
    for slots in [0, 5, 12_033] {
        let error = refused(BudgetInput { pool_slots: Some(slots), ..input() });
        assert!(error.contains("from 6") && error.contains("12032"), "{error}");
    }
    let error = refused(BudgetInput { allowed_bytes: Some(1 << 30), ..input() });
    assert!(error.contains("1.00 GiB") && error.contains("--gpu-memory"), "{error}");
    // Memory is not everything: a binding holds so many keys, a grid so many tiles, kernels bind so many buffers.
    let small_bindings = BudgetInput { range_bytes: 128 << 20, ..input() };
    let error = refused(BudgetInput { context_len: 262_144, ..small_bindings.clone() });
    assert!(error.contains("131072"), "{error}");
    let error = refused(BudgetInput { prefill_chunk: 4096, ..small_bindings.clone() });
    assert!(error.contains("2730"), "{error}");
    let error = refused(BudgetInput { pool_slots: Some(2000), ..small_bindings.clone() });
    assert!(error.contains("1088"), "{error}");
    let plan = MemoryPlan::new(&flint(), &small_bindings).expect("fewer slots");
    assert_eq!(plan.pool_slots, 1088, "as many as kernels bind");
}

const GIB: u64 = 1 << 30;

/// A host with so much memory, so much of it available.
fn host(total_gib: u64, available_gib: u64) -> HostRoom {
    HostRoom {
        total_bytes: Some(total_gib * GIB),
        available_bytes: Some(available_gib * GIB),
        ..HostRoom::default()
    }
}

fn plan(input: &BudgetInput) -> MemoryPlan {
    MemoryPlan::new(&flint(), input).expect("it fits")
}

fn refusal(input: &BudgetInput) -> String {
    MemoryPlan::new(&flint(), input).expect_err("refused").to_string()
}

#[test]
fn host_memory_keeps_a_share_of_what_is_available_and_never_what_the_pool_holds() {
    let small_pool = BudgetInput { pool_slots: Some(282), ..input() };
    let slots = |total, available| {
        let found = plan(&BudgetInput { host: host(total, available), ..small_pool.clone() });
        assert!(found.host.bytes() <= available * GIB, "{found:?}");
        (found.host.slots, found.host.reserve_bytes)
    };
    let of = |bytes: u64| u32::try_from((bytes - (64 << 20)) / SLOT_BYTES).unwrap();
    // Three quarters of 12 GiB; 12 less an eighth of 64 GiB; all experts outside the pool.
    assert_eq!(slots(16, 12), (of(9 * GIB), 2 * GIB));
    assert_eq!(slots(64, 12), (of(4 * GIB), 8 * GIB));
    assert_eq!(slots(64, 60), (12_032 - 282, 8 * GIB));
    // At least 1 GiB is left, at most 8 have to be.
    assert_eq!(slots(4, 2), (of(GIB), GIB));
    assert_eq!(slots(4, 1), (0, GIB));
    assert_eq!(slots(512, 11), (of(3 * GIB), 8 * GIB));
    // Where nothing is known nothing is taken.
    assert_eq!(plan(&small_pool).host.slots, 0);
    let all = BudgetInput { free_bytes: 140 << 30, host: host(64, 60), ..input() };
    assert_eq!(plan(&all).host.slots, 0, "the pool holds all");
}

#[test]
fn a_control_group_s_limit_is_the_host_s() {
    let mut room = host(64, 60);
    room.groups = vec![GroupRoom {
        folder: "/sys/fs/cgroup/box".into(),
        limit_bytes: 8 * GIB,
        used_bytes: 3 * GIB,
        cache_bytes: GIB,
    }];
    let input = BudgetInput { pool_slots: Some(282), host: room, ..input() };
    let found = plan(&input);
    assert_eq!((found.host.available_bytes, found.host.reserve_bytes), (Some(6 * GIB), GIB));
    assert!((4 * GIB..=9 * GIB / 2).contains(&found.host.bytes()), "{found:?}");
    let error = refusal(&BudgetInput { host_memory: HostMemory::Bytes(10 * GIB), ..input });
    assert!(error.contains("6.00 GiB") && error.contains("/sys/fs/cgroup/box"), "{error}");
}

#[test]
fn host_memory_that_is_asked_for_is_taken_or_refused_with_the_numbers() {
    let with = |host_memory, available| BudgetInput {
        pool_slots: Some(282),
        host: host(16, available),
        host_memory,
        ..input()
    };
    let found = plan(&with(HostMemory::Bytes(4 * GIB), 12));
    assert_eq!(u64::from(found.host.slots), 4 * GIB / SLOT_BYTES);
    assert!(!found.warnings.iter().any(|text| text.contains("others")), "{:?}", found.warnings);
    assert_eq!(plan(&with(HostMemory::Bytes(0), 12)).host.slots, 0);
    // Into the reserve: taken, and said; the tier then gives up nothing because of what it was told to take.
    let found = plan(&with(HostMemory::Bytes(11 * GIB), 12));
    assert!(found.warnings.iter().any(|text| text.contains("leave") && text.contains("others")), "{found:?}");
    assert!(found.host.reserve_bytes < GIB, "{found:?}");
    let error = refusal(&with(HostMemory::Bytes(12 * GIB), 12));
    for part in ["12.00 GiB of host memory are available", "--host-memory", "64.00 MiB of read buffers"] {
        assert!(error.contains(part), "{error}");
    }
    // More than all experts is not more.
    let found = plan(&with(HostMemory::Bytes(1000 * GIB), 60));
    assert_eq!(found.host.slots, 12_032 - 282);
    let error = refusal(&with(HostMemory::Bytes(1_000_000), 12));
    assert!(error.contains("1000000") && error.contains("1.88 MiB"), "{error}");
    // Where nobody knows what there is, the caller does.
    let found = plan(&BudgetInput { host: HostRoom::default(), ..with(HostMemory::Bytes(4 * GIB), 12) });
    assert_eq!(u64::from(found.host.slots), 4 * GIB / SLOT_BYTES);
}

#[test]
fn one_limit_on_both_is_the_device_s_first_and_the_host_s_with_what_remains() {
    let with = |memory_gib: u64| BudgetInput {
        memory_bytes: Some(memory_gib * GIB),
        host: host(32, 28),
        free_bytes: 8 * GIB,
        ..input()
    };
    let taken =
        |plan: &MemoryPlan| plan.resident_bytes + plan.kv_bytes + plan.scratch_bytes + plan.pool_bytes;
    for memory_gib in [4, 8, 12, 20, 30] {
        let found = plan(&with(memory_gib));
        let both = taken(&found) + found.staging_bytes + found.host.bytes();
        assert!(both <= memory_gib * GIB, "{found:?}");
        // All of it is used, but for less than a slot on either side, unless all experts lie somewhere.
        let is_all = found.pool_slots + found.host.slots == found.expert_total;
        assert!(is_all || both + 2 * SLOT_BYTES > memory_gib * GIB, "{memory_gib}: {found:?}");
        assert!(found.budget_bytes < 8 * GIB);
    }
    assert_eq!(plan(&with(4)).host.slots, 0, "the device takes all of 4 GiB");
    assert!(plan(&with(12)).host.bytes() > 4 * GIB);
    // Other flags say how it is split.
    let found = plan(&BudgetInput { allowed_bytes: Some(4 * GIB), ..with(12) });
    assert!(taken(&found) <= 4 * GIB && found.host.bytes() > 15 * GIB / 2, "{found:?}");
    let found = plan(&BudgetInput { host_memory: HostMemory::Bytes(6 * GIB), ..with(8) });
    assert!(taken(&found) <= 2 * GIB && found.host.bytes() > 5 * GIB, "{found:?}");
    // What cannot work is refused, and the flag that would help is named.
    let error = refusal(&with(1));
    assert!(error.contains("--memory") && !error.contains("--gpu-memory"), "{error}");
    let error = refusal(&BudgetInput { host: host(32, 5), ..with(20) });
    assert!(error.contains("--memory") && error.contains("5.00 GiB"), "{error}");
}

#[test]
fn chunks_are_as_long_as_they_cost_few_slots() {
    let longest = |change: fn(&mut BudgetInput)| {
        let mut input = BudgetInput { host_memory: HostMemory::Bytes(0), ..input() };
        change(&mut input);
        let (least, found) =
            (plan(&input), MemoryPlan::with_longest_chunk(&flint(), &input).expect("it fits"));
        let cost = least.pool_slots - found.pool_slots;
        assert!(cost <= least.pool_slots / 16, "{cost} of {} slots", least.pool_slots);
        found.prefill_chunk
    };
    assert_eq!(longest(|_| {}), 4096, "24 GB");
    assert_eq!(longest(|input| input.context_len = 2048), 2048, "not longer than a conversation");
    let small = longest(|input| input.free_bytes = 4 << 30);
    assert!((512..2048).contains(&small), "4 GB: {small}");
    assert_eq!(longest(|input| input.free_bytes = 60 << 30), 512, "with all experts there, nothing is read");
    assert_eq!(longest(|input| input.prefill_chunk = 4096), 4096);
}

#[test]
fn more_device_memory_than_is_free_is_refused() {
    let asks = |bytes| BudgetInput { allowed_bytes: Some(bytes), ..input() };
    assert!(plan(&asks(23 * GIB)).pool_slots > 0);
    let error = refusal(&asks(23 * GIB + 1));
    assert!(error.contains("23.00 GiB of it are free") && error.contains("--gpu-memory"), "{error}");
}

#[test]
fn a_device_that_shares_the_host_s_memory_leaves_a_quarter_of_it() {
    let shared = BudgetInput { is_shared: true, free_bytes: 32 * GIB, host: host(32, 12), ..input() };
    let found = plan(&shared);
    assert_eq!(found.budget_bytes, 9 * GIB);
    // What the pool does not have the tier would not have either.
    assert_eq!(found.host.slots, 0);
    let error = refusal(&BudgetInput { allowed_bytes: Some(16 * GIB), ..shared.clone() });
    assert!(error.contains("12.00 GiB of it are free"), "{error}");
    // A pool that kernels cannot bind larger: the tier has the rest.
    let small = BudgetInput { range_bytes: 128 << 20, ..shared.clone() };
    let found = plan(&small);
    assert_eq!(found.pool_slots, 1088);
    assert!((4 * GIB..5 * GIB).contains(&found.host.bytes()), "{found:?}");
    let error = refusal(&BudgetInput { host_memory: HostMemory::Bytes(10 * GIB), ..small });
    assert!(error.contains("the device's") && error.contains("in the same memory"), "{error}");
}

/// What a look at the host's memory costs: `cargo test --test budget a_look_costs -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn a_look_costs() {
    const LOOKS: u32 = 2000;
    let limits =
        Limits { slots_max: 96, step_slots: 32, slot_bytes: 4096, reserve_bytes: GIB, total_bytes: 16 * GIB };
    let mut pressure = Pressure::new(limits);
    let began = Instant::now();
    for _ in 0..LOOKS {
        std::hint::black_box(pressure.look(Instant::now(), 0));
    }
    let per_look = began.elapsed() / LOOKS;
    println!("{per_look:?} a look, {} control groups", Group::all().len());
    assert!(per_look < LOOK_EVERY / 100, "a look takes {per_look:?}, more than 1 % of the time between two");
}

/// Goals of the full-size model: what is neither weights nor slots takes at most 400 MB of the device in decode at 8,192 tokens, and
/// what is no asked tier at most 300 MB of the host. What a chunk of a prompt takes beyond that is set by its length.
#[test]
fn beside_weights_and_slots_little_is_taken() {
    let slots = 1000;
    let input = BudgetInput {
        context_len: 8192,
        pool_slots: Some(slots),
        host_memory: HostMemory::Bytes(0),
        // Two records a read that may be under way.
        staging_bytes: 64 * SLOT_BYTES,
        ..input()
    };
    let beside = |prefill_chunk| {
        let plan =
            MemoryPlan::new(&flint(), &BudgetInput { prefill_chunk, ..input.clone() }).expect("it fits");
        let [kv, scratch] = [plan.kv_bytes, plan.scratch_bytes].map(|bytes| bytes / 1_000_000);
        println!("chunks of {prefill_chunk}: {kv} MB of KV cache, {scratch} MB of activations");
        (plan.kv_bytes + plan.scratch_bytes, plan)
    };
    let (decode_bytes, plan) = beside(1);
    assert!(decode_bytes <= 400_000_000, "{decode_bytes} B of the device beside weights and slots");
    assert!(beside(512).0 <= 450_000_000, "a chunk of 512 takes too much");
    assert_eq!(plan.pool_bytes, u64::from(slots) * 1_966_080);
    assert!(plan.staging_bytes + plan.host.bytes() <= 300_000_000, "{} B of the host", plan.staging_bytes);
}
