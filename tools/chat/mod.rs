//! `flint-rt chat`: messages in, replies out, until the input ends.
//!
//! Owns: the conversation. In: lines of a terminal, edited, or of a pipe. Out: replies on standard output. A turn that
//! fails leaves the conversation as it was before it.

mod lines;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use flint_rt::engine::{Engine, EngineError, Finish, GenerateOptions, Session};
use flint_rt::model::ModelError;
use flint_rt::sample::Sampler;
use flint_rt::text::chat::{Message, Prompt, ReplySplitter, Role, Thinking, check_markers};

use crate::args::ChatArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::model;
use crate::open;
use crate::reply::{Decoder, ReplyPrinter};
use crate::stats::Stats;
use crate::terminal::note;
use crate::warm;
use lines::{Entry, Lines};

const HELP: &str = "\
/help    this
/reset   forget the conversation
/stats   speed, hit rate and bytes read, of the last reply and of all
/quit    leave, as Ctrl-D does
\"\"\"      begins a message of several lines, and ends it
Ctrl-C   stops a reply; twice at the prompt leaves";

/// How often an idle engine looks whether others need its memory.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// One conversation and what it runs on.
struct Chat<'a> {
    engine: Engine,
    session: Session,
    sampler: Sampler,
    args: &'a ChatArgs,
    messages: Vec<Message>,
    last: Option<Stats>,
    total: Stats,
}

/// Runs the command.
pub(crate) fn run(args: &ChatArgs) -> Outcome {
    let sampling = args.sampling.options();
    sampling.check(u32::MAX)?;
    let model = model::find(&args.engine.model, args.engine.run.source)?;
    let engine = open::engine(&args.engine, &model, None)?;
    check_markers(engine.tokenizer())?;
    let session = engine.session()?;
    let sampler = Sampler::new(sampling, engine.config().vocabulary)?;
    let mut chat =
        Chat { engine, session, sampler, args, messages: Vec::new(), last: None, total: Stats::default() };
    chat.reset();

    let mut lines = Lines::new()?;
    if lines.is_interactive() {
        note(&format!("{}: /help says how", chat.engine.config().name));
    }
    let mut has_failed = false;
    while let Some(entry) = while_idle(&mut chat.engine, || lines.next())? {
        match entry {
            Entry::Command(command) => match command.as_str() {
                "/help" => note(HELP),
                "/reset" => {
                    chat.reset();
                    note("the conversation is forgotten");
                }
                "/stats" => chat.show_stats(),
                "/quit" | "/bye" | "/exit" => break,
                other => note(&format!("no command {other}: /help lists them")),
            },
            Entry::Refused(why) => {
                has_failed = true;
                note(&format!("flint-rt: {why}"));
            }
            Entry::Message(text) => match chat.turn(text) {
                Ok(()) => {}
                Err(Failure::Told { exit: Exit::Usage, text }) => {
                    has_failed = true;
                    note(&format!("flint-rt: {text}"));
                }
                Err(failure) => return Err(failure),
            },
        }
    }
    if args.engine.warm.is_some() {
        warm::remember(&chat.engine);
    }
    open::check_engine(&chat.engine)?;
    // A person has seen it; a script asks for the code.
    match has_failed && !lines.is_interactive() {
        true => Err(Failure::new(Exit::Failed, "a message had no reply")),
        false => Ok(()),
    }
}

/// Looks after what the engine holds while somebody types.
fn while_idle<T: Send>(engine: &mut Engine, wait: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    thread::scope(|scope| {
        let (done, ended) = mpsc::channel();
        let waiting = thread::Builder::new().name("input".to_owned()).spawn_scoped(scope, move || {
            // The receiver lives until this was received.
            let _ = done.send(wait());
        });
        waiting.map_err(|error| Failure::because(Exit::Memory, "a thread that waits for input", &error))?;
        loop {
            match ended.recv_timeout(IDLE_LOOK) {
                Ok(given) => return given,
                Err(RecvTimeoutError::Timeout) => engine.look_after_memory(),
                Err(RecvTimeoutError::Disconnected) => unreachable!("it sends before it ends"),
            }
        }
    })
}

impl Chat<'_> {
    fn reset(&mut self) {
        self.session.reset();
        self.sampler.reset();
        self.messages.clear();
        if let Some(text) = &self.args.system {
            self.messages.push(Message::new(Role::System, text.clone()));
        }
    }

    fn show_stats(&self) {
        match &self.last {
            None => note("no reply yet"),
            Some(last) => note(&format!("last reply\n{last}\nall replies\n{}", self.total)),
        }
        let (held, room) = (self.session.tokens().len(), self.session.room());
        note(&format!("context  {held} tokens, room for {room}"));
    }

    /// One message and its reply. A usage failure means that the conversation is as before and can go on.
    fn turn(&mut self, text: String) -> Outcome {
        self.messages.push(Message::new(Role::User, text));
        let outcome = self.reply();
        if !matches!(outcome, Ok(true)) {
            self.messages.pop();
        }
        outcome.map(|_| ())
    }

    /// Makes the reply, and gives whether it has become part of the conversation.
    fn reply(&mut self) -> Outcome<bool> {
        let thinking: Thinking = self.args.think.into();
        let prompt = Prompt::new(&self.messages, thinking);
        let tokenizer = self.engine.tokenizer();
        let ids = tokenizer.encode_spans(&prompt.spans)?;
        let mut printer = ReplyPrinter::new(Decoder::Reply(ReplySplitter::new(tokenizer, &prompt)?));
        let mut options = GenerateOptions {
            sampler: &mut self.sampler,
            tokens_max: self.args.predict,
            ignores_stops: false,
        };
        let before = self.engine.telemetry();
        let replying = interrupt::Reply::begin();
        let made = self.engine.generate(&mut self.session, &ids, &mut options, &mut printer);
        drop(replying);
        let printed = printer.finish();
        let reply = match made {
            Ok(reply) => reply,
            Err(EngineError::Model(ModelError::ContextFull { context_len })) => {
                return Err(Failure::usage(format!(
                    "the conversation of {} tokens no longer fits the context of {context_len}: /reset; {}",
                    ids.len(),
                    open::larger_context(&self.engine, &self.session)
                )));
            }
            Err(error) => return Err(error.into()),
        };
        printed?;

        let stats = Stats::new(&self.engine, &before, &reply);
        self.total.add(&stats);
        self.last = Some(stats);
        match reply.finish {
            Finish::Aborted if interrupt::is_terminating() => return Err(Failure::Interrupted),
            Finish::Aborted => note("stopped"),
            Finish::ContextFull => {
                let more = open::larger_context(&self.engine, &self.session);
                note(&format!("the context is full: /reset; {more}"));
            }
            Finish::Length => note(&format!("ended at {} tokens (--predict)", self.args.predict)),
            Finish::Stop(_) => {}
        }
        if self.args.stats {
            note(&stats.to_string());
        }
        if printer.content.is_empty() && printer.reasoning.is_empty() {
            // An empty reply that the model chose to give is one; a stopped one leaves nothing to go on from.
            if reply.finish == Finish::Aborted {
                return Ok(false);
            }
        }
        let mut message = Message::new(Role::Assistant, std::mem::take(&mut printer.content));
        message.reasoning_content =
            Some(std::mem::take(&mut printer.reasoning)).filter(|reasoning| !reasoning.is_empty());
        self.messages.push(message);
        Ok(true)
    }
}
