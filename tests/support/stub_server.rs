//! The server around a stand-in for the engine, in a thread of the test's process.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flint_rt::engine::SamplingAdvice;
use flint_rt::sample::SamplerOptions;
use flint_rt::text::chat::Thinking;
use flint_serve::stub::{Script, Stub};
use flint_serve::{
    Defaults, FormChoice, Listen, Origins, PrefixOptions, Reasoning, ServeError, ServeOptions,
};

use crate::http_client::Client;

/// How long a test waits for a server to begin.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server that runs in a thread of this process until it is dropped.
pub(crate) struct Server {
    pub(crate) client: Client,
    should_stop: Arc<AtomicBool>,
    pub(crate) thread: Option<JoinHandle<Result<(), ServeError<String>>>>,
}

pub(crate) fn options() -> ServeOptions {
    ServeOptions {
        prefix: PrefixOptions::default(),
        listen: vec![Listen::Address("127.0.0.1:0".parse().unwrap())],
        keys: Vec::new(),
        origins: Origins::None,
        slots: 1,
        queue: 4,
        body_bytes_max: 1 << 20,
        ping: Duration::from_millis(100),
        stop_time: Duration::from_secs(5),
        idle_release: None,
        alias: "stub".to_owned(),
        is_strict: false,
        file_name: "stub.gguf".to_owned(),
        form: FormChoice::File,
        reasoning: Reasoning::Content,
        defaults: Defaults {
            sampling: SamplerOptions::recommended(1),
            asked: SamplingAdvice::default(),
            has_seed: true,
            tokens_max: None,
            thinking: Thinking::Auto,
        },
        notice: Box::new(|_| {}),
        moment: Box::new(|_| {}),
    }
}

impl Server {
    pub(crate) fn start(script: Script, change: impl FnOnce(&mut ServeOptions)) -> Self {
        Self::start_with(change, move || Ok(Stub::new(script.clone())))
    }

    /// With an engine that `open` opens; nothing is waited for but the sockets.
    pub(crate) fn start_with(
        change: impl FnOnce(&mut ServeOptions),
        mut open: impl FnMut() -> Result<Stub, String> + Send + 'static,
    ) -> Self {
        let mut options = options();
        change(&mut options);
        let (sender, notices) = mpsc::channel::<String>();
        options.notice = Box::new(move |text| {
            let _ = sender.send(text.to_owned());
        });
        let should_stop = Arc::new(AtomicBool::new(false));
        let asked = should_stop.clone();
        let thread = std::thread::spawn(move || {
            flint_serve::run(options, move |_| open(), || asked.load(Ordering::Relaxed))
        });
        let notice = notices.recv_timeout(PATIENCE).unwrap();
        let address: SocketAddr = notice.strip_prefix("listening on http://").unwrap().parse().unwrap();
        Self { client: Client(address), should_stop, thread: Some(thread) }
    }

    pub(crate) fn ready(self) -> Self {
        let begin = Instant::now();
        while self.client.get("/ready").status != 200 {
            assert!(begin.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(2));
        }
        self
    }

    /// Asks it to stop, and gives what it ended with.
    pub(crate) fn stop(mut self) -> Result<(), ServeError<String>> {
        self.should_stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.should_stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
