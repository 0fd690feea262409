//! jemalloc's own functions, for programs that are linked with it.
//!
//! Such a program passes blocks of `malloc` to these functions, and their blocks to `free`, so both must use one allocator. jemalloc(3)
//! documents them. Its `mallctl` and its statistics are not replaced: they describe an empty heap.

use crate::c_api::{LINE_BYTES, calloc, free, malloc, malloc_usable_size, memalign, realloc, resize};
use crate::serving::{owner_of, serving};
use core::ffi::{c_int, c_void};
use pm_alloc::layout::Layout;

/// The alignment in flags, as a power of two: the low six bits.
const fn align_bytes(flags: c_int) -> usize {
    1 << (flags & 0x3f)
}

/// Whether new bytes are zeroed.
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

/// Resizes a block in place, by up to `extra` more bytes if possible, and returns its new room.
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

/// The number of bytes that a block has room for.
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

/// Frees a block of known length.
///
/// # Safety
/// As [`rallocx`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sdallocx(block: *mut c_void, _bytes: usize, _flags: c_int) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

/// The number of bytes that such a block would have room for, or fewer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn nallocx(bytes: usize, flags: c_int) -> usize {
    // If glibc may serve, only the requested bytes are certain.
    if serving().is_none() || align_bytes(flags) > LINE_BYTES {
        return bytes;
    }
    let lines = Layout::lines_for(bytes as u64).and_then(|lines| u32::try_from(lines).ok());
    lines.and_then(|lines| usize::try_from(Layout::usable_bytes(lines)).ok()).unwrap_or(0)
}
