//! The memory plan of a full-size model, decided without a device.

use flint_rt::engine::MemoryPlan;
use flint_rt::engine::budget::BudgetInput;
use flint_rt::model::hparams::{FlintConfig, LayerKind};

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
    let error = refused(BudgetInput { context_len: 262_144, ..small_bindings });
    assert!(error.contains("131072"), "{error}");
    let error = refused(BudgetInput { prefill_chunk: 4096, ..small_bindings });
    assert!(error.contains("2730"), "{error}");
    let error = refused(BudgetInput { pool_slots: Some(2000), ..small_bindings });
    assert!(error.contains("1088"), "{error}");
    let plan = MemoryPlan::new(&flint(), &small_bindings).expect("fewer slots");
    assert_eq!(plan.pool_slots, 1088, "as many as kernels bind");
}
