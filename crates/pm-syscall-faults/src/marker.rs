//! The calls by which a traced program switches counting on and off. Without a tracer they do nothing.

use rustix::process::{Pid, getpgid};

/// Asks for the group of a process that cannot exist: its number is above the kernel's largest, 2^22.
pub(crate) const ON: u64 = 77_777_777;
/// The same, of another.
pub(crate) const OFF: u64 = 77_777_778;

/// Switches the counting of calls on or off: for the calling thread, and for the threads and processes that it starts from now on.
///
/// A program in C calls `syscall(SYS_getpgid, 77777777)` to switch it on, and with 77777778 to switch it off.
///
/// # Panics
/// Never: no process has these numbers.
pub fn counting(is_on: bool) {
    let process = i32::try_from(if is_on { ON } else { OFF }).ok().and_then(Pid::from_raw);
    assert!(getpgid(process).is_err(), "process numbers end at 2^22");
}
