//! A byte-level vocabulary of any size, with the merges that build it: the same whatever the seed.
//!
//! In: how many tokens. Out: texts and merges in GGUF's spelling. Pure.
//!
//! Text becomes tokens of a few letters, as with a trained vocabulary, though nothing was trained: letters are taken for as
//! frequent as they are in English. In order of rank: white space, the pairs of lower-case letters, triples, frequent
//! quadruples, numbers, characters of two and three bytes, capitalised pairs and triples, all words again with a space in
//! front, and then further quadruples. A token has a merge for each way in which shorter tokens make it, because which of
//! them have been made when a word gets to it depends on the word.

use flint_rt::text::chat::Marker;

/// Letters from the most to the least frequent.
const LETTERS: &[u8; 26] = b"etaoinshrdlcumwfgypbvkjxqz";
/// Quadruples that come before the words with a space in front; with them Flint's 150,144 tokens hold both.
const QUADS_FIRST: usize = 22_336;
/// Control tokens and bytes.
pub(super) const SMALLEST: u32 = 11 + 256;
/// What there is to take from: 4 pieces of white space; pairs, triples, quadruples; numbers; characters; capitalised pairs
/// and triples; the words with a space.
pub(super) const LARGEST: u32 = SMALLEST
    + 4
    + (676 + 17_576 + 456_976)
    + 1_100
    + (30 * 64 + 7 * 64 + 7 * 64 * 64)
    + (676 + 17_576)
    + (52 + 2 * 676 + 2 * 17_576 + 22_336);

/// Texts in order of id, control tokens first; merges in order of rank.
pub(super) struct Vocabulary {
    pub(super) tokens: Vec<String>,
    pub(super) control_count: usize,
    pub(super) merges: Vec<String>,
}

impl Vocabulary {
    /// A vocabulary of `count` tokens.
    ///
    /// # Panics
    /// When `count` is not within [`SMALLEST`] and [`LARGEST`].
    pub(super) fn new(count: u32) -> Self {
        assert!((SMALLEST..=LARGEST).contains(&count), "{count} tokens are too few or too many");
        let mut builder = Builder::new(count as usize);
        // Ends early when the vocabulary is full.
        let _full = builder.add_all();
        assert_eq!(builder.made.tokens.len(), count as usize, "LARGEST counts what there is");
        builder.made
    }
}

/// The vocabulary is full.
struct Full;

struct Builder {
    made: Vocabulary,
    count: usize,
    alphabet: [char; 256],
}

impl Builder {
    fn new(count: usize) -> Self {
        let alphabet = byte_alphabet();
        let mut tokens: Vec<String> = Marker::ALL.iter().map(|marker| marker.text().to_owned()).collect();
        let control_count = tokens.len();
        // In the order of the characters, as trained vocabularies have it, so ids are not byte values.
        let mut characters = alphabet;
        characters.sort_unstable();
        tokens.extend(characters.iter().map(char::to_string));
        Self { made: Vocabulary { tokens, control_count, merges: Vec::new() }, count, alphabet }
    }

    /// Adds the token that each of `splits` makes.
    fn add(&mut self, splits: &[(&[u8], &[u8])]) -> Result<(), Full> {
        if self.made.tokens.len() == self.count {
            return Err(Full);
        }
        for (left, right) in splits {
            self.made.merges.push(self.spell(left) + " " + &self.spell(right));
        }
        let (left, right) = splits[0];
        self.made.tokens.push(self.spell(left) + &self.spell(right));
        Ok(())
    }

    fn spell(&self, bytes: &[u8]) -> String {
        bytes.iter().map(|byte| self.alphabet[usize::from(*byte)]).collect()
    }

    /// Adds a word of two to four letters, all of whose parts are tokens.
    fn add_word(&mut self, word: &[u8]) -> Result<(), Full> {
        match word {
            [a, b] => self.add(&[(&[*a], &[*b])]),
            [a, b, c] => self.add(&[(&[*a, *b], &[*c]), (&[*a], &[*b, *c])]),
            [a, b, c, d] => {
                self.add(&[(&[*a, *b], &[*c, *d]), (&[*a, *b, *c], &[*d]), (&[*a], &[*b, *c, *d])])
            }
            _ => unreachable!("words have two to four letters"),
        }
    }

