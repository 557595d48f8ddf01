//! What a user types: messages of one line, of several between `"""`, and commands.
//!
//! In: an edited line of a terminal, or a line of a pipe. Out: [`Entry`].

use std::io::{self, BufRead, IsTerminal};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::exit::{Exit, Failure, Outcome};
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
}

/// Where lines come from.
pub(super) struct Lines {
    /// The line editor, on a terminal.
    editor: Option<Box<DefaultEditor>>,
}

/// What one line was.
enum Line {
    Text(String),
    Interrupted,
    End,
}

impl Lines {
    /// Standard input: edited when a person sits at both ends.
    pub(super) fn new() -> Outcome<Self> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self { editor: None });
        }
        let editor =
            DefaultEditor::new().map_err(|error| Failure::because(Exit::Failed, "the terminal", &error))?;
        Ok(Self { editor: Some(Box::new(editor)) })
    }

    /// Whether a person sits there.
    pub(super) fn is_interactive(&self) -> bool {
        self.editor.is_some()
    }

    /// The next message or command; nothing at the end.
    pub(super) fn next(&mut self) -> Outcome<Option<Entry>> {
        let mut was_interrupted = false;
        let mut fenced: Option<Vec<String>> = None;
        loop {
            let line = match self.line(if fenced.is_some() { "... " } else { ">>> " })? {
                Line::Text(line) => line,
                Line::End => {
                    // What was begun and never ended is still a message.
                    return Ok(fenced.map(|lines| Entry::Message(lines.join("\n"))));
                }
                Line::Interrupted if fenced.take().is_some() => continue,
                Line::Interrupted if was_interrupted => return Ok(None),
                Line::Interrupted => {
                    was_interrupted = true;
                    note("Ctrl-C again, or Ctrl-D, leaves");
                    continue;
                }
            };
            was_interrupted = false;
            match take(&line, &mut fenced) {
                Some(entry) => {
                    self.remember(&entry);
                    return Ok(Some(entry));
                }
                None => continue,
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Outcome<Line> {
        let Some(editor) = &mut self.editor else {
            let mut line = String::new();
            return match io::stdin().lock().read_line(&mut line) {
                Ok(0) => Ok(Line::End),
                Ok(_) => Ok(Line::Text(line.trim_end_matches(['\n', '\r']).to_owned())),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    Err(Failure::because(Exit::Usage, "standard input is not UTF-8", &error))
                }
                Err(error) => Err(Failure::because(Exit::Failed, "standard input", &error)),
            };
        };
        match editor.readline(prompt) {
            Ok(line) => Ok(Line::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
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
