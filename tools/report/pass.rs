//! The pass that records: a few tokens with the timeline on, apart from everything that is timed, as noting costs a few per cent.
//!
//! - In: an engine that keeps a timeline, tokens. Out: a [`Recorded`] of single tokens, warm ones.

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, EngineError};
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{ModelError, Want};

use super::recorded::{LayerColumn, Recorded, uses_since};
use crate::exit::Outcome;
use crate::interrupt;
use crate::terminal::Bar;

/// Tokens of the pass in all: a prompt that fills slots, some to settle, and those that are recorded.
pub(crate) const PASS_TOKENS: u32 = 64;
/// The shortest context of which a part can be the prompt.
pub(super) const CONTEXT_MIN: u32 = 4;
/// Shares of them that go before what is recorded.
const PROMPT_PART: usize = CONTEXT_MIN as usize;
const SETTLE_PART: usize = 4;

struct Stop;

impl PrefillObserver for Stop {
    fn should_stop(&mut self) -> bool {
        interrupt::is_requested()
    }
}

/// Runs `ids` and records the last half of them; `None` where Ctrl-C came in between, or they are too few.
pub(crate) fn record(engine: &mut Engine, ids: &[TokenId], model: &str) -> Outcome<Option<Recorded>> {
    let prompt = ids.len() / PROMPT_PART;
    let settled = prompt + ids.len() / SETTLE_PART;
    if prompt == 0 {
        return Ok(None);
    }
    let bar = Bar::tokens("timeline");
    bar.message("timeline");
    let mut session = engine.session()?;
    match engine.feed_prompt(&mut session, &ids[..prompt], Want::Greedy, &mut Stop) {
        Err(EngineError::Model(ModelError::Stopped)) => return Ok(None),
        fed => fed?,
    };
    let mut recorded = Recorded {
        title: format!(
            "{model}, {} slots of {} experts",
            engine.plan().pool_slots,
            engine.plan().expert_total
        ),
        ..Recorded::default()
    };
    for (index, &id) in ids.iter().enumerate().skip(prompt) {
        if interrupt::is_requested() {
            return Ok(None);
        }
        if index == settled {
            engine.take_events();
            engine.take_events_left_out();
        }
        let before = engine.layer_hits();
        engine.feed_token(&mut session, id, Want::Greedy)?;
        if index >= settled {
            let layers = uses_since(&engine.layer_hits(), &before);
            recorded.tokens.push(LayerColumn { label: (index + 1).to_string(), layers });
        }
        bar.set(index as u64, ids.len() as u64);
    }
    bar.clear();
    recorded.moments = engine.take_events().into_iter().map(Into::into).collect();
    recorded.left_out = engine.take_events_left_out();
    Ok(Some(recorded))
}
