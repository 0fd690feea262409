//! The operators `new` and `delete` of C++.
//!
//! The standard library's operators call `malloc` and `free`, and would suffice. But a program that is linked with another malloc uses that
//! one's operators, whose blocks are unknown to this library's C functions.

#![cfg_attr(test, expect(non_snake_case, reason = "names in the Itanium ABI"))]

use crate::c_api::{free, malloc, memalign};
use crate::glibc::symbol;
use core::ffi::{CStr, c_void};
use core::mem::{MaybeUninit, transmute};
use std::sync::OnceLock;

type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;

/// Calls the new handler, and throws `std::bad_alloc`, by calling the standard library's operator.
#[cold]
fn fail(bytes: usize) -> *mut c_void {
    let found = symbol(c"libstdc++.so.6", c"_Znwm");
    // SAFETY: null is `None`, and the library's symbol of this name is such a function.
    match unsafe { transmute::<*mut c_void, Option<New>>(found) } {
        // SAFETY: any length may be requested. It calls `malloc`, which fails again unless the handler has freed something.
        Some(new) => unsafe { new(bytes) },
        None => {
            crate::say(&"no memory for an operator new, and no C++ standard library to throw bad_alloc");
            std::process::abort();
        }
    }
}

fn allocate(bytes: usize, align_bytes: usize) -> *mut c_void {
    if align_bytes <= 16 { malloc(bytes) } else { memalign(align_bytes, bytes) }
}

fn allocate_or_fail(bytes: usize, align_bytes: usize) -> *mut c_void {
    let block = allocate(bytes, align_bytes);
    if !block.is_null() || align_bytes <= 16 {
        return if block.is_null() { fail(bytes) } else { block };
    }
    // The block of the ordinary operator is not aligned, but shows that there is space now.
    loop {
        let room = fail(bytes.saturating_add(align_bytes));
        // SAFETY: it is from `malloc`.
        unsafe { free(room) };
        let block = allocate(bytes, align_bytes);
        if !block.is_null() {
            return block;
        }
    }
}

/// Whether the program has an operator `new` or `delete` of its own. Then the other operators must call these, as those of the standard library do.
fn is_replaced() -> bool {
    static REPLACED: OnceLock<bool> = OnceLock::new();
    *REPLACED.get_or_init(|| {
        // A lookup by name finds the program's operators first, so the file of each is compared.
        let own = library_of(free_own as *const c_void);
        [c"_Znwm", c"_ZdlPv"].iter().any(|name| {
            // SAFETY: a name that ends in a zero.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            library_of(found) != own
        })
    })
}

/// The load address of the program or library that contains an address.
fn library_of(address: *const c_void) -> *const c_void {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be looked up, and there is room for the answer.
    unsafe { libc::dladdr(address, found.as_mut_ptr()) };
    // SAFETY: written by the above, or null pointers.
    unsafe { found.assume_init() }.dli_fbase
}

/// The standard library's operator of this name, if it must be called.
fn standard(known: &OnceLock<usize>, name: &CStr) -> Option<*mut c_void> {
    let found = || symbol(c"libstdc++.so.6", name).expose_provenance();
    let address = if is_replaced() { *known.get_or_init(found) } else { 0 };
    (address != 0).then(|| core::ptr::with_exposed_provenance_mut(address))
}

/// The operator that all other `new` operators of the standard library call: a block, or an exception.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C-unwind" fn _Znwm(bytes: usize) -> *mut c_void {
    allocate_or_fail(bytes, 1)
}

/// As above, aligned.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C-unwind" fn _ZnwmSt11align_val_t(bytes: usize, align_bytes: usize) -> *mut c_void {
    allocate_or_fail(bytes, align_bytes)
}

/// The operator that all other `delete` operators of the standard library call: frees a block.
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn _ZdlPv(block: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

/// As above, aligned.
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn _ZdlPvSt11align_val_t(block: *mut c_void, _: usize) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

/// Defines the other operators by their names in the Itanium ABI.
macro_rules! operators {
    ($($name:ident($first:ident: $First:ty $(, $more:ident: $More:ty)*) -> $Return:ty { $own:expr })*) => { $(
        /// An operator of C++, by its name in the Itanium ABI.
        ///
        /// # Safety
        /// As [`free`], for a `delete` operator.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($first: $First $(, $more: $More)*) -> $Return {
            static STANDARD: OnceLock<usize> = OnceLock::new();
            const NAME: &str = concat!(stringify!($name), "\0");
            let name = CStr::from_bytes_with_nul(NAME.as_bytes()).unwrap_or(c"");
            if let Some(standard) = standard(&STANDARD, name) {
                type Operator = unsafe extern "C-unwind" fn($First $(, $More)*) -> $Return;
                // SAFETY: the library's symbol of this name is such a function.
                let standard = unsafe { transmute::<*mut c_void, Operator>(standard) };
                // SAFETY: the caller's promise.
                return unsafe { standard($first $(, $more)*) };
            }
            $($crate::cxx_api::ignore(&$more);)*
            $own
        }
    )* };
}

/// Marks an argument of an operator as used.
const fn ignore<T>(_: &T) {}

operators! {
    _Znam(bytes: usize) -> *mut c_void { allocate_or_fail(bytes, 1) }
    _ZnamSt11align_val_t(bytes: usize, align: usize) -> *mut c_void { allocate_or_fail(bytes, align) }
    _ZnwmRKSt9nothrow_t(bytes: usize, tag: *const c_void) -> *mut c_void { allocate(bytes, 1) }
    _ZnamRKSt9nothrow_t(bytes: usize, tag: *const c_void) -> *mut c_void { allocate(bytes, 1) }
    _ZnwmSt11align_val_tRKSt9nothrow_t(bytes: usize, align: usize, tag: *const c_void) -> *mut c_void {
        allocate(bytes, align)
    }
    _ZnamSt11align_val_tRKSt9nothrow_t(bytes: usize, align: usize, tag: *const c_void) -> *mut c_void {
        allocate(bytes, align)
    }
    _ZdaPv(block: *mut c_void) -> () { free_own(block) }
    _ZdlPvm(block: *mut c_void, bytes: usize) -> () { free_own(block) }
    _ZdaPvm(block: *mut c_void, bytes: usize) -> () { free_own(block) }
    _ZdaPvSt11align_val_t(block: *mut c_void, align: usize) -> () { free_own(block) }
    _ZdlPvmSt11align_val_t(block: *mut c_void, bytes: usize, align: usize) -> () { free_own(block) }
    _ZdaPvmSt11align_val_t(block: *mut c_void, bytes: usize, align: usize) -> () { free_own(block) }
    _ZdlPvRKSt9nothrow_t(block: *mut c_void, tag: *const c_void) -> () { free_own(block) }
    _ZdaPvRKSt9nothrow_t(block: *mut c_void, tag: *const c_void) -> () { free_own(block) }
    _ZdlPvSt11align_val_tRKSt9nothrow_t(block: *mut c_void, align: usize, tag: *const c_void) -> () { free_own(block) }
    _ZdaPvSt11align_val_tRKSt9nothrow_t(block: *mut c_void, align: usize, tag: *const c_void) -> () { free_own(block) }
}

fn free_own(block: *mut c_void) {
    // SAFETY: the promise of the caller of an operator that frees.
    unsafe { free(block) }
}
