//! Signal handlers that pass signals on to the handlers that were installed before.
#![expect(unsafe_code, reason = "installs signal handlers")]

use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};

/// A handler with `SA_SIGINFO`. It must be async-signal-safe.
pub(crate) type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// The handler of a signal, and the action that it replaced.
pub(crate) struct Chain {
    signal: libc::c_int,
    previous: OnceLock<libc::sigaction>,
    /// Whether a previous handler that was installed with `SA_RESETHAND` has been called.
    previous_was_called: AtomicBool,
    installed: Once,
}

impl Chain {
    /// Nothing is installed yet.
    pub(crate) const fn new(signal: libc::c_int) -> Self {
        Self {
            signal,
            previous: OnceLock::new(),
            previous_was_called: AtomicBool::new(false),
            installed: Once::new(),
        }
    }

    #[inline]
    pub(crate) fn is_installed(&self) -> bool {
        self.installed.is_completed()
    }

    /// Installs `handler`, once. The previous action is saved first, because another thread may receive the signal as soon as the handler is installed.
    ///
    /// # Panics
    /// If sigaction(2) fails, which it does only for invalid arguments.
    pub(crate) fn install(&self, handler: Handler) {
        self.installed.call_once(|| {
            // SAFETY: an all-zero `sigaction` is valid: the default action with an empty mask.
            let mut previous: libc::sigaction = unsafe { core::mem::zeroed() };
            // SAFETY: without a new action, the call only stores the present one.
            let asked = unsafe { libc::sigaction(self.signal, null(), &raw mut previous) };
            self.previous.get_or_init(|| previous);
            // SAFETY: as above.
            let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
            action.sa_sigaction = handler as *const () as usize;
            // The handler runs on the thread's alternate stack, if there is one, and may change the interrupted context. An interrupted system call fails
            // with EINTR only if it would also fail without this handler.
            let restarts = match previous.sa_sigaction {
                libc::SIG_DFL | libc::SIG_IGN => libc::SA_RESTART,
                _ => previous.sa_flags & libc::SA_RESTART,
            };
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | restarts;
            // All signals are blocked during the handler. If another signal's handler interrupted it, this signal would be blocked there, and an access
            // that faults would end the process; the alternate stack may also be too small for both. SAFETY: the set is the action's own.
            let filled = unsafe { libc::sigfillset(&raw mut action.sa_mask) };
            // SAFETY: the handler is async-signal-safe, as its type demands.
            let installed = unsafe { libc::sigaction(self.signal, &raw const action, null_mut()) };
            assert_eq!((asked, filled, installed), (0, 0, 0), "sigaction refuses signal {}", self.signal);
        });
    }

    /// Passes the signal to the previous action.
    pub(crate) fn pass_on(&self, code: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let signal = self.signal;
        // Whether a process sent the signal, or the kernel sent it for poison that no access has touched. Only such a signal can be ignored: if a fault
        // were ignored, the access would be repeated forever.
        let is_sent = code <= 0 || (signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO);
        let previous = self.previous.get();
        if is_sent && previous.is_some_and(|previous| previous.sa_sigaction == libc::SIG_IGN) {
            return;
        }
        let handler = previous.filter(|previous| {
            !matches!(previous.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
                && (previous.sa_flags & libc::SA_RESETHAND == 0
                    || !self.previous_was_called.swap(true, Ordering::Relaxed))
        });
        let Some(previous) = handler else {
            // SAFETY: an all-zero `sigaction` is the default action.
            let default: libc::sigaction = unsafe { core::mem::zeroed() };
            // SAFETY: async-signal-safe, and the default action needs nothing.
            unsafe { libc::sigaction(signal, &raw const default, null_mut()) };
            // The raised signal is blocked until the handler returns, and then ends the process, as the repeated access would. SAFETY: async-signal-safe.
            unsafe { libc::raise(signal) };
            return;
        };
        set_handler_mask(previous, signal, context);
        let handler = previous.sa_sigaction;
        if previous.sa_flags & libc::SA_SIGINFO == 0 {
            // SAFETY: without SA_SIGINFO the handler is a function of the signal number alone.
            let handler = unsafe { core::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        } else {
            // SAFETY: with SA_SIGINFO the handler is a function of these three arguments.
            let handler = unsafe { core::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
    }
}

/// Makes a signal that would end the process do nothing, if it has its default action. By an empty handler, because programs that this one starts would
/// inherit that it is ignored.
pub(crate) fn survive(signal: libc::c_int) {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: an all-zero `sigaction` is valid: the default action with an empty mask.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: without a new action, the call only stores the present one.
    let asked = unsafe { libc::sigaction(signal, null(), &raw mut action) };
    if asked == 0 && action.sa_sigaction == libc::SIG_DFL {
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler does nothing, which is async-signal-safe.
        unsafe { libc::sigaction(signal, &raw const action, null_mut()) };
    }
}

/// Blocks the signals that the kernel blocks for a handler: those of the interrupted code and of the action, and `signal` unless `SA_NODEFER` is set.
fn set_handler_mask(action: &libc::sigaction, signal: libc::c_int, context: *mut libc::c_void) {
    /// The highest number of a signal.
    const SIGNAL_MAX: libc::c_int = 64;
    // SAFETY: the kernel gives a handler with SA_SIGINFO the interrupted context. A libc signal set is longer than the kernel's; the bytes past the
    // kernel's part are never read.
    let mut mask = unsafe { (*context.cast::<libc::ucontext_t>()).uc_sigmask };
    let blocks_itself = action.sa_flags & libc::SA_NODEFER == 0;
    for number in 1..=SIGNAL_MAX {
        // SAFETY: the system has filled in the set.
        let is_member = unsafe { libc::sigismember(&raw const action.sa_mask, number) } == 1;
        if is_member || (number == signal && blocks_itself) {
            // SAFETY: the set is a local copy.
            unsafe { libc::sigaddset(&raw mut mask, number) };
        }
    }
    // SAFETY: async-signal-safe, and the set is valid. The return from the handler restores the mask of the interrupted code.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut()) };
}
