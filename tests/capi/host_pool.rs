//! The streaming layer over host memory, from Rust: the bytes of the file, whatever is asked for when; damage is told.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flint_rt::base::ids::ExpertKey;
use flint_rt::disk::SourceFile;
use flint_rt::disk::wait_eventfd;
use flint_rt::expert::host_pool::{Progress, Residency, Urgency};
use flint_rt::expert::{HostPool, HostPoolError, HostPoolOptions};
use flint_rt::store::Source;

use super::model;

fn open(path: &Path, slots: u32, depth: u32) -> (Arc<Source>, HostPool) {
    let source = Arc::new(Source::open(path).unwrap());
    let options = HostPoolOptions { slots, depth, ..HostPoolOptions::default() };
    let pool = HostPool::open(source.clone(), &options, None).unwrap();
    (source, pool)
}

fn wait(pool: &mut HostPool, request: u64) -> Result<(), HostPoolError> {
    while pool.progress(request)? == Progress::Pending {
        wait_eventfd(pool.wake(), Duration::from_secs(1));
        pool.take_in()?;
    }
    Ok(())
}

/// The bytes of an expert by plain reads.
fn record(source: &Source, key: ExpertKey) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(source.record().record_bytes()).unwrap()];
    for piece in source.expert_pieces(key).iter() {
        let file = SourceFile::open(&source.files()[usize::from(piece.span.file.0)]).unwrap();
        let begin = usize::try_from(piece.record_offset_bytes).unwrap();
        let end = begin + usize::try_from(piece.span.len_bytes).unwrap();
        file.read_exact_at(piece.span.offset_bytes, &mut bytes[begin..end]).unwrap();
    }
    bytes
}

fn store() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    flint_rt::store::ingest(&model(), &store, &mut |_| ControlFlow::Continue(())).unwrap();
    (folder, store)
}

#[test]
fn what_is_held_stays_as_it_is_in_the_file() {
    let (_folder, store) = store();
    for path in [model(), store] {
        let (source, mut pool) = open(&path, 9, 4);
        let layers: Vec<u32> = source.expert_layers().iter().map(|layer| layer.0).collect();
        let mut known: HashMap<ExpertKey, Vec<u8>> = HashMap::new();
        let mut held: Vec<(u64, Vec<ExpertKey>)> = Vec::new();
        // A linear congruence (Knuth's) in place of a router.
        let mut state = 7_u64;
        let mut random = |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u32::try_from((state >> 33) % u64::from(below)).unwrap()
        };
        for round in 0..200 {
            let layer = layers[random(u32::try_from(layers.len()).unwrap()) as usize];
            let ids = [random(source.expert_count()), random(source.expert_count())];
            let urgency = if random(3) == 0 { Urgency::Guess } else { Urgency::Needed };
            match pool.request(layer, &ids, urgency) {
                Ok(request) => {
                    held.push((request, ids.map(|expert| ExpertKey::new(layer, expert)).to_vec()));
                }
                Err(HostPoolError::Full { .. }) => assert!(!held.is_empty(), "round {round}"),
                Err(error) => panic!("round {round}: {error}"),
            }
            if held.len() >= 4 || random(2) == 0 {
                let at = random(u32::try_from(held.len().max(1)).unwrap()) as usize;
                if at < held.len() {
                    let (request, keys) = held.swap_remove(at);
                    wait(&mut pool, request).unwrap();
                    for (key, matrices) in keys.iter().zip(pool.experts(request).unwrap()) {
                        let wanted = known.entry(*key).or_insert_with(|| record(&source, *key));
                        assert_eq!(matrices.concat(), *wanted, "round {round}: {key}");
                    }
                    pool.release(request).unwrap();
                }
            }
        }
        let stats = pool.stats();
        assert!(stats.hits > 0 && stats.evictions > 0, "{stats:?}");
        assert_eq!(stats.requests, held.len() as u64);
    }
}

#[test]
fn what_is_needed_is_read_before_guesses() {
    let (_folder, store) = store();
    let (source, mut pool) = open(&store, 6, 1);
    let layer = source.expert_layers()[0].0;
    let guess = pool.request(layer, &[0, 1, 2], Urgency::Guess).unwrap();
    let needed = pool.request(layer, &[5], Urgency::Needed).unwrap();
    wait(&mut pool, needed).unwrap();
    // The first guess was under way already.
    assert_ne!(pool.residency(layer, 2).unwrap(), Residency::Resident);
    // A guess that is then needed goes before the others.
    let wanted = pool.request(layer, &[2], Urgency::Needed).unwrap();
    wait(&mut pool, wanted).unwrap();
    wait(&mut pool, guess).unwrap();
    assert_eq!(pool.experts(guess).unwrap().len(), 3);
}

#[test]
fn damage_is_told_to_those_who_wait_for_it_and_to_nobody_else() {
    let (_folder, store) = store();
    let source = Source::open(&store).unwrap();
    let layer = source.expert_layers()[1].0;
    let span = source.expert_pieces(ExpertKey::new(layer, 3))[0].span;
    let path = source.files()[usize::from(span.file.0)].clone();
    drop(source);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[usize::try_from(span.offset_bytes).unwrap() + 100] ^= 1;
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    #[expect(clippy::permissions_set_readonly_false, reason = "a file of this test's own")]
    permissions.set_readonly(false);
    std::fs::set_permissions(&path, permissions).unwrap();
    std::fs::write(&path, bytes).unwrap();

    let (source, mut pool) = open(&store, 4, 8);
    let bad = pool.request(layer, &[2, 3], Urgency::Needed).unwrap();
    let good = pool.request(layer, &[2], Urgency::Needed).unwrap();
    let error = wait(&mut pool, bad).unwrap_err().to_string();
    assert!(error.contains("layer") && error.contains("expert 3") && error.contains("damaged"), "{error}");
    wait(&mut pool, good).unwrap();
    let key = ExpertKey::new(layer, 2);
    assert_eq!(pool.experts(good).unwrap().next().unwrap().concat(), record(&source, key));
    pool.release(bad).unwrap();
    pool.release(good).unwrap();
    assert_eq!(pool.check_stats().second_reads, 1);
    // Its slot is free again.
    let all = pool.request(layer, &[0, 1, 4, 5], Urgency::Needed).unwrap();
    wait(&mut pool, all).unwrap();
}
