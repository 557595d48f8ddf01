//! The library in thirty lines: open a model, ask it for something, print the reply as it comes.
//!
//! `cargo run --release -p flint-runtime --example generate -- MODEL.gguf "Write a Python function add."`

use std::io::Write as _;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, EngineOptions, GenerateObserver, GenerateOptions};
use flint_rt::sample::{Sampler, SamplerOptions};
use flint_rt::text::Detokenizer;
use flint_rt::text::chat::{Message, Prompt, Role, Thinking};

/// Prints tokens as text; a character is held back until all its bytes are there.
struct Printer(Detokenizer);

impl GenerateObserver for Printer {
    fn token(&mut self, id: TokenId) {
        print!("{}", self.0.push(id));
        let _ = std::io::stdout().flush();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(model), Some(request)) = (arguments.next(), arguments.next()) else {
        return Err("usage: generate MODEL.gguf REQUEST".into());
    };
    let options = EngineOptions { model: model.into(), ..EngineOptions::default() };
    let mut engine = Engine::open(&options, &mut |_| {})?;
    let mut session = engine.session()?;

    let message = Message::new(Role::User, request.to_string_lossy());
    let prompt = engine.tokenizer().encode_spans(&Prompt::new(&[message], Thinking::Auto).spans)?;
    let mut sampler = Sampler::new(SamplerOptions::default(), engine.config().vocabulary)?;
    let mut printer = Printer(Detokenizer::new(engine.tokenizer()));
    let mut options = GenerateOptions { sampler: &mut sampler, tokens_max: 256, ignores_stops: false };
    let reply = engine.generate(&mut session, &prompt, &mut options, &mut printer)?;

    println!("{}", printer.0.finish());
    let (tokens, seconds) = (reply.ids.len() as f64, reply.times.reply.as_secs_f64());
    eprintln!("{tokens} tokens, {:.1} tok/s, {:?}", tokens / seconds, reply.finish);
    Ok(())
}
