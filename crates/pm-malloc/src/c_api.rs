//! The functions that C programs call. Each finds the allocator of a block, and forwards the call to it.

use crate::glibc::{
    __libc_calloc, __libc_free, __libc_malloc, __libc_memalign, __libc_realloc, errno, set_errno,
    usable_bytes,
};
use crate::serving::{self, Answer, Serving, owner_of};
use crate::thread;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use libc::{EINVAL, ENOMEM};

/// Blocks start at lines.
pub(crate) const LINE_BYTES: usize = 64;

/// A block that must move to grow gets up to an eighth more than requested, so that growth by steps does not copy it at each step; a block that
/// can stay takes up to a sixteenth of the free space after it. Shorter blocks are copied quickly.
const SPARE_FROM_BYTES: usize = 1024;

/// The longest block that C's pointers can be subtracted in.
const MAX_BYTES: usize = isize::MAX.cast_unsigned();

/// Runs when the library is loaded, before the program. Constructors of other libraries may have run before.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        let errno = errno();
        if serving::open() {
            // Before the first allocation.
            crate::fork::watch();
            serving::begin();
        }
        set_errno(errno);
    }
    start
};

/// Runs when the process ends by `exit`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        if let Some(serving) = serving::serving() {
            serving.name_at_exit();
        }
    }
    end
};

/// A block of at least `bytes` bytes. A block of 0 bytes has an address of its own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc(bytes: usize) -> *mut c_void {
    match serving::serving() {
        Some(serving) => allocate(serving, bytes, LINE_BYTES),
        // SAFETY: any length may be requested.
        None => unsafe { __libc_malloc(bytes) },
    }
}

/// A block of zeroes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    let Some(serving) = serving::serving() else {
        // SAFETY: any length may be requested.
        return unsafe { __libc_calloc(count, bytes) };
    };
    let Some(bytes) = count.checked_mul(bytes) else { return no_memory() };
    let block = allocate(serving, bytes, LINE_BYTES);
    if !block.is_null() {
        // SAFETY: a new block has so many bytes, and no other thread has its address.
        unsafe { block.write_bytes(0, bytes) };
    }
    block
}

/// Frees a block. Invalid and double frees are reported and ignored.
///
/// # Safety
/// `block` is null, or was allocated and not freed since. (This is checked for blocks in the heap.)
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(block: *mut c_void) {
    match owner_of(block.cast()) {
        Some((serving, offset)) => {
            let errno = errno();
            if serving::serving().is_some() {
                serving.free(offset);
            } else if thread::is_forking() {
                thread::free_later(offset);
            }
            // Else this is a child that was made without fork handlers, and the block belongs to its parent.
            set_errno(errno);
        }
        None => {
            let errno = errno();
            // SAFETY: the caller's promise; and it is not in the heap.
            unsafe { __libc_free(block) };
            set_errno(errno);
        }
    }
}

/// The same block with room for `bytes` bytes, or another one with its contents. With 0 bytes it is freed, as in glibc.
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    if block.is_null() {
        return malloc(bytes);
    }
    let Some((serving, offset)) = owner_of(block.cast()) else {
        // SAFETY: the caller's promise; and it is not in the heap.
        return unsafe { __libc_realloc(block, bytes) };
    };
    if bytes == 0 {
        // SAFETY: the caller's promise.
        unsafe { free(block) };
        return null_mut();
    }
    let Some(room) = serving.usable_bytes(offset, "realloc") else { return no_memory() };
    // A block that shrinks by more than half releases the rest.
    if bytes <= room && (bytes >= room / 2 || room <= 2 * LINE_BYTES) || bytes > MAX_BYTES {
        return if bytes > MAX_BYTES { no_memory() } else { block };
    }
    let errno = errno();
    if resize(serving, offset, room, bytes).is_some_and(|room| bytes <= room && bytes >= room / 2) {
        set_errno(errno);
        return block;
    }
    let spare = if grows_by_steps(room, bytes) { bytes / 8 } else { 0 };
    let mut new = malloc(bytes + spare);
    if new.is_null() && spare > 0 {
        new = malloc(bytes);
    }
    if new.is_null() {
        if bytes > room {
            return new;
        }
        set_errno(errno);
        return block;
    }
    // SAFETY: both have so many bytes, and a new block overlaps no other.
    unsafe { new.cast::<u8>().copy_from_nonoverlapping(block.cast(), room.min(bytes)) };
    // SAFETY: the caller's promise.
    unsafe { free(block) };
    set_errno(errno);
    new
}

