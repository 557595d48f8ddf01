//! Text that a user gives: as an argument, or by standard input.

use std::io::{self, IsTerminal, Read};
use std::path::Path;

use crate::exit::{Exit, Failure, Outcome};

/// The argument, or all of standard input where that is no terminal.
pub(crate) fn text_or_stdin(argument: Option<&str>, what: &str) -> Outcome<String> {
    if let Some(text) = argument {
        return Ok(text.to_owned());
    }
    if io::stdin().is_terminal() {
        return Err(Failure::usage(format!("no {what}: give it as an argument or by standard input")));
    }
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::because(Exit::Failed, "standard input", &error))?;
    String::from_utf8(bytes)
        .map_err(|error| Failure::because(Exit::Usage, "standard input is not UTF-8", &error))
}

/// As [`text_or_stdin`], without the newline that a shell puts at the end of what it pipes.
pub(crate) fn prompt_or_stdin(argument: Option<&str>) -> Outcome<String> {
    let mut text = text_or_stdin(argument, "prompt")?;
    if argument.is_none() && text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

/// A file of text.
pub(crate) fn text_of_file(path: &Path) -> Outcome<String> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| Failure::because(Exit::Failed, name.clone(), &error))?;
    String::from_utf8(bytes)
        .map_err(|error| Failure::because(Exit::Usage, format!("{name} is not UTF-8"), &error))
}
