//! A reply on its way to the user: text on standard output, thoughts on standard error, and the two remembered.
//!
//! In: ids, one at a time. Out: whole characters, at once. Ctrl-C and a closed pipe stop the engine through it.

use std::io::{self, Write};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::generate::GenerateObserver;
use flint_rt::text::Detokenizer;
use flint_rt::text::chat::{ReplyEvent, ReplySplitter};

use crate::exit::Outcome;
use crate::interrupt;
use crate::terminal::{Bar, is_coloured};

/// How ids become text.
pub(crate) enum Decoder {
    /// A text that goes on; markers are shown as they are written.
    Text(Detokenizer),
    /// An assistant's reply.
    Reply(ReplySplitter),
}

/// Prints a reply while it is made.
pub(crate) struct ReplyPrinter {
    decoder: Decoder,
    bar: Option<Bar>,
    /// The reply's content so far.
    pub(crate) content: String,
    /// Its thought so far.
    pub(crate) reasoning: String,
    is_in_thought: bool,
    is_coloured: bool,
    failed: Option<io::Error>,
}

impl ReplyPrinter {
    /// A printer at the beginning of a reply.
    pub(crate) fn new(decoder: Decoder) -> Self {
        Self {
            decoder,
            bar: None,
            content: String::new(),
            reasoning: String::new(),
            is_in_thought: false,
            is_coloured: is_coloured(),
            failed: None,
        }
    }

    /// Ends the reply and its line.
    ///
    /// # Errors
    /// When standard output could not be written, now or before.
    pub(crate) fn finish(&mut self) -> Outcome {
        self.bar = None;
        let event = match &mut self.decoder {
            Decoder::Text(detokenizer) => Some(ReplyEvent::Content(detokenizer.finish())),
            Decoder::Reply(splitter) => splitter.finish(),
        };
        if let Some(event) = event {
            self.show(event);
        }
        self.leave_thought();
        if !self.content.is_empty() && !self.content.ends_with('\n') {
            self.write("\n");
        }
        match self.failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    fn show(&mut self, event: ReplyEvent) {
        match event {
            ReplyEvent::Reasoning(text) => {
                self.enter_thought();
                let _ = write!(io::stderr(), "{text}");
                self.reasoning.push_str(&text);
            }
            ReplyEvent::Content(text) => {
                self.leave_thought();
                self.write(&text);
                self.content.push_str(&text);
            }
        }
    }

    fn enter_thought(&mut self) {
        if !self.is_in_thought {
            self.is_in_thought = true;
            let _ = write!(io::stderr(), "{}", if self.is_coloured { "\x1b[2m" } else { "[thinking] " });
        }
    }

    fn leave_thought(&mut self) {
        if self.is_in_thought {
            self.is_in_thought = false;
            let _ = writeln!(io::stderr(), "{}", if self.is_coloured { "\x1b[0m" } else { "" });
        }
    }

    fn write(&mut self, text: &str) {
        if self.failed.is_some() || text.is_empty() {
            return;
        }
        let mut stdout = io::stdout().lock();
        if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            self.failed = Some(error);
        }
    }
}

impl GenerateObserver for ReplyPrinter {
    fn prompt(&mut self, done: u32, total: u32) {
        if done < total {
            self.bar.get_or_insert_with(|| Bar::tokens("reading prompt")).set(done.into(), total.into());
        } else {
            self.bar = None;
        }
    }

    fn token(&mut self, id: TokenId) {
        let event = match &mut self.decoder {
            Decoder::Text(detokenizer) => Some(ReplyEvent::Content(detokenizer.push(id))),
            Decoder::Reply(splitter) => splitter.push(id),
        };
        if let Some(event) = event {
            self.show(event);
        }
    }

    fn should_stop(&mut self) -> bool {
        self.failed.is_some() || interrupt::is_requested()
    }
}
