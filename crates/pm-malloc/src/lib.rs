//! `libpmalloc.so`: `malloc` and its kin over a heap in persistent memory.
//!
//! ```text
//! PM_MALLOC_FILE=/mnt/pmem/heap LD_PRELOAD=/usr/lib/libpmalloc.so program
//! ```
//!
//! A program that knows nothing of persistent memory gets its blocks from a file, by a [`UnloggedHeap`](pm_alloc::UnloggedHeap): each has
//! a header with a checksum, what is freed twice or written over is found and left alone, and lines wear evenly. After the process
//! has ended, or was killed, the file is a heap as any other, with the blocks that were allocated then.
//!
//! | module | what it does |
//! |---|---|
//! | `c_api` | the functions that C programs call |
//! | `jemalloc_api`, `cxx_api` | the functions and operators of programs that are linked with another malloc |
//! | `serving` | the heap, and whether it serves |
//! | `heap_file` | the file that it is in: sparse, with a name or without |
//! | `fork` | what a child of the process has of it |
//! | `thread` | what the calling thread is in the middle of |
//! | `settings` | the environment's variables |
//! | `glibc` | the malloc below: the library's own memory, and all that is not in the heap |
//!
//! # Which malloc serves
//! glibc's `malloc` serves until the library's constructor has run, for a thread in the middle of a `fork`, in a signal handler that
//! interrupts a call of this library, and if there is no heap. The address of a block shows where it is from, so each is freed where it was
//! made. This library's own memory is glibc's too (it has a global allocator of its own), so that nothing in here calls what it exports.

#![cfg_attr(test, allow(dead_code, reason = "tests replace no malloc, and so start nothing"))]

pub mod c_api;
pub mod cxx_api;
mod fork;
mod glibc;
mod heap_file;
pub mod jemalloc_api;
mod serving;
mod settings;
mod thread;

/// Tells the user, in one write and whatever else the program writes. A message without a reader is no error of the program's.
///
/// Without the lock of [`std::io::stderr`]: a child could inherit it locked, by a thread that it does not have.
fn say(message: &dyn core::fmt::Display) {
    let line = format!("pm-malloc[{}]: {message}\n", std::process::id());
    let _told = rustix::io::retry_on_intr(|| rustix::io::write(std::io::stderr(), line.as_bytes()));
}
