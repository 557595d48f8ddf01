//! The device that benches run on, its own limit, and the time that commands take on it.
//!
//! - Owns: a device and a clock. In: commands. Out: their time by the device's clock, or by the host's where it has none.

use std::time::{Duration, Instant};

use flint_rt::gpu::{Buffer, Commands, Gpu, GpuError, GpuOptions, Placement, Recorder, Timestamps};

/// A word that is a small number in every format: two f16, one f32, nibbles and scale of a Q4_1 block.
const WORD: u32 = 0x2c00_2c00;

/// An open device.
pub(crate) struct Device {
    pub(crate) gpu: Gpu,
    stamps: Option<Timestamps>,
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
        let stamps = match gpu.timestamps(2) {
            Ok(stamps) => Some(stamps),
            Err(GpuError::FeatureMissing { .. }) => None,
            Err(error) => return Err(error),
        };
        let clock = if stamps.is_some() { "the device's clock" } else { "the host's clock" };
        println!("{}, times by {clock}\n", gpu.info().title());
        Ok(Some(Self { gpu, stamps }))
    }

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

    /// Commands that are timed: what `record` puts between two stamps.
    pub(crate) fn timed(&self, record: impl FnOnce(&mut Recorder)) -> Result<Commands, GpuError> {
        let mut recorder = self.gpu.recorder()?;
        if let Some(stamps) = &self.stamps {
            recorder.reset_stamps(stamps, 0, 2);
            recorder.stamp(stamps, 0);
        }
        record(&mut recorder);
        recorder.barrier();
        if let Some(stamps) = &self.stamps {
            recorder.stamp(stamps, 1);
        }
        recorder.finish()
    }

    /// Runs commands of [`Self::timed`] so many times, one after the other; the sum of their times.
    pub(crate) fn run(&self, commands: &Commands, iterations: u64) -> Result<Duration, GpuError> {
        let mut sum = Duration::ZERO;
        for _ in 0..iterations {
            let begin = Instant::now();
            self.wait(commands)?;
            let by_host = begin.elapsed();
            let spans = self.stamps.as_ref().map(Timestamps::spans_ns).transpose()?.flatten();
            sum += spans.map_or(by_host, |spans| Duration::from_secs_f64(spans[0] * 1e-9));
        }
        Ok(sum)
    }

    fn wait(&self, commands: &Commands) -> Result<(), GpuError> {
        let ticket = self.gpu.submit(&[commands])?;
        self.gpu.wait(ticket)
    }
}
