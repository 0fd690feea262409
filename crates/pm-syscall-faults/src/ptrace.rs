//! The kernel's interface for a tracer. A request to a task that was killed meanwhile has no effect: its end is reported next.
//!
//! # Source
//! ptrace(2), waitid(2).

#![expect(unsafe_code, reason = "ptrace and the waiting for what it reports have no safe form")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libc::{c_int, c_uint, c_ulong, pid_t, siginfo_t, user_regs_struct};

/// The tracer's own children and what it traces, threads too, but not the children of the tracing process's other threads.
const ALL_TRACED: c_int = libc::__WALL | libc::__WNOTHREAD;

/// The command's process is traced by the thread that starts it, and stops when it executes its program.
pub(crate) fn be_traced(command: &mut Command) {
    let be_traced = || {
        // SAFETY: the request takes no memory.
        match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes one system call, which takes no lock and allocates nothing.
    unsafe { command.pre_exec(be_traced) };
}

/// Reports threads, children and programs from now on, and kills the stopped `task` with all of them if the tracing thread ends.
pub(crate) fn follow(task: pid_t) {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SETOPTIONS, task, c_ulong::from(options.cast_unsigned()));
}

/// Continues the stopped `task`, to its next system call or beyond, with this signal if it is not 0.
pub(crate) fn resume(task: pid_t, stops_at_calls: bool, signal: c_int) {
    let resume = if stops_at_calls { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
    request(resume, task, c_ulong::from(signal.cast_unsigned()));
}

/// A request whose data is a number.
fn request(request: c_uint, task: pid_t, data: c_ulong) {
    // SAFETY: the callers' requests take a number, and no memory.
    let answer = unsafe { libc::ptrace(request, task, 0, data) };
    check(answer);
}

/// The registers of the stopped `task`, if it is still there.
pub(crate) fn registers(task: pid_t) -> Option<user_regs_struct> {
    // SAFETY: the registers are integers, for which zero is a value.
    let mut registers: user_regs_struct = unsafe { core::mem::zeroed() };
    // SAFETY: the request stores to the one struct that it is given.
    let answer = unsafe { libc::ptrace(libc::PTRACE_GETREGS, task, 0, &raw mut registers) };
    check(answer).then_some(registers)
}

/// Changes the registers of the stopped `task`.
pub(crate) fn set_registers(task: pid_t, registers: &user_regs_struct) {
    // SAFETY: the request loads from the one struct that it is given.
    let answer = unsafe { libc::ptrace(libc::PTRACE_SETREGS, task, 0, core::ptr::from_ref(registers)) };
    check(answer);
}

/// The task that the stopped `task` reports to have started.
pub(crate) fn started(task: pid_t) -> Option<pid_t> {
    let mut started: c_ulong = 0;
    // SAFETY: the request stores to the one integer that it is given.
    let answer = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, task, 0, &raw mut started) };
    check(answer).then(|| pid_t::try_from(started).expect("the number of a task"))
}

/// Whether the task was there.
fn check(answer: libc::c_long) -> bool {
    let error = io::Error::last_os_error();
    assert!(answer == 0 || error.raw_os_error() == Some(libc::ESRCH), "ptrace: {error}");
    answer == 0
}

/// Waits until a task of the calling thread has stopped or ended, and leaves its report there for [`report`]. `None`: there are none.
pub(crate) fn wait() -> Option<pid_t> {
    // SAFETY: the struct is of integers and bytes, for which zero is a value.
    let mut reported: siginfo_t = unsafe { core::mem::zeroed() };
    let options = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | ALL_TRACED;
    // SAFETY: the call stores to the one struct that it is given.
    let answer = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut reported, options) };
    if answer != 0 {
        let error = io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::ECHILD), "waitid: {error}");
        return None;
    }
    // SAFETY: the call has set the fields of SIGCHLD.
    Some(unsafe { reported.si_pid() })
}

/// The status of `task`, if it has one to report; after its end its number may be reused.
pub(crate) fn report(task: pid_t) -> Option<c_int> {
    let mut status = 0;
    // SAFETY: the call stores to the one integer that it is given.
    let answer = unsafe { libc::waitpid(task, &raw mut status, ALL_TRACED | libc::WNOHANG) };
    (answer == task).then_some(status)
}
