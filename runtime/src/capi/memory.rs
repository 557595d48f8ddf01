//! What C callers hand over, as Rust sees it: the one place of the boundary that follows their pointers.
//!
//! - Owns: nothing. In: pointers as they came. Out: references for the length of a call, places to write answers to.
//! - Invariants: a value of these types with a pointer in it can only come from a C caller, as a function's parameter or a
//!   field of a parameter: nothing here makes one but the null pointer of `Default`. So its pointer is what the header asks of
//!   that argument: null, or valid for what it is used for until the call returns. What a caller has not written yet is never
//!   read, and no reference to it is made.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

use super::status::{Fault, Status};

/// Plain data whose every bit pattern is a value, and whose first member is its size in bytes.
///
/// # Safety
/// `repr(C)`, no padding that matters, a `usize` first, and only integers, floats, [`In`] and such, and callbacks behind it.
pub(super) unsafe trait Versioned: Copy + Default {
    /// Where each member ends, ascending.
    fn ends() -> impl Iterator<Item = usize>;

    /// The bytes of the whole members that `size` bytes of it hold: never half a pointer.
    fn whole(size: usize) -> usize {
        Self::ends().take_while(|&end| end <= size).last().unwrap_or(0)
    }
}

/// A pointer to one value that is read, or null.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct In<T>(*const T);

/// A pointer to values that are read, or null; their number comes beside it.
#[derive(Debug)]
#[repr(transparent)]
pub struct InArray<T>(*const T);

/// A pointer to a text that ends in NUL, or null.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct InText(*const c_char);

/// A pointer to where one value is written, or null.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

/// A pointer to where values are written, or null; how many there is room for comes beside it.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct OutArray<T>(*mut T);

/// A pointer to values that are read and written, or null; their number comes beside it.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct InOutArray<T>(*mut T);

impl<T> Clone for InArray<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for InArray<T> {}

impl<T> Default for InArray<T> {
    fn default() -> Self {
        Self(std::ptr::null())
    }
}

impl Default for InText {
    fn default() -> Self {
        Self(std::ptr::null())
    }
}

fn missing(what: &str) -> Fault {
    Fault::argument(format!("{what} is null"))
}

/// No struct of any version is as large: a caller who did not set the size is told so, where what lies there is no number of bytes.
const STRUCT_BYTES_MAX: usize = 64 << 10;

fn check_size(size: usize, what: &str) -> Result<(), Fault> {
    if (size_of::<usize>()..=STRUCT_BYTES_MAX).contains(&size) {
        return Ok(());
    }
    Err(Fault::argument(format!(
        "{what}: struct_size is {size}: set it to sizeof, or call its _init function"
    )))
}

impl<T: Versioned> In<T> {
    /// The caller's struct, or the default where there is none. Members that the caller's header does not have are the default's.
    ///
    /// # Errors
    /// [`Status::Argument`] for a size below that of the first member, [`Status::Abi`] when the caller's header has members
    /// that this library has not, and they are set.
    pub(super) fn read(&self, what: &str) -> Result<T, Fault> {
        let mut value = T::default();
        if self.0.is_null() {
            return Ok(value);
        }
        check_array(self.0, 1, what)?;
        // SAFETY: not null, so by the module's invariant a struct that begins with its size; aligned, checked above.
        let size = unsafe { self.0.cast::<usize>().read() };
        check_size(size, what)?;
        let known = T::whole(size);
        // SAFETY:
        // - The caller says that its struct has `size` bytes, and `known` is at most that and at most what `value` has.
        // - Every bit pattern of `T`'s members is a value of theirs, by `Versioned`; the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.0.cast::<u8>(), (&raw mut value).cast::<u8>(), known) };
        let beyond: InArray<u8> = InArray(self.0.cast::<u8>().wrapping_add(known));
        if beyond.slice(size - known, what)?.iter().any(|&byte| byte != 0) {
            let text =
                format!("{what} has members that this library, version {}, does not know", super::VERSION);
            return Err(Fault::new(Status::Abi, text));
        }
        Ok(value)
    }
}

