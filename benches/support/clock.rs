//! How long commands take, by the device's clock or, where it has none, by the host's.
//!
//! - Owns: two stamps. In: commands. Out: their time.

use std::time::{Duration, Instant};

use flint_rt::gpu::{Commands, GpuError, Recorder, Timestamps};

use super::device::Device;

/// A stop watch.
pub(crate) struct Clock<'a> {
    device: &'a Device,
    stamps: Option<Timestamps>,
}

impl<'a> Clock<'a> {
    /// The device's, or the host's where it has none.
    pub(crate) fn new(device: &'a Device) -> Result<Self, GpuError> {
        let stamps = match device.gpu.timestamps(2) {
            Ok(stamps) => Some(stamps),
            Err(GpuError::FeatureMissing { .. }) => {
                println!("the device has no clock: times are the host's, submissions included\n");
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self { device, stamps })
    }

    /// Commands that are timed: what `record` puts between two stamps.
    pub(crate) fn timed(&self, record: impl FnOnce(&mut Recorder)) -> Result<Commands, GpuError> {
        let mut recorder = self.device.gpu.recorder()?;
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
            self.device.wait(commands)?;
            let by_host = begin.elapsed();
            let spans = self.stamps.as_ref().map(Timestamps::spans_ns).transpose()?.flatten();
            sum += spans.map_or(by_host, |spans| Duration::from_secs_f64(spans[0] * 1e-9));
        }
        Ok(sum)
    }
}
