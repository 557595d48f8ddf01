//! The printable character that a byte-level vocabulary writes for each byte.
//!
//! In: a byte, or a character of a vocabulary's text. Out: the other. Pure.
//!
//! Bytes that are printable in Latin-1 (`!` to `~`, U+00A1 to U+00AC, U+00AE to U+00FF) stand for themselves; the other
//! 68 are written, in ascending order, as U+0100, U+0101 and so on. So a space is `Ġ` and a newline `Ċ`. Source: the
//! byte table of GPT-2's tokenizer, which GGUF's `tokenizer.ggml.model = gpt2` stands for.

/// Whether `byte` is written as itself.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The character that stands for each byte.
pub(super) fn characters() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut moved = '\u{100}'..;
    for (byte, entry) in (0u8..=255).zip(table.iter_mut()) {
        *entry = if is_plain(byte) {
            char::from(byte)
        } else {
            moved.next().expect("invariant: 68 characters follow U+0100")
        };
    }
    table
}

/// The bytes that `text` writes, or `None` when it holds a character outside the alphabet.
pub(super) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

/// The byte that `character` stands for.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    if let Ok(byte) = u8::try_from(code) {
        return is_plain(byte).then_some(byte);
    }
    // The moved bytes in ascending order: 0x00..=0x20, 0x7f..=0xa0, 0xad.
    let byte = match code.checked_sub(0x100)? {
        moved @ 0..=0x20 => moved,
        moved @ 0x21..=0x42 => moved - 0x21 + 0x7f,
        0x43 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_its_inverse_agree() {
        let table = characters();
        assert_eq!(table[usize::from(b' ')], 'Ġ');
        assert_eq!(table[usize::from(b'\n')], 'Ċ');
        assert_eq!(table[usize::from(b'a')], 'a');
        for (byte, character) in (0u8..=255).zip(table) {
            assert_eq!(byte_of(character), Some(byte), "{character:?}");
        }
        let inverse = (0..0x3000).filter_map(char::from_u32).filter(|c| byte_of(*c).is_some()).count();
        assert_eq!(inverse, 256);
    }
}
