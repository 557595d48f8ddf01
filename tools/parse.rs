//! From the command line and the environment to [`Args`].
//!
//! In: arguments, `FLINT_RT_*` variables. Out: [`Args`], or the exit code of a fault or of `--help`. What clap does not do
//! by itself: a variable that is empty is one that is not set, a fault names the variable that it came from, a number below
//! zero is a number out of range and no flag.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use crate::args::Args;
use crate::exit::{Exit, Failure};
use crate::terminal::note;

/// What is to be done.
pub(crate) struct Parsed {
    /// The arguments.
    pub(crate) args: Args,
    /// The variables that gave some of them, as `NAME=value`.
    pub(crate) from_environment: Vec<String>,
}

/// The arguments, or what the program ends with.
pub(crate) fn parse() -> Result<Parsed, Exit> {
    let mut command = prepare(Args::command());
    command.build();
    let given: Vec<OsString> = long_flags(std::env::args_os().collect());
    let parsed = command.try_get_matches_from_mut(&given).and_then(|matches| {
        check_conflicts(&mut command, &matches)?;
        let from_environment = variables_in(&command, &matches);
        let args = Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        Ok(Parsed { args, from_environment })
    });
    parsed.map_err(|error| tell(&command, &given, &error))
}

/// Flags of `bench` that other programs write with one dash and several letters, as clap writes them.
fn long_flags(mut given: Vec<OsString>) -> Vec<OsString> {
    if given.get(1).is_some_and(|command| command == "bench") {
        for (short, long) in
            [("-pg", "--pg"), ("-oe", "--output-err"), ("-ub", "--ubatch-size"), ("-npl", "--npl")]
        {
            given.iter_mut().filter(|word| *word == short).for_each(|word| *word = long.into());
        }
    }
    given
}

/// `command` and its subcommands, with the environment's empty variables left out and negative numbers let in.
fn prepare(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let is_empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
        let takes_value = arg.get_action().takes_values() && !arg.is_positional();
        let arg = if is_empty { arg.env(None::<&'static str>) } else { arg };
        if takes_value { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(prepare)
}

/// The variables that gave values to the subcommand's arguments.
fn variables_in(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let Some((name, matches)) = matches.subcommand() else { return Vec::new() };
    let args = command.find_subcommand(name).into_iter().flat_map(Command::get_arguments);
    args.filter(|arg| matches.try_get_raw(arg.get_id().as_str()).is_ok())
        .filter(|arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::EnvVariable))
        .filter_map(|arg| {
            let variable = arg.get_env()?;
            let value = std::env::var_os(variable)?;
            // A key is nobody's business.
            let value = if arg.is_hide_env_values_set() { "...".into() } else { value.to_string_lossy() };
            Some(format!("{}={value}", variable.to_string_lossy()))
        })
        .collect()
}

/// `info MODEL --model OTHER`: a conflict for clap also where a variable names the other, so it is found here.
fn check_conflicts(command: &mut Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some(("info" | "plan", given)) = matches.subcommand() else { return Ok(()) };
    let is_given = |name| given.value_source(name) == Some(ValueSource::CommandLine);
    if is_given("positional") && is_given("model") {
        let text = "the argument '[MODEL]' cannot be used with '--model <PATH|NAME>'";
        return Err(command.error(ErrorKind::ArgumentConflict, text));
    }
    Ok(())
}

/// Prints help or a fault, and gives the exit code.
fn tell(command: &Command, given: &[OsString], error: &clap::Error) -> Exit {
    let printed = error.print().and_then(|()| io::stdout().flush());
    if error.use_stderr() {
        if let Some(variable) = variable_of(command, given, error) {
            note(&format!("the value is that of the environment variable {variable}"));
        }
        return Exit::Usage;
    }
    match printed.map_err(Failure::from) {
        Ok(()) | Err(Failure::Closed) => Exit::Done,
        Err(failure) => failure.say(),
    }
}

/// The variable that holds what `error` is about, if no flag does.
fn variable_of(command: &Command, given: &[OsString], error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = given.iter().skip(1).find_map(|word| command.find_subcommand(word))?;
    let arg = name.get_arguments().find(|arg| arg.to_string() == *flag)?;
    let variable = arg.get_env().filter(|variable| std::env::var_os(variable).is_some())?;
    let is_flag = |word: &OsString| {
        let word = word.to_string_lossy();
        let long = arg.get_long().map(|long| format!("--{long}"));
        let is_long = long.is_some_and(|long| {
            word.strip_prefix(&long).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        });
        let is_short = arg.get_short().is_some_and(|short| {
            word.strip_prefix('-').is_some_and(|rest| !rest.starts_with('-') && rest.starts_with(short))
        });
        is_long || is_short
    };
    let is_given = given.iter().take_while(|word| *word != "--").any(is_flag);
    (!is_given).then(|| variable.to_string_lossy().into_owned())
}
