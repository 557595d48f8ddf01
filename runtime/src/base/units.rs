//! Bytes: rounding and printing.

/// `bytes` rounded up to a multiple of `align`, which need not be a power of two.
///
/// # Panics
/// When `align` is 0 or the result does not fit.
pub fn align_up(bytes: u64, align: u64) -> u64 {
    assert!(align > 0, "alignment of zero");
    bytes.checked_next_multiple_of(align).expect("invariant: sizes are far below 2^64")
}

/// `bytes` rounded down to a multiple of `align`.
///
/// # Panics
/// When `align` is 0.
pub fn align_down(bytes: u64, align: u64) -> u64 {
    assert!(align > 0, "alignment of zero");
    bytes - bytes % align
}

/// `bytes` in the largest binary unit that keeps it at or above one: `1.83 GiB`, `480.0 KiB`, `17 B`.
pub fn display_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for name in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = name;
    }
    if value < 100.0 { format!("{value:.2} {unit}") } else { format!("{value:.1} {unit}") }
}

/// A rate in decimal gigabytes a second, as drives and buses are sold: `1.97 GB/s`.
pub fn display_rate(bytes: u64, seconds: f64) -> String {
    if seconds <= 0.0 { "- GB/s".to_owned() } else { format!("{:.2} GB/s", bytes as f64 / seconds / 1e9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_meets_its_multiples() {
        assert_eq!(align_up(0, 4096), 0);
        assert_eq!(align_up(1, 4096), 4096);
        assert_eq!(align_up(4096, 4096), 4096);
        assert_eq!(align_down(4097, 4096), 4096);
        assert_eq!(align_up(10, 3), 12);
    }

    #[test]
    fn sizes_are_printed_in_their_unit() {
        assert_eq!(display_bytes(17), "17 B");
        assert_eq!(display_bytes(1_966_080), "1.88 MiB");
        assert_eq!(display_bytes(25_992_966_976), "24.21 GiB");
    }
}
