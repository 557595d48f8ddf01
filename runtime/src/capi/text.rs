//! `flint_rt_model_*` of text: tokens, chat prompts. They use nothing that a step uses, so they may be called at any time.

use std::ffi::c_char;

use super::handles::{self, Handle};
use super::memory::{InArray, Out, OutArray};
use super::model::Model;
use super::status::{Fault, Status};
use super::types;
use crate::text::Specials;
use crate::text::chat::{Marker, Message, Prompt, Role, Thinking};

/// `FLINT_RT_TOKENIZE_SPECIAL` and `FLINT_RT_TOKENIZE_BEGIN`.
const SPECIAL: u32 = 1;
const BEGIN: u32 = 2;

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_tokenize(
    model: Handle,
    text: InArray<c_char>,
    text_bytes: usize,
    flags: u32,
    tokens: OutArray<u32>,
    capacity: usize,
    count: Out<usize>,
) -> Status {
    handles::with::<Model>(model, |model| {
        let text = text.text(text_bytes, "text")?;
        if flags & !(SPECIAL | BEGIN) != 0 {
            return Err(Fault::argument(format!("flags are {flags:#x}, of which some are unknown")));
        }
        let specials = if flags & SPECIAL != 0 { Specials::Parse } else { Specials::Plain };
        let mut ids = Vec::new();
        if flags & BEGIN != 0 {
            ids.push(Marker::BeginOfText.id(&model.tokenizer)?);
        }
        ids.extend(model.tokenizer.encode(text, specials));
        tokens.fill(capacity, &ids, &count)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_detokenize(
    model: Handle,
    tokens: InArray<u32>,
    token_count: usize,
    text: OutArray<c_char>,
    capacity: usize,
    text_bytes: Out<usize>,
) -> Status {
    handles::with::<Model>(model, |model| {
        let ids = tokens.slice(token_count, "tokens")?;
        model.tokenizer.check_ids(ids)?;
        text.fill_text(capacity, &model.tokenizer.decode(ids), &text_bytes)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_token_bytes(
    model: Handle,
    token: u32,
    bytes: OutArray<u8>,
    capacity: usize,
    count: Out<usize>,
) -> Status {
    handles::with::<Model>(model, |model| {
        model.tokenizer.check_ids(&[token])?;
        let found = model.tokenizer.token_bytes(token).unwrap_or_default();
        bytes.fill(capacity, found, &count)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_is_stop(model: Handle, token: u32, is_stop: Out<i32>) -> Status {
    handles::with::<Model>(model, |model| {
        let target = is_stop.need("is_stop")?;
        target.set(i32::from(model.stops.reason(token).is_some()));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_chat_prompt(
    model: Handle,
    messages: InArray<types::Message>,
    message_count: usize,
    thinking: i32,
    tokens: OutArray<u32>,
    capacity: usize,
    count: Out<usize>,
) -> Status {
    handles::with::<Model>(model, |model| {
        let messages = messages.slice(message_count, "messages")?;
        let messages = messages.iter().map(message).collect::<Result<Vec<_>, _>>()?;
        let thinking = match thinking {
            0 => Thinking::Auto,
            1 => Thinking::On,
            2 => Thinking::Off,
            other => return Err(Fault::argument(format!("thinking is {other}, wanted 0 to 2"))),
        };
        let ids = model.tokenizer.encode_spans(&Prompt::new(&messages, thinking).spans)?;
        tokens.fill(capacity, &ids, &count)
    })
}

fn message(given: &types::Message) -> Result<Message, Fault> {
    let name = given.role.need("a message's role")?;
    let role = Role::from_name(name);
    if role == Role::Unknown {
        let text = format!("role {name:?}, wanted system, developer, user, assistant or tool");
        return Err(Fault::argument(text));
    }
    let reasoning = given.reasoning.text(given.reasoning_bytes, "a message's reasoning")?;
    Ok(Message {
        role,
        content: Some(given.content.text(given.content_bytes, "a message's content")?.to_owned()),
        reasoning_content: (!reasoning.is_empty()).then(|| reasoning.to_owned()),
    })
}