/// Whether a block of `room` bytes gets more than requested, as it seems to grow by steps. A program that doubles its blocks needs no spare
/// space, whose pages would be allocated in vain.
const fn grows_by_steps(room: usize, bytes: usize) -> bool {
    bytes > room && bytes < room + room / 2 && bytes >= SPARE_FROM_BYTES
}

/// Resizes a block of `room` bytes in place. Returns its new room, if it has changed.
pub(crate) fn resize(serving: &Serving, offset: u64, room: usize, bytes: usize) -> Option<usize> {
    // The forking thread would deadlock.
    serving::serving()?;
    let spare = if grows_by_steps(room, bytes) { bytes / 16 } else { 0 };
    serving.resize(offset, bytes..=bytes + spare, "realloc")
}

/// As [`realloc`], of `count` times `bytes` bytes.
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => no_memory(),
    }
}

/// A block at a multiple of `align_bytes`, rounded up to a power of two.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align_bytes: usize, bytes: usize) -> *mut c_void {
    match (serving::serving(), align_bytes.checked_next_power_of_two()) {
        (_, None) => {
            set_errno(EINVAL);
            null_mut()
        }
        (Some(serving), Some(align_bytes)) => allocate(serving, bytes, align_bytes.max(LINE_BYTES)),
        // SAFETY: any length may be requested.
        (None, Some(align_bytes)) => unsafe { __libc_memalign(align_bytes, bytes) },
    }
}

/// A block at a multiple of `align_bytes`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align_bytes: usize, bytes: usize) -> *mut c_void {
    if !align_bytes.is_power_of_two() {
        set_errno(EINVAL);
        return null_mut();
    }
    memalign(align_bytes, bytes)
}

/// Stores the address of a block at a multiple of `align_bytes` in `out`, or leaves `out` unchanged and returns an error number. `errno` is
/// not changed.
///
/// # Safety
/// A pointer can be stored at `out`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align_bytes: usize, bytes: usize) -> c_int {
    if !align_bytes.is_power_of_two() || !align_bytes.is_multiple_of(size_of::<*mut c_void>()) {
        return EINVAL;
    }
    let errno = errno();
    let block = memalign(align_bytes, bytes);
    set_errno(errno);
    if block.is_null() {
        return ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(block) };
    0
}

/// A block at the start of a page.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn valloc(bytes: usize) -> *mut c_void {
    memalign(page_bytes(), bytes)
}

/// Whole pages.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    match bytes.max(1).checked_next_multiple_of(page_bytes()) {
        Some(bytes) => memalign(page_bytes(), bytes),
        None => no_memory(),
    }
}

/// Frees a block of known length.
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

/// Frees a block of known alignment and length.
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align_bytes: usize, _bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

/// The number of bytes that a block has room for.
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    match owner_of(block.cast()) {
        Some((serving, offset)) => serving.usable_bytes(offset, "malloc_usable_size").unwrap_or(0),
        // SAFETY: the caller's promise; and it is not in the heap.
        None => unsafe { usable_bytes(block) },
    }
}

fn allocate(serving: &Serving, bytes: usize, align_bytes: usize) -> *mut c_void {
    if bytes > MAX_BYTES {
        return no_memory();
    }
    match serving.allocate(bytes, align_bytes) {
        Answer::Block(block) => block.as_ptr().cast(),
        Answer::Full => no_memory(),
        // SAFETY: any length may be requested.
        Answer::Elsewhere => unsafe { __libc_memalign(align_bytes, bytes) },
    }
}

fn page_bytes() -> usize {
    rustix::param::page_size()
}

#[cold]
fn no_memory() -> *mut c_void {
    set_errno(ENOMEM);
    null_mut()
}
