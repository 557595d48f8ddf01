//! `flint-rt eval`: what the model computes, for checking it against another implementation.
//!
//! In: a prompt as ids, text or messages, or a text file. Out, as JSON with `--json`:
//!
//! - of a prompt: `ids`, what went in; `top`, `[id, logit]` of the last position, best first; `argmax`, the best id of
//!   every position; `logprobs`, for every position the `--top` best ids as `[id, log-probability]`; with `--routes`
//!   `routes`, of the last position and each layer with experts `{layer, experts, weights}`, best first; with
//!   `--greedy N` `greedy`, the N tokens that follow, stop tokens taken like any other;
//! - of a text file: `tokens`, how many were predicted; `loss`, their mean negative log-likelihood in nats; `perplexity`.
//!
//! Numbers are printed so that they read back to the same bits.

mod messages;
mod prompt;
mod watch;

use std::io::{self, Write};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, EngineError};
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{ModelError, Want};
use serde::Serialize;

use crate::args::EvalArgs;
use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::model;
use crate::open;
use watch::{LossWatch, PromptWatch};

/// The picks of one layer.
#[derive(Debug, Serialize)]
struct Routes {
    layer: u32,
    experts: Vec<u32>,
    weights: Vec<f32>,
}

/// What a prompt gives.
#[derive(Debug, Serialize)]
struct PromptReport {
    ids: Vec<TokenId>,
    top: Vec<(TokenId, f32)>,
    argmax: Vec<TokenId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routes: Option<Vec<Routes>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    greedy: Option<Vec<TokenId>>,
    logprobs: Vec<Vec<(TokenId, f64)>>,
}

/// What a text file gives.
#[derive(Debug, Serialize)]
struct LossReport {
    tokens: u64,
    loss: f64,
    perplexity: f64,
}

/// Runs the command.
pub(crate) fn run(args: &EvalArgs) -> Outcome {
    let model = model::find(&args.engine.model, args.engine.run.source)?;
    let (ids, context_max) = prompt::ids(args, &model)?;
    // The context that this needs and no more, unless the flags say otherwise: results do not depend on it.
    let needed = ids.len() as u64 + u64::from(args.greedy.unwrap_or(0));
    let context_len = u32::try_from(needed).ok().filter(|needed| *needed <= context_max);
    let Some(context_len) = context_len else {
        return Err(Failure::usage(format!(
            "{needed} tokens are more than the model's context of {context_max}"
        )));
    };
    if let Some(given) = args.engine.ctx_size.filter(|given| u64::from(*given) < needed) {
        let what = if args.perplexity.is_some() { "the text" } else { "the prompt with --greedy" };
        return Err(open::too_long(what, needed, given, context_max));
    }
    let mut engine = open::engine(&args.engine, &model, Some(context_len))?;
    if args.perplexity.is_some() {
        let report = loss(&mut engine, &ids)?;
        print(args, &report, |stdout| {
            writeln!(
                stdout,
                "{} tokens, loss {:.6}, perplexity {:.5}",
                report.tokens, report.loss, report.perplexity
            )
        })?;
    } else {
        let report = prompt_report(args, &mut engine, ids)?;
        print(args, &report, |stdout| show(stdout, &engine, &report))?;
    }
    open::check_engine(&engine)
}

/// Feeds `ids` into an empty session, and gives the session with what came out.
fn feed(
    engine: &mut Engine,
    ids: &[TokenId],
    observer: &mut dyn PrefillObserver,
) -> Result<(flint_rt::engine::Session, Option<TokenId>), Failure> {
    let mut session = engine.session()?;
    let fed = engine.feed_prompt(&mut session, ids, Want::Greedy, observer);
    match fed {
        Ok(fed) => Ok((session, fed.step.greedy)),
        Err(EngineError::Model(ModelError::Stopped)) if interrupt::is_requested() => {
            Err(Failure::Interrupted)
        }
        Err(error) => Err(error.into()),
    }
}

fn prompt_report(args: &EvalArgs, engine: &mut Engine, ids: Vec<TokenId>) -> Outcome<PromptReport> {
    let _replying = interrupt::Reply::begin();
    let top = usize::try_from(args.top).unwrap_or(usize::MAX);
    let mut watch = PromptWatch::new(top, engine.config().experts_used);
    let fed = feed(engine, &ids, &mut watch);
    if let Some(error) = watch.error {
        return Err(error.into());
    }
    let (mut session, mut next) = fed?;
    let routes =
        watch.routes.into_iter().map(|(layer, (experts, weights))| Routes { layer, experts, weights });
    let routes: Vec<Routes> = routes.collect();

    let mut greedy = Vec::new();
    let wanted = usize::try_from(args.greedy.unwrap_or(0)).unwrap_or(usize::MAX);
    while let Some(token) = next.take().filter(|_| greedy.len() < wanted) {
        if interrupt::is_requested() {
            return Err(Failure::Interrupted);
        }
        greedy.push(token);
        if greedy.len() < wanted {
            next = engine.feed_token(&mut session, token, Want::Greedy)?.greedy;
        }
    }
    Ok(PromptReport {
        ids,
        top: watch.top,
        argmax: watch.argmax,
        routes: args.routes.then_some(routes),
        greedy: args.greedy.map(|_| greedy),
        logprobs: watch.logprobs,
    })
}

/// `ids` are the begin marker and the text: each token of the text is predicted from all before it.
fn loss(engine: &mut Engine, ids: &[TokenId]) -> Outcome<LossReport> {
    let _replying = interrupt::Reply::begin();
    let mut watch = LossWatch::new(&ids[1..]);
    let fed = feed(engine, &ids[..ids.len() - 1], &mut watch);
    if let Some(error) = watch.error {
        return Err(error.into());
    }
    fed?;
    let loss = watch.loss_sum / watch.predicted as f64;
    Ok(LossReport { tokens: watch.predicted as u64, loss, perplexity: loss.exp() })
}

fn print(
    args: &EvalArgs,
    report: &impl Serialize,
    show: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Outcome {
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer(&mut stdout, report).map_err(io::Error::from)?;
        writeln!(stdout)?;
    } else {
        show(&mut stdout)?;
    }
    stdout.flush()?;
    Ok(())
}

fn show(stdout: &mut dyn Write, engine: &Engine, report: &PromptReport) -> io::Result<()> {
    writeln!(stdout, "{} ids: {:?}", report.ids.len(), report.ids)?;
    let last = report.logprobs.last().map_or(&[][..], Vec::as_slice);
    for ((id, logit), (_, probability)) in report.top.iter().zip(last) {
        writeln!(stdout, "{id:>8}  {logit:>10.5}  {probability:>10.5}  {}", open::shown_token(engine, *id))?;
    }
    for routes in report.routes.iter().flatten() {
        writeln!(stdout, "layer {:>3}: {:?} {:?}", routes.layer, routes.experts, routes.weights)?;
    }
    if let Some(greedy) = &report.greedy {
        writeln!(stdout, "greedy: {greedy:?}\n{}", engine.tokenizer().decode(greedy))?;
    }
    Ok(())
}
