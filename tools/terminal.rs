//! Standard error: notes, and progress bars where somebody watches.
//!
//! In: text and counts. Out: lines on standard error; bars on a terminal only. A standard error that is closed is no fault.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One line, or several.
pub(crate) fn note(text: &str) {
    // Where standard error cannot be written there is nobody to tell.
    let _ = writeln!(io::stderr(), "{}", escaped(text));
}

/// `text` with what would steer a terminal written out: a file's names may hold anything. Newlines and tabs stay.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    let steers = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(steers) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown.into()
}

/// The same in one line: a newline is written out, too, so that a name cannot pass for a line of a report.
pub(crate) fn escaped_line(text: &str) -> String {
    escaped(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Whether standard error may be coloured.
pub(crate) fn is_coloured() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// What a bar shows while nothing can be counted.
const UNCOUNTED: &str = "{msg} ...";

/// A progress bar; nothing where standard error is no terminal.
pub(crate) struct Bar {
    bar: Option<ProgressBar>,
    /// What it shows once there is something to count.
    template: &'static str,
}

impl Bar {
    /// A bar over bytes.
    pub(crate) fn bytes(what: &'static str) -> Self {
        Self::new(what, "{msg:<16} {wide_bar} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left")
    }

    /// A bar over tokens.
    pub(crate) fn tokens(what: &'static str) -> Self {
        Self::new(what, "{msg:<16} {wide_bar} {pos} of {len} tokens, {eta} left")
    }

    /// A bar over measurements.
    pub(crate) fn steps(what: &'static str) -> Self {
        Self::new(what, "{msg:<16} {wide_bar} {pos} of {len}, {eta} left")
    }

    fn new(what: &'static str, template: &'static str) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.with_style(style(UNCOUNTED)).with_message(what)
        });
        Self { bar, template }
    }

    /// What is being done.
    pub(crate) fn message(&self, what: impl Into<Cow<'static, str>>) {
        if let Some(bar) = &self.bar {
            bar.set_message(what);
        }
    }

    /// How much of it is done.
    pub(crate) fn set(&self, done: u64, total: u64) {
        let Some(bar) = &self.bar else { return };
        if bar.length() != Some(total) {
            bar.set_length(total);
            bar.set_style(style(if total == 0 { UNCOUNTED } else { self.template }));
            // What went before was other work, or was done by another run, and says nothing of this one's speed.
            bar.set_position(done);
            bar.reset_elapsed();
            bar.reset_eta();
        }
        bar.set_position(done);
    }

    /// Takes it away.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_written_out() {
        assert_eq!(escaped("a\x1b]0;x\x07b\u{9b}1m\r"), "a\\u{1b}]0;x\\u{7}b\\u{9b}1m\\u{d}");
        assert_eq!(escaped("right \u{202e}left"), "right \\u{202e}left");
        assert_eq!(escaped("a\tb\nc é 日本"), "a\tb\nc é 日本");
        assert_eq!(escaped_line("a\x1b[2J\nSHA-256\tfake"), "a\\u{1b}[2J\\nSHA-256\\tfake");
    }
}
