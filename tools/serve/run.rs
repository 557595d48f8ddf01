//! The server from its start to its end.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flint_rt::engine::EngineError;
use tokio::sync::oneshot;

use crate::chat::form::{ChatForm, FormChoice};
use crate::engine::backend::Backend;
use crate::engine::constraint::Grammars;
use crate::engine::prefix_store::PrefixOptions;
use crate::engine::shared::{Loading, Shared};
use crate::engine::worker::{Worker, stopping};
use crate::http::door::{Door, Origins};
use crate::http::state::{Shown, State, now_s};
use crate::http::{listener, routes};
use crate::limits::BODY_WORK_MIB;
use crate::wire::error::{ApiError, Kind};
use crate::wire::model::{Model, Reasoning};
use crate::wire::params::Defaults;

/// What the caller decides.
pub struct ServeOptions {
    /// Where to listen.
    pub addresses: Vec<SocketAddr>,
    /// Keys of which a request must have one; any request will do if there are none.
    pub keys: Vec<String>,
    /// Pages of which origins may ask.
    pub origins: Origins,
    /// Conversations that are held at a time.
    pub slots: u32,
    /// Requests that may wait beside those.
    pub queue: usize,
    /// Bytes of a body at most.
    pub body_bytes_max: usize,
    /// After which silence a stream says that it lives.
    pub ping: Duration,
    /// How long replies have to end when the server is to stop.
    pub stop_time: Duration,
    /// What is kept of conversations beyond their slots.
    pub prefix: PrefixOptions,
    /// What the model is called in answers.
    pub alias: String,
    /// Whether requests must call it so.
    pub is_strict: bool,
    /// The name of the model's file, without folders.
    pub file_name: String,
    /// The chat form.
    pub form: FormChoice,
    /// What becomes of thoughts.
    pub reasoning: Reasoning,
    /// What holds where a request says nothing.
    pub defaults: Defaults,
    /// Told to whoever started it: where it listens, and that it is ready.
    pub notice: Box<dyn Fn(&str) + Send + Sync>,
}

/// Why the server ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError<E> {
    /// An option makes no sense.
    #[error("{0}")]
    Option(String),
    /// Nothing can listen there.
    #[error("cannot listen on {address}: {source}{}", hint(source))]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The system gave no thread or no event loop.
    #[error("the server's threads cannot be started: {0}")]
    Threads(std::io::Error),
    /// The engine did not open.
    #[error("the engine does not open")]
    Open(E),
    /// Its conversations did not open.
    #[error(transparent)]
    Sessions(EngineError),
    /// The chat template cannot be used.
    #[error(
        "the chat template does not compile: {0}; give another with --chat-template, or `flint` for the built-in form"
    )]
    Form(String),
    /// The engine's thread ended in a way that it must not.
    #[error("the engine's thread failed: {0}")]
    Engine(String),
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => ": another program listens there; stop it, or take another --port",
        _ => "",
    }
}

/// How often it is asked whether to stop.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// How long connections have to close when all replies have ended.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Threads for sockets: they copy text, and the engine has better use for cores.
const THREADS_MAX: usize = 4;

