//! `cargo bench --bench serve`: what the server adds to the engine: sockets, queue, JSON, text of tokens. The engine is a stand-in
//! that says the next token at once, or after a pause.

#[path = "../tests/support/http_client.rs"]
mod http_client;
#[path = "support/paired.rs"]
mod paired;

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::SamplingAdvice;
use flint_rt::model::Want;
use flint_rt::model::prefill::NoObserver;
use flint_rt::sample::SamplerOptions;
use flint_rt::store::Source;
use flint_rt::text::Detokenizer;
use flint_rt::text::chat::{Role, Thinking};
use flint_serve::stub::{Form, Script, Stub, nano_tokenizer};
use flint_serve::{
    Backend, Defaults, Feed, FormChoice, Listen, Origins, PrefixOptions, Reasoning, ServeOptions,
};
use http_client::{Connection, request};
use paired::{Bench, Limit, Work, repeat};
use serde_json::json;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");
const TEXT: &str = include_str!("../tests/vectors/heldout.txt");

/// Tokens of a reply.
const TOKENS: u32 = 256;

/// Streams at a time.
const STREAMS: u32 = 32;

/// Tokens of a reply, and the time of each, where the engine takes some: a fast GPU's.
const PACED_TOKENS: u32 = 32;
const PACE: Duration = Duration::from_millis(2);

/// Messages of the conversation.
const MESSAGES: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bench = Bench::new(1500);

    let address = start(script(Duration::ZERO), 1)?;
    let mut stream = Stream::open(address, TOKENS);
    let mut engine = Loop::new(script(Duration::ZERO), TOKENS);
    let work = Work::Things(TOKENS.into(), "token");
    let limit = Limit { name: "the engine's own loop", work, run: |count| repeat(count, || engine.reply()) };
    bench.case("serve", "one stream", work, limit, |count| repeat(count, || stream.reply()));

    let address = start(script(Duration::ZERO), STREAMS)?;
    let work = Work::Things(u64::from(TOKENS * STREAMS), "token");
    let limit = Limit {
        name: "the engine's own loop",
        work,
        run: |count| repeat(count * u64::from(STREAMS), || engine.reply()),
    };
    bench.case("serve", "32 streams", work, limit, |count| {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..STREAMS {
                scope.spawn(|| {
                    let mut stream = Stream::open(address, TOKENS);
                    repeat(count, || stream.reply())
                });
            }
        });
        begin.elapsed()
    });

    let address = start(script(PACE), 1)?;
    let mut stream = Stream::open(address, PACED_TOKENS);
    let mut engine = Loop::new(script(PACE), PACED_TOKENS);
    let work = Work::Things(PACED_TOKENS.into(), "token");
    let limit = Limit { name: "the engine's own loop", work, run: |count| repeat(count, || engine.reply()) };
    bench.case("serve", "one stream, 2 ms a token", work, limit, |count| repeat(count, || stream.reply()));

    let address = start(script(Duration::ZERO), 1)?;
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 }).to_string();
    let asked = request("POST", "/v1/chat/completions", &[], &body);
    let mut connection = Connection::open(address);
    connection.send(&asked);
    let answered = connection.answer().ok_or("the server gave no answer")?;
    let echo = start_echo(asked.len(), answered.body)?;
    let mut bare = Connection::open(echo);
    let work = Work::Things(1, "request");
    let limit = Limit {
        name: "the same bytes over a bare socket",
        work,
        run: |count| {
            repeat(count, || {
                bare.send(&asked);
                black_box(bare.answer());
            })
        },
    };
    bench.case("serve", "a request of one token", work, limit, |count| {
        repeat(count, || {
            connection.send(&asked);
            black_box(connection.answer());
        })
    });

    let source = Source::open(Path::new(MODEL))?;
    let template = source.gguf().metadata.str_opt("tokenizer.chat_template")?;
    let tokenizer = nano_tokenizer();
    let (by_template, built_in) = (Form::new(&tokenizer, template)?, Form::new(&tokenizer, None)?);
    let conversation = conversation();
    let work = Work::Things(MESSAGES as u64, "message");
    let limit = Limit {
        name: "the built-in form",
        work,
        run: |count| repeat(count, || drop(black_box(built_in.ids(black_box(&conversation))))),
    };
    bench.case("chat", "template and ids of 20 messages", work, limit, |count| {
        repeat(count, || drop(black_box(by_template.ids(black_box(&conversation)))))
    });
    // The same without the text, which takes most of it: what is left is the template's own.
    let short: Vec<(Role, &str)> = conversation.iter().map(|(role, _)| (*role, "a few words")).collect();
    let limit = Limit {
        name: "the built-in form",
        work,
        run: |count| repeat(count, || drop(black_box(built_in.ids(black_box(&short))))),
    };
    bench.case("chat", "template and ids of 20 short messages", work, limit, |count| {
        repeat(count, || drop(black_box(by_template.ids(black_box(&short)))))
    });
    bench.finish();
    Ok(())
}

