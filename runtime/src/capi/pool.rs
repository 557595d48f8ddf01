//! `flint_rt_pool_*`: experts in slots of host memory, for callers with kernels of their own.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::guard::{self, LastError};
use super::handles::{self, Handle};
use super::lock::Exclusive;
use super::memory::{In, InArray, Out, OutArray};
use super::model::read_path;
use super::status::{Fault, Status};
use super::store::Store;
use super::types::{Expert, PoolOptions, PoolStats};
use crate::base::limits::{READ_STALL_MAX, READS_IN_FLIGHT_MAX};
use crate::base::region::{HostRegion, page_bytes};
use crate::disk;
use crate::expert::host_pool::{HostPoolStats, Progress, Residency, Urgency};
use crate::expert::{HostPool, HostPoolOptions, Policy};

/// A wait looks up at least so often: another thread may have taken in what this one waits for.
const LOOK_UP: Duration = Duration::from_millis(20);

/// A pool, which several threads may use.
pub(super) struct Pool {
    state: Exclusive<HostPool>,
    /// The pool's own, so that a thread can wait while others use the pool.
    wake: OwnedFd,
    /// Threads that wait.
    waiting: AtomicU32,
    /// Lives as long as anything may still read into memory that the caller lent.
    lent: Weak<()>,
    pub(super) errors: LastError,
}

impl Pool {
    /// Whether a call of this thread is using it.
    pub(super) fn is_held_here(&self) -> bool {
        self.state.is_held_here()
    }

    /// Lets go of it; the last to do so waits for its reads.
    ///
    /// # Errors
    /// [`Status::Timeout`] when memory of the caller is still being read into.
    pub(super) fn end(pool: Arc<Self>) -> Result<(), Fault> {
        let Some(pool) = Arc::into_inner(pool) else { return Ok(()) };
        let lent = pool.lent.clone();
        drop(pool);
        check_given_back(&lent)
    }

    /// Takes in what has ended, and tells how far a request is.
    fn look(&self, request: u64) -> Result<Progress, Fault> {
        let mut state = self.state.enter()?;
        // A request that is not there is told before anything else.
        if state.progress(request)? == Progress::Ready {
            return Ok(Progress::Ready);
        }
        state.take_in()?;
        Ok(state.progress(request)?)
    }

