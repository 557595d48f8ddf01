//! Whether a way of reaching what was read works: bytes are sent along it and compared.

use super::{Move, Transport};
use crate::base::ids::{FileIndex, Span};
use crate::disk::SourceFile;
use crate::expert::ExpertError;
use crate::gpu::{Placement, Recorder};

/// What a probe copies, in bytes.
const PROBE_LEN: usize = 4096;
const PROBE_LEN_BYTES: u64 = PROBE_LEN as u64;

/// Bytes of which none lies where another that is equal may be taken for it: 251 is no divisor of any alignment.
fn probe_pattern() -> Vec<u8> {
    (0..251).cycle().take(PROBE_LEN).collect()
}

impl Transport {
    /// Reads the first bytes of a file the way everything will be read, and compares what the device got.
    pub(super) fn probe(&mut self, file: &SourceFile) -> Result<(), ExpertError> {
        let len_bytes = file.len_bytes().min(4096) & !3;
        let mut wanted = vec![0_u8; usize::try_from(len_bytes).expect("invariant: at most 4096")];
        file.read_exact_at(0, &mut wanted)?;
        let target = self.gpu.buffer("probe", len_bytes.max(4), Placement::Readback)?;
        let span = Span { file: FileIndex(0), offset_bytes: 0, len_bytes };
        let moves = [Move { span, target: target.clone(), target_offset_bytes: 0, check: None }];
        let ticket = self.run(&mut moves.into_iter(), &mut |_| {}, &mut |_| {})?;
        self.gpu.wait(ticket)?;
        let mut got = vec![0_u8; wanted.len()];
        target.read(0, &mut got);
        if got == wanted {
            return Ok(());
        }
        Err(ExpertError::ProbeMismatch { path: file.path().to_owned(), host_path: self.staging.path() })
    }

    /// Compares what arrives by a copy of the kind that brings experts: they have a queue of their own where the device has one, on
    /// another of its engines.
    pub(super) fn probe_copies(&mut self, file: &SourceFile) -> Result<(), ExpertError> {
        let Some(mut buffer) = self.staging.take(&self.gpu)? else { return Ok(()) };
        let wanted = probe_pattern();
        buffer.as_mut_slice()[..PROBE_LEN].copy_from_slice(&wanted);
        let target = self.gpu.buffer("probe", PROBE_LEN_BYTES, Placement::Readback)?;
        let (there, offset_bytes) = self.staging.land(&buffer, &(0..PROBE_LEN));
        self.run_copies(|recorder| recorder.copy(there, offset_bytes, &target, 0, PROBE_LEN_BYTES))?;
        self.staging.give_back(buffer);
        let mut got = vec![0_u8; PROBE_LEN];
        target.read(0, &mut got);
        if got == wanted {
            return Ok(());
        }
        Err(ExpertError::ProbeMismatch { path: file.path().to_owned(), host_path: self.staging.path() })
    }

    /// Whether what the device writes where reads land comes back as it was.
    pub(super) fn probe_back(&mut self) -> Result<bool, ExpertError> {
        let Some(mut buffer) = self.staging.take(&self.gpu)? else { return Ok(false) };
        buffer.as_mut_slice()[..PROBE_LEN].fill(0);
        let wanted = probe_pattern();
        let from = self.gpu.buffer("probe", PROBE_LEN_BYTES, Placement::Upload)?;
        from.write(0, &wanted);
        let back = self.gpu.buffer("probe", PROBE_LEN_BYTES, Placement::Readback)?;
        let (there, offset_bytes) = self.staging.land(&buffer, &(0..PROBE_LEN));
        self.run_copies(|recorder| {
            recorder.copy(&from, 0, there, offset_bytes, PROBE_LEN_BYTES);
            recorder.barrier();
            recorder.copy(there, offset_bytes, &back, 0, PROBE_LEN_BYTES);
        })?;
        let mut got = vec![0_u8; PROBE_LEN];
        back.read(0, &mut got);
        self.staging.give_back(buffer);
        Ok(got == wanted)
    }

    /// Runs what `record` records where experts are copied, and waits for it.
    pub(super) fn run_copies(&self, record: impl FnOnce(&mut Recorder)) -> Result<(), ExpertError> {
        let mut recorder = self.gpu.copy_recorder()?;
        record(&mut recorder);
        let commands = recorder.finish()?;
        Ok(self.gpu.wait(self.gpu.submit_copies(&commands, None)?)?)
    }
}
