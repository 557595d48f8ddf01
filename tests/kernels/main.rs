//! Every kernel against its CPU twin, on the device that `FLINT_RT_DEVICE` names or that the library chooses, under the
//! validation layer (`FLINT_RT_VALIDATION=0` does without, for a machine that has none).
//!
//! Shapes are odd on purpose: 1, primes, one less and one more than a tile. Outputs are larger than the kernel's shape
//! and start from known words, so that a stray write shows. Every dispatch runs once with the stop word set, when it must
//! write nothing. Tolerances are relative to the largest output and stand beside their reason.
//!
//! On a software device the whole file runs a second time with four lanes a subgroup instead of eight (below). To do so
//! by hand: `LP_NATIVE_VECTOR_WIDTH=128 cargo test --test kernels`.

mod argmax;
mod attention;
mod combine;
mod embed;
mod expert;
mod fused;
mod group;
mod linear;
mod many;
mod norm;
mod rope;
mod router;
mod support;

use std::process::Command;

/// Set for the child, which must not start a child.
const CHILD: &str = "FLINT_RT_TEST_FOUR_LANES";

#[test]
fn everything_again_with_four_lanes() {
    let Some(device) = support::device() else { return };
    if !device.is_software() || std::env::var_os(CHILD).is_some() {
        return;
    }
    let exe = std::env::current_exe().unwrap();
    let output = Command::new(exe)
        .env(CHILD, "1")
        // Mesa's llvmpipe: width of its vectors in bits, hence 32-bit lanes of a subgroup times 32.
        .env("LP_NATIVE_VECTOR_WIDTH", "128")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// The child really has four lanes; in the parent this says nothing.
#[test]
fn four_lanes_are_four() {
    let Some(device) = support::device() else { return };
    if device.is_software() && std::env::var_os(CHILD).is_some() {
        let sizes: Vec<u32> = device.single().iter().map(|lanes| lanes.subgroup).collect();
        assert_eq!(sizes, [4]);
    }
}