fn script(token_time: Duration) -> Script {
    Script { repeats: true, token_time, ..Script::default() }
}

/// A server in threads of this process, which it ends with.
fn start(script: Script, slots: u32) -> Result<SocketAddr, Box<dyn std::error::Error>> {
    let (sender, notices) = mpsc::channel();
    let options = ServeOptions {
        listen: vec![Listen::Address("127.0.0.1:0".parse()?)],
        keys: Vec::new(),
        origins: Origins::None,
        slots,
        queue: 64,
        body_bytes_max: 1 << 20,
        ping: Duration::from_secs(10),
        stop_time: Duration::ZERO,
        prefix: PrefixOptions::default(),
        idle_release: None,
        alias: "stub".to_owned(),
        is_strict: false,
        file_name: String::new(),
        form: FormChoice::File,
        reasoning: Reasoning::Content,
        defaults: Defaults {
            sampling: SamplerOptions::default(),
            asked: SamplingAdvice::default(),
            has_seed: true,
            tokens_max: None,
            thinking: Thinking::Auto,
        },
        notice: Box::new(move |text| drop(sender.send(text.to_owned()))),
        moment: Box::new(|_| {}),
    };
    std::thread::spawn(move || {
        flint_serve::run(options, move |_| Ok::<_, String>(Stub::new(script.clone())), || false)
    });
    let address = notices.recv()?;
    // It says second that it is ready.
    notices.recv()?;
    Ok(address.strip_prefix("listening on http://").unwrap_or(&address).parse()?)
}

/// A server that reads `asked` bytes and answers the same each time.
fn start_echo(asked: usize, body: String) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut bytes = vec![0; asked];
        loop {
            stream.read_exact(&mut bytes)?;
            stream.write_all(answer.as_bytes())?;
        }
    });
    Ok(address)
}

/// A client that asks for one reply after the other.
struct Stream {
    connection: Connection,
    asked: String,
}

impl Stream {
    fn open(address: SocketAddr, tokens: u32) -> Self {
        let body = json!({
            "messages": [{ "role": "user", "content": "hi" }],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": true,
        });
        let asked = request("POST", "/v1/chat/completions", &[], &body.to_string());
        Self { connection: Connection::open(address), asked }
    }

    fn reply(&mut self) {
        self.connection.send(&self.asked);
        let answer = self.connection.answer().expect("the server answers");
        assert!(answer.body.ends_with("data: [DONE]\n\n"), "the stream is whole");
    }
}

/// The engine and its detokenizer without a server.
struct Loop {
    engine: Stub,
    tokens: u32,
}

impl Loop {
    fn new(script: Script, tokens: u32) -> Self {
        Self { engine: Stub::new(script), tokens }
    }

    fn reply(&mut self) {
        let engine = &mut self.engine;
        let mut session = engine.open_session().expect("the stand-in opens");
        let mut text = Detokenizer::new(&engine.facts().tokenizer);
        let mut feed = |tokens: &[TokenId]| {
            let mut feeds = [Feed { session: &mut session, tokens, want: Want::Greedy }];
            let mut outputs = engine.step(&mut feeds, &mut NoObserver).expect("the stand-in works");
            let output = outputs.pop().expect("one was fed").expect("the stand-in works");
            output.greedy.expect("it was wanted")
        };
        let mut token = feed(&[1, 2, 3]);
        for _ in 1..self.tokens {
            black_box(text.push(token));
            token = feed(&[token]);
        }
        black_box(text.push(token));
    }
}

/// The text as a conversation, cut into turns of about one length.
fn conversation() -> Vec<(Role, &'static str)> {
    let mut messages = Vec::with_capacity(MESSAGES);
    let mut rest = TEXT;
    for turn in 0..MESSAGES {
        let wanted = rest.len() / (MESSAGES - turn);
        let cut = rest.char_indices().map(|(at, _)| at).find(|at| *at >= wanted).unwrap_or(rest.len());
        let (text, left) = rest.split_at(if turn + 1 == MESSAGES { rest.len() } else { cut });
        messages.push((if turn.is_multiple_of(2) { Role::User } else { Role::Assistant }, text));
        rest = left;
    }
    messages
}
