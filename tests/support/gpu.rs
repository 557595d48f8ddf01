//! What the tests of the device layer share: opening a validated device or saying that there is none, two small kernels,
//! and running one test again in a process of its own.

use std::process::{Command, Output};

use flint_rt::gpu::{Buffer, Gpu, GpuError, GpuOptions, Pipeline, Placement};
use flint_shaders::Kernel;

/// See `add_strided.comp`.
pub(crate) static ADD: Kernel = Kernel {
    name: "add_strided",
    spirv: include_bytes!("add_strided.spv"),
    push_bytes: 12,
    bindings: &[1, 1, 1, 1, 1],
    constants: &["WORKGROUP", "SUBGROUP", "SCALE"],
};

/// See `pick_buffer.comp`.
pub(crate) static PICK: Kernel = Kernel {
    name: "pick_buffer",
    spirv: include_bytes!("pick_buffer.spv"),
    push_bytes: 4,
    bindings: &[1, 1, 16],
    constants: &["WORKGROUP"],
};

/// The device that `FLINT_RT_DEVICE` names, or the best, with validation unless `FLINT_RT_VALIDATION=0` (a machine lent
/// for a test may have no layer). `None`, and a line that says so, where there is none.
pub(crate) fn open() -> Option<Gpu> {
    open_with(GpuOptions::default())
}

/// As [`open`], with more options.
pub(crate) fn open_with(options: GpuOptions) -> Option<Gpu> {
    let device = options.device.or_else(|| std::env::var("FLINT_RT_DEVICE").ok());
    let validation = std::env::var_os("FLINT_RT_VALIDATION").is_none_or(|value| value != "0");
    match Gpu::open(&GpuOptions { device, validation, ..options }) {
        Ok(gpu) => Some(gpu),
        Err(error @ (GpuError::LoaderMissing { .. } | GpuError::NoDevice { .. })) => {
            println!("skipped: no Vulkan device: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Closes the device and asserts that the validation layer had nothing to say, the closing included.
pub(crate) fn close(gpu: Gpu) {
    let log = gpu.validation_log();
    drop(gpu);
    assert_eq!(log.messages(), Vec::<String>::new(), "validation messages");
}

/// A buffer that the host wrote.
pub(crate) fn upload(gpu: &Gpu, name: &str, words: &[u32]) -> Buffer {
    let buffer = gpu.buffer(name, 4 * words.len() as u64, Placement::Upload).unwrap();
    buffer.write(0, words);
    buffer
}

/// A buffer that the host will read.
pub(crate) fn readback(gpu: &Gpu, name: &str, words: usize) -> Buffer {
    gpu.buffer(name, 4 * words as u64, Placement::Readback).unwrap()
}

/// The content of a buffer that the host can read.
pub(crate) fn words(buffer: &Buffer, count: usize) -> Vec<u32> {
    let mut words = vec![0; count];
    buffer.read(0, &mut words);
    words
}

/// The kernel [`ADD`] with the device's lanes, `subgroups` of them a workgroup.
pub(crate) fn add_pipeline(gpu: &Gpu, subgroups: u32, scale: u32) -> Pipeline {
    let lanes = gpu.info().subgroup_size;
    gpu.pipeline(&ADD, lanes, &[lanes * subgroups, lanes, scale]).unwrap()
}

/// The push constants of [`ADD`].
pub(crate) fn add_push(count: u32, stride: u32, offset: u32) -> Vec<u8> {
    [count, stride, offset].iter().flat_map(|word| word.to_le_bytes()).collect()
}

const CHILD: &str = "FLINT_RT_TEST_CHILD";

/// Whether this process was started by [`run_child`]. Tests that need a changed environment do their work only then.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs one test of this binary in a new process and asserts that it passed.
pub(crate) fn run_child(test: &str, environment: &[(&str, &str)], address_space_kib: Option<u64>) {
    let binary = std::env::current_exe().unwrap();
    let mut command = match address_space_kib {
        None => Command::new(&binary),
        Some(kib) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("ulimit -v {kib}; exec \"$0\" \"$@\"")]).arg(&binary);
            shell
        }
    };
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    command.envs(environment.iter().copied());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && stdout.contains("1 passed"), "{test}: {status}\n{stdout}\n{stderr}");
    // The harness puts the test's name before its first line.
    for (_, fact) in stdout.lines().filter_map(|line| line.split_once("seen: ")) {
        println!("seen: {fact}");
    }
}
