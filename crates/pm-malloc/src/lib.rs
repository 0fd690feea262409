//! `libpmalloc.so`: `malloc` and related functions over a heap in persistent memory.
//!
//! ```text
//! PM_MALLOC_FILE=/mnt/pmem/heap LD_PRELOAD=/usr/lib/libpmalloc.so program
//! ```
//!
//! An unmodified program gets its blocks from a file, by an [`UnloggedHeap`](pm_alloc::UnloggedHeap): each block has a header with a
//! checksum, double frees and overwritten headers are detected and ignored, and lines wear evenly. After the process has ended, or was
//! killed, the file is an ordinary heap, with the blocks that were allocated at that moment.
//!
//! | module | what it does |
//! |---|---|
//! | `c_api` | the functions that C programs call |
//! | `jemalloc_api`, `cxx_api` | the functions and operators of programs that are linked with another malloc |
//! | `serving` | the heap, and whether it serves |
//! | `heap_file` | its file: sparse, with a name or without |
//! | `loading` | modules that would find another malloc |
//! | `fork` | children of the process |
//! | `thread` | the state of the calling thread |
//! | `settings` | environment variables |
//! | `glibc` | glibc's malloc: for the library's own memory, and blocks that are not in the heap |
//!
//! # Which malloc serves
//! glibc's `malloc` serves until the library's constructor has run, for a thread in a `fork`, in a signal handler that interrupts a call of
//! this library, and if there is no heap. The address of a block tells which allocator it is from. This library's own memory is glibc's too,
//! by a global allocator of its own, so the library never calls the functions that it exports.

#![cfg_attr(test, allow(dead_code, reason = "tests do not replace malloc"))]

pub mod c_api;
pub mod cxx_api;
mod fork;
mod glibc;
mod heap_file;
pub mod jemalloc_api;
pub mod loading;
mod serving;
mod settings;
mod thread;

/// Writes a message to standard error, in one write. Failures are ignored, as they are not the program's.
///
/// Does not take the lock of [`std::io::stderr`]: a forked child could inherit it locked, without the thread that holds it.
fn say(message: &dyn core::fmt::Display) {
    let line = format!("pm-malloc[{}]: {message}\n", std::process::id());
    let _told = rustix::io::retry_on_intr(|| rustix::io::write(std::io::stderr(), line.as_bytes()));
}
