//! From what `eval` is given to ids.

use flint_rt::base::ids::TokenId;
use flint_rt::engine::open::read_tokenizer;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::Source;
use flint_rt::text::chat::Prompt;
use flint_rt::text::{Specials, Tokenizer};

use super::messages;
use crate::args::EvalArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::input::text_of_file;
use crate::model::Found;

/// The ids, and the longest context of the model. No device is opened yet.
pub(super) fn ids(args: &EvalArgs, model: &Found) -> Outcome<(Vec<TokenId>, u32)> {
    let (tokenizer, context_max) = read(model).map_err(|failure| failure.about(model.shown()))?;
    let ids = if let Some(ids) = &args.ids {
        tokenizer.check_ids(ids).map_err(|error| Failure::because(Exit::Usage, "--ids", &error))?;
        ids.clone()
    } else if let Some(text) = &args.prompt {
        tokenizer.encode(text, Specials::Parse)
    } else if let Some(path) = &args.chat {
        let text = text_of_file(path)?;
        let messages =
            messages::parse(&text).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))?;
        tokenizer.encode_spans(&Prompt::new(&messages, args.think.into()).spans)?
    } else if let Some(path) = &args.perplexity {
        let text = text_of_file(path)?;
        let mut ids = tokenizer.encode_spans(&Prompt::document(&text).spans)?;
        let wanted = match args.tokens {
            Some(tokens) => usize::try_from(tokens).unwrap_or(usize::MAX).saturating_add(1),
            None => ids.len(),
        };
        if ids.len() < wanted || ids.len() < 2 {
            let have = ids.len() - 1;
            return Err(Failure::usage(format!(
                "{} has {have} tokens, wanted {}",
                path.display(),
                wanted.max(2) - 1
            )));
        }
        ids.truncate(wanted);
        ids
    } else {
        return Err(Failure::usage("no prompt: give --ids, --prompt, --chat or --perplexity"));
    };
    if ids.is_empty() {
        return Err(Failure::usage("the prompt has no token"));
    }
    Ok((ids, context_max))
}

fn read(model: &Found) -> Outcome<(Tokenizer, u32)> {
    let source = Source::open(&model.path)?;
    let config = FlintConfig::from_gguf(source.gguf())?;
    Ok((read_tokenizer(source.gguf())?, config.context_len))
}
