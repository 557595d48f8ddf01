//! The folders of a store that is spread over drives, while it is made.
//!
//! - Owns: the folders `NAME.stripe.partial` on the drives. In: what the caller named. Out: folders to write into, then
//!   under their names.
//! - Invariants: a stripe takes its name before the store does, so a store that is there has all its stripes.

use std::path::{Path, PathBuf};

use crate::store::digest::Sha256Digest;
use crate::store::drive::{Drive, Entry};
use crate::store::error::{StoreError, folder_error, io_error};
use crate::store::journal::{begun_task, write_whole};
use crate::store::manifest::STRIPES_MAX;
use crate::store::options::IngestOptions;
use crate::store::publish::{Target, entry, folder_of, sync_folder};
use crate::store::real_drive::RealDrive;
use crate::store::stripe::{STRIPE_NAME, Stripe};

/// The folder of one experts file.
#[derive(Debug, Clone)]
pub(super) struct StripeFolder {
    /// Its name in the end; `None`: the store's own folder.
    path: Option<PathBuf>,
    index: usize,
}

/// The folders that `options` names, one for each experts file.
pub(super) fn folders(
    drive: &dyn Drive,
    target: &Target,
    options: &IngestOptions,
) -> Result<Vec<StripeFolder>, StoreError> {
    if options.stripes.is_empty() {
        return Ok(vec![StripeFolder { path: None, index: 0 }]);
    }
    let refuse = |path: &Path, reason| StoreError::StripeFolder { path: path.to_owned(), reason };
    if options.stripes.len() > STRIPES_MAX {
        let (found, limit) = (options.stripes.len() as u64, STRIPES_MAX as u64);
        return Err(StoreError::Limit { what: "the number of stripes", found, limit });
    }
    let mut folders: Vec<StripeFolder> = Vec::new();
    for (index, stripe) in options.stripes.iter().enumerate() {
        let shown = stripe.folder.as_deref().unwrap_or(&target.path);
        if !(stripe.weight.is_finite() && stripe.weight > 0.0) {
            return Err(refuse(shown, "its weight is not above zero"));
        }
        let path = match &stripe.folder {
            None => None,
            Some(folder) => {
                let folder = std::path::absolute(folder).map_err(io_error("name", folder))?;
                if !matches!(drive.entry(&folder.join(".")), Ok(Some(Entry::Folder))) {
                    return Err(refuse(&folder, "it is no folder; make it, or mount its drive, first"));
                }
                let is_plain = folder.to_str().is_some_and(|text| !text.contains(char::is_control));
                let has_parent = folder.components().any(|part| part == std::path::Component::ParentDir);
                if !is_plain || has_parent {
                    return Err(refuse(
                        &folder,
                        "its name is not UTF-8, or has control characters or .. in it",
                    ));
                }
                Some(stripe_path(&folder, target))
            }
        };
        if folders.iter().any(|other| other.path == path) {
            return Err(refuse(shown, "it is named twice"));
        }
        folders.push(StripeFolder { path, index });
    }
    Ok(folders)
}

/// The shares with which an interrupted ingest of `target_dir` was begun over these folders, in their order; `None` when
/// there is none, or it was begun otherwise. An ingest goes on only with equal shares, and a second measurement would give
/// others.
pub fn begun_weights(target_dir: &Path, folders: &[PathBuf]) -> Option<Vec<f64>> {
    let target = Target::check(&RealDrive, target_dir).ok()?;
    let task = begun_task(&RealDrive, &target.working_folder())?;
    let ours = folders.iter().map(|folder| Some(stripe_path(&std::path::absolute(folder).ok()?, &target)));
    let is_same = ours.eq(task.folders);
    let weights = task.weights.iter().map(|weight| weight.parse().ok()).collect::<Option<Vec<f64>>>()?;
    (is_same && weights.len() == folders.len()).then_some(weights)
}

/// The name in the end of the stripe of `target` in `folder`.
fn stripe_path(folder: &Path, target: &Target) -> PathBuf {
    folder.join(format!("{}.stripe", target.name))
}

impl StripeFolder {
    /// Its name in the end; `None`: the store's own folder.
    pub(super) fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    fn working(&self) -> Option<PathBuf> {
        self.path.as_ref().map(|path| path.with_added_extension("partial"))
    }

    /// Where its file is made: in `store` when it has no folder of its own.
    pub(super) fn place(&self, drive: &dyn Drive, store: &Path) -> Result<PathBuf, StoreError> {
        match (&self.path, self.working()) {
            // An ingest that was interrupted while it published may have renamed it.
            (Some(path), Some(working)) if entry(drive, &working)?.is_none() => Ok(path.clone()),
            (_, Some(working)) => Ok(working),
            _ => Ok(store.to_owned()),
        }
    }

    /// Makes the folder, with its description.
    pub(super) fn create(&self, drive: &dyn Drive, store_id: Sha256Digest) -> Result<(), StoreError> {
        let (Some(path), Some(working)) = (&self.path, self.working()) else { return Ok(()) };
        if entry(drive, path)?.is_some() {
            return Err(StoreError::TargetExists { path: path.clone() });
        }
        self.clear(drive)?;
        drive.create_folder(&working).map_err(folder_error(&working))?;
        write_whole(drive, &working.join(STRIPE_NAME), &Stripe::new(store_id, self.index).to_bytes())?;
        sync_folder(drive, &folder_of(&working))
    }

    /// Removes what an interrupted ingest left.
    pub(super) fn clear(&self, drive: &dyn Drive) -> Result<(), StoreError> {
        let Some(working) = self.working() else { return Ok(()) };
        drive.remove(&working).map_err(io_error("remove", &working))
    }

    /// Gives the folder, in which everything is synced, its name.
    pub(super) fn publish(&self, drive: &dyn Drive) -> Result<(), StoreError> {
        let (Some(path), Some(working)) = (&self.path, self.working()) else { return Ok(()) };
        if entry(drive, &working)?.is_some() {
            sync_folder(drive, &working)?;
            if entry(drive, path)?.is_some() {
                return Err(StoreError::TargetExists { path: path.clone() });
            }
            drive.rename(&working, path).map_err(io_error("rename", &working))?;
        }
        sync_folder(drive, &folder_of(path))
    }
}
