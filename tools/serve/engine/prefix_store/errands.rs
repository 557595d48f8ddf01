//! What is done with a slot besides steps: saved, loaded, restored, a slice at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flint_rt::engine::snapshot::{Cut, Restoring, Saving};
use flint_rt::engine::{EngineError, Snapshot, SnapshotError};

use super::files::Answer;
use super::metrics::{Origin, PrefixMetrics};
use super::requests::Asker;
use super::store::PrefixStore;
use crate::engine::backend::Backend;
use crate::limits::KEPT_LOAD_TIME;
use crate::wire::error::Kind;

/// How long a slot's errands go on before another slot has its turn: a slice of 8 MiB or some.
const TURN_TIME: Duration = Duration::from_millis(3);

/// Where what is saved goes.
pub(super) enum Target {
    Memory,
    File(PathBuf, Asker),
}

/// What is restored.
pub(super) enum From {
    Snapshot(Arc<Snapshot>),
    /// A cut of what the slot holds.
    Cut(Arc<Cut>),
}

/// One thing to do, or a part of it that is left.
pub(super) enum Errand {
    Save { back_to: Option<u32>, cuts: Vec<Arc<Cut>>, target: Target },
    Saving { saving: Saving, target: Target },
    Writing { answer: Answer<u64>, tokens: usize, asker: Asker },
    LoadKept { path: PathBuf, bytes: u64, to: u32 },
    LoadNamed { path: PathBuf, asker: Asker },
    LoadingKept { answer: Answer<Snapshot>, bytes: u64, to: u32, until: Instant },
    LoadingNamed { answer: Answer<Snapshot>, asker: Asker },
    Restore { from: From, to: u32, origin: Origin, asker: Option<(Asker, u64)> },
    Restoring { restoring: Restoring, bytes: u64, origin: Origin, asker: Option<(Asker, u64)> },
    Erase { asker: Asker },
}

/// What is left of an errand after a part of it.
enum Left {
    Nothing,
    This(Errand),
    /// It waits for a file.
    Waits(Errand),
}

impl Errand {
    /// Host memory that it fills.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Saving { saving, .. } => saving.bytes(),
            Self::LoadingKept { bytes, .. } => *bytes,
            _ => 0,
        }
    }
}

/// What who asked for it is told of a snapshot that is of no use. Without paths.
fn told(error: &SnapshotError) -> (Kind, String) {
    let text = match error {
        SnapshotError::NothingHeld | SnapshotError::TooLong { .. } | SnapshotError::NoCut { .. } => {
            return (Kind::Invalid, error.to_string());
        }
        SnapshotError::OtherModel { .. } | SnapshotError::OtherShape { .. } => {
            "was saved with another model, device or version of this program, or in another mode"
        }
        SnapshotError::NotASnapshot { .. } => "is no saved slot",
        SnapshotError::OtherVersion { .. } => "was saved by another version of this program",
        SnapshotError::OtherLength { .. } | SnapshotError::Damaged { .. } | SnapshotError::BadHead { .. } => {
            "is damaged"
        }
        SnapshotError::Io { what: "open", source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            return (Kind::Invalid, "there is no such file: save a slot under this name first".to_owned());
        }
        SnapshotError::NoMemory { .. } => return (Kind::Unavailable, error.to_string()),
        _ => {
            return (
                Kind::Server,
                "the file cannot be read or written; the server's log says why".to_owned(),
            );
        }
    };
    (Kind::Invalid, format!("the file {text}: the slot is as it was"))
}

/// The threads of files are at work with as much as may wait.
const THREADS_BUSY: &str = "other files are being written or read: try again in a while";

fn refuse(asker: Asker, error: &SnapshotError) {
    let (kind, message) = told(error);
    match error {
        SnapshotError::Io { what, source, .. } => tracing::warn!("a slot's file: {what}: {source}"),
        // Its name is the request's, and no other text of a request is logged either.
        _ => tracing::warn!("a slot's file was refused: {message}"),
    }
    asker.failed(kind, message);
}

/// A snapshot's fault ends the errand alone; a device's goes on.
fn snapshot_fault(error: EngineError) -> Result<SnapshotError, EngineError> {
    match error {
        EngineError::Snapshot(error) => Ok(error),
        error => Err(error),
    }
}

