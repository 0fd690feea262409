//! glibc's malloc, by its names for libraries that replace the usual ones.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

#[cfg(not(target_env = "gnu"))]
compile_error!("requires glibc's malloc");

unsafe extern "C" {
    pub(crate) fn __libc_malloc(bytes: usize) -> *mut c_void;
    pub(crate) fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    pub(crate) fn __libc_realloc(block: *mut c_void, bytes: usize) -> *mut c_void;
    pub(crate) fn __libc_memalign(align_bytes: usize, bytes: usize) -> *mut c_void;
    pub(crate) fn __libc_free(block: *mut c_void);
}

/// glibc guarantees this, for all types of C.
const NATURAL_ALIGN: usize = 16;

/// Allocates the memory of this library itself, which must not be in the heap.
struct Glibc;

#[cfg_attr(not(test), global_allocator)]
#[cfg_attr(test, expect(dead_code, reason = "tests do not replace malloc"))]
static GLIBC: Glibc = Glibc;

// SAFETY: glibc's malloc returns blocks that do not overlap, of the requested length and alignment, or null.
unsafe impl GlobalAlloc for Glibc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= NATURAL_ALIGN {
            // SAFETY: any length may be requested.
            return unsafe { __libc_malloc(layout.size()) }.cast();
        }
        // SAFETY: as above, and an alignment of `Layout` is a power of two.
        unsafe { __libc_memalign(layout.align(), layout.size()) }.cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller has it from one of the above.
        unsafe { __libc_free(block.cast()) }
    }
}

/// `malloc_usable_size` of a block of glibc, which has no second name for it. It is looked up in glibc itself: the next library with this name
/// may be another malloc that the program is linked with.
///
/// # Safety
/// `block` is allocated, by glibc.
pub(crate) unsafe fn usable_bytes(block: *mut c_void) -> usize {
    type Usable = unsafe extern "C" fn(*mut c_void) -> usize;
    static USABLE: OnceLock<Option<Usable>> = OnceLock::new();
    let usable = USABLE.get_or_init(|| {
        let found = symbol(c"libc.so.6", c"malloc_usable_size");
        // SAFETY: null is `None`, and glibc's symbol of this name is such a function.
        unsafe { core::mem::transmute::<*mut c_void, Option<Usable>>(found) }
    });
    // SAFETY: the caller's promise.
    usable.map_or(0, |usable| unsafe { usable(block) })
}

/// The symbol of this name in a loaded library, or null.
pub(crate) fn symbol(library: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends in a zero. This loads nothing.
    let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return library;
    }
    // SAFETY: the handle is open, and stays so.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: every thread has one.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's alone.
    unsafe { *location = errno }
}

/// `errno`, which successful functions must not change.
pub(crate) fn errno() -> c_int {
    // SAFETY: every thread has one.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's alone.
    unsafe { *location }
}
