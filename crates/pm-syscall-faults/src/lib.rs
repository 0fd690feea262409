//! Fault injection at system calls: a program runs under ptrace, and is killed at one of its system calls, or that call fails.
//!
//! A test runs the program once for each call and each [`Fault`], and checks the state that it leaves: [`sweep`] does that. In each run
//! the calls are counted, and an [`Injection`] selects the call that is hit. A killed program has not executed the call; a failing call
//! is not executed either, and returns the error. Threads and child processes are traced too.
//!
//! Calls count in the whole run, or with [`Traced::between_marks`] after [`counting`]`(true)` and before [`counting`]`(false)` in the traced program.
//! Each task (a thread, or a process with one) has its own switch, and a new task inherits the setting of its creator. An error hits, and counts,
//! only calls of a list: most of those that get errors from files, sockets and events, and none about memory without a file, signals or threads.
//!
//! ```
//! # #[cfg(target_arch = "x86_64")] {
//! use pm_syscall_faults::{End, Fault, Injection, Traced};
//! use std::process::{Command, Stdio};
//!
//! // The dynamic loader cannot open the first file that it needs.
//! let mut command = Command::new("/bin/true");
//! command.stderr(Stdio::null());
//! let outcome = Traced::new(command, Injection { fault: Fault::Error(libc::EIO), call: 0 }).run();
//! assert!(outcome.hit.is_some());
//! assert_ne!(outcome.end, End::Hang);
//! # }
//! ```
//!
//! Limitations: x86_64 only, and empty elsewhere. The order of the calls of several threads may differ from run to run. A call that
//! failed has had no effect, where a real one may have had part of it.

#![cfg(target_arch = "x86_64")]

mod calls;
mod fault;
mod outcome;
mod ptrace;
mod sweep;
mod tasks;
mod traced;

pub use calls::counting;
pub use fault::{Fault, Injection};
pub use outcome::{End, Hit, Outcome};
pub use sweep::sweep;
pub use traced::{PATIENCE, Traced};