    fn add_all(&mut self) -> Result<(), Full> {
        for half in [" ", "  ", "    ", "\n"] {
            self.add(&[(half.as_bytes(), half.as_bytes())])?;
        }
        let (pairs, triples) = (words(2), words(3));
        pairs.iter().chain(&triples).try_for_each(|word| self.add_word(word))?;
        let quads = words(4);
        let (quads, further_quads) = quads.split_at(QUADS_FIRST);
        quads.iter().try_for_each(|word| self.add_word(word))?;
        self.add_numbers()?;
        self.add_characters()?;

        let capitals: Vec<Vec<u8>> =
            [&pairs, &triples].into_iter().flatten().map(|word| capitalised(word)).collect();
        capitals.iter().try_for_each(|word| self.add_word(word))?;
        let letters = LETTERS.iter().flat_map(|letter| [vec![*letter], capitalised(&[*letter])]);
        let with_space = letters.chain(pairs).chain(triples).chain(capitals).chain(quads.to_vec());
        for word in with_space {
            self.add(&[(b" ", &word)])?;
        }
        further_quads.iter().try_for_each(|word| self.add_word(word))
    }

    /// Of two and three digits: the pre-tokenizer makes no longer ones.
    fn add_numbers(&mut self) -> Result<(), Full> {
        for number in 0..100 {
            self.add_word(format!("{number:02}").as_bytes())?;
        }
        for number in 0..1000 {
            self.add_word(format!("{number:03}").as_bytes())?;
        }
        Ok(())
    }

    /// UTF-8 of two bytes (U+0080 to U+07FF), and the three-byte part from kana to the Chinese characters.
    fn add_characters(&mut self) -> Result<(), Full> {
        for (lead, second) in
            (0xc2..=0xdf).chain(0xe3..=0xe9).flat_map(|lead| (0x80..=0xbf).map(move |next| (lead, next)))
        {
            self.add(&[(&[lead], &[second])])?;
        }
        for lead in 0xe3..=0xe9 {
            for (second, third) in
                (0x80..=0xbf).flat_map(|second| (0x80..=0xbf).map(move |third| (second, third)))
            {
                self.add(&[(&[lead, second], &[third])])?;
            }
        }
        Ok(())
    }
}

/// All words of `len` letters, those of frequent letters first.
fn words(len: u32) -> Vec<Vec<u8>> {
    let ranks = |word: u32| (0..len).rev().map(move |place| word / 26_u32.pow(place) % 26);
    let mut order: Vec<u32> = (0..26_u32.pow(len)).collect();
    order.sort_by_key(|word| (ranks(*word).sum::<u32>(), *word));
    order.iter().map(|word| ranks(*word).map(|rank| LETTERS[rank as usize]).collect()).collect()
}

fn capitalised(word: &[u8]) -> Vec<u8> {
    let mut word = word.to_vec();
    word[0].make_ascii_uppercase();
    word
}

/// The printable character that byte-level vocabularies write for each byte (Radford et al. 2019, GPT-2): itself where it is
/// printable in Latin-1, else the next one from U+0100 on.
fn byte_alphabet() -> [char; 256] {
    let mut next = '\u{100}'..;
    std::array::from_fn(|byte| match u8::try_from(byte) {
        Ok(byte @ (33..=126 | 161..=172 | 174..=255)) => char::from(byte),
        _ => next.next().expect("invariant: 68 characters follow U+0100"),
    })
}

#[cfg(test)]
mod tests {
    use flint_rt::text::{Specials, Tokenizer, Vocabulary as Checked};

    use super::*;

    fn tokenizer(count: u32) -> Tokenizer {
        let Vocabulary { tokens, control_count, merges } = Vocabulary::new(count);
        let kinds = (0..tokens.len()).map(|id| if id < control_count { 3 } else { 1 }).collect();
        let bytes = |texts: Vec<String>| texts.into_iter().map(String::into_bytes).collect();
        Tokenizer::new(Checked::new(bytes(tokens), kinds, bytes(merges)).unwrap()).unwrap()
    }

    #[test]
    fn vocabularies_of_every_size_are_sound_and_encode_text() {
        let text = "The quick brown fox jumps over 1234 dogs; \u{4e2d}\u{6587} \u{e9}\u{e8}\n    return x\0\u{1f600}";
        for count in [SMALLEST, 512, 3072, 150_144, LARGEST] {
            let tokenizer = tokenizer(count);
            let ids = tokenizer.encode(text, Specials::Plain);
            assert_eq!(tokenizer.decode(&ids), text, "{count} tokens");
            println!("{count} tokens: {} of {} bytes", ids.len(), text.len());
        }
    }

    #[test]
    fn words_are_few_tokens_in_a_large_vocabulary() {
        let tokenizer = tokenizer(150_144);
        for (text, most) in
            [("the", 1), (" the", 1), (" that", 1), ("The", 1), ("123", 1), ("\u{4e2d}", 1), (" hello", 3)]
        {
            let ids = tokenizer.encode(text, Specials::Plain);
            assert!(ids.len() <= most, "{text:?} is {} tokens", ids.len());
        }
    }
}
