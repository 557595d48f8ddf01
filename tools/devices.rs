//! `flint-rt devices`: the Vulkan devices, in the order of their numbers.

use std::io::{self, Write};

use flint_rt::base::units::display_bytes;
use flint_rt::gpu::{DeviceInfo, list_devices};
use serde_json::{Value, json};

use crate::args::DevicesArgs;
use crate::exit::Outcome;

/// Runs the command.
pub(crate) fn run(args: &DevicesArgs) -> Outcome {
    let devices = list_devices(false)?;
    let mut stdout = io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", json!({ "devices": devices.iter().map(as_json).collect::<Vec<_>>() }))?;
    } else {
        for device in &devices {
            writeln!(stdout, "{}", line(device))?;
        }
    }
    Ok(())
}

/// One device in one line.
pub(crate) fn line(device: &DeviceInfo) -> String {
    let own: u64 = device.heaps.iter().filter(|(_, is_local)| *is_local).map(|(bytes, _)| bytes).sum();
    let mut line = format!(
        "{}  {}, {}, Vulkan {}, {}, {} lanes",
        device.index,
        device.title(),
        device.kind,
        device.api,
        display_bytes(own),
        device.subgroup_size
    );
    if !device.missing.is_empty() {
        line.push_str(&format!("; cannot run: lacks {}", device.missing.join(", ")));
    }
    line
}

/// One device as JSON.
pub(crate) fn as_json(device: &DeviceInfo) -> Value {
    let heaps =
        device.heaps.iter().map(|(bytes, is_local)| json!({ "bytes": bytes, "device_local": is_local }));
    json!({
        "index": device.index,
        "name": device.name,
        "driver": device.driver,
        "api": device.api,
        "kind": device.kind.to_string(),
        "software": device.is_software(),
        "subgroup_size": device.subgroup_size,
        "subgroup_min": device.subgroup_min,
        "subgroup_max": device.subgroup_max,
        "cooperative_matrix": device.matrix.map(|matrix| [matrix.m, matrix.n, matrix.k]),
        "storage_range": device.limits.storage_range,
        "import_alignment": device.limits.import_alignment,
        "heaps": heaps.collect::<Vec<_>>(),
        "missing": device.missing,
    })
}
