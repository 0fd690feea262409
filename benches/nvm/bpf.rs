//! Loads eBPF programs into the kernel and attaches them. Ended processes detach theirs.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
/// Helpers that read the kernel's memory are for programs under its licence.
const LICENCE: &CStr = c"GPL";
const LOG_BYTES: usize = 1 << 16;

/// The part of `union bpf_attr` that loads a program.
#[repr(C)]
#[derive(Default)]
struct Load {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// The part that attaches one.
#[repr(C)]
struct Open {
    name: u64,
    program: u32,
    padding: u32,
}

/// A program at a tracepoint, until it is dropped.
#[derive(Debug)]
pub(crate) struct Attached {
    _program: OwnedFd,
    _link: OwnedFd,
}

/// Attaches `program` to a raw tracepoint.
pub(crate) fn attach(tracepoint: &CStr, program: &[u64]) -> Result<Attached> {
    let count = u32::try_from(program.len()).into_diagnostic()?;
    let mut load = Load {
        program_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
        instruction_count: count,
        instructions: program.as_ptr() as u64,
        licence: LICENCE.as_ptr() as u64,
        ..Load::default()
    };
    let loaded = call(BPF_PROG_LOAD, &load).or_else(|error| {
        let mut log = vec![0_u8; LOG_BYTES];
        load.log_level = 1;
        load.log_bytes = u32::try_from(LOG_BYTES).unwrap_or(0);
        load.log = log.as_mut_ptr() as u64;
        call(BPF_PROG_LOAD, &load).map_err(|_| {
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
            miette!("the kernel refuses the eBPF program: {error}\n{log}")
        })
    })?;
    let number = u32::try_from(loaded.as_raw_fd()).into_diagnostic()?;
    let open = Open { name: tracepoint.as_ptr() as u64, program: number, padding: 0 };
    let link = call(BPF_RAW_TRACEPOINT_OPEN, &open)
        .into_diagnostic()
        .wrap_err_with(|| format!("the eBPF program cannot be attached to {tracepoint:?}"))?;
    Ok(Attached { _program: loaded, _link: link })
}

/// bpf(2), for commands that return a file.
fn call<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads the attributes, whose size it is told, and at the addresses in them, which are those of values of the caller. It writes
    // only to the log, whose length is among the attributes. It does not keep the addresses.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let number = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: both commands return a new file, which nothing else owns.
    Ok(unsafe { File::from_raw_fd(number) }.into())
}
