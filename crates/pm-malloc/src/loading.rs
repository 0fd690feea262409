//! `dlopen`, without `RTLD_DEEPBIND`.
//!
//! A module that is loaded with this flag finds glibc's `malloc` and `free` before those of this library. It would free blocks of the heap by glibc's
//! `free`, and so abort; programs that load such modules, as Debian's PHP does, could not run.

use crate::serving;
use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use std::sync::OnceLock;

/// What a call of `dlopen` becomes: in two registers.
#[repr(C)]
struct Call {
    /// The function to go on with.
    function: usize,
    /// Its flags.
    flags: usize,
}

/// Loads a library as glibc does, but for the flag `RTLD_DEEPBIND`, unless `PM_MALLOC_DEEPBIND` is 1.
///
/// This jumps to glibc's function, because that looks at its return address: the caller's own search path and namespace count.
///
/// # Safety
/// As for `dlopen`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov edi, esi",
        "call {call}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "mov esi, edx",
        "jmp rax",
        call = sym call,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "mov w0, w1",
        "bl {call}",
        "mov x16, x0",
        "mov w17, w1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "mov w1, w17",
        "br x16",
        call = sym call,
    );
}

extern "C" fn call(flags: c_int) -> Call {
    static FUNCTION: OnceLock<usize> = OnceLock::new();
    static KEEPS_FLAG: OnceLock<bool> = OnceLock::new();
    let function = *FUNCTION.get_or_init(|| {
        // SAFETY: a name that ends in a zero.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
        if next.is_null() { unavailable as *const () as usize } else { next as usize }
    });
    let is_deep = flags & libc::RTLD_DEEPBIND != 0;
    let is_dropped = is_deep
        && serving::current().is_some()
        && !*KEEPS_FLAG
            .get_or_init(|| std::env::var_os("PM_MALLOC_DEEPBIND").is_some_and(|value| value == "1"));
    let flags = if is_dropped { flags & !libc::RTLD_DEEPBIND } else { flags };
    Call { function, flags: flags as u32 as usize }
}

/// Where no library has `dlopen`.
extern "C" fn unavailable(_: *const c_char, _: c_int) -> *mut c_void {
    null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_is_loaded_with_the_flags_of_the_call() {
        // The function under test, by its signature.
        let load: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void = dlopen;
        // SAFETY: names that end in a zero; the first library is loaded already.
        let found = unsafe { load(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        assert!(!found.is_null());
        // SAFETY: as above.
        assert!(unsafe { load(c"no such library".as_ptr(), libc::RTLD_LAZY) }.is_null());
        // SAFETY: glibc's function has this signature.
        let own: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void =
            unsafe { core::mem::transmute(call(libc::RTLD_LAZY).function) };
        // SAFETY: as above.
        assert_eq!(unsafe { own(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }, found);
        // There is no heap, so nothing is dropped.
        assert_eq!(
            call(libc::RTLD_LAZY | libc::RTLD_DEEPBIND).flags,
            (libc::RTLD_LAZY | libc::RTLD_DEEPBIND) as usize
        );
    }
}
