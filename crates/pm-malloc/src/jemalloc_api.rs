//! What programs call that are linked with jemalloc: its own functions for blocks, by the names that it has for them.
//!
//! Such a program passes what `malloc` gave it to these, and what these gave it to `free`, so both must be of one kind.
//! jemalloc(3) says what they do. Its `mallctl` and its statistics stay its own: they tell of a heap that is empty.

use crate::c_api::{LINE_BYTES, calloc, free, malloc, malloc_usable_size, memalign, realloc, resize};
use crate::serving::{owner_of, serving};
use core::ffi::{c_int, c_void};
use pm_alloc::layout::Layout;

/// The alignment in flags, as a power of two: the low six bits.
const fn align_bytes(flags: c_int) -> usize {
    1 << (flags & 0x3f)
}

/// Whether what is new is to be zeroes.
const fn is_zeroed(flags: c_int) -> bool {
    flags & 0x40 != 0
}

/// A block with flags.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mallocx(bytes: usize, flags: c_int) -> *mut c_void {
    let align_bytes = align_bytes(flags);
    if align_bytes <= 16 {
        return if is_zeroed(flags) { calloc(1, bytes) } else { malloc(bytes) };
    }
    let block = memalign(align_bytes, bytes);
    if is_zeroed(flags) && !block.is_null() {
        // SAFETY: a new block has so many bytes, and no other thread has its address.
        unsafe { block.write_bytes(0, bytes) };
    }
    block
}

/// The same block with room for `bytes` bytes, or another one with its contents.
///
/// # Safety
/// As [`free`], and `block` is not null.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn rallocx(block: *mut c_void, bytes: usize, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's promise.
    let room = unsafe { malloc_usable_size(block) };
    let new = if align_bytes(flags) <= 16 {
        // SAFETY: the caller's promise.
        unsafe { realloc(block, bytes.max(1)) }
    } else {
        let new = mallocx(bytes, flags);
        if new.is_null() {
            return new;
        }
        // SAFETY: both have so many bytes, and a new block overlaps no other.
        unsafe { new.cast::<u8>().copy_from_nonoverlapping(block.cast(), room.min(bytes)) };
        // SAFETY: the caller's promise.
        unsafe { free(block) };
        new
    };
    if is_zeroed(flags) && bytes > room && !new.is_null() {
        // SAFETY: the block has `bytes` bytes now.
        let added = unsafe { new.cast::<u8>().add(room) };
        // SAFETY: as above.
        unsafe { added.write_bytes(0, bytes - room) };
    }
    new
}

/// Makes a block longer or shorter where it is, by `extra` bytes more if that can be, and says how many bytes it has room for then.
///
/// # Safety
/// As [`rallocx`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn xallocx(block: *mut c_void, bytes: usize, extra: usize, flags: c_int) -> usize {
    // SAFETY: the caller's promise.
    let room = unsafe { malloc_usable_size(block) };
    let Some((serving, offset)) = owner_of(block.cast()) else { return room };
    if bytes == room {
        return room;
    }
    let resized = resize(serving, offset, room, bytes.saturating_add(extra));
    let resized = resized.or_else(|| resize(serving, offset, room, bytes)).unwrap_or(room);
    if is_zeroed(flags) && resized > room {
        // SAFETY: the block has `resized` bytes now.
        let added = unsafe { block.cast::<u8>().add(room) };
        // SAFETY: as above.
        unsafe { added.write_bytes(0, resized - room) };
    }
    resized
}

/// How many bytes there is room for.
///
/// # Safety
/// As [`rallocx`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sallocx(block: *mut c_void, _flags: c_int) -> usize {
    // SAFETY: the caller's promise.
    unsafe { malloc_usable_size(block) }
}

/// Frees a block.
///
/// # Safety
/// As [`rallocx`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dallocx(block: *mut c_void, _flags: c_int) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

/// Frees a block of a length that the caller knows.
///
/// # Safety
/// As [`rallocx`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sdallocx(block: *mut c_void, _bytes: usize, _flags: c_int) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

/// How many bytes there would be room for in such a block, or fewer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn nallocx(bytes: usize, flags: c_int) -> usize {
    // Where glibc may serve, no more than was asked for is sure.
    if serving().is_none() || align_bytes(flags) > LINE_BYTES {
        return bytes;
    }
    let lines = Layout::lines_for(bytes as u64).and_then(|lines| u32::try_from(lines).ok());
    lines.and_then(|lines| usize::try_from(Layout::usable_bytes(lines)).ok()).unwrap_or(0)
}
