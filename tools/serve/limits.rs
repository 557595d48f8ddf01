//! Every limit of the server, with the reason behind the number.

use std::time::Duration;

/// Bytes of a request's head. Agents send about 2 KiB; a proxy's cookies may bring some more.
pub(crate) const HEAD_BYTES_MAX: usize = 32 << 10;

/// How long a head may take, and a connection may be idle between two requests.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(30);

/// The longest pause between two pieces of a body.
pub(crate) const BODY_STALL: Duration = Duration::from_secs(10);

/// How long a body may take in all: 64 MiB over 10 Mbit/s.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(60);

/// The longest that a client may leave what was sent to it unread before its connection is closed.
pub(crate) const WRITE_STALL: Duration = Duration::from_secs(60);

/// What is read and thrown away of a body that was refused, so that the client, which may read nothing before it has sent all,
/// hears why.
pub(crate) const LINGER_BYTES_MAX: u64 = 1 << 30;

/// The longest that this takes, and the longest pause in it.
pub(crate) const LINGER_TIME: Duration = Duration::from_secs(30);
pub(crate) const LINGER_STALL: Duration = Duration::from_secs(3);

/// How often it is looked whether a client that has closed its sending side is still there.
pub(crate) const HALF_CLOSED_LOOK: Duration = Duration::from_millis(200);

/// Connections at a time. One that waits for its turn costs a socket and some 20 KiB.
pub(crate) const CONNECTIONS_MAX: usize = 4096;

/// Levels of lists and objects in a request's JSON. Tool schemas of real agents have up to 14.
pub(crate) const JSON_DEPTH_MAX: usize = 64;

/// Messages of a conversation.
pub(crate) const MESSAGES_MAX: usize = 4096;

/// Tools of a request.
pub(crate) const TOOLS_MAX: usize = 512;

/// Stop strings of a request.
pub(crate) const STOPS_MAX: usize = 16;

/// Bytes of a stop string: so many are held back at most.
pub(crate) const STOP_BYTES_MAX: usize = 256;

/// Alternatives to a token that are told, OpenAI's limit.
pub(crate) const TOP_LOGPROBS_MAX: u32 = 20;

/// Entries of a request's `logit_bias`: each is looked at for every token.
pub(crate) const BIASES_MAX: usize = 1024;

/// Texts that one request continues, one after the other.
pub(crate) const PROMPTS_MAX: usize = 64;

/// Events of one reply that wait for a client that does not read: some minutes of tokens, some megabytes.
pub(crate) const EVENTS_MAX: usize = 65_536;

/// Bodies from this size on are taken apart on a thread of their own: about 3 ms of work. For shorter ones the way to that thread
/// would take longer than the work.
pub(crate) const BLOCKING_BYTES: usize = 64 << 10;

/// MiB of long bodies that are worked on at a time; others wait for their turn. A text takes up to 27 times its bytes while it is
/// tokenized.
pub(crate) const BODY_WORK_MIB: usize = 64;

/// Instructions that a chat template may run: a conversation of 4,096 messages takes some hundred each.
pub(crate) const TEMPLATE_FUEL: u64 = 20_000_000;

/// Properties of one object in a schema. Each costs some 0.1 ms to compile and four items of [`GRAMMAR_ITEMS_MAX`].
pub(crate) const SCHEMA_PROPERTIES_MAX: usize = 1000;

/// References in the schemas of a request: the compiler's stack grows with them.
pub(crate) const SCHEMA_REFERENCES_MAX: usize = 512;

/// `patternProperties` in the schemas of a request: they are compared with each other, 100 take 0.2 s.
pub(crate) const SCHEMA_PATTERNS_MAX: usize = 64;

/// Values in the schemas of a request, keywords' own among them. The largest public ones have some ten thousand.
pub(crate) const SCHEMA_VALUES_MAX: usize = 100_000;

/// Items of a grammar that may be possible at one place: enough for an object of as many properties as are allowed.
pub(crate) const GRAMMAR_ITEMS_MAX: usize = 5 * SCHEMA_PROPERTIES_MAX;

/// Stack while a grammar is made: 128 KiB for each reference that is allowed, which need some KiB. Address space only, until it is
/// used.
pub(crate) const GRAMMAR_STACK_BYTES: usize = 64 << 20;

/// How long a prompt waits for a kept conversation to come from a drive: one of 1 GB takes 10 s from a slow disk. After that it is
/// fed as if nothing had been kept.
pub(crate) const KEPT_LOAD_TIME: Duration = Duration::from_secs(60);

/// Grammars that are kept for the next turns of their conversations: those of some clients at work at a time.
pub(crate) const GRAMMARS_KEPT: usize = 8;

/// Bytes of a grammar's source up to which it is kept: agents' tools take 32 KiB or so.
pub(crate) const GRAMMAR_KEY_BYTES_MAX: usize = 256 << 10;

/// Tokens of the first piece of a prompt that rides beside replies.
pub(crate) const PIECE_ROWS_FIRST: u32 = 64;

/// Tokens of such a piece at least: 32 tokens of Flint pick half of a layer's experts already, so shorter pieces would read
/// nearly as much for fewer tokens.
pub(crate) const PIECE_ROWS_MIN: u32 = 32;

/// The time that a step with a piece may take however quick steps without one are: a reply's tokens come no slower than people read.
pub(crate) const PIECE_TIME: Duration = Duration::from_millis(250);

/// How many times as long as a step of tokens alone a step with a piece may take, where that is more.
pub(crate) const PIECE_FACTOR: u32 = 4;
