//! `flint-rt synth`: a Flint of random weights, of any size, from a seed.
//!
//! - Owns: nothing that lasts. In: a preset, a seed, a skew, a path. Out: a GGUF file that this runtime runs, or the store
//!   that `ingest` would make of it.
//! - Invariants: the bytes depend on dimensions, seed and skew alone, not on machine or threads; the file appears under its
//!   name only when it is whole. What a signal ends early leaves no part of a file, and of a store what the next run goes
//!   on with, as `ingest` does.
//!
//! It says nothing sensible, but it computes, streams and picks experts as a trained model does: see [`tensors`] for why its
//! routing does not collapse, and [`skew`] for how its experts are made unevenly likely.

mod args;
mod error;
mod fill;
mod header;
mod layout;
mod random;
pub(crate) mod rehearsal;
mod shape;
mod skew;
mod source;
mod store;
mod tensors;
mod vocabulary;
mod write;

use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use flint_rt::base::units::{display_bytes, display_rate};
use serde_json::{Value, json};

pub(crate) use args::SynthArgs;

use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::terminal::{Bar, note};
use layout::Layout;
use shape::Shape;
use write::Options;

/// Time between two events of progress.
const EVENT_EVERY: Duration = Duration::from_secs(1);

/// The largest skew: from here on a layer uses the same experts for nearly every token.
const SKEW_MAX: f64 = 4.0;

/// Runs the command.
pub(crate) fn run(args: &SynthArgs) -> Outcome {
    let made = make(args);
    if args.json
        && let Err(failure) = &made
    {
        let message = match failure {
            Failure::Told { text, .. } => text,
            Failure::Interrupted => "interrupted",
            Failure::Closed => return made,
        };
        event(&json!({ "event": "error", "message": message }))?;
    }
    made
}

fn make(args: &SynthArgs) -> Outcome {
    if !(0.0..=SKEW_MAX).contains(&args.skew) {
        return Err(Failure::usage(format!("--skew is {}, wanted 0 to {SKEW_MAX}", args.skew)));
    }
    let shape = Shape::new(args)?;
    let name = format!("Flint {} (random, seed {})", args.preset.name(), args.seed);
    let layout = Layout::new(&name, &shape, args.seed, args.skew)?;
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or((2 * processors).clamp(4, 64));
    if let Some(named) = &args.store {
        return store::make(args, named, layout, threads);
    }
    let Some(target) = &args.target else {
        return Err(Failure::usage("name a file to write, or a store with --store"));
    };
    let options = Options { threads, replaces: args.force, header_only: args.header_only };
    let began = Instant::now();
    let mut watch = Watch { bar: Bar::bytes("writing"), prints_events: args.json, told: began, failed: None };
    // The first Ctrl-C ends the work here, so that what was begun is removed.
    let working = interrupt::Reply::begin();
    let written = write::write(&layout, target, options, &mut |done, total| watch.progress(done, total));
    drop(working);
    watch.bar.clear();
    if let Some(failure) = watch.failed {
        return Err(failure);
    }
    let written = written?;

    let seconds = began.elapsed().as_secs_f64();
    note(&format!(
        "{} tensors, {} in {seconds:.1} s ({}){}",
        layout.tensor_count(),
        display_bytes(written.bytes),
        display_rate(written.bytes, seconds),
        if args.header_only { ", the header alone" } else { "" }
    ));
    let shown = target.display().to_string();
    if !args.json {
        writeln!(io::stdout(), "{shown}")?;
        return Ok(());
    }
    event(&json!({
        "event": "done",
        "path": shown,
        "preset": args.preset.name(),
        "seed": args.seed,
        "skew": args.skew,
        "bytes": layout.len_bytes(),
        "header_bytes": layout.header_bytes(),
        "tensor_bytes": layout.tensor_bytes(),
        "tensors": layout.tensor_count(),
        "written_bytes": written.bytes,
        "seconds": seconds,
        "direct": written.is_direct,
    }))
}

/// Who is told how far it is.
struct Watch {
    bar: Bar,
    prints_events: bool,
    /// When the last event was.
    told: Instant,
    /// What ended the work from here.
    failed: Option<Failure>,
}

impl Watch {
    fn progress(&mut self, done: u64, total: u64) -> ControlFlow<()> {
        self.bar.set(done, total);
        if self.prints_events && self.told.elapsed() >= EVENT_EVERY {
            self.told = Instant::now();
            let progress = json!({
                "event": "progress", "phase": "writing", "done_bytes": done, "total_bytes": total,
            });
            if let Err(failure) = event(&progress) {
                self.failed = Some(failure);
                return ControlFlow::Break(());
            }
        }
        if interrupt::is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn event(event: &Value) -> Outcome {
    writeln!(io::stdout(), "{event}")?;
    Ok(())
}
