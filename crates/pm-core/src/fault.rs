//! Guarded accesses to mapped memory: SIGBUS becomes an error.
//!
//! A load or store in a mapping raises SIGBUS where the file has been truncated, where the file system has no space for a hole, and where the memory
//! is poisoned. By default, the signal ends the process. [`Pmem::try_load`](crate::Pmem::try_load) and
//! [`Pmem::try_store_nt`](crate::Pmem::try_store_nt) of a region return an error instead.
//!
//! ```
//! use pm_core::Pmem;
//! let region = pm_core::Region::anonymous(4096)?;
//! let mut first = [0; 8];
//! region.try_load(0, &mut first).expect("anonymous memory is always there");
//! # Ok::<(), pm_core::OpenError>(())
//! ```
//!
//! # How
//! The first guarded call installs a handler for SIGBUS in the process. Each guarded call saves its stack pointer, a continuation address and two
//! registers in a record, and sets a thread-local pointer to the record. If the thread faults, the handler writes these values into the interrupted
//! context, so that the thread resumes after the call when the handler returns. A SIGBUS outside a guarded call, or sent by a process, is passed to
//! the previous handler, with the signal mask that the previous handler expects, and only once if it was installed with `SA_RESETHAND`. Without a
//! previous handler, the signal ends the process, as by default. If SIGBUS was ignored, a signal that was sent is still ignored, and a signal raised
//! by an access ends the process.
//!
//! # Limitations
//! A copy that faults is incomplete. Only copies can be guarded: a fault discards stack frames without running their destructors, and code of the
//! caller may rely on destructors, for example those of locks. If the program later installs its own handler for SIGBUS, the handler of this module
//! is replaced. It is also replaced when a process sends a SIGBUS: the handler of Rust's runtime then restores the default action. In a thread that
//! blocks SIGBUS, a fault ends the process. If another signal interrupts a guarded copy, and its handler faults in an unguarded access, the thread
//! resumes after the copy: the rest of that handler does not run, and its signal stays blocked.
//!
//! # Source
//! sigaction(2), mmap(2) "SIGBUS"; System V ABI, AMD64 supplement, 3.2.1; AAPCS64, 6.1.
#![expect(unsafe_code, reason = "installs a signal handler that redirects the interrupted thread")]

pub(crate) mod chain;

use crate::insn::{Insns, copy_from_pmem, copy_to_pmem, copy_to_pmem_nt};
use chain::Chain;
use core::arch::asm;
use core::cell::Cell;
use core::ptr::null;

/// Mapped memory cannot be accessed: the file was truncated, the file system has no space for a hole, or the memory is poisoned.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the mapped memory cannot be accessed: the file was truncated, the file system has no space for a hole, or the memory is poisoned"
)]
pub struct MediumFault;

/// The point at which a thread continues when guarded code faults: the stack pointer, the instruction, and the two callee-saved registers that no
/// operand of inline assembly may name (RBX and RBP; X19 and X29). The registers are stored here and not pushed: a push would change the frame that
/// the compiler's unwind tables describe.
#[repr(transparent)]
#[derive(Default)]
struct ResumePoint([Cell<u64>; 4]);

thread_local! {
    /// The resume point of this thread's innermost guarded call, or null. Has no initialiser or destructor to run: the handler accesses plain memory.
    static RESUME_POINT: Cell<*const ResumePoint> = const { Cell::new(null()) };
}

/// The handler of this module.
static SIGBUS: Chain = Chain::new(libc::SIGBUS);

/// How a guarded copy accesses persistent memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyKind {
    /// Out of it.
    Load,
    /// Into it, through the cache.
    Store,
    /// Into it, around the cache.
    StoreNt(Insns),
    /// No copy: writes back the lines of the destination.
    Flush(Insns),
}

/// A copy of `len` bytes.
struct Copy {
    kind: CopyKind,
    dst: *mut u8,
    src: *const u8,
    len: usize,
}

/// Copies `len` bytes to or from a mapping.
///
/// The guard costs a call and about ten instructions.
///
/// # Errors
/// [`MediumFault`] when a load or store raised SIGBUS. A part of the bytes may have been copied.
///
/// # Panics
/// If sigaction(2) fails, which it does only for invalid arguments.
///
/// # Safety
/// As for [`copy_from_pmem`] or [`copy_to_pmem`], but the mapping may raise SIGBUS.
#[inline]
pub(crate) unsafe fn guarded_copy(
    kind: CopyKind,
    dst: *mut u8,
    src: *const u8,
    len: usize,
) -> Result<(), MediumFault> {
    if !SIGBUS.is_installed() {
        install();
    }
    let copy = Copy { kind, dst, src, len };
    let resume_point = ResumePoint::default();
    let outer = RESUME_POINT.replace(&raw const resume_point);
    // SAFETY: `copy` is valid by the caller's contract, and `RESUME_POINT` points to `resume_point` until the next line.
    let faulted = unsafe { enter(run, &raw const copy, &raw const resume_point) };
    RESUME_POINT.set(outer);
    if faulted { Err(MediumFault) } else { Ok(()) }
}

