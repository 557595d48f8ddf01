//! Host memory that is made before it is needed, by a thread of its own: pages to be found, cleared and pinned take a part of 64 MiB
//! some 20 ms, two thirds of what a drive takes to fill it.
//!
//! - Owns: the thread. In: how many buffers the next part is to have. Out: parts, in the order in which they were asked for.
//! - Invariants: at most [`AHEAD`] parts are asked for and not taken. The thread ends with its owner.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::expert::ExpertError;
use crate::expert::staging::{Part, PartMaker};

/// Parts that are made ahead.
const AHEAD: usize = 2;

/// The thread and what it was asked for.
pub(super) struct PartsAhead {
    wanted: Option<Sender<usize>>,
    made: Receiver<Result<Part, ExpertError>>,
    /// Buffers of the parts that were asked for and not taken, first asked first.
    asked: VecDeque<usize>,
    part_len: usize,
    is_closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PartsAhead {
    /// Starts the thread; `None` where there is none to be had.
    pub(super) fn start(maker: PartMaker) -> Option<Self> {
        let (wanted, asked) = channel::<usize>();
        let (give, made) = channel();
        let part_len = maker.part_len();
        let is_closing = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&is_closing);
        let work = move || {
            for buffers in asked {
                // What is still asked for nobody will take.
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                if give.send(maker.make(buffers)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("host memory".to_owned()).spawn(work).ok()?;
        Some(Self {
            wanted: Some(wanted),
            made,
            asked: VecDeque::with_capacity(AHEAD),
            part_len,
            is_closing,
            thread: Some(thread),
        })
    }

    /// A part that is ready, if there is one.
    pub(super) fn take(&mut self) -> Option<Result<Part, ExpertError>> {
        let part = self.made.try_recv().ok()?;
        self.asked.pop_front();
        Some(part)
    }

    /// Whether a part was asked for and not taken.
    pub(super) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Has parts made until so many buffers are under way, or as many parts as are made ahead.
    pub(super) fn ask(&mut self, buffers: usize) {
        while self.asked.len() < AHEAD {
            let part = buffers.saturating_sub(self.asked.iter().sum()).min(self.part_len);
            let is_asked = part > 0 && self.wanted.as_ref().is_some_and(|wanted| wanted.send(part).is_ok());
            if !is_asked {
                return;
            }
            self.asked.push_back(part);
        }
    }
}

impl Drop for PartsAhead {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
    }
}