/// Serves until `should_stop` says so. `open` opens the engine, on the thread that will drive it, while requests are already told to
/// wait.
///
/// # Errors
/// When it cannot listen, the engine does not open, or the engine's thread fails.
pub fn run<B: Backend, E: Send + 'static>(
    options: ServeOptions,
    open: impl FnOnce(&Loading) -> Result<B, E> + Send + 'static,
    should_stop: impl Fn() -> bool,
) -> Result<(), ServeError<E>> {
    let door = Door::new(&options.keys, options.origins.clone(), &options.addresses);
    let state: Shown = Arc::new(State {
        shared: Arc::new(Shared::new(options.queue)),
        door: door.map_err(ServeError::Option)?,
        model: OnceLock::new(),
        body_bytes_max: options.body_bytes_max,
        body_work: Arc::new(tokio::sync::Semaphore::new(BODY_WORK_MIB)),
        ping: options.ping,
        started_s: now_s(),
        file_name: options.file_name.clone(),
        slot_files: options.prefix.slot_files.clone(),
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.min(THREADS_MAX))
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(ServeError::Threads)?;
    runtime.block_on(async {
        let listeners = listener::bind(&options.addresses).await;
        let listeners = listeners.map_err(|(address, source)| ServeError::Bind { address, source })?;
        for address in listeners.iter().filter_map(|listener| listener.local_addr().ok()) {
            (options.notice)(&format!("listening on http://{address}"));
        }
        let stop_time = options.stop_time;
        let (ended, mut end) = oneshot::channel();
        let driven = state.clone();
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || {
                // Who waits for the end has ended itself, if it is not heard.
                let _ = ended.send(drive(&driven, options, open));
            })
            .map_err(ServeError::Threads)?;

        let (close, closed) = oneshot::channel::<()>();
        let serving = tokio::spawn(listener::serve(
            listeners,
            routes::router(&state),
            async { closed.await.unwrap_or_default() },
            CLOSE_TIME,
        ));
        let outcome = loop {
            tokio::select! {
                outcome = &mut end => break Some(outcome),
                () = tokio::time::sleep(STOP_LOOK) => if should_stop() { break None },
            }
        };
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => stop(&state.shared, end, stop_time).await,
        };
        let _ = close.send(());
        let _ = serving.await;
        match outcome {
            Ok(outcome) => outcome,
            Err(_) => Err(ServeError::Engine("it panicked; report it".to_owned())),
        }
    })
}

type Ended<E> = Result<Result<(), ServeError<E>>, oneshot::error::RecvError>;

/// Lets what is begun end, for so long; then breaks it off.
async fn stop<E>(
    shared: &Shared,
    mut end: oneshot::Receiver<Result<(), ServeError<E>>>,
    stop_time: Duration,
) -> Ended<E> {
    shared.queue.end(&stopping());
    match tokio::time::timeout(stop_time, &mut end).await {
        Ok(outcome) => outcome,
        Err(_) => {
            shared.halt();
            match tokio::time::timeout(CLOSE_TIME, &mut end).await {
                Ok(outcome) => outcome,
                // Nothing is lost with a model that is still loading.
                Err(_) if shared.facts().is_none() => Ok(Ok(())),
                Err(_) => Ok(Err(ServeError::Engine("it did not end when it was asked to".to_owned()))),
            }
        }
    }
}

/// What the engine's thread does.
fn drive<B: Backend, E>(
    state: &State,
    options: ServeOptions,
    open: impl FnOnce(&Loading) -> Result<B, E>,
) -> Result<(), ServeError<E>> {
    let shared = &state.shared;
    // Whatever ends this thread, nobody waits for it afterwards.
    let _closer = Closer(shared);
    let backend = open(&shared.loading).map_err(ServeError::Open)?;
    let facts = backend.facts();
    let form = ChatForm::new(&facts.tokenizer, facts.chat_template.as_deref(), &options.form);
    let form = form.map_err(ServeError::Form)?;
    shared.set_facts(facts.clone());
    let worker =
        Worker::new(backend, options.slots, &options.prefix, shared.clone()).map_err(ServeError::Sessions)?;
    let name = options.alias;
    let ready = format!("ready: {name}, {} slots of {} tokens", options.slots, facts.context_len);
    let end = facts.stops.entries().first().map(|(id, _)| *id);
    let grammars = Grammars::new(&facts.tokenizer, end.unwrap_or_default()).map_err(ServeError::Engine)?;
    let model = Model {
        grammars,
        facts,
        name,
        is_strict: options.is_strict,
        form,
        defaults: options.defaults,
        reasoning: options.reasoning,
    };
    // Set once: there is one engine's thread.
    let _ = state.model.set(model);
    shared.queue.open();
    (options.notice)(&ready);
    worker.run().map_err(ServeError::Engine)
}

struct Closer<'a>(&'a Shared);

impl Drop for Closer<'_> {
    fn drop(&mut self) {
        let why = ApiError::new(Kind::Unavailable, "the engine has ended");
        self.0.queue.close(&why);
        self.0.slot_requests.refuse(&why);
    }
}
