//! Numbers and names that nobody can guess: seeds of replies, ids of answers.

const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("invariant: the kernel gives random bytes once it has booted");
    bytes
}

/// Any number.
pub(crate) fn number() -> u64 {
    u64::from_le_bytes(bytes())
}

/// `prefix` and 24 letters and digits.
pub(crate) fn id(prefix: &str) -> String {
    let letter = |byte: u8| char::from(LETTERS[usize::from(byte) % LETTERS.len()]);
    prefix.chars().chain(bytes::<24>().into_iter().map(letter)).collect()
}