impl<T> InArray<T> {
    /// The values; none is an empty slice, whatever the pointer.
    ///
    /// # Errors
    /// When there are some and the pointer is null or not aligned, or they are more than the address space holds.
    pub(super) fn slice(&self, len: usize, what: &str) -> Result<&[T], Fault> {
        check_array(self.0, len, what)?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY:
        // - Not null, aligned, and below `isize::MAX` bytes: checked above.
        // - By the module's invariant `len` values are there, and nobody changes them before the call returns, which
        //   `self`, a parameter of the call, does not outlive.
        Ok(unsafe { std::slice::from_raw_parts(self.0, len) })
    }
}

impl InArray<c_char> {
    /// A text of `len` bytes.
    ///
    /// # Errors
    /// As [`InArray::slice`], and when it is not UTF-8.
    pub(super) fn text(&self, len: usize, what: &str) -> Result<&str, Fault> {
        // The lifetime is `self`'s, through the array of bytes that lies where the characters do.
        let bytes = self.slice(len, what)?;
        std::str::from_utf8(bytemuck::cast_slice(bytes))
            .map_err(|error| Fault::argument(format!("{what} is not UTF-8: {error}")))
    }
}

fn check_array<T>(at: *const T, len: usize, what: &str) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    if at.is_null() {
        return Err(missing(what));
    }
    if !at.is_aligned() {
        return Err(Fault::argument(format!("{what} lies at {at:?}, which is not aligned")));
    }
    let is_possible = len.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if is_possible { Ok(()) } else { Err(Fault::argument(format!("{what}: {len} is no count"))) }
}

impl InText {
    /// The text; `None` for null.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub(super) fn get(&self, what: &str) -> Result<Option<&str>, Fault> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: not null, so by the module's invariant a text that ends in NUL and stays as it is during the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        match text.to_str() {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(Fault::argument(format!("{what} is not UTF-8: {error}"))),
        }
    }

    /// The text, which must be there.
    ///
    /// # Errors
    /// When it is null or not UTF-8.
    pub(super) fn need(&self, what: &str) -> Result<&str, Fault> {
        self.get(what)?.ok_or_else(|| missing(what))
    }
}

/// A place of the caller that takes one value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot<'a, T>(*mut T, PhantomData<&'a ()>);

impl<T: Copy> Out<T> {
    /// Whether the caller does not want it.
    pub(super) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The place, which must be there.
    ///
    /// # Errors
    /// When it is null or not aligned.
    pub(super) fn need(&self, what: &str) -> Result<Slot<'_, T>, Fault> {
        self.get(what)?.ok_or_else(|| missing(what))
    }

    /// The place; `None` for null.
    ///
    /// # Errors
    /// When it is not aligned.
    pub(super) fn get(&self, what: &str) -> Result<Option<Slot<'_, T>>, Fault> {
        if self.0.is_null() {
            return Ok(None);
        }
        check_array(self.0, 1, what)?;
        Ok(Some(Slot(self.0, PhantomData)))
    }
}

impl<T: Copy> Slot<'_, T> {
    /// Writes the value.
    pub(super) fn set(self, value: T) {
        // SAFETY: made by `Out::get` of a pointer that is neither null nor unaligned: the caller's place for one `T`, until
        // the call returns. It is written without being read.
        unsafe { self.0.write(value) };
    }
}

impl<T: Versioned> Out<T> {
    /// Makes the caller's struct, of which `size` bytes are there, the default. Only for `_init` functions.
    ///
    /// # Errors
    /// When it is null, or `size` is below that of the first member.
    pub(super) fn init(&self, size: usize, what: &str) -> Result<(), Fault> {
        check_size(size, what)?;
        self.need(what)?;
        self.write_sized(&T::default(), size);
        Ok(())
    }

