//! Which ids end a reply, and what each of them means. Pure.

use super::prompt::Marker;
use crate::base::ids::TokenId;
use crate::text::Tokenizer;

/// Why an id ends a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The model's end token.
    End,
    /// The model opened the next turn: `<|user|>`, `<|observation|>` or `<|developer|>`. An ordinary end.
    Turn(Marker),
    /// A marker that no reply should hold: `<|system|>`, `<|assistant|>`, or `<|end_of_text|>` where the model's file
    /// names another end token. The reply ends, for going on would only be worse, and this is worth a note.
    Stray(Marker),
}

/// The ids that end a reply. None of them is shown, nor fed to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopTokens {
    entries: Vec<(TokenId, Stop)>,
}

impl StopTokens {
    /// The stops of a vocabulary whose file names `end` as its end token; markers that it lacks are left out.
    pub fn new(tokenizer: &Tokenizer, end: Option<TokenId>) -> Self {
        let turns =
            [Marker::User, Marker::Observation, Marker::Developer].map(|marker| (marker, Stop::Turn(marker)));
        let strays = [Marker::System, Marker::Assistant, Marker::EndOfText]
            .map(|marker| (marker, Stop::Stray(marker)));
        let mut entries: Vec<(TokenId, Stop)> = end.map(|id| (id, Stop::End)).into_iter().collect();
        for (marker, stop) in turns.into_iter().chain(strays) {
            match marker.id(tokenizer) {
                // The first reason holds: the end token may be one of the markers.
                Ok(id) if entries.iter().all(|(other, _)| *other != id) => entries.push((id, stop)),
                _ => {}
            }
        }
        Self { entries }
    }

    /// Why `id` ends a reply, if it does.
    pub fn reason(&self, id: TokenId) -> Option<Stop> {
        self.entries.iter().find(|(stop, _)| *stop == id).map(|(_, reason)| *reason)
    }

    /// The ids with their reasons.
    pub fn entries(&self) -> &[(TokenId, Stop)] {
        &self.entries
    }
}
