//! The program `flint-rt`: its commands, over the public names of the library.
//!
//! - Owns: the terminal, the flags, the folders of the user, the exit code. One file a command.
//! - In: arguments and `FLINT_RT_*` variables; prompts from the arguments or standard input.
//! - Out: answers on standard output, everything else on standard error; an exit code of [`exit`].
//! - Invariants: nothing that a user, a file or a driver does makes it panic; a closed pipe ends it quietly.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod bundled;
mod chat;
mod client_config;
mod date;
mod devices;
mod digest;
mod disk_profile;
mod dry_run;
mod eval;
mod exit;
mod folders;
mod generate;
mod info;
mod ingest;
mod input;
mod interrupt;
mod list;
mod model;
mod open;
mod output_file;
mod parse;
mod plan;
mod profile;
mod remove;
mod reply;
mod report;
mod serve_command;
mod service;
mod source;
mod stats;
mod stores;
mod stripes;
mod synth;
mod terminal;
mod tokenize;
mod verify;
mod warm;

use std::process::ExitCode;

use args::Command;
use parse::Parsed;

fn main() -> ExitCode {
    let Parsed { args, from_environment } = match parse::parse() {
        Ok(parsed) => parsed,
        Err(exit) => return exit.into(),
    };
    interrupt::install();
    let outcome = match args.command {
        Command::Generate(args) => generate::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::ClientConfig(args) => client_config::run(&args),
        Command::Serve(args) => serve_command::run(*args),
        Command::Ingest(args) => ingest::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::DiskProfile(args) => disk_profile::run(&args),
        Command::List(args) => list::run(&args),
        Command::Remove(args) => remove::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Report(args) => report::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&from_environment),
    }
}
