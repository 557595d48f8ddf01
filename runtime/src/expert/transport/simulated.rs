//! A transport over a disk that decides itself what it gives, and when: for tests.

use std::sync::Arc;

use super::{Transport, TransportOptions};
use crate::disk::{self, ReadPath, ReadPathReport, ReadQueue, SourceFile};
use crate::expert::ExpertError;
use crate::gpu::Gpu;

impl Transport {
    /// Puts `wrap` around the read queue, to have tests damage what it gives.
    #[must_use]
    pub fn wrap_queue(self, wrap: impl FnOnce(Box<dyn ReadQueue>) -> Box<dyn ReadQueue>) -> Self {
        Self { queue: wrap(self.queue), ..self }
    }

    /// Over a simulated disk: the bytes of `files`, with the faults that `seed` decides.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_simulated(
        gpu: &Gpu,
        files: &[Arc<SourceFile>],
        options: &TransportOptions,
        seed: u64,
        faults: &disk::Faults,
    ) -> Result<Self, ExpertError> {
        let transport = Self::open_with(gpu, files, options, &mut |_| {
            let simulated = files.iter().map(|file| disk::SimulatedFile::real(file.clone())).collect();
            let queue = disk::SimulatedQueue::new(seed, simulated, *faults, options.depth);
            let report = ReadPathReport {
                path: ReadPath::Pool,
                depth: options.depth,
                threads: 0,
                registered_bytes: 0,
                has_registered_files: false,
                files: Vec::new(),
                lost: vec![format!("everything: this is a simulated disk of seed {seed}")],
            };
            Ok((Box::new(queue), report))
        })?;
        Ok(Self { is_simulated: true, ..transport })
    }
}
