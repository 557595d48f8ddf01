//! Threads of a pass. The kernel may refuse one, which is an error to report and no reason to panic.

use std::thread::{Builder, Scope};

use crate::store::error::StoreError;

/// Starts `work` on a thread of `scope`.
///
/// # Errors
/// [`StoreError::Thread`] when the kernel refuses it; `work` is dropped then.
pub(super) fn start_thread<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> Result<(), StoreError> {
    let started = Builder::new().spawn_scoped(scope, work);
    started.map(|_| ()).map_err(|source| StoreError::Thread { source })
}