/// Runs a copy. It may be abandoned at any load or store: it holds no lock and no value with a destructor.
///
/// # Safety
/// As for [`guarded_copy`].
unsafe extern "C" fn run(copy: *const Copy) {
    // SAFETY: the caller's contract.
    let &Copy { kind, dst, src, len } = unsafe { &*copy };
    match kind {
        // SAFETY: as above.
        CopyKind::Load => unsafe { copy_from_pmem(dst, src, len) },
        // SAFETY: as above.
        CopyKind::Store => unsafe { copy_to_pmem(dst, src, len) },
        // SAFETY: as above.
        CopyKind::StoreNt(insns) => unsafe { copy_to_pmem_nt(insns, dst, src, len) },
        // SAFETY: as above.
        CopyKind::Flush(insns) => unsafe { insns.flush_range(dst, len) },
    }
}

/// Calls `function` with `copy`. Returns true if a fault ended the call. Fills `resume_point` before the call.
///
/// # Safety
/// `function` must accept `copy`, and must not unwind. Until it returns, the thread's [`RESUME_POINT`] must be `resume_point`.
#[cfg(target_arch = "x86_64")]
unsafe fn enter(
    function: unsafe extern "C" fn(*const Copy),
    copy: *const Copy,
    resume_point: *const ResumePoint,
) -> bool {
    let faulted: u64;
    // SAFETY: the caller's contract. At the start of the block, the stack is aligned for a call. After a fault, the registers of the resume point are
    // restored. All other callee-saved registers are named as clobbered, because they hold values of the code that faulted.
    unsafe {
        asm!(
            "mov [rsi], rsp",
            "lea rax, [rip + 2f]",
            "mov [rsi + 8], rax",
            "mov [rsi + 16], rbx",
            "mov [rsi + 24], rbp",
            "call rdx",
            "xor eax, eax",
            "jmp 3f",
            "2:",
            "mov eax, 1",
            "3:",
            inout("rdi") copy => _, inout("rsi") resume_point => _, inout("rdx") function => _, out("rax") faulted,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            clobber_abi("C"),
        );
    }
    faulted != 0
}

/// As on x86_64.
///
/// # Safety
/// As on x86_64.
#[cfg(target_arch = "aarch64")]
unsafe fn enter(
    function: unsafe extern "C" fn(*const Copy),
    copy: *const Copy,
    resume_point: *const ResumePoint,
) -> bool {
    let faulted: u64;
    // SAFETY: as on x86_64.
    unsafe {
        asm!(
            "mov x9, sp",
            "adr x10, 2f",
            "stp x9, x10, [x1]",
            "stp x19, x29, [x1, #16]",
            "blr x2",
            "mov x0, #0",
            "b 3f",
            "2:",
            "mov x0, #1",
            "3:",
            inout("x0") copy => faulted, inout("x1") resume_point => _, inout("x2") function => _,
            out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _, out("x25") _, out("x26") _,
            out("x27") _, out("x28") _,
            out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _,
            out("v15") _,
            clobber_abi("C"),
        );
    }
    faulted != 0
}

/// Installs the handler, once.
#[cold]
fn install() {
    SIGBUS.install(on_sigbus);
}

/// Handles SIGBUS: redirects a guarded access, and passes every other signal on.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid `siginfo_t`.
    let code = unsafe { (*info).si_code };
    // Whether an access of this thread raised the signal. Otherwise a process sent it, or it reports poison that was found elsewhere.
    let by_access = matches!(code, libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR);
    // The pointer is cleared, because a fault after the thread has resumed does not belong to this call.
    let resume_point = if by_access { RESUME_POINT.replace(null()) } else { null() };
    if resume_point.is_null() {
        debug_assert_eq!(signal, libc::SIGBUS, "installed for this signal only");
        return SIGBUS.pass_on(code, info, context);
    }
    // SAFETY: `guarded_copy` set the pointer in this thread, and its frame, which holds the resume point, lives until it resets the variable.
    let resume_point = unsafe { &*resume_point };
    // SAFETY: the kernel gives a handler with SA_SIGINFO the interrupted context, which it may change.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    resume_at(context, resume_point);
}

/// Makes the interrupted thread continue at its resume point.
#[cfg(target_arch = "x86_64")]
fn resume_at(context: &mut libc::ucontext_t, resume_point: &ResumePoint) {
    let registers = [libc::REG_RSP, libc::REG_RIP, libc::REG_RBX, libc::REG_RBP];
    for (register, value) in registers.into_iter().zip(&resume_point.0) {
        #[expect(clippy::cast_sign_loss, reason = "numbers of registers are not negative")]
        let register = register as usize;
        context.uc_mcontext.gregs[register] = value.get().cast_signed();
    }
}

/// Makes the interrupted thread continue at its resume point.
#[cfg(target_arch = "aarch64")]
fn resume_at(context: &mut libc::ucontext_t, resume_point: &ResumePoint) {
    let [stack_pointer, instruction, x19, x29] = &resume_point.0;
    let registers = &mut context.uc_mcontext;
    registers.sp = stack_pointer.get();
    registers.pc = instruction.get();
    registers.regs[19] = x19.get();
    registers.regs[29] = x29.get();
}

#[cfg(test)]
mod tests;
