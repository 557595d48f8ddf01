//! What a user types: messages of one line, of several between `"""`, and commands.
//!
//! In: an edited line of a terminal, or a line of a pipe. Out: [`Entry`].

use std::io::{self, BufRead, IsTerminal, Read};

use flint_rt::base::units::display_bytes;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::exit::{Exit, Failure, Outcome};
use crate::input::TEXT_BYTES_MAX;
use crate::terminal::note;

/// Begins and ends a message of several lines.
const FENCE: &str = "\"\"\"";

/// Something to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A word that begins with a slash.
    Command(String),
    /// Everything else.
    Message(String),
    /// What cannot be taken, and why; the next may be well.
    Refused(String),
}

/// Where lines come from.
pub(super) struct Lines {
    /// The line editor, on a terminal.
    editor: Option<Box<DefaultEditor>>,
    /// Lines read so far.
    count: u64,
}

/// What one line was.
enum Line {
    Text(String),
    Refused(String),
    Interrupted,
    End,
}

impl Lines {
    /// Standard input: edited when a person sits at both ends.
    pub(super) fn new() -> Outcome<Self> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self { editor: None, count: 0 });
        }
        let editor =
            DefaultEditor::new().map_err(|error| Failure::because(Exit::Failed, "the terminal", &error))?;
        Ok(Self { editor: Some(Box::new(editor)), count: 0 })
    }

    /// Whether a person sits there.
    pub(super) fn is_interactive(&self) -> bool {
        self.editor.is_some()
    }

    /// The next message or command; nothing at the end.
    pub(super) fn next(&mut self) -> Outcome<Option<Entry>> {
        let mut was_interrupted = false;
        let mut fenced: Option<Vec<String>> = None;
        // Why the message that is being read is to be refused once it has ended.
        let mut refused: Option<String> = None;
        let mut fenced_bytes = 0;
        loop {
            let line = match self.line(if fenced.is_some() { "... " } else { ">>> " })? {
                Line::Text(line) => line,
                Line::Refused(why) if fenced.is_none() => return Ok(Some(Entry::Refused(why))),
                Line::Refused(why) => {
                    refused.get_or_insert(why);
                    continue;
                }
                Line::End if refused.is_some() => return Ok(refused.map(Entry::Refused)),
                Line::End => {
                    // What was begun and never ended is still a message.
                    return Ok(fenced.map(|lines| Entry::Message(lines.join("\n"))));
                }
                Line::Interrupted if fenced.take().is_some() => {
                    refused = None;
                    fenced_bytes = 0;
                    continue;
                }
                Line::Interrupted if was_interrupted => return Ok(None),
                Line::Interrupted => {
                    was_interrupted = true;
                    note("Ctrl-C again, or Ctrl-D, leaves");
                    continue;
                }
            };
            was_interrupted = false;
            fenced_bytes += line.len() as u64 + 1;
            if fenced.is_some() && fenced_bytes > TEXT_BYTES_MAX {
                return Err(too_long("a message"));
            }
            match take(&line, &mut fenced) {
                Some(_) if refused.is_some() => return Ok(refused.map(Entry::Refused)),
                Some(entry) => {
                    self.remember(&entry);
                    return Ok(Some(entry));
                }
                None => continue,
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Outcome<Line> {
        self.count += 1;
        let Some(editor) = &mut self.editor else {
            let mut line = Vec::new();
            let read = io::stdin().lock().take(TEXT_BYTES_MAX + 1).read_until(b'\n', &mut line);
            read.map_err(|error| Failure::because(Exit::Failed, "standard input", &error))?;
            if line.len() as u64 > TEXT_BYTES_MAX {
                return Err(too_long(&format!("line {} of standard input", self.count)));
            }
            if line.is_empty() {
                return Ok(Line::End);
            }
            return Ok(match String::from_utf8(line) {
                Ok(line) => Line::Text(line.trim_end_matches(['\n', '\r']).to_owned()),
                Err(error) => Line::Refused(format!(
                    "line {} of standard input is not UTF-8 at byte {}: it has no reply",
                    self.count,
                    error.utf8_error().valid_up_to()
                )),
            });
        };
        match editor.readline(prompt) {
            Ok(line) => Ok(Line::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Ok(Line::Refused("what was typed is not UTF-8: set the terminal to UTF-8".to_owned()))
            }
            Err(error) => Err(Failure::because(Exit::Failed, "the terminal", &error)),
        }
    }

    fn remember(&mut self, entry: &Entry) {
        if let (Some(editor), Entry::Message(text) | Entry::Command(text)) = (&mut self.editor, entry) {
            // A history that is full or refuses a line costs nothing but the line.
            let _ = editor.add_history_entry(text.as_str());
        }
    }
}

fn too_long(what: &str) -> Failure {
    Failure::usage(format!("{what} has more than {}, the limit of a message", display_bytes(TEXT_BYTES_MAX)))
}

/// Takes one line; gives an entry when one is complete.
fn take(line: &str, fenced: &mut Option<Vec<String>>) -> Option<Entry> {
    if let Some(lines) = fenced {
        let Some(last) = line.trim_end().strip_suffix(FENCE) else {
            lines.push(line.to_owned());
            return None;
        };
        if !last.is_empty() {
            lines.push(last.to_owned());
        }
        let text = lines.join("\n");
        *fenced = None;
        return Some(Entry::Message(text));
    }
    let trimmed = line.trim();
    if let Some(first) = trimmed.strip_prefix(FENCE) {
        if let Some(whole) = first.strip_suffix(FENCE) {
            // A pasted text comes as one line, newlines and all.
            return Some(Entry::Message(whole.trim_matches('\n').to_owned()));
        }
        *fenced = Some(if first.is_empty() { Vec::new() } else { vec![first.to_owned()] });
        return None;
    }
    if trimmed.is_empty() {
        return None;
    }
    let is_command = trimmed
        .strip_prefix('/')
        .is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase()));
    Some(if is_command { Entry::Command(trimmed.to_owned()) } else { Entry::Message(line.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<Entry> {
        let mut fenced = None;
        text.lines().filter_map(|line| take(line, &mut fenced)).collect()
    }

    fn message(text: &str) -> Entry {
        Entry::Message(text.to_owned())
    }

    #[test]
    fn lines_fences_and_commands() {
        assert_eq!(entries("hello\n\n  \nworld"), [message("hello"), message("world")]);
        assert_eq!(entries("\"\"\"\na\n\nb\n\"\"\"\nc"), [message("a\n\nb"), message("c")]);
        assert_eq!(entries("\"\"\"a\nb\"\"\""), [message("a\nb")]);
        assert_eq!(entries("\"\"\"one\"\"\""), [message("one")]);
        assert_eq!(entries("/reset\n /stats "), ["/reset", "/stats"].map(|c| Entry::Command(c.to_owned())));
        assert_eq!(entries("/usr/bin is what?\n/ 2"), [message("/usr/bin is what?"), message("/ 2")]);
    }
}