impl PrefixStore {
    /// Does a part of what is to be done with a slot.
    ///
    /// # Errors
    /// When the device fails: then what was left is forgotten.
    pub(crate) fn step<B: Backend>(
        &mut self,
        index: usize,
        backend: &mut B,
        session: &mut B::Session,
        metrics: &PrefixMetrics,
    ) -> Result<(), EngineError> {
        let began = Instant::now();
        while let Some(errand) = self.slots[index].errands.pop_front() {
            match self.carry_on(index, errand, backend, session, metrics) {
                Ok(Left::Nothing) => {}
                Ok(Left::This(errand)) => self.slots[index].errands.push_front(errand),
                Ok(Left::Waits(errand)) => {
                    self.slots[index].errands.push_front(errand);
                    break;
                }
                Err(error) => {
                    self.slots[index].errands.clear();
                    return Err(error);
                }
            }
            if began.elapsed() >= TURN_TIME {
                break;
            }
        }
        Ok(())
    }

    fn carry_on<B: Backend>(
        &mut self,
        index: usize,
        errand: Errand,
        backend: &mut B,
        session: &mut B::Session,
        metrics: &PrefixMetrics,
    ) -> Result<Left, EngineError> {
        match errand {
            Errand::Save { back_to, cuts, target } => {
                self.begin_save((back_to, &cuts), target, backend, session, metrics)
            }
            Errand::Saving { mut saving, target } => match backend.save_step(session, &mut saving)? {
                false => Ok(Left::This(Errand::Saving { saving, target })),
                true => Ok(self.saved(Arc::new(saving.finish()), target, metrics)),
            },
            Errand::Writing { answer, tokens, asker } => Ok(match answer.look() {
                None => Left::Waits(Errand::Writing { answer, tokens, asker }),
                Some(Some(Ok(bytes))) => {
                    asker.done(tokens, bytes);
                    Left::Nothing
                }
                Some(Some(Err(error))) => {
                    refuse(asker, &error);
                    Left::Nothing
                }
                Some(None) => Left::Nothing,
            }),
            Errand::LoadKept { path, bytes, to } => Ok(self.begin_load(path, bytes, to, metrics)),
            Errand::LoadNamed { path, asker } => {
                Ok(match self.files.as_ref().and_then(|files| files.load(path)) {
                    Some(answer) => Left::Waits(Errand::LoadingNamed { answer, asker }),
                    None => {
                        asker.failed(Kind::Unavailable, THREADS_BUSY);
                        Left::Nothing
                    }
                })
            }
            Errand::LoadingKept { answer, bytes, to, until } => Ok(match answer.look() {
                None if Instant::now() >= until => {
                    tracing::warn!(
                        "a kept conversation did not come from the drive in time: it is fed again"
                    );
                    metrics.dropped();
                    Left::Nothing
                }
                None => Left::Waits(Errand::LoadingKept { answer, bytes, to, until }),
                Some(Some(Ok(snapshot))) => {
                    let snapshot = Arc::new(snapshot);
                    self.memory.insert(snapshot.clone());
                    let from = From::Snapshot(snapshot);
                    Left::This(Errand::Restore { from, to, origin: Origin::Disk, asker: None })
                }
                // The folder has said what is wrong.
                Some(Some(Err(_)) | None) => Left::Nothing,
            }),
            Errand::LoadingNamed { answer, asker } => Ok(match answer.look() {
                None => Left::Waits(Errand::LoadingNamed { answer, asker }),
                Some(Some(Ok(snapshot))) => {
                    let to = u32::try_from(snapshot.tokens().len()).expect("invariant: a context is a u32");
                    let asker = Some((asker, snapshot.file_bytes()));
                    let from = From::Snapshot(Arc::new(snapshot));
                    Left::This(Errand::Restore { from, to, origin: Origin::Slot, asker })
                }
                Some(Some(Err(error))) => {
                    refuse(asker, &error);
                    Left::Nothing
                }
                Some(None) => Left::Nothing,
            }),
            Errand::Restore { from, to, origin, asker } => {
                let bytes = match &from {
                    From::Snapshot(snapshot) => {
                        self.memory.touch(snapshot);
                        snapshot.bytes()
                    }
                    From::Cut(cut) => cut.bytes(),
                };
                let begun = match from {
                    From::Snapshot(snapshot) => backend.begin_restoring(session, snapshot, to),
                    From::Cut(cut) => backend.begin_rewinding(session, cut, to),
                };
                match begun {
                    Ok(restoring) => Ok(Left::This(Errand::Restoring { restoring, bytes, origin, asker })),
                    Err(error) => {
                        let error = snapshot_fault(error)?;
                        match asker {
                            Some((asker, _)) => refuse(asker, &error),
                            None => tracing::warn!("a kept conversation was not brought back: {error}"),
                        }
                        Ok(Left::Nothing)
                    }
                }
            }
            Errand::Restoring { mut restoring, bytes, origin, asker } => {
                if !backend.restore_step(session, &mut restoring)? {
                    return Ok(Left::This(Errand::Restoring { restoring, bytes, origin, asker }));
                }
                metrics.restored(bytes);
                let tokens = restoring.tokens().len();
                let slot = &mut self.slots[index];
                slot.origin = origin;
                if origin != Origin::Cut {
                    slot.cuts = restoring.cuts().to_vec();
                }
                if let Some((asker, bytes)) = asker {
                    slot.begin_anew(tokens);
                    asker.done(tokens, bytes);
                }
                Ok(Left::Nothing)
            }
            Errand::Erase { asker } => {
                let tokens = backend.tokens(session).len();
                backend.reset(session);
                let slot = &mut self.slots[index];
                slot.cuts.clear();
                slot.begin_anew(0);
                asker.done(tokens, 0);
                Ok(Left::Nothing)
            }
        }
    }

