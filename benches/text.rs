//! `cargo bench --bench text`: the tokenizer, the detokenizer and the chat form, on held-out text and with the vocabulary of
//! the bundled model. A larger vocabulary has more merges a word: its rates are lower.

#[path = "support/bytes.rs"]
mod bytes;
#[path = "support/paired.rs"]
mod paired;

use std::hint::black_box;

use flint_rt::text::chat::{Message, Prompt, Role, Thinking};
use flint_rt::text::{Detokenizer, Specials, Tokenizer, Vocabulary};
use paired::{Bench, Limit, Work, repeat};
use serde_json::Value;

const VOCABULARY: &str = include_str!("../tests/vectors/nano_vocabulary.json");
const TEXT: &str = include_str!("../tests/vectors/heldout.txt");

/// Turns of the conversation.
const MESSAGES: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bench = Bench::new(800);
    let tokenizer = tokenizer()?;
    let mut target = vec![0; TEXT.len()];
    let work = Work::Bytes(TEXT.len() as u64);
    let mut copy = |iterations| repeat(iterations, || bytes::copy(TEXT.as_bytes(), &mut target));

    let limit = Limit { name: "memory copy of the text", work, run: &mut copy };
    bench.case("text", "encode", work, limit, |iterations| {
        repeat(iterations, || {
            black_box(tokenizer.encode(black_box(TEXT), Specials::Plain));
        })
    });

    let ids = tokenizer.encode(TEXT, Specials::Plain);
    let limit = Limit { name: "memory copy of the text", work, run: &mut copy };
    bench.case("text", "decode, token by token", work, limit, |iterations| {
        repeat(iterations, || {
            let mut stream = Detokenizer::new(&tokenizer);
            ids.iter().for_each(|id| {
                black_box(stream.push(*id));
            });
            black_box(stream.finish());
        })
    });

    let conversation = conversation();
    let limit = Limit { name: "memory copy of the text", work, run: &mut copy };
    bench.case("chat", "prompt of 20 messages", work, limit, |iterations| {
        repeat(iterations, || {
            black_box(Prompt::new(black_box(&conversation), Thinking::Auto));
        })
    });

    // What the form costs beyond its text: its limit is the encoder itself.
    let plain = |iterations| {
        repeat(iterations, || {
            black_box(tokenizer.encode(black_box(TEXT), Specials::Plain));
        })
    };
    let limit = Limit { name: "the same text encoded in one piece", work, run: plain };
    let mut failure = None;
    bench.case("chat", "prompt of 20 messages, to token ids", work, limit, |iterations| {
        repeat(iterations, || {
            let prompt = Prompt::new(black_box(&conversation), Thinking::Auto);
            match tokenizer.encode_spans(&prompt.spans) {
                Ok(ids) => {
                    black_box(ids);
                }
                Err(error) => failure = Some(error),
            }
        })
    });
    bench.finish();
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// The text as a conversation, cut into turns of about one length.
fn conversation() -> Vec<Message> {
    let mut messages = Vec::with_capacity(MESSAGES);
    let mut rest = TEXT;
    for turn in 0..MESSAGES {
        let wanted = rest.len() / (MESSAGES - turn);
        let cut = match turn + 1 {
            MESSAGES => rest.len(),
            _ => rest.char_indices().map(|(at, _)| at).find(|at| *at >= wanted).unwrap_or(rest.len()),
        };
        let (text, left) = rest.split_at(cut);
        let role = if turn.is_multiple_of(2) { Role::User } else { Role::Assistant };
        messages.push(Message::new(role, text));
        rest = left;
    }
    messages
}

/// The bundled model's.
fn tokenizer() -> Result<Tokenizer, Box<dyn std::error::Error>> {
    let tables: Value = serde_json::from_str(VOCABULARY)?;
    let texts = |key: &str| -> Vec<Vec<u8>> {
        let texts = tables[key].as_array().into_iter().flatten();
        texts.filter_map(|text| Some(text.as_str()?.as_bytes().to_vec())).collect()
    };
    let kinds: Vec<i32> = serde_json::from_value(tables["kinds"].clone())?;
    Ok(Tokenizer::new(Vocabulary::new(texts("tokens"), kinds, texts("merges"))?)?)
}
