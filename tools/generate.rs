//! `flint-rt generate`: a prompt in, its continuation out.

use flint_rt::engine::{Finish, GenerateOptions};
use flint_rt::sample::Sampler;
use flint_rt::text::chat::{Marker, Message, Prompt, ReplySplitter, Role};
use flint_rt::text::{Detokenizer, Specials};

use crate::args::GenerateArgs;
use crate::exit::{Failure, Outcome};
use crate::input::prompt_or_stdin;
use crate::interrupt;
use crate::model;
use crate::open;
use crate::reply::{Decoder, ReplyPrinter};
use crate::stats::Stats;
use crate::terminal::note;
use crate::warm;

/// Runs the command.
pub(crate) fn run(args: &GenerateArgs) -> Outcome {
    let sampling = args.sampling.options();
    // Before the model is opened, which may take long. There is no bias, so any vocabulary does.
    sampling.check(u32::MAX)?;
    let text = prompt_or_stdin(args.prompt.as_deref())?;
    let model = model::find(&args.engine.model, args.engine.run.source)?;
    let mut engine = open::engine(&args.engine, &model, None)?;
    let tokenizer = engine.tokenizer().clone();

    let (ids, decoder) = if args.chat {
        let prompt = Prompt::new(&[Message::new(Role::User, text)], args.think.into());
        let splitter = ReplySplitter::new(&tokenizer, &prompt)?;
        (tokenizer.encode_spans(&prompt.spans)?, Decoder::Reply(splitter))
    } else {
        let mut ids = vec![Marker::BeginOfText.id(&tokenizer)?];
        ids.extend(tokenizer.encode(&text, if args.special { Specials::Parse } else { Specials::Plain }));
        (ids, Decoder::Text(Detokenizer::new(&tokenizer)))
    };

    let mut session = engine.session()?;
    open::check_room(&engine, &session, "the prompt", &ids)?;
    let mut sampler = Sampler::new(sampling, engine.config().vocabulary)?;
    let mut printer = ReplyPrinter::new(decoder);
    let mut options =
        GenerateOptions { sampler: &mut sampler, tokens_max: args.predict, ignores_stops: false };
    let before = engine.telemetry();
    let replying = interrupt::Reply::begin();
    let made = engine.generate(&mut session, &ids, &mut options, &mut printer);
    drop(replying);
    // The line is ended first, so that an error begins its own.
    let printed = printer.finish();
    let reply = made?;
    printed?;

    match reply.finish {
        Finish::Aborted => return Err(Failure::Interrupted),
        Finish::ContextFull => {
            note(&format!("the context is full: {}", open::larger_context(&engine, &session)));
        }
        Finish::Length if args.predict > 0 => note(&format!("ended at {} tokens (--predict)", args.predict)),
        Finish::Length | Finish::Stop(_) => {}
    }
    if args.stats {
        note(&Stats::new(&engine, &before, &reply).to_string());
    }
    if args.engine.warm.is_some() {
        warm::remember(&engine);
    }
    open::check_engine(&engine)
}
