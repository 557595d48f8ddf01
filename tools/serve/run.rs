//! The server from its start to its end.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flint_rt::engine::EngineError;
use flint_rt::engine::snapshot::CacheShape;
use flint_rt::store::Sha256Digest;
use tokio::sync::oneshot;

use crate::chat::form::{ChatForm, FormChoice};
use crate::engine::backend::Backend;
use crate::engine::grammar::Grammars;
use crate::engine::prefix_store::{PrefixOptions, PrefixStore};
use crate::engine::shared::{Loading, Shared};
use crate::engine::worker::{Rest, Worker, stopping};
use crate::http::door::{Door, Origins};
use crate::http::listener::{self, Listen};
use crate::http::routes;
use crate::http::state::{Shown, State, now_s};
use crate::limits::BODY_WORK_MIB;
use crate::wire::error::{ApiError, Kind};
use crate::wire::model::{Model, Reasoning};
use crate::wire::params::Defaults;

/// What the caller decides.
pub struct ServeOptions {
    /// Where to listen.
    pub listen: Vec<Listen>,
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
    /// After which time without a request the engine is closed, so that others have its memory; the next request opens it again.
    pub idle_release: Option<Duration>,
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
    /// Told to whatever watches over the process.
    pub moment: Box<dyn Fn(Moment) + Send + Sync>,
}

/// What a service manager wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// It still loads; said again and again.
    Loading,
    /// It answers requests.
    Ready,
    /// It lives; said again and again.
    Alive,
    /// It ends.
    Stopping,
}

/// Why the server ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError<E> {
    /// An option makes no sense.
    #[error("{0}")]
    Option(String),
    /// Nothing can listen there.
    #[error("cannot listen on {place}: {source}{}", hint(place, source))]
    Bind {
        /// Where.
        place: Listen,
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

fn hint(place: &Listen, error: &std::io::Error) -> &'static str {
    match (error.kind(), place) {
        (std::io::ErrorKind::AddrInUse, Listen::File(_)) => {
            ": another program listens there; stop it, or take another --socket"
        }
        (std::io::ErrorKind::AddrInUse, _) => {
            ": another program listens there; stop it, or take another --port"
        }
        (std::io::ErrorKind::AlreadyExists, _) => ": remove it, or take another --socket",
        _ => "",
    }
}

/// How often it is asked whether to stop.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// Seconds after which to ask again where the engine could not be opened again: others have its memory.
const REOPEN_S: u32 = 30;

/// How long connections have to close when all replies have ended.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Threads for sockets: they copy text, and the engine has better use for cores.
const THREADS_MAX: usize = 4;

/// Serves until `should_stop` says so. `open` opens the engine, on the thread that will drive it, while requests are already told to
/// wait; it does so again after every time that the engine was given back.
///
/// # Errors
/// When it cannot listen, the engine does not open, or the engine's thread fails.
pub fn run<B: Backend, E: Display + Send + 'static>(
    mut options: ServeOptions,
    open: impl FnMut(&Loading) -> Result<B, E> + Send + 'static,
    should_stop: impl Fn() -> bool,
) -> Result<(), ServeError<E>> {
    let places = std::mem::take(&mut options.listen);
    let addresses: Vec<SocketAddr> = places.iter().filter_map(Listen::address).collect();
    let door = Door::new(&options.keys, options.origins.clone(), &addresses);
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
        let listeners = listener::bind(places).await;
        let listeners = listeners.map_err(|(place, source)| ServeError::Bind { place, source })?;
        for listener in &listeners {
            (options.notice)(&format!("listening on {}", listener.shown));
        }
        let stop_time = options.stop_time;
        let options = Arc::new(options);
        let engine_options = options.clone();
        let (ended, mut end) = oneshot::channel();
        let driven = state.clone();
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || {
                // Who waits for the end has ended itself, if it is not heard.
                let _ = ended.send(drive(&driven, &engine_options, open));
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
            (options.moment)(if state.model.get().is_some() { Moment::Alive } else { Moment::Loading });
        };
        (options.moment)(Moment::Stopping);
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
                Err(_) if shared.facts().is_none() || shared.is_released() => Ok(Ok(())),
                Err(_) => Ok(Err(ServeError::Engine("it did not end when it was asked to".to_owned()))),
            }
        }
    }
}

