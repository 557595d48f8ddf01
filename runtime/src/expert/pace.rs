//! How much is asked of the drive at once.
//!
//! - Owns: the bytes under way, and their limits. In: reads as they begin and end. Out: whether another may begin.
//! - Invariants: pure. One read is always admitted, however long it is. A guess begins only when little is left of what a step
//!   waits for, so that this shares the drive with few bytes that nobody asked for.

/// Bytes of reads that steps wait for: on two virtual machines 8 to 16 MB kept the drive at its rate while what had come was looked
/// at; with less it fell idle between, with more the records came later, not faster.
const DEMAND_BYTES: u64 = 12 << 20;

/// Bytes of guesses: what a drive of a few GB/s reads while a device computes a layer.
const GUESS_BYTES: u64 = 6 << 20;

/// Bytes that a step waits for, beside which a guess begins: the last pieces of a record, with which alone a drive would be half idle.
const TAIL_BYTES: u64 = 3 << 19;

/// The bytes under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pace {
    demand_bytes: u64,
    guess_bytes: u64,
}

impl Pace {
    /// Whether a read of `len_bytes` may begin.
    pub fn admits(&self, len_bytes: u64, is_guess: bool) -> bool {
        let under_way_bytes = self.demand_bytes + self.guess_bytes;
        match is_guess {
            _ if under_way_bytes == 0 => true,
            true => self.demand_bytes <= TAIL_BYTES && self.guess_bytes + len_bytes <= GUESS_BYTES,
            false => under_way_bytes + len_bytes <= DEMAND_BYTES,
        }
    }

    /// A read has begun.
    pub fn begun(&mut self, len_bytes: u64, is_guess: bool) {
        *self.bytes_of(is_guess) += len_bytes;
    }

    /// A read that was begun as a guess, or not, has ended, however it did.
    pub fn ended(&mut self, len_bytes: u64, is_guess: bool) {
        *self.bytes_of(is_guess) -= len_bytes;
    }

    fn bytes_of(&mut self, is_guess: bool) -> &mut u64 {
        if is_guess { &mut self.guess_bytes } else { &mut self.demand_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_read_is_always_admitted() {
        for is_guess in [false, true] {
            assert!(Pace::default().admits(1 << 40, is_guess));
        }
    }

    #[test]
    fn a_guess_waits_until_little_is_waited_for() {
        let mut pace = Pace::default();
        for _ in 0..3 {
            pace.begun(1 << 20, false);
        }
        assert!(!pace.admits(4096, true));
        pace.ended(1 << 20, false);
        assert!(!pace.admits(4096, true));
        pace.ended(1 << 20, false);
        assert!(pace.admits(4096, true));
    }

    #[test]
    fn a_demand_finds_room_beside_all_guesses() {
        let mut pace = Pace::default();
        while pace.admits(1 << 20, true) {
            pace.begun(1 << 20, true);
        }
        let mut count = 0;
        while pace.admits(1 << 20, false) {
            pace.begun(1 << 20, false);
            count += 1;
        }
        assert_eq!(count, (DEMAND_BYTES - GUESS_BYTES) >> 20);
        pace.ended(1 << 20, true);
        assert!(pace.admits(1 << 20, false) && !pace.admits(1 << 20, true));
    }
}