    fn wait(&self, request: u64, until: Option<Instant>) -> Result<(), Fault> {
        loop {
            if self.look(request)? == Progress::Ready {
                return Ok(());
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Fault::new(Status::Timeout, format!("request {request} is still being read")));
            }
            // With others waiting, one of them may empty the eventfd and take in what this one waits for.
            let others = self.waiting.fetch_add(1, Ordering::Relaxed) > 0;
            let at_most = if others { Duration::from_millis(1) } else { LOOK_UP };
            disk::wait_eventfd(self.wake.as_fd(), at_most.min(left.unwrap_or(at_most)));
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A read that outlives its queue keeps its buffer, and with it what it was lent by.
fn check_given_back(lent: &Weak<()>) -> Result<(), Fault> {
    if lent.strong_count() == 0 {
        return Ok(());
    }
    let text = format!(
        "reads of the pool did not end within {} s and may still write into the memory that was lent to it: the pool is gone, \
         leave that memory mapped and never use it again",
        READ_STALL_MAX.as_secs()
    );
    Err(Fault::new(Status::Timeout, text))
}

/// The caller's memory as a region, and what tells how long it is used; neither for null.
fn lent(memory: *mut c_void, len_bytes: usize) -> Result<(Option<HostRegion>, Weak<()>), Fault> {
    let Some(start) = NonNull::new(memory.cast::<u8>()) else { return Ok((None, Weak::new())) };
    let page = page_bytes();
    if !start.addr().get().is_multiple_of(page) {
        return Err(Fault::argument(format!(
            "memory is at {memory:?}, wanted the beginning of a page of {page} B"
        )));
    }
    if len_bytes == 0 || isize::try_from(len_bytes).is_err() {
        return Err(Fault::argument(format!("memory_bytes is {len_bytes}")));
    }
    let keep = Arc::new(());
    let watch = Arc::downgrade(&keep);
    // SAFETY:
    // - Page-aligned and of a possible length, checked above.
    // - By the header the caller leaves the memory mapped, and neither reads nor writes it but where a held request's experts
    //   lie, which it only reads, until the pool was freed with success, which it is not while `keep` lives.
    let region = unsafe { HostRegion::from_mapped(start, len_bytes, keep) };
    Ok((Some(region), watch))
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_options_init(options: Out<PoolOptions>, struct_size: usize) -> Status {
    guard::run(None, || options.init(struct_size, "options"))
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_create(
    store: Handle,
    options: In<PoolOptions>,
    pool: Out<Handle>,
) -> Status {
    handles::with::<Store>(store, |store| {
        let target = pool.need("pool")?;
        target.set(0);
        let options = options.read("options")?;
        let how = HostPoolOptions {
            slots: options.slots,
            depth: if options.depth == 0 { READS_IN_FLIGHT_MAX } else { options.depth },
            read_path: read_path(options.read_path)?,
            policy: Policy::default(),
            skip_checks: options.skip_checks != 0,
        };
        let (region, lent) = lent(options.memory, options.memory_bytes)?;
        let pool = HostPool::open(store.source.clone(), &how, region)?;
        let wake = pool.wake().try_clone_to_owned();
        let wake = wake.map_err(|source| disk::DiskError::WakeRefused { source })?;
        target.set(handles::add(Pool {
            state: Exclusive::brief("pool", pool),
            wake,
            waiting: AtomicU32::new(0),
            lent,
            errors: LastError::default(),
        }));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_free(pool: Handle) -> Status {
    handles::free::<Pool>(pool)
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_request(
    pool: Handle,
    layer: u32,
    experts: InArray<u32>,
    expert_count: usize,
    priority: i32,
    request: Out<u64>,
) -> Status {
    handles::with::<Pool>(pool, |pool| {
        let (experts, target) = (experts.slice(expert_count, "experts")?, request.get("request")?);
        let urgency = match priority {
            0 => Urgency::Needed,
            1 => Urgency::Guess,
            other => return Err(Fault::argument(format!("priority is {other}, wanted 0 or 1"))),
        };
        let mut state = pool.state.enter()?;
        let number = state.request(layer, experts, urgency)?;
        match target {
            Some(target) => target.set(number),
            None => state.release(number)?,
        }
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_poll(pool: Handle, request: u64, is_ready: Out<i32>) -> Status {
    handles::with::<Pool>(pool, |pool| {
        let target = is_ready.get("is_ready")?;
        if request == 0 {
            let mut state = pool.state.enter()?;
            state.take_in()?;
            if let Some(target) = target {
                target.set(i32::from(!state.is_reading()));
            }
            return Ok(());
        }
        let progress = pool.look(request)?;
        if let Some(target) = target {
            target.set(i32::from(progress == Progress::Ready));
        }
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_wait(pool: Handle, request: u64, timeout_ms: i64) -> Status {
    handles::with::<Pool>(pool, |pool| {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        pool.wait(request, timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_experts(
    pool: Handle,
    request: u64,
    experts: OutArray<Expert>,
    capacity: usize,
    count: Out<usize>,
) -> Status {
    handles::with::<Pool>(pool, |pool| {
        let state = pool.state.enter()?;
        let experts_found = state.experts(request)?.map(|matrices| {
            let [gate, up, down] = matrices.map(|bytes| bytes.as_ptr().cast::<c_void>());
            Expert { gate, up, down }
        });
        experts.fill_from(capacity, experts_found, &count)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_release(pool: Handle, request: u64) -> Status {
    handles::with::<Pool>(pool, |pool| Ok(pool.state.enter()?.release(request)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_eventfd(pool: Handle, descriptor: Out<i32>) -> Status {
    handles::with::<Pool>(pool, |pool| {
        let target = descriptor.need("descriptor")?;
        target.set(pool.wake.as_raw_fd());
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_residency(
    pool: Handle,
    layer: u32,
    experts: InArray<u32>,
    expert_count: usize,
    states: OutArray<i32>,
    capacity: usize,
    count: Out<usize>,
) -> Status {
    handles::with::<Pool>(pool, |pool| {
        let experts = experts.slice(expert_count, "experts")?;
        let state = pool.state.enter()?;
        let found =
            experts.iter().map(|&expert| state.residency(layer, expert)).collect::<Result<Vec<_>, _>>()?;
        let states_found = found.into_iter().map(|residency| match residency {
            Residency::Absent => 0,
            Residency::Reading => 1,
            Residency::Resident => 2,
        });
        states.fill_from(capacity, states_found, &count)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_pool_stats_get(pool: Handle, stats: Out<PoolStats>) -> Status {
    handles::with::<Pool>(pool, |pool| {
        stats.need("stats")?;
        let state = pool.state.enter()?;
        let HostPoolStats { hits, misses, evictions, requests, resident } = state.stats();
        let (drive, checks) = (state.read_counters(), state.check_stats());
        let answer = PoolStats {
            hits,
            misses,
            evictions,
            requests,
            resident: resident.into(),
            drive_reads: drive.reads,
            drive_failed: drive.failed,
            drive_retries: drive.retries,
            drive_read_bytes: drive.read_bytes,
            drive_busy_ns: drive.busy_ns,
            checked_bytes: checks.bytes,
            second_reads: checks.second_reads,
            ..PoolStats::default()
        };
        stats.fill(&answer, "stats")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_memory_is_given_back_only_when_no_read_has_a_part_of_it() {
        let own = HostRegion::new(2 * page_bytes()).unwrap();
        let (region, watch) = lent(own.base().as_ptr().cast(), own.len_bytes()).ok().unwrap();
        let mut buffers = region.unwrap().split(page_bytes(), 2);
        assert_eq!(check_given_back(&watch).err().map(|fault| fault.status), Some(Status::Timeout));
        let stalled = buffers.pop();
        drop(buffers);
        assert_eq!(check_given_back(&watch).err().map(|fault| fault.status), Some(Status::Timeout));
        drop(stalled);
        assert!(check_given_back(&watch).is_ok());
    }

    #[test]
    fn memory_of_the_pool_itself_is_nobody_elses_to_wait_for() {
        let (region, watch) = lent(std::ptr::null_mut(), 0).ok().unwrap();
        assert!(region.is_none() && check_given_back(&watch).is_ok());
    }
}