    /// Fills as much of the caller's struct as its `struct_size` says that there is, with `value`.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(super) fn fill(&self, value: &T, what: &str) -> Result<(), Fault> {
        self.write_sized(value, self.check(what)?);
        Ok(())
    }

    /// The size of the caller's struct, for calls that want to know early whether it can be filled.
    ///
    /// # Errors
    /// When it is null, or its `struct_size` is none.
    pub(super) fn check(&self, what: &str) -> Result<usize, Fault> {
        self.need(what)?;
        // SAFETY: not null and aligned, checked above; by the header the first member, the size, was set by the caller.
        let size = unsafe { self.0.cast::<usize>().read() };
        check_size(size, what)?;
        Ok(size)
    }

    fn write_sized(&self, value: &T, size: usize) {
        let known = T::whole(size);
        let bytes = self.0.cast::<u8>();
        // SAFETY: the caller's struct has `size` bytes, not less than `known`, and is none of ours.
        unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), bytes, known) };
        // SAFETY: the rest of the same bytes.
        unsafe { bytes.wrapping_add(known).write_bytes(0, size - known) };
        // SAFETY: the first member, aligned, of a struct that is not shorter.
        unsafe { self.0.cast::<usize>().write(size) };
    }
}

impl<T: Copy> OutArray<T> {
    /// Writes `items` if there is room for all, and in any case their number to `count`.
    ///
    /// # Errors
    /// [`Status::Buffer`] when there is no room; then nothing was written but the number.
    pub(super) fn fill(&self, capacity: usize, items: &[T], count: &Out<usize>) -> Result<(), Fault> {
        self.fill_from(capacity, items.iter().copied(), count)
    }

    /// As [`Self::fill`], of what an iterator gives.
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub(super) fn fill_from(
        &self,
        capacity: usize,
        items: impl ExactSizeIterator<Item = T>,
        count: &Out<usize>,
    ) -> Result<(), Fault> {
        let count = count.need("count")?;
        check_array(self.0, capacity, "the buffer")?;
        count.set(items.len());
        if items.len() > capacity {
            let text = format!("{} are to be written and there is room for {capacity}", items.len());
            return Err(Fault::new(Status::Buffer, text));
        }
        for (index, item) in items.take(capacity).enumerate() {
            // SAFETY: there is room for `capacity` values, more than `index`; aligned; none of our memory.
            unsafe { self.0.wrapping_add(index).write(item) };
        }
        Ok(())
    }
}

impl OutArray<c_char> {
    /// Writes `text` if there is room for all of it, and in any case its bytes to `count`; where there is more room, a NUL behind
    /// it.
    ///
    /// # Errors
    /// As [`OutArray::fill`].
    pub(super) fn fill_text(&self, capacity: usize, text: &str, count: &Out<usize>) -> Result<(), Fault> {
        let bytes: &[c_char] = bytemuck::cast_slice(text.as_bytes());
        self.fill(capacity, bytes, count)?;
        if capacity > bytes.len() {
            // SAFETY: within the capacity, by the comparison; `fill` found the pointer to be a buffer of that length.
            unsafe { self.0.wrapping_add(bytes.len()).write(0) };
        }
        Ok(())
    }

    /// Writes as much of `text` as there is room for with a NUL behind it; never a part of a character.
    pub(super) fn fill_start(&self, capacity: usize, text: &str) {
        if self.0.is_null() || capacity == 0 {
            return;
        }
        let len = text.floor_char_boundary(capacity - 1);
        // SAFETY: `len` is below the capacity, and not above the text's own length; none of our memory.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast::<u8>(), len) };
        // SAFETY: as above, one byte further.
        unsafe { self.0.wrapping_add(len).write(0) };
    }
}

impl<T: Copy> InOutArray<T> {
    /// The values.
    ///
    /// # Errors
    /// As [`InArray::slice`].
    pub(super) fn slice(&mut self, len: usize, what: &str) -> Result<&mut [T], Fault> {
        check_array(self.0, len, what)?;
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `InArray::slice`; that nobody else reads or writes them during the call is what the header asks.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, len) })
    }
}
