//! The service manager: what it hands over at the start, and what it is told. Without one, nothing of this happens.
//!
//! In: the variables by which systemd hands over sockets and asks for signs of life. Out: sockets; datagrams to systemd.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use flint_serve::{Listen, Moment};
use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::exit::{Exit, Failure, Outcome};

/// How much longer loading may take, each time that it is said that it goes on.
const LOADING_TIME: Duration = Duration::from_secs(30);

/// Signs of life are sent this many times in the time in which one is wanted.
const SIGNS_A_TIME: u32 = 2;

/// The sockets that were handed over, in their order.
///
/// # Errors
/// When one is neither of an address nor of a socket file.
pub(crate) fn sockets() -> Outcome<Vec<Listen>> {
    let mut handed = ListenFd::from_env();
    let mut sockets = Vec::with_capacity(handed.len());
    for index in 0..handed.len() {
        if let Ok(Some(listener)) = handed.take_tcp_listener(index) {
            sockets.push(Listen::OpenAddress(listener));
        } else if let Ok(Some(listener)) = handed.take_unix_listener(index) {
            sockets.push(Listen::OpenFile(listener));
        } else {
            return Err(Failure::new(
                Exit::Failed,
                format!(
                    "socket {index} of those that were handed over does not listen: give ListenStream= in the socket unit"
                ),
            ));
        }
    }
    Ok(sockets)
}

/// Tells the service manager what happens.
#[derive(Debug)]
pub(crate) struct Manager {
    /// The longest pause between two signs of life.
    pause: Option<Duration>,
    /// When the last one was sent.
    last: Mutex<Option<Instant>>,
}

impl Manager {
    pub(crate) fn find() -> Self {
        Self { pause: sd_notify::watchdog_enabled().map(|time| time / SIGNS_A_TIME), last: Mutex::new(None) }
    }

    pub(crate) fn tell(&self, moment: Moment) {
        let states: &[NotifyState<'_>] = match moment {
            Moment::Loading if self.is_due(LOADING_TIME / SIGNS_A_TIME) => {
                let micros = u32::try_from(LOADING_TIME.as_micros()).unwrap_or(u32::MAX);
                &[NotifyState::ExtendTimeoutUsec(micros), NotifyState::Status("loading the model")]
            }
            Moment::Ready => &[NotifyState::Ready, NotifyState::Status("ready")],
            Moment::Alive if self.pause.is_some_and(|pause| self.is_due(pause)) => &[NotifyState::Watchdog],
            Moment::Stopping => &[NotifyState::Stopping, NotifyState::Status("stopping")],
            Moment::Loading | Moment::Alive => return,
        };
        // Where there is no manager nothing is sent; one that does not listen is its own affair.
        let _ = sd_notify::notify(states);
    }

    fn is_due(&self, pause: Duration) -> bool {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= pause);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}
