//! The device that benches run on, and buffers of its memory.
//!
//! - Owns: a device. In: lengths, words. Out: filled buffers.

use flint_rt::gpu::{Buffer, Commands, Gpu, GpuError, GpuOptions, Placement};

/// A word that is a small number in every format: two f16, one f32, nibbles and scale of a Q4_1 block.
const WORD: u32 = 0x2c00_2c00;

/// An open device.
pub(crate) struct Device {
    pub(crate) gpu: Gpu,
}

impl Device {
    /// The device that `FLINT_RT_DEVICE` names, or the best; `None`, and a line that says so, where there is none.
    pub(crate) fn open() -> Result<Option<Self>, GpuError> {
        let device = std::env::var("FLINT_RT_DEVICE").ok();
        let gpu = match Gpu::open(&GpuOptions { device, ..GpuOptions::default() }) {
            Ok(gpu) => gpu,
            Err(error @ (GpuError::LoaderMissing { .. } | GpuError::NoDevice { .. })) => {
                println!("skipped: no Vulkan device: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        println!("{}\n", gpu.info().title());
        Ok(Some(Self { gpu }))
    }

    #[allow(dead_code, reason = "not every bench cuts shapes")]
    /// Whether it is the host's processor: then shapes that take long are cut.
    pub(crate) fn is_software(&self) -> bool {
        self.gpu.info().is_software()
    }

    /// A buffer of its own memory, filled.
    pub(crate) fn filled(&self, name: &str, len_bytes: u64) -> Result<Buffer, GpuError> {
        let buffer = self.gpu.buffer(name, len_bytes.next_multiple_of(4), Placement::Device)?;
        let mut recorder = self.gpu.recorder()?;
        recorder.fill(&buffer, 0, buffer.len_bytes(), WORD);
        self.wait(&recorder.finish()?)?;
        Ok(buffer)
    }

    /// A buffer of its own memory that holds `words`.
    #[allow(dead_code, reason = "not every bench has tables")]
    pub(crate) fn holding(&self, name: &str, words: &[u32]) -> Result<Buffer, GpuError> {
        let len_bytes = words.len() as u64 * 4;
        let upload = self.gpu.buffer(name, len_bytes, Placement::Upload)?;
        upload.write(0, words);
        let buffer = self.gpu.buffer(name, len_bytes, Placement::Device)?;
        let mut recorder = self.gpu.recorder()?;
        recorder.copy(&upload, 0, &buffer, 0, len_bytes);
        self.wait(&recorder.finish()?)?;
        Ok(buffer)
    }

    /// Runs commands, and waits for their end.
    pub(crate) fn wait(&self, commands: &Commands) -> Result<(), GpuError> {
        let ticket = self.gpu.submit(&[commands])?;
        self.gpu.wait(ticket)
    }
}
