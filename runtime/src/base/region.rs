//! Page-aligned host memory (stand-in).

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What can go wrong when host memory is taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The kernel refused the mapping.
    #[error("no {len_bytes} B of host memory: {source}")]
    Refused {
        /// Bytes wanted.
        len_bytes: usize,
        /// The kernel's word.
        source: std::io::Error,
    },
}

struct Inner {
    id: u64,
    base: NonNull<u8>,
    len_bytes: usize,
    is_split: AtomicBool,
    keep_alive: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the memory is touched through exclusive pieces only.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.keep_alive.is_none() {
            // SAFETY: made by mmap in `new` with this length.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
        }
    }
}

/// A region.
#[derive(Clone)]
pub struct HostRegion(Arc<Inner>);

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl HostRegion {
    /// Anonymous memory.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(len_bytes: usize) -> Result<Self, RegionError> {
        let len_bytes = len_bytes.next_multiple_of(4096);
        // SAFETY: an anonymous mapping at a place of the kernel's choice.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(RegionError::Refused { len_bytes, source: std::io::Error::last_os_error() });
        }
        let base = NonNull::new(raw.cast()).expect("invariant: mmap gives no null");
        Ok(Self(Arc::new(Inner { id: next_id(), base, len_bytes, is_split: AtomicBool::new(false), keep_alive: None })))
    }

    /// Memory of someone else.
    ///
    /// # Safety
    /// `[ptr, len_bytes)` stays valid and unaliased as long as `keep_alive` lives.
    pub unsafe fn from_mapped(ptr: NonNull<u8>, len_bytes: usize, keep_alive: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Arc::new(Inner {
            id: next_id(),
            base: ptr,
            len_bytes,
            is_split: AtomicBool::new(false),
            keep_alive: Some(keep_alive),
        }))
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }

    /// Its first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// Exclusive pieces; once only.
    ///
    /// # Panics
    /// On the second call, or when they do not fit.
    pub fn split(&self, buffer_bytes: usize, count: usize) -> Vec<HostBuffer> {
        assert!(!self.0.is_split.swap(true, Ordering::Relaxed), "split twice");
        assert!(buffer_bytes * count <= self.len_bytes(), "pieces do not fit");
        (0..count).map(|i| HostBuffer { region: self.clone(), offset: i * buffer_bytes, len: buffer_bytes }).collect()
    }
}

/// An exclusive piece.
pub struct HostBuffer {
    region: HostRegion,
    offset: usize,
    len: usize,
}

impl HostBuffer {
    /// The region's number.
    pub fn region_id(&self) -> u64 {
        self.region.id()
    }

    /// Where it begins.
    pub fn offset_bytes(&self) -> usize {
        self.offset
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: inside the region, exclusive to this piece.
        unsafe { std::slice::from_raw_parts(self.region.base().as_ptr().add(self.offset), self.len) }
    }

    /// Its bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: inside the region, exclusive to this piece.
        unsafe { std::slice::from_raw_parts_mut(self.region.base().as_ptr().add(self.offset), self.len) }
    }
}
