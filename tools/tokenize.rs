//! `flint-rt tokenize`: text in, token ids out. No device is opened.

use std::io::{self, Write};

use flint_rt::engine::open::read_tokenizer;
use flint_rt::store::Source;
use flint_rt::text::Specials;
use serde_json::json;

use crate::args::TokenizeArgs;
use crate::exit::{Failure, Outcome};
use crate::input::text_or_stdin;
use crate::model;

/// Runs the command.
pub(crate) fn run(args: &TokenizeArgs) -> Outcome {
    let text = text_or_stdin(args.text.as_deref(), "text")?;
    let model = model::find(&args.model, None)?;
    let tokenizer = Source::open(&model.path)
        .map_err(Failure::from)
        .and_then(|source| Ok(read_tokenizer(source.gguf())?))
        .map_err(|failure| failure.about(model.shown()))?;
    let ids = tokenizer.encode(&text, if args.plain { Specials::Plain } else { Specials::Parse });
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    if args.json {
        writeln!(stdout, "{}", json!({ "ids": ids }))?;
    } else {
        for id in ids {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            let text =
                std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned);
            writeln!(stdout, "{id}\t{text:?}")?;
        }
    }
    stdout.flush()?;
    Ok(())
}
