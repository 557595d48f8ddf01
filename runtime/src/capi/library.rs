//! `flint_rt_*` of the library as a whole: versions, texts of faults, devices.

use std::ffi::{CStr, c_char};

use super::handles::{self, Handle};
use super::memory::{Out, OutArray};
use super::status::{Fault, Status};
use super::types::{DeviceInfo, put_text};
use super::{ABI_VERSION, VERSION, guard};
use crate::gpu::{DeviceKind, list_devices};

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_version() -> *const c_char {
    const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a version holds no NUL"),
    };
    TEXT.as_ptr()
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_abi_version() -> u32 {
    ABI_VERSION
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_check_abi(abi_version: u32) -> Status {
    guard::run(None, || {
        if abi_version == ABI_VERSION {
            return Ok(());
        }
        let text =
            format!("built for ABI {abi_version}, and this is libflint_rt {VERSION} with ABI {ABI_VERSION}");
        Err(Fault::new(Status::Abi, text))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_status_string(status: i32) -> *const c_char {
    let found = Status::ALL.into_iter().find(|&known| known as i32 == status);
    found.map_or(c"an unknown status", Status::words).as_ptr()
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_last_error(
    handle: Handle,
    text: OutArray<c_char>,
    capacity: usize,
    needed: Out<usize>,
) -> Status {
    // Not by `guard::run`, which would put its own fault in the place of the text.
    let needed = match needed.get("needed") {
        Ok(needed) => needed,
        Err(fault) => return fault.status,
    };
    let give = |error: &str| {
        text.fill_start(capacity, error);
        if let Some(needed) = needed {
            needed.set(error.len() + 1);
        }
        if error.len() < capacity { Status::Ok } else { Status::Buffer }
    };
    match handle {
        0 => guard::read_thread_error(give),
        handle => handles::read_error(handle, give).unwrap_or_else(|fault| fault.status),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_device_count(count: Out<usize>) -> Status {
    guard::run(None, || {
        let count = count.need("count")?;
        count.set(list_devices(false)?.len());
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_device_info_get(index: usize, info: Out<DeviceInfo>) -> Status {
    guard::run(None, || {
        let devices = list_devices(false)?;
        let device = devices
            .get(index)
            .ok_or_else(|| Fault::argument(format!("device {index} of {}, counted from 0", devices.len())))?;
        let own = device.heaps.iter().filter(|(_, is_own)| *is_own);
        let mut answer = DeviceInfo {
            index: u32::try_from(device.index).unwrap_or(u32::MAX),
            kind: match device.kind {
                DeviceKind::Discrete => 1,
                DeviceKind::Integrated => 2,
                DeviceKind::Virtual => 3,
                DeviceKind::Software => 4,
                DeviceKind::Other => 0,
            },
            is_usable: i32::from(device.missing.is_empty()),
            subgroup_size: device.subgroup_size,
            own_memory_bytes: own.map(|(bytes, _)| bytes).sum(),
            ..DeviceInfo::default()
        };
        put_text(&mut answer.name, &device.name);
        put_text(&mut answer.driver, &device.driver);
        info.fill(&answer, "info")
    })
}
