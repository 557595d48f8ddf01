//! `flint_rt_store_*`: where the experts of a store or a GGUF lie. Needs no device.

use std::sync::Arc;

use super::guard::{self, LastError};
use super::handles::{self, Handle};
use super::memory::{InText, Out, OutArray};
use super::status::Status;
use super::types::{StoreInfo, put_text};
use crate::expert::host_pool::host_pool_bytes;
use crate::gguf::TensorKind;
use crate::model::hparams::FlintConfig;
use crate::store::{Source, SourceKind};

/// An open source.
pub(super) struct Store {
    pub(super) source: Arc<Source>,
    info: StoreInfo,
    pub(super) errors: LastError,
}

impl Store {
    /// Nothing of it is ever held: it does not change.
    #[expect(clippy::unused_self, reason = "every kind of object answers this")]
    pub(super) fn is_held_here(&self) -> bool {
        false
    }
}

fn info_of(source: &Source, config: &FlintConfig) -> StoreInfo {
    let (layers, record) = (source.expert_layers(), source.record());
    let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    let mut info = StoreInfo {
        layer_first: layers[0].0,
        layer_count: count(layers.len()),
        expert_count: source.expert_count(),
        experts_used: config.experts_used,
        embed_dim: config.embed_dim,
        expert_ffn_dim: config.expert_ffn_dim,
        is_store: i32::from(source.kind() == SourceKind::Store),
        file_count: count(source.files().len()),
        record_bytes: record.record_bytes(),
        gate_bytes: record.gate_bytes,
        up_bytes: record.up_bytes,
        down_bytes: record.down_bytes,
        ..StoreInfo::default()
    };
    put_text(&mut info.block_format, TensorKind::Q4_1.name());
    info
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_store_open(path: InText, store: Out<Handle>) -> Status {
    guard::run(None, || {
        let target = store.need("store")?;
        target.set(0);
        let source = Source::open(path.need("path")?.as_ref())?;
        let config = FlintConfig::from_gguf(source.gguf()).map_err(crate::engine::EngineError::from)?;
        let info = info_of(&source, &config);
        target.set(handles::add(Store { source: Arc::new(source), info, errors: LastError::default() }));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_store_close(store: Handle) -> Status {
    handles::free::<Store>(store)
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_store_info_get(store: Handle, info: Out<StoreInfo>) -> Status {
    handles::with::<Store>(store, |store| info.fill(&store.info, "info"))
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_store_layers(
    store: Handle,
    layers: OutArray<u32>,
    capacity: usize,
    count: Out<usize>,
) -> Status {
    handles::with::<Store>(store, |store| {
        let found: Vec<u32> = store.source.expert_layers().iter().map(|layer| layer.0).collect();
        layers.fill(capacity, &found, &count)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_store_pool_bytes(store: Handle, slots: u32, bytes: Out<usize>) -> Status {
    handles::with::<Store>(store, |store| {
        let target = bytes.need("bytes")?;
        target.set(host_pool_bytes(&store.source, slots)?);
        Ok(())
    })
}
