//! The user's folders, by the XDG base directory specification.
//!
//! In: the environment. Out: paths, nothing made yet.

use std::path::PathBuf;

/// Where stores are: `$XDG_DATA_HOME/flint-rt`, else `~/.local/share/flint-rt`; nothing where there is no home.
pub(crate) fn store_dir() -> Option<PathBuf> {
    of_user("XDG_DATA_HOME", ".local/share")
}

/// Where compiled pipelines are kept: `$XDG_CACHE_HOME/flint-rt`, else `~/.cache/flint-rt`.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    of_user("XDG_CACHE_HOME", ".cache")
}

/// Where the digests of files and the profiles of drives are remembered: `$XDG_STATE_HOME/flint-rt`, else `~/.local/state/flint-rt`.
pub(crate) fn state_dir() -> Option<PathBuf> {
    of_user("XDG_STATE_HOME", ".local/state")
}

fn of_user(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The specification has relative paths ignored.
    let base = absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))?;
    Some(base.join("flint-rt"))
}
