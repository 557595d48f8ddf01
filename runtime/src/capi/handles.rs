//! The table of what was made: a handle is a number that is never used twice, not an address.
//!
//! - Owns: every object that a caller made and has not freed. In: handles. Out: the object, or that there is none.
//! - Invariants: nothing behind a handle is ever followed, so a freed, foreign or made-up one is told apart from a good one, and
//!   so is one of another kind. An object that is freed while another thread uses it lives until that call ends. When the last
//!   object is freed, the table holds no memory.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::guard::{self, LastError};
use super::model::Model;
use super::pool::Pool;
use super::sampler::Sampler;
use super::session::Session;
use super::status::{Fault, Status};
use super::store::Store;

/// A handle as C holds it, in the clothes of a pointer.
pub type Handle = usize;

/// In front of every number: no address of a process begins so, on x86 and on ARM with 48 bits, so that a handle that is followed
/// faults at once and no address is taken for a handle.
const MARK: u64 = 0x8f17 << 48;

/// What a handle stands for.
pub(super) enum Object {
    Model(Arc<Model>),
    Session(Arc<Session>),
    Sampler(Arc<Sampler>),
    Store(Arc<Store>),
    Pool(Arc<Pool>),
}

struct Table {
    next: u64,
    objects: BTreeMap<Handle, Object>,
}

static TABLE: RwLock<Table> = RwLock::new(Table { next: 1, objects: BTreeMap::new() });

/// A kind of object.
pub(super) trait Kind: Sized {
    /// Its name.
    const NAME: &'static str;
    /// Puts it into the table's form.
    fn wrap(object: Arc<Self>) -> Object;
    /// The object, if it is of this kind.
    fn find(object: &Object) -> Option<&Arc<Self>>;
    /// Where its faults are kept.
    fn errors(&self) -> &LastError;
    /// Whether it may be freed now.
    ///
    /// # Errors
    /// When a call of this thread is using it.
    fn check_free(&self) -> Result<(), Fault>;
    /// Lets go of it; whoever is the last to do so ends it.
    ///
    /// # Errors
    /// What its end could not give back.
    fn end(object: Arc<Self>) -> Result<(), Fault> {
        drop(object);
        Ok(())
    }
}

macro_rules! kinds {
    ($($kind:ident $name:literal $(ends by $end:path)?;)*) => {
        $(impl Kind for $kind {
            const NAME: &'static str = $name;

            fn wrap(object: Arc<Self>) -> Object {
                Object::$kind(object)
            }

            fn find(object: &Object) -> Option<&Arc<Self>> {
                match object {
                    Object::$kind(object) => Some(object),
                    _ => None,
                }
            }

            fn errors(&self) -> &LastError {
                &self.errors
            }

            fn check_free(&self) -> Result<(), Fault> {
                if !self.is_held_here() {
                    return Ok(());
                }
                let text = concat!("the ", $name, " is in use by the call whose callback this is: free it later");
                Err(Fault::new(Status::Reentrant, text))
            }

            $(fn end(object: Arc<Self>) -> Result<(), Fault> {
                $end(object)
            })?
        })*

        impl Object {
            fn name(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $name,)*
                }
            }

            fn read_error<T>(&self, body: impl FnOnce(&str) -> T) -> T {
                match self {
                    $(Self::$kind(object) => object.errors.read(body),)*
                }
            }
        }
    };
}

kinds! {
    Model "model";
    Session "session";
    Sampler "sampler";
    Store "store";
    Pool "pool" ends by Pool::end;
}

fn lost(handle: Handle, wanted: &str) -> Fault {
    let text = match handle {
        0 => format!("the {wanted} is null"),
        _ => format!("{handle:#x} is no {wanted}: it was freed, or never made"),
    };
    Fault::new(Status::Handle, text)
}

/// Takes an object into the table.
pub(super) fn add<T: Kind>(object: T) -> Handle {
    let object = T::wrap(Arc::new(object));
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let number = table.next;
    table.next += 1;
    let handle = usize::try_from(MARK | number).expect("invariant: built for 64 bits");
    table.objects.insert(handle, object);
    handle
}

/// The object of `handle`.
///
/// # Errors
/// [`Status::Handle`] when there is none of this kind.
pub(super) fn find<T: Kind>(handle: Handle) -> Result<Arc<T>, Fault> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let object = table.objects.get(&handle).ok_or_else(|| lost(handle, T::NAME))?;
    T::find(object).cloned().ok_or_else(|| {
        let text = format!("the handle is that of a {}, wanted a {}", object.name(), T::NAME);
        Fault::new(Status::Handle, text)
    })
}

/// Runs a call on the object of `handle`.
pub(super) fn with<T: Kind>(handle: Handle, body: impl FnOnce(&Arc<T>) -> Result<(), Fault>) -> Status {
    let mut found = None;
    let looked = guard::run(None, || {
        found = Some(find::<T>(handle)?);
        Ok(())
    });
    let Some(object) = found else { return looked };
    let status = guard::run(Some(object.errors()), || body(&object));
    // If it was freed meanwhile, this is its end, which may meet a fault of its own.
    match guard::run(None, move || T::end(object)) {
        Status::Ok => status,
        fault => fault,
    }
}

/// Takes the object of `handle` out of the table; null is nothing to free.
pub(super) fn free<T: Kind>(handle: Handle) -> Status {
    guard::run(None, || {
        if handle == 0 {
            return Ok(());
        }
        let found = find::<T>(handle)?;
        found.check_free()?;
        let removed = {
            let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
            let object = table.objects.remove(&handle);
            if table.objects.is_empty() {
                table.objects = BTreeMap::new();
            }
            object
        };
        // Two threads may have freed it at once, and either may be the last that has it.
        let is_ours = removed.is_some();
        drop(removed);
        T::end(found)?;
        if is_ours { Ok(()) } else { Err(lost(handle, T::NAME)) }
    })
}

/// Runs `body` with the text of the last fault of the object of `handle`.
///
/// # Errors
/// [`Status::Handle`] when there is no such object.
pub(super) fn read_error<T>(handle: Handle, body: impl FnOnce(&str) -> T) -> Result<T, Fault> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let object = table.objects.get(&handle).ok_or_else(|| lost(handle, "object"))?;
    Ok(object.read_error(body))
}
