//! What every kernel test needs: the device, one dispatch from words to words, random data, comparison.
//!
//! In: a [`Call`] and the contents of its buffers. Out: the contents after it ran. Every call runs twice, first with the
//! stop word set, when no buffer may change; and after every call the validation layer must have said nothing.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use flint_rt::gpu::{Buffer, Gpu, GpuError, GpuOptions, MatrixShape, Pipeline, Placement};
use flint_shaders::Kernel;
use flint_shaders::reference::Control;

/// The device under test and its pipelines, made once for all tests.
pub(crate) struct Device {
    gpu: Gpu,
    pipelines: Mutex<HashMap<(&'static str, Vec<u32>), Pipeline>>,
}

/// How wide a workgroup is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes {
    /// Lanes of a workgroup, a multiple of `subgroup`.
    pub(crate) workgroup: u32,
    /// Lanes of a subgroup.
    pub(crate) subgroup: u32,
}

/// One dispatch.
pub(crate) struct Call<'a> {
    /// What runs.
    pub(crate) kernel: &'static Kernel,
    /// How wide.
    pub(crate) lanes: Lanes,
    /// Specialization constants from `constant_id` 2 on.
    pub(crate) constants: &'a [u32],
    /// Push constants.
    pub(crate) push: &'a [u8],
    /// Workgroups.
    pub(crate) groups: [u32; 3],
}

/// The device, or `None` where there is none: the test says so and passes.
pub(crate) fn device() -> Option<&'static Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let options = GpuOptions {
            device: std::env::var("FLINT_RT_DEVICE").ok(),
            validation: std::env::var_os("FLINT_RT_VALIDATION").is_none_or(|value| value != "0"),
            ..GpuOptions::default()
        };
        match Gpu::open(&options) {
            Ok(gpu) => {
                let info = gpu.info();
                println!(
                    "kernel tests run on {}, {} to {} lanes",
                    info.title(),
                    info.subgroup_min,
                    info.subgroup_max
                );
                Some(Device { gpu, pipelines: Mutex::new(HashMap::new()) })
            }
            Err(error @ (GpuError::LoaderMissing { .. } | GpuError::NoDevice { .. })) => {
                println!("skipped: no Vulkan device: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    });
    device.as_ref()
}

impl Device {
    /// Whether the device is a driver that computes on the CPU.
    pub(crate) fn is_software(&self) -> bool {
        self.gpu.info().is_software()
    }

    /// The cooperative matrix that kernels may use, where the device has one.
    pub(crate) fn matrix(&self) -> Option<MatrixShape> {
        self.gpu.info().matrix
    }

    /// Every subgroup size that the device can be made to use, one subgroup a workgroup.
    pub(crate) fn single(&self) -> Vec<Lanes> {
        let info = self.gpu.info();
        let sizes = (0..8).map(|power| 1u32 << power);
        sizes
            .filter(|size| (info.subgroup_min..=info.subgroup_max).contains(size))
            .map(|subgroup| Lanes { workgroup: subgroup, subgroup })
            .collect()
    }

    /// As [`Self::single`], and each size with four subgroups a workgroup, too.
    pub(crate) fn single_and_wide(&self) -> Vec<Lanes> {
        let single = self.single();
        let wide = single.iter().map(|lanes| Lanes { workgroup: lanes.subgroup * 4, ..*lanes });
        wide.chain(single.iter().copied()).collect()
    }

    /// Runs `call` over `buffers`: one slice a binding after `control`, in it the words of each descriptor.
    ///
    /// Returns the contents afterwards in the same shape, `control` first.
    pub(crate) fn run(
        &self,
        call: &Call<'_>,
        control: &Control,
        buffers: &[&[&[u32]]],
    ) -> Vec<Vec<Vec<u32>>> {
        let stopped = Control { stop: 7, ..*control };
        let before = with_control(&stopped, buffers);
        let after = self.run_once(call, &before);
        assert_eq!(after, before, "{}: a buffer changed though the stop word was set", call.kernel.name);
        self.run_once(call, &with_control(control, buffers))
    }

    fn run_once(&self, call: &Call<'_>, contents: &[Vec<Vec<u32>>]) -> Vec<Vec<Vec<u32>>> {
        let gpu = &self.gpu;
        let name = call.kernel.name;
        let pipeline = self.pipeline(call);
        let mut copies = Vec::new();
        let mut views = Vec::new();
        for binding in contents {
            let mut binding_views = Vec::new();
            for words in binding {
                let len_bytes = words.len() as u64 * 4;
                let make = |placement| -> Buffer {
                    gpu.buffer(name, len_bytes, placement).unwrap_or_else(|error| panic!("{name}: {error}"))
                };
                let (upload, buffer, readback) =
                    (make(Placement::Upload), make(Placement::Device), make(Placement::Readback));
                upload.write(0, words);
                binding_views.push(buffer.view());
                copies.push((upload, buffer, readback, len_bytes));
            }
            views.push(binding_views);
        }
        let views: Vec<_> = views.iter().map(Vec::as_slice).collect();
        let bindings = gpu.bind(&pipeline, &views).unwrap_or_else(|error| panic!("{name}: {error}"));

        let mut recorder = gpu.recorder().unwrap_or_else(|error| panic!("{name}: {error}"));
        for (upload, buffer, _, len_bytes) in &copies {
            recorder.copy(upload, 0, buffer, 0, *len_bytes);
        }
        recorder.barrier();
        recorder.dispatch(&pipeline, &bindings, call.push, call.groups);
        recorder.barrier();
        for (_, buffer, readback, len_bytes) in &copies {
            recorder.copy(buffer, 0, readback, 0, *len_bytes);
        }
        let commands = recorder.finish().unwrap_or_else(|error| panic!("{name}: {error}"));
        let ticket = gpu.submit(&[&commands]).unwrap_or_else(|error| panic!("{name}: {error}"));
        gpu.wait(ticket).unwrap_or_else(|error| panic!("{name}: {error}"));

        let mut copies = copies.iter();
        let read = |words: &Vec<u32>, readback: &Buffer| {
            let mut words = vec![0u32; words.len()];
            readback.read(0, &mut words);
            words
        };
        let after = contents
            .iter()
            .map(|binding| {
                let pairs = binding.iter().zip(&mut copies);
                pairs.map(|(words, (_, _, readback, _))| read(words, readback)).collect()
            })
            .collect();
        let messages = gpu.validation_messages();
        assert!(messages.is_empty(), "{name}: the validation layer says: {messages:#?}");
        after
    }

    fn pipeline(&self, call: &Call<'_>) -> Pipeline {
        let specialization = [&[call.lanes.workgroup, call.lanes.subgroup], call.constants].concat();
        assert_eq!(specialization.len(), call.kernel.constants.len(), "{}: constants", call.kernel.name);
        // The lock is held while a pipeline is made: one at a time, because Mesa 22.3's compiler has died of two.
        let mut pipelines = self.pipelines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        pipelines
            .entry((call.kernel.name, specialization.clone()))
            .or_insert_with(|| {
                self.gpu
                    .pipeline(call.kernel, call.lanes.subgroup, &specialization)
                    .unwrap_or_else(|error| panic!("{}: {error}", call.kernel.name))
            })
            .clone()
    }
}

fn with_control(control: &Control, buffers: &[&[&[u32]]]) -> Vec<Vec<Vec<u32>>> {
    let mut contents = vec![vec![control.words().to_vec()]];
    contents.extend(buffers.iter().map(|binding| binding.iter().map(|words| words.to_vec()).collect()));
    contents
}

/// A length as the kernels count.
pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).expect("invariant: test data is small")
}

