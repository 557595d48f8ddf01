//! `flint-rt generate`: a prompt in, its continuation out.

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, Finish, GenerateOptions, Generated};
use flint_rt::model::Want;
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::sample::Sampler;
use flint_rt::text::chat::{Marker, Message, Prompt, ReplySplitter, Role};
use flint_rt::text::{Detokenizer, Specials};

use crate::args::GenerateArgs;
use crate::exit::{Failure, Outcome};
use crate::input::prompt_or_stdin;
use crate::interrupt;
use crate::model;
use crate::open;
use crate::profile::Profiled;
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
    if args.profile {
        drop(session);
        profile(&mut engine, &ids, &reply)?;
    }
    if args.engine.warm.is_some() {
        warm::remember(&engine);
    }
    open::check_engine(&engine)
}

/// Tokens of a reply that are profiled at most, and those before them: until as much is submitted at once as will be.
const PROFILED_TOKENS_MAX: usize = 64;
const SETTLING_TOKENS: usize = 8;

/// Stops at Ctrl-C.
struct Stop;

impl PrefillObserver for Stop {
    fn should_stop(&mut self) -> bool {
        interrupt::is_requested()
    }
}

/// Runs prompt and reply once more, timed dispatch by dispatch, and prints the sums beside what they took before.
fn profile(engine: &mut Engine, prompt: &[TokenId], reply: &Generated) -> Outcome {
    let _asked = interrupt::Reply::begin();
    engine.begin_profile()?;
    let mut session = engine.session()?;
    engine.feed_prompt(&mut session, prompt, Want::Greedy, &mut Stop)?;
    let plain_ns = reply.times.prompt.as_nanos() as f64 / prompt.len() as f64;
    let of_prompt = engine.take_profile();
    // The last token was never fed.
    let fed = reply.ids.len().saturating_sub(1);
    let settling = SETTLING_TOKENS.min(fed / 2);
    let timed = (fed - settling).min(PROFILED_TOKENS_MAX);
    for (index, &id) in reply.ids.iter().enumerate().take(settling + timed) {
        if interrupt::is_requested() {
            return Err(Failure::Interrupted);
        }
        if index == settling {
            engine.take_profile();
        }
        engine.feed_token(&mut session, id, Want::Greedy)?;
    }
    let of_reply = engine.take_profile();
    engine.end_profile();
    let reply_ns = reply.times.reply.as_nanos() as f64 / fed.max(1) as f64;
    let prompt = Profiled::new("the prompt".to_owned(), prompt.len() as u64, of_prompt, plain_ns);
    let reply = Profiled::new("the reply".to_owned(), timed as u64, of_reply, reply_ns);
    for profiled in [prompt, reply].into_iter().flatten() {
        note(&format!("\n{profiled}"));
    }
    Ok(())
}
