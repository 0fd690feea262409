//! A seccomp filter that replaces results of system calls, for this thread and the threads that it starts, to imitate another kernel or file system.

#![allow(
    unsafe_code,
    dead_code,
    clippy::unwrap_used,
    reason = "installs a filter of system calls; a test fails by panicking"
)]

/// The result that makes a call fail with this error.
pub(crate) fn errno_result(errno: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap()
}

/// The result that makes a call kill the process.
pub(crate) const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// From now on `call` has this result. `bits` is the index of an argument and a mask: if given, only calls whose argument has a bit of the mask.
///
/// # Source
/// seccomp(2), `SECCOMP_SET_MODE_FILTER`.
pub(crate) fn set_result(call: libc::c_long, bits: Option<(u32, u32)>, result: u32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let (load, ret) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_RET | libc::BPF_K);
    let jump = |test: u32, otherwise, k| step(libc::BPF_JMP | test | libc::BPF_K, 0, otherwise, k);
    // `struct seccomp_data` has the number of the call at byte 0, and from byte 16 on the arguments, 8 bytes each, low half first.
    let mut steps = match bits {
        None => vec![step(load, 0, 0, 0), jump(libc::BPF_JEQ, 1, u32::try_from(call).unwrap())],
        Some((argument, bits)) => vec![
            step(load, 0, 0, 0),
            jump(libc::BPF_JEQ, 3, u32::try_from(call).unwrap()),
            step(load, 0, 0, 16 + 8 * argument),
            jump(libc::BPF_JSET, 1, bits),
        ],
    };
    steps.extend([step(ret, 0, 0, result), step(ret, 0, 0, libc::SECCOMP_RET_ALLOW)]);
    let len = u16::try_from(steps.len()).unwrap();
    let program = libc::sock_fprog { len, filter: steps.as_mut_ptr() };
    // SAFETY: this prctl takes only numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the filter is complete, and lives until the call returns.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}
