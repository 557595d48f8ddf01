//! Text that a user gives: as an argument, or by standard input.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use flint_rt::base::units::display_bytes;

use crate::exit::{Exit, Failure, Outcome};

/// Longest text that is read: far beyond any context, and far below what memory holds.
pub(crate) const TEXT_BYTES_MAX: u64 = 64 << 20;

/// The argument, or all of standard input where that is no terminal.
pub(crate) fn text_or_stdin(argument: Option<&str>, what: &str) -> Outcome<String> {
    if let Some(text) = argument {
        return Ok(text.to_owned());
    }
    if io::stdin().is_terminal() {
        return Err(Failure::usage(format!("no {what}: give it as an argument or by standard input")));
    }
    let bytes = read_all("standard input", io::stdin().lock())?;
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

/// All of `input`, which is called `name`.
fn read_all(name: &str, input: impl Read) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = input.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::because(Exit::of_io(&error), name, &error))?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        let limit = display_bytes(TEXT_BYTES_MAX);
        return Err(Failure::usage(format!("{name} has more than {limit}, the limit of a text")));
    }
    Ok(bytes)
}

/// A file of text.
pub(crate) fn text_of_file(path: &Path) -> Outcome<String> {
    let name = path.display().to_string();
    let file =
        File::open(path).map_err(|error| Failure::because(Exit::of_io(&error), name.clone(), &error))?;
    let bytes = read_all(&name, file)?;
    String::from_utf8(bytes)
        .map_err(|error| Failure::because(Exit::Usage, format!("{name} is not UTF-8"), &error))
}
