//! What limits of the process itself leave of its address space. Pure.

use super::kib_of;

/// Bytes of address space that are left under `ulimit -v`; `None` where it is unlimited. In: `/proc/self/limits` and
/// `/proc/self/status`.
pub(super) fn address_space_left(limits: &str, status: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    // The soft limit stands first.
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kib_of(status, "VmSize").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     
Max data size             unlimited            unlimited            bytes     
Max locked memory         8388608              8388608              bytes     
Max address space         4294967296           unlimited            bytes     
";
    const STATUS: &str = "Name:\tflint-rt\nVmPeak:\t  999999 kB\nVmSize:\t 1048576 kB\nVmLck:\t 0 kB\n";

    #[test]
    fn the_soft_limit_less_what_is_mapped_is_left() {
        assert_eq!(address_space_left(LIMITS, STATUS), Some(3 << 30));
        assert_eq!(address_space_left(LIMITS, ""), Some(4 << 30));
        assert_eq!(address_space_left(&LIMITS.replace("4294967296", "1024"), STATUS), Some(0));
        assert_eq!(address_space_left(&LIMITS.replace("4294967296", "unlimited"), STATUS), None);
        assert_eq!(address_space_left("", STATUS), None);
    }
}