    fn begin_save<B: Backend>(
        &mut self,
        (back_to, cuts): (Option<u32>, &[Arc<Cut>]),
        target: Target,
        backend: &B,
        session: &B::Session,
        metrics: &PrefixMetrics,
    ) -> Result<Left, EngineError> {
        if matches!(target, Target::Memory) && self.memory.has(backend.tokens(session)) {
            return Ok(Left::Nothing);
        }
        let saving = match backend.begin_saving(session, back_to, cuts) {
            Ok(saving) => saving,
            Err(error) => {
                let error = snapshot_fault(error)?;
                match target {
                    Target::Memory => metrics.dropped(),
                    Target::File(_, asker) => refuse(asker, &error),
                }
                return Ok(Left::Nothing);
            }
        };
        let has_room = self.make_room(saving.bytes(), metrics);
        if !has_room && matches!(target, Target::Memory) {
            metrics.dropped();
            tracing::debug!(bytes = saving.bytes(), "no room for a conversation in the prompt cache");
            return Ok(Left::Nothing);
        }
        Ok(Left::This(Errand::Saving { saving, target }))
    }

    fn saved(&mut self, snapshot: Arc<Snapshot>, target: Target, metrics: &PrefixMetrics) -> Left {
        match (target, &self.files) {
            (Target::Memory, files) => {
                metrics.kept();
                if let Some(files) = files.as_ref().filter(|_| self.disk.is_some()) {
                    // Where the threads are busy it is written at the end, if it is still there.
                    let _ = files.keep(snapshot.clone());
                }
                self.memory.insert(snapshot);
                Left::Nothing
            }
            (Target::File(path, asker), Some(files)) => {
                let tokens = snapshot.tokens().len();
                match files.save(snapshot, path) {
                    Some(answer) => Left::Waits(Errand::Writing { answer, tokens, asker }),
                    None => {
                        asker.failed(Kind::Unavailable, THREADS_BUSY);
                        Left::Nothing
                    }
                }
            }
            (Target::File(_, asker), None) => {
                asker.failed(Kind::NotSupported, "this server has no folder for slots");
                Left::Nothing
            }
        }
    }

    fn begin_load(&mut self, path: PathBuf, bytes: u64, to: u32, metrics: &PrefixMetrics) -> Left {
        if !self.make_room(bytes, metrics) {
            metrics.dropped();
            return Left::Nothing;
        }
        match self.files.as_ref().and_then(|files| files.load_kept(path)) {
            Some(answer) => {
                let until = Instant::now() + KEPT_LOAD_TIME;
                Left::Waits(Errand::LoadingKept { answer, bytes, to, until })
            }
            None => Left::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PrefixOptions;
    use super::super::files::Files;
    use super::*;
    use crate::stub::{Script, Stub};

    #[test]
    fn a_drive_that_hangs_holds_a_slot_for_a_while_only() {
        let mut backend = Stub::new(Script::default());
        let mut session = backend.open_session().unwrap();
        let options = PrefixOptions { memory_bytes: 1 << 20, ..PrefixOptions::default() };
        let mut store = PrefixStore::open(&options, &backend, 1).unwrap();
        let metrics = crate::metrics::Metrics::new().prefix;
        let (_sender, answer) = Files::unanswered();
        let until = Instant::now() + Duration::from_millis(50);
        store.slots[0].errands.push_back(Errand::LoadingKept { answer, bytes: 1, to: 1, until });
        store.step(0, &mut backend, &mut session, &metrics).unwrap();
        assert!(store.is_busy(0) || Instant::now() >= until);
        std::thread::sleep(Duration::from_millis(60));
        store.step(0, &mut backend, &mut session, &metrics).unwrap();
        assert!(!store.is_busy(0));
    }
}
