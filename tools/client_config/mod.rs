//! `flint-rt client-config`: how an agent, an editor or a library is set up for this server. It writes no file.
//!
//! - In: a client's name, and where the server is; of a server that runs, what it says of itself.
//! - Out: the text to put into a file, on standard output; where it goes, on standard error. With `--json` both, for programs.

mod clients;
mod server;
mod unit;

use std::io::{self, Write};
use std::net::IpAddr;

use clap::Args as ArgsOf;
use serde_json::{Value, json};

use crate::exit::{Failure, Outcome};
use crate::terminal::{escaped, note};
use clients::CLIENTS;
use server::Server;

#[derive(Debug, ArgsOf)]
pub(crate) struct ClientConfigArgs {
    /// Which client, as the list names it; the list when left out.
    name: Option<String>,
    /// Address of the server.
    #[arg(long, env = "FLINT_RT_HOST", default_value = "127.0.0.1", value_name = "IP")]
    host: IpAddr,
    /// Port of the server.
    #[arg(long, env = "FLINT_RT_PORT", default_value_t = 8484)]
    port: u16,
    /// Key that the server wants [default: one that a server without keys takes].
    #[arg(long, env = "FLINT_RT_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// The model's name [default: what a server that runs there says, else flint].
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Tokens of a conversation [default: what a server that runs there says, else 4096].
    #[arg(short = 'c', long, env = "FLINT_RT_CTX_SIZE", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    ctx_size: Option<u32>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// A client that can be set up.
struct Client {
    name: &'static str,
    /// What it is, in a few words.
    about: &'static str,
    pieces: fn(&Server) -> Vec<Piece>,
}

/// What goes into one file, or is run.
struct Piece {
    /// Where it belongs.
    place: String,
    format: Format,
    text: String,
}

/// What a piece is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Toml,
    Yaml,
    Shell,
    Python,
    JavaScript,
    Unit,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Toml => "toml",
            Self::Yaml => "yaml",
            Self::Shell => "shell",
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::Unit => "systemd",
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &ClientConfigArgs) -> Outcome {
    let mut stdout = io::stdout().lock();
    let Some(name) = &args.name else {
        if args.json {
            let list: Value =
                CLIENTS.iter().map(|client| json!({ "name": client.name, "about": client.about })).collect();
            writeln!(stdout, "{list:#}")?;
            return Ok(());
        }
        for client in &CLIENTS {
            writeln!(stdout, "{:<16} {}", client.name, client.about)?;
        }
        return Ok(());
    };
    let client = CLIENTS.iter().find(|client| client.name == name).ok_or_else(|| {
        let names: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
        Failure::usage(format!(
            "{name:?} is no client that is known here, wanted one of {}",
            names.join(", ")
        ))
    })?;
    let server = Server::look(args)?;
    let pieces = (client.pieces)(&server);
    if args.json {
        let pieces: Value = pieces
            .iter()
            .map(|piece| json!({ "place": piece.place, "format": piece.format.name(), "text": piece.text }))
            .collect();
        writeln!(
            stdout,
            "{:#}",
            json!({ "client": client.name, "server": server.json(), "pieces": pieces })
        )?;
        return Ok(());
    }
    if !server.is_found {
        note(&format!(
            "no server was found at {}: the model's name is taken for {:?} and its context for {} tokens; --model and \
             --ctx-size say others",
            server.root(),
            server.model,
            server.context_len
        ));
    }
    for piece in &pieces {
        note(&format!("{}:", piece.place));
        writeln!(stdout, "{}", escaped(piece.text.trim_end()))?;
    }
    Ok(())
}
