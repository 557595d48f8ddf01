//! The connections' side: from a socket to a checked request, and from a reply's events to a socket.
//!
//! - Owns: sockets and their time limits. In: HTTP/1.1. Out: answers, whole or event by event.
//! - Invariants: nothing here computes with the model; whatever a client does, only its own request is affected, and one that goes
//!   away takes its job with it.

pub(crate) mod body;
pub(crate) mod door;
pub(crate) mod events;
pub(crate) mod generate;
pub(crate) mod info;
pub(crate) mod jobs;
pub(crate) mod listener;
pub(crate) mod reply;
pub(crate) mod routes;
pub(crate) mod slots;
pub(crate) mod socket;
pub(crate) mod state;
pub(crate) mod talk;
pub(crate) mod unix;