/// What the engine's thread does.
fn drive<B: Backend, E: Display>(
    state: &State,
    options: &ServeOptions,
    mut open: impl FnMut(&Loading) -> Result<B, E>,
) -> Result<(), ServeError<E>> {
    let shared = &state.shared;
    // Whatever ends this thread, nobody waits for it afterwards.
    let _closer = Closer(shared);
    let backend = open(&shared.loading).map_err(ServeError::Open)?;
    let (facts, identity) = (backend.facts(), backend.identity());
    let form = ChatForm::new(&facts.tokenizer, facts.chat_template.as_deref(), &options.form);
    let form = form.map_err(ServeError::Form)?;
    shared.set_facts(facts.clone());
    let employ = |backend, kept: &mut Option<PrefixStore>| {
        Worker::new(backend, options.slots, options.idle_release, &options.prefix, kept, shared.clone())
    };
    let mut worker = employ(backend, &mut None).map_err(ServeError::Sessions)?;
    let name = options.alias.clone();
    let ready = format!("ready: {name}, {} slots of {} tokens", options.slots, facts.context_len);
    let end = facts.stops.entries().first().map(|(id, _)| *id);
    let grammars = Grammars::new(&facts.tokenizer, end.unwrap_or_default()).map_err(ServeError::Engine)?;
    let model = Model {
        grammars,
        defaults: options.defaults.clone().for_model(&facts.sampling),
        facts,
        name,
        is_strict: options.is_strict,
        form,
        reasoning: options.reasoning,
    };
    // Set once: there is one engine's thread.
    let _ = state.model.set(model);
    shared.set_released(false);
    shared.queue.open();
    (options.notice)(&ready);
    (options.moment)(Moment::Ready);
    // The worker, and the engine with it, is gone when it has run.
    while let Rest::Idle(store) = worker.run().map_err(ServeError::Engine)? {
        let mut kept = Some(store);
        shared.set_released(true);
        tracing::info!(
            "the engine is closed, because nobody asked for a while; the next request opens it again"
        );
        worker = loop {
            if !shared.queue.wait() {
                if let Some(mut store) = kept {
                    store.end(&|| shared.is_halted());
                }
                return Ok(());
            }
            match reopen(shared, &identity, &mut open)
                .and_then(|backend| employ(backend, &mut kept).map_err(|error| error.to_string()))
            {
                Ok(worker) => break worker,
                Err(why) => {
                    tracing::error!("the engine does not open again: {why}");
                    let told = "the engine could not be opened again: the server's log says why";
                    let told = ApiError::later(Kind::Unavailable, told, REOPEN_S);
                    shared.queue.fail_all(&told);
                    shared.slot_requests.refuse(&told);
                }
            }
        };
        shared.set_released(false);
        tracing::info!("the engine is open again");
    }
    Ok(())
}

/// Opens the engine of the same model again.
fn reopen<B: Backend, E: Display>(
    shared: &Shared,
    identity: &(Sha256Digest, CacheShape),
    open: &mut impl FnMut(&Loading) -> Result<B, E>,
) -> Result<B, String> {
    let backend = open(&shared.loading).map_err(|error| error.to_string())?;
    let (facts, before) = (backend.facts(), shared.facts().expect("invariant: it was open before"));
    // Requests that wait were made for what was there before.
    let is_same = (facts.context_len, facts.vocabulary, &facts.name)
        == (before.context_len, before.vocabulary, &before.name);
    match is_same && backend.identity() == *identity {
        true => Ok(backend),
        false => Err(format!(
            "its file was changed, it is another model, or it has another context: {} of {} tokens, wanted {} of {}; start the server again",
            facts.name, facts.context_len, before.name, before.context_len
        )),
    }
}

struct Closer<'a>(&'a Shared);

impl Drop for Closer<'_> {
    fn drop(&mut self) {
        let why = ApiError::new(Kind::Unavailable, "the engine has ended");
        self.0.queue.close(&why);
        self.0.slot_requests.refuse(&why);
    }
}
