//! Stop strings in a text that comes piece by piece. Pure.
//!
//! In: pieces of text. Out: what certainly belongs to the reply. The end of the text that may be the beginning of a stop
//! string is held back until more of it shows, so that no part of one is ever shown.

/// Looks for stop strings.
#[derive(Debug, Clone)]
pub(crate) struct StopStrings {
    stops: Vec<String>,
    /// Text that may become one of them.
    held: String,
    /// Which one was found.
    found: Option<usize>,
}

impl StopStrings {
    /// None of `stops` may be empty.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), found: None }
    }

    /// Takes more text, and gives what is certain. Once one is found, what came before it; then nothing more.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        let first = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| Some((self.held.find(stop)?, index)))
            .min();
        if let Some((at, index)) = first {
            self.found = Some(index);
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let kept = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        std::mem::replace(&mut self.held, rest)
    }

    /// No more text comes: what was held back is text after all.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The one that was found.
    pub(crate) fn found(&self) -> Option<&str> {
        self.found.map(|index| self.stops[index].as_str())
    }
}

/// Bytes at the end of `text` that are the beginning of `stop`, but not all of it.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|&len| text.as_bytes().ends_with(&stop.as_bytes()[..len]))
        // A beginning that ends within a character cannot end a text.
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, String, Option<String>) {
        let mut matcher = StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let given = pieces.iter().map(|piece| matcher.push(piece)).collect();
        let rest = matcher.finish();
        (given, rest, matcher.found().map(str::to_owned))
    }

    #[test]
    fn a_stop_across_pieces_is_never_shown() {
        let (given, rest, found) = run(&["\n\nUser:"], &["a\n", "\nUs", "er", ":b", "c"]);
        assert_eq!(given, ["a", "", "", "", ""]);
        assert_eq!((rest.as_str(), found.as_deref()), ("", Some("\n\nUser:")));
    }

    #[test]
    fn what_turns_out_to_be_text_is_given() {
        let (given, rest, found) = run(&["abab"], &["xab", "ac", "ab"]);
        assert_eq!(given, ["x", "abac", ""]);
        assert_eq!((rest.as_str(), found), ("ab", None));
    }

    #[test]
    fn the_first_in_the_text_wins() {
        let (given, _, found) = run(&["b", "ab"], &["xxab"]);
        assert_eq!((given, found.as_deref()), (vec!["xx".to_owned()], Some("ab")));
    }

    #[test]
    fn characters_stay_whole() {
        // The two share their first bytes.
        let (given, rest, found) = run(&["é"], &["è", "aé"]);
        assert_eq!((given, rest.as_str(), found.as_deref()), (vec!["è".into(), "a".into()], "", Some("é")));
    }

    proptest! {
        /// However a text is cut, the result is that of a search in the whole.
        #[test]
        fn pieces_change_nothing(
            pieces in proptest::collection::vec("[ab\u{e9}]{0,4}", 0..12),
            stops in proptest::collection::vec("[ab\u{e9}]{1,4}", 0..3),
        ) {
            let mut matcher = StopStrings::new(stops.clone());
            let mut given = String::new();
            let mut seen = String::new();
            for piece in &pieces {
                if matcher.found().is_some() {
                    break;
                }
                seen.push_str(piece);
                given.push_str(&matcher.push(piece));
            }
            given.push_str(&matcher.finish());
            let first = stops.iter().filter_map(|stop| seen.find(stop.as_str())).min();
            prop_assert_eq!(matcher.found().is_some(), first.is_some());
            prop_assert_eq!(given.as_str(), &seen[..first.unwrap_or(seen.len())]);
        }
    }
}
