//! The server that a client is set up for: what the flags say, and what it says itself where it runs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use super::ClientConfigArgs;
use crate::exit::{Failure, Outcome};

/// How long to wait for a server that may not be there.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest answer that is read; a chat template is in it.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// What a server without keys is sent: libraries want one.
const ANY_KEY: &str = "flint-rt";

/// Tokens of a reply at most, where a client wants to know: half of a short context.
const REPLY_TOKENS_MAX: u32 = 8192;

/// The server.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    /// Where it listens, which may be every address.
    bound: SocketAddr,
    pub(super) key: String,
    pub(super) model: String,
    pub(super) context_len: u32,
    /// Whether it was asked, and answered.
    pub(super) is_found: bool,
}

impl Server {
    /// By the flags, and by asking it.
    pub(super) fn look(args: &ClientConfigArgs) -> Outcome<Self> {
        let given = args.api_key.clone().filter(|key| !key.is_empty());
        if let Some(key) = &given
            && key.chars().any(char::is_control)
        {
            return Err(Failure::usage("an API key has no control characters"));
        }
        // Several may be listed; a client sends one.
        let key = given.as_deref().and_then(|keys| keys.split(',').next()).unwrap_or(ANY_KEY).to_owned();
        // Who listens everywhere is found here.
        let host = match args.host {
            IpAddr::V4(host) if host.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(host) if host.is_unspecified() => IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
            host => host,
        };
        let address = SocketAddr::new(host, args.port);
        let props = ask(address, &key);
        let said = |pointer: &str| props.as_ref().and_then(|props| props.pointer(pointer));
        let model = said("/model_alias").and_then(Value::as_str);
        let context = said("/default_generation_settings/n_ctx").and_then(Value::as_u64);
        Ok(Self {
            address,
            bound: SocketAddr::new(args.host, args.port),
            key,
            model: args.model.clone().or(model.map(str::to_owned)).unwrap_or_else(|| "flint".to_owned()),
            context_len: args
                .ctx_size
                .or(context.and_then(|context| u32::try_from(context).ok()))
                .unwrap_or(4096),
            is_found: props.is_some(),
        })
    }

    /// Its base for Anthropic's clients.
    pub(super) fn root(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its base for OpenAI's.
    pub(super) fn v1(&self) -> String {
        format!("{}/v1", self.root())
    }

    pub(super) fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Tokens of a reply at most.
    pub(super) fn reply_len(&self) -> u32 {
        (self.context_len / 2).clamp(1, REPLY_TOKENS_MAX)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "url": self.root(),
            "model": self.model,
            "context_length": self.context_len,
            "is_running": self.is_found,
        })
    }
}

/// What a server there says of itself, if one answers.
fn ask(address: SocketAddr, key: &str) -> Option<Value> {
    let agent = ureq::Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .timeout_global(Some(PATIENCE))
        .build()
        .new_agent();
    let request =
        agent.get(format!("http://{address}/props")).header("authorization", format!("Bearer {key}"));
    let mut answer = request.call().ok()?;
    let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().ok()?;
    serde_json::from_str(&text).ok()
}
