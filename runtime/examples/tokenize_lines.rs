//! Prints the token ids of texts, for comparing with another tokenizer.
//!
//! `tokenize_lines VOCABULARY.json [--parse]` reads one JSON string a line and prints its ids, one JSON array a line.
//! The vocabulary file holds `tokens`, `kinds` and `merges` as a GGUF header has them. With `--parse`, markers in the
//! texts are parsed.

use std::error::Error;
use std::io::{self, BufRead, BufWriter, Write};

use flint_rt::text::{Specials, Tokenizer, Vocabulary};

#[derive(serde::Deserialize)]
struct Tables {
    tokens: Vec<String>,
    kinds: Vec<i32>,
    merges: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: tokenize_lines VOCABULARY.json [--parse] < LINES.json")?;
    let specials = match arguments.next().as_deref() {
        Some("--parse") => Specials::Parse,
        None => Specials::Plain,
        Some(other) => return Err(format!("unknown argument {other}").into()),
    };
    let tables: Tables = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let bytes = |texts: Vec<String>| texts.into_iter().map(String::into_bytes).collect();
    let vocabulary = Vocabulary::new(bytes(tables.tokens), tables.kinds, bytes(tables.merges))?;
    let tokenizer = Tokenizer::new(vocabulary)?;
    let mut output = BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let text: String = serde_json::from_str(&line?)?;
        serde_json::to_writer(&mut output, &tokenizer.encode(&text, specials))?;
        writeln!(output)?;
    }
    output.flush()?;
    Ok(())
}
