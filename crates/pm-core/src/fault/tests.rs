//! SIGBUS with other handlers in the process: previous ones, and those of other signals.

use crate::{Pmem, Region, RegionOptions};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The environment variable that marks the child process of a test.
const CHILD: &str = "PM_CORE_FAULT_CHILD";

/// Runs a test in a child process with limited CPU time.
fn run_as_child(test: &str) -> Output {
    let mut child = Command::new("sh");
    child.args([
        "-c",
        &format!("ulimit -t 10; exec \"$0\" fault::tests::{test} --exact --nocapture --test-threads=1"),
    ]);
    child.arg(std::env::current_exe().unwrap()).env(CHILD, "").output().unwrap()
}

/// A region whose file has been truncated to a page of sevens.
fn truncated_region() -> Region {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("file.pm");
    let region = RegionOptions::new().create(&path, 1 << 20).unwrap();
    region.store(0, &[7; 4096]);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    region
}

fn install(signal: libc::c_int, handler: extern "C" fn(libc::c_int), flags: libc::c_int) {
    // SAFETY: an all-zero `sigaction` is valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: the set is the action's own.
    unsafe { libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1) };
    // SAFETY: the handlers of these tests are async-signal-safe.
    unsafe { libc::sigaction(signal, &raw const action, null_mut()) };
}

/// Writes, for each of three signals, whether it is blocked.
extern "C" fn report(_: libc::c_int) {
    // SAFETY: an all-zero `sigset_t` is valid.
    let mut blocked: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: without a new mask, the call only stores the present one.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut blocked) };
    let digit = |signal| {
        // SAFETY: the set was stored just now.
        if unsafe { libc::sigismember(&raw const blocked, signal) } == 1 { b'1' } else { b'0' }
    };
    let text = [b'<', digit(libc::SIGBUS), digit(libc::SIGUSR1), digit(libc::SIGUSR2), b'>'];
    // SAFETY: async-signal-safe, and the buffer is valid for its length.
    unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}

/// The previous handler runs as if the kernel had called it: with its mask, and only once, because it was installed with `SA_RESETHAND`. After
/// it returns, the access is repeated, and the default action ends the process.
#[test]
fn previous_handler_keeps_mask_and_one_shot_flag() {
    if std::env::var_os(CHILD).is_some() {
        install(libc::SIGBUS, report, libc::SA_RESETHAND);
        let region = truncated_region();
        assert_eq!(region.try_load(4096, &mut [0]), Err(super::MediumFault));
        region.load_u64(4096);
        unreachable!("the load must end the process");
    }
    let output = run_as_child("previous_handler_keeps_mask_and_one_shot_flag");
    let text = String::from_utf8_lossy(&output.stdout);
    let calls: Vec<_> = text.split('<').skip(1).filter_map(|rest| rest.split('>').next()).take(2).collect();
    assert_eq!((output.status.signal(), calls), (Some(libc::SIGBUS), vec!["110"]));
}

static REGION: OnceLock<Region> = OnceLock::new();
static INTERRUPTIONS: AtomicU64 = AtomicU64::new(0);
static UNEXPECTED_RESULT: AtomicBool = AtomicBool::new(false);

extern "C" fn access(_: libc::c_int) {
    let mut word = [0; 8];
    let is_expected = REGION.get().is_some_and(|region| {
        region.try_load(0, &mut word).is_ok()
            && word == [7; 8]
            && region.try_load(8192, &mut word).is_err()
            && region.try_store_nt(8192, &word).is_err()
    });
    UNEXPECTED_RESULT.fetch_or(!is_expected, Ordering::Relaxed);
    INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
}

/// The handler of another signal makes guarded accesses that fault. If that handler interrupted the handler of SIGBUS, SIGBUS would be blocked, and
/// the kernel would end the process.
#[test]
fn guarded_accesses_nest_in_signal_handlers() {
    if std::env::var_os(CHILD).is_none() {
        let output = run_as_child("guarded_accesses_nest_in_signal_handlers");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let region = REGION.get_or_init(truncated_region);
    install(libc::SIGALRM, access, 0);
    let interval = libc::timeval { tv_sec: 0, tv_usec: 40 };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: sets a timer of this process.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, null_mut()) };
    let mut page = [0; 512];
    while INTERRUPTIONS.load(Ordering::Relaxed) < 4000 {
        assert!(region.try_load(8192, &mut page).is_err());
        assert!(region.try_store_nt(4096, &page).is_err());
        assert!(region.try_load(0, &mut page[..8]).is_ok() && page[..8] == [7; 8]);
    }
    // SAFETY: an all-zero `itimerval` disarms the timer.
    let none: libc::itimerval = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const none, null_mut()) };
    assert!(!UNEXPECTED_RESULT.load(Ordering::Relaxed));
}
