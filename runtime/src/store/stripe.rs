//! A part of a store on another drive.
//!
//! - Owns: the form of `stripe.json`, which says whose part a folder is. In: the folder that a manifest names.
//! - Out: that folder, or in plain words what is wrong: the drive is missing, or another store's part lies there.
//! - Invariants: nothing of a stripe is believed that its manifest does not say; this file only makes the error plain.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::store::digest::Sha256Digest;
use crate::store::error::{StoreError, io_error};

/// The description in the stripe's folder.
pub(super) const STRIPE_NAME: &str = "stripe.json";

/// Longest description that is read.
const STRIPE_BYTES_MAX: u64 = 4096;

const FORMAT: &str = "flint-rt stripe";

/// All of `stripe.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stripe {
    format: String,
    store_id: Sha256Digest,
    index: u64,
}

impl Stripe {
    pub(super) fn new(store_id: Sha256Digest, index: usize) -> Self {
        Self { format: FORMAT.to_owned(), store_id, index: index as u64 }
    }

    /// What stands in the file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("invariant: plain fields always serialize");
        bytes.push(b'\n');
        bytes
    }
}

/// Gives `folder` when it is there and holds part `index` of the store at `store`.
pub(super) fn check<'a>(
    folder: &'a Path,
    store: &Path,
    store_id: Sha256Digest,
    index: usize,
) -> Result<&'a Path, StoreError> {
    let path = folder.join(STRIPE_NAME);
    let missing = || StoreError::StripeMissing { folder: folder.to_owned(), store: store.to_owned() };
    let foreign = || StoreError::StripeForeign { folder: folder.to_owned(), store: store.to_owned() };
    let bytes = match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() && metadata.len() <= STRIPE_BYTES_MAX => {
            std::fs::read(&path).map_err(io_error("read", &path))?
        }
        Ok(_) => return Err(foreign()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(missing());
        }
        Err(error) => return Err(io_error("look up", &path)(error)),
    };
    let found: Option<Stripe> = serde_json::from_slice(&bytes).ok();
    if found == Some(Stripe::new(store_id, index)) { Ok(folder) } else { Err(foreign()) }
}