/// The bits of floats.
pub(crate) fn words(values: &[f32]) -> &[u32] {
    bytemuck::cast_slice(values)
}

/// Floats from their bits.
pub(crate) fn floats(words: &[u32]) -> &[f32] {
    bytemuck::cast_slice(words)
}

/// Asserts that every value is within `tolerance` of the wanted one, relative to the largest wanted value: sums over
/// terms of both signs cancel, so an error relative to each value would say nothing.
#[track_caller]
pub(crate) fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let scale = want.iter().fold(0.0f32, |scale, value| scale.max(value.abs()));
    for (index, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs();
        assert!(error <= tolerance * scale, "{what}: value {index} is {got}, wanted {want}: off by {error}");
    }
}

/// Numbers from a seed (splitmix64: Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195, figure 16).
pub(crate) struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.next() % u64::from(end)).expect("invariant: a remainder is below its divisor")
    }

    /// A value in [-1, 1).
    pub(crate) fn value(&mut self) -> f32 {
        let bits = u16::try_from(self.next() >> 48).expect("invariant: 16 bits are left");
        f32::from(bits) / 32768.0 - 1.0
    }

    /// `count` values in [-1, 1).
    pub(crate) fn values(&mut self, count: u32) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    /// A Q4_1 matrix of random values.
    pub(crate) fn matrix(&mut self, row_count: u32, column_count: u32) -> Vec<u32> {
        flint_shaders::blocks::quantise(&self.values(row_count * column_count))
    }

    /// The numbers below `count` in random order.
    pub(crate) fn order(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        for end in (1..order.len()).rev() {
            let swap = self.below(self::count(end + 1));
            order.swap(end, swap as usize);
        }
        order
    }
}
