//! System calls: their names, those that a program expects to fail, and those by which a traced program switches counting.

use libc::{c_long, user_regs_struct};
use rustix::process::{Pid, getpgid};

/// Pairs of a number and a name.
macro_rules! named {
    ($($call:ident)*) => { &[$((libc::$call, stringify!($call))),*] };
}

/// Calls that get errors from files, sockets and events.
const FALLIBLE: &[(c_long, &str)] = named! {
    SYS_bind SYS_chmod SYS_epoll_create1 SYS_epoll_ctl SYS_eventfd2 SYS_fadvise64 SYS_fallocate SYS_fchmodat SYS_fcntl SYS_fdatasync SYS_flock
    SYS_fsetxattr SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_getdents64 SYS_ioctl SYS_linkat SYS_listen SYS_lseek SYS_memfd_create
    SYS_mincore SYS_mkdir SYS_msync SYS_newfstatat SYS_open SYS_openat SYS_pipe2 SYS_pread64 SYS_pwrite64 SYS_read SYS_readlink
    SYS_readlinkat SYS_rename SYS_renameat2 SYS_socket SYS_statfs SYS_statx SYS_syncfs SYS_unlink SYS_unlinkat
};

/// Others that have a name here: a program may be killed at any call.
const OTHERS: &[(c_long, &str)] = named! {
    SYS_accept4 SYS_access SYS_arch_prctl SYS_brk SYS_clone SYS_clone3 SYS_close SYS_connect SYS_dup SYS_epoll_wait SYS_execve
    SYS_exit SYS_exit_group SYS_fgetxattr SYS_fork SYS_fremovexattr SYS_futex SYS_getpid SYS_getppid SYS_getrandom SYS_getsockname
    SYS_gettid SYS_kill SYS_madvise SYS_mmap SYS_mprotect SYS_mremap SYS_munmap SYS_poll SYS_prctl SYS_prlimit64 SYS_readv SYS_recvfrom
    SYS_recvmsg SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sched_getaffinity SYS_sched_yield SYS_sendmsg SYS_sendto
    SYS_set_robust_list SYS_set_tid_address SYS_setsockopt SYS_sigaltstack SYS_socketpair SYS_tgkill SYS_uname
    SYS_wait4 SYS_waitid SYS_write SYS_writev
};

/// Without its `SYS_`.
pub(crate) fn name(number: c_long) -> Option<&'static str> {
    let found = FALLIBLE.iter().chain(OTHERS).find(|call| call.0 == number);
    found.and_then(|(_, name)| name.strip_prefix("SYS_"))
}

/// The number of the call that a task is entering.
pub(crate) fn number(registers: &user_regs_struct) -> c_long {
    registers.orig_rax.cast_signed()
}

/// Whether this call is one that an error may hit.
pub(crate) fn is_fallible(registers: &user_regs_struct) -> bool {
    match number(registers) {
        // With a file: its descriptor, of 32 bits, is not negative. Without memory a program ends.
        libc::SYS_mmap => registers.r8 & 0x8000_0000 == 0,
        // MADV_DONTNEED cannot fail on memory that is mapped, and allocators rely on it.
        libc::SYS_madvise => registers.rdx != libc::MADV_DONTNEED.cast_unsigned().into(),
        number => FALLIBLE.iter().any(|call| call.0 == number),
    }
}

/// The group of this process, which cannot exist because its number is above the kernel's largest, 2^22, switches counting on.
pub(crate) const ON: u64 = 77_777_777;
/// That of this one switches it off.
pub(crate) const OFF: u64 = 77_777_778;

/// Switches the counting of calls on or off: for the calling thread, and for the threads and processes that it starts from now on.
/// Has no effect without a tracer.
///
/// A program in C calls `syscall(SYS_getpgid, 77777777)` to switch it on, and with 77777778 to switch it off.
///
/// # Panics
/// Never: no process has these numbers.
pub fn counting(is_on: bool) {
    let process = i32::try_from(if is_on { ON } else { OFF }).ok().and_then(Pid::from_raw);
    assert!(getpgid(process).is_err(), "process numbers end at 2^22");
}
