//! Stray stores of other threads to the pool of a file system, while it is idle and while threads change it: protected, none reaches a file; unprotected,
//! each does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "makes stray stores, and handles their signal")]

use pm_core::Region;
use pm_core::protection::{Method, Protected, Protection, ProtectionError, Stray, StrayPolicy, Verdict};
use pm_fs::{Fs, FsError, FsOptions, Handle, NewFile};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

type ProtectedFs = Fs<Protected<Region>>;

const PAGE: u64 = 4096;
const POOL_BYTES: u64 = 8 << 20;
/// The pages of the file that nothing changes.
const RESTING_PAGES: u64 = 64;
const WORKERS: u64 = 2;
/// The rounds of changes that strays go on for, at least.
const ROUNDS: u64 = 20;

/// What a stray stores.
const STRAY: u8 = 0xA5;

/// The store of [`stray_store`] did not happen.
const CAUGHT: u64 = u64::MAX;

/// The store instruction of [`stray_store`].
#[cfg(target_arch = "x86_64")]
const STORE: [u8; 2] = [0x88, 0x07];
/// See above.
#[cfg(target_arch = "aarch64")]
const STORE: [u8; 4] = 0x3900_0020_u32.to_le_bytes();

/// Stores a byte, as a bug does. Returns whether that was caught.
#[inline(never)]
fn stray_store(address: usize) -> bool {
    let mut caught = u64::from(STRAY);
    // SAFETY: none. The address is inside a mapping, to whose bytes nothing refers.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov byte ptr [rdi], al", in("rdi") address, inout("rax") caught);
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("strb w0, [x1]", in("x1") address, inout("x0") caught);
    }
    caught == CAUGHT
}

/// Skips the store of [`stray_store`], so that the process goes on after a stray that was refused, and ends it by any other fault. It is the handler that the one
/// of the protection passes the signal on to.
extern "C" fn skip(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the interrupted context.
    let context = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let [instruction, result] =
        [libc::REG_RIP, libc::REG_RAX].map(|number| usize::try_from(number).unwrap_or(0));
    #[cfg(target_arch = "x86_64")]
    let at = usize::try_from(context.gregs[instruction].cast_unsigned()).unwrap_or(0);
    #[cfg(target_arch = "aarch64")]
    let at = usize::try_from(context.pc).unwrap_or(0);
    // SAFETY: the interrupted code is readable at its instruction, except after a wild jump, which faults again here and ends the process.
    let found = unsafe { core::ptr::with_exposed_provenance::<[u8; STORE.len()]>(at).read_unaligned() };
    if found != STORE {
        // SAFETY: the repeated access ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    #[cfg(target_arch = "x86_64")]
    {
        context.gregs[instruction] += STORE.len() as i64;
        context.gregs[result] = CAUGHT.cast_signed();
    }
    #[cfg(target_arch = "aarch64")]
    {
        context.pc += STORE.len() as u64;
        context.regs[0] = CAUGHT;
    }
}

/// Installs [`skip`], before any region is protected.
fn survive_strays() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: an all-zero `sigaction` is valid.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = skip as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler is async-signal-safe.
        assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, core::ptr::null_mut()) }, 0);
    });
}

/// Refuses each stray without a message.
fn refuse(_: &Stray) -> Verdict {
    Verdict::Abort
}

fn new() -> NewFile {
    NewFile { mode: 0o644, ..NewFile::default() }
}

/// The contents of a page of the resting file.
fn resting_page(number: u64) -> Vec<u8> {
    (0..PAGE / 8).flat_map(|word| (number << 32 | word | 0x5EED << 48).to_le_bytes()).collect()
}

/// A file system with a resting file, and a directory for each worker.
fn create(path: &Path) {
    let fs = Fs::create(path, POOL_BYTES, &FsOptions::new()).unwrap();
    let resting = fs.root().create("resting", new()).unwrap();
    for number in 0..RESTING_PAGES {
        resting.append(&resting_page(number)).unwrap();
    }
    for worker in 0..WORKERS {
        fs.root().mkdir(format!("dir {worker}"), new()).unwrap();
    }
    drop(resting);
    fs.close().unwrap();
}

/// A protected file system; `None` if the machine does not have the method.
fn open(path: &Path, method: Method) -> Option<ProtectedFs> {
    survive_strays();
    let protection = Protection::new(method).on_stray(StrayPolicy::Ask(refuse));
    match Fs::open_protected(path, &FsOptions::new(), &protection) {
        Err(FsError::Protection(ProtectionError::NoKey(_))) => None,
        other => Some(other.unwrap()),
    }
}

/// Where the pages of the resting file are in the pool.
fn resting_offsets(path: &Path) -> Vec<u64> {
    let pool = std::fs::read(path).unwrap();
    let find = |number| {
        let page = resting_page(number);
        let found = pool.chunks(page.len()).position(|found| found == page);
        found.expect("it is in the pool") as u64 * PAGE
    };
    (0..RESTING_PAGES).map(find).collect()
}

/// The differences of the resting file from what was written to it.
fn wrong_bytes(fs: &ProtectedFs) -> u64 {
    let file = fs.lookup("resting").unwrap();
    let wrong = |number| {
        let mut found = vec![0; resting_page(number).len()];
        assert_eq!(file.read_at(number * PAGE, &mut found).unwrap(), found.len());
        found.iter().zip(resting_page(number)).filter(|(found, written)| **found != *written).count() as u64
    };
    (0..RESTING_PAGES).map(wrong).sum()
}

/// A thread that stores a byte at each offset that it gets, and answers whether that was caught. It runs before any window is open: with protection keys, a
/// thread inherits the windows of the one that starts it.
fn strayer(fs: &ProtectedFs) -> (Sender<u64>, Receiver<bool>) {
    let base = fs.heap().pool().pmem().get_ref().base_ptr().as_ptr().expose_provenance();
    let ((ask, asked), (answer, answered)) = (channel::<u64>(), channel());
    thread::spawn(move || {
        let stray = |offset| stray_store(base + usize::try_from(offset).unwrap());
        asked.into_iter().for_each(|offset| answer.send(stray(offset)).unwrap());
    });
    (ask, answered)
}

/// Every kind of change, until the end. Returns the number of rounds.
fn work(fs: &ProtectedFs, worker: u64, is_over: &AtomicBool, rounds: &AtomicU64) {
    let dir: Handle<_> = fs.lookup(format!("dir {worker}")).unwrap();
    for round in 0.. {
        let file = dir.create("draft", new()).unwrap();
        file.append(&[1; 10_000]).unwrap();
        file.write_at(100, &[2; 5000]).unwrap();
        let map = file.map(0, 8192).unwrap();
        map.store(4000, &[3; 200]).unwrap();
        map.persist(4000..4200).unwrap();
        drop(map);
        file.truncate(9000).unwrap();
        file.set_xattr("user.a", "value", pm_fs::SetXattr::Any).unwrap();
        dir.rename("draft", &dir, format!("file {}", round % 4)).unwrap();
        rounds.fetch_add(1, Relaxed);
        if is_over.load(Relaxed) {
            return;
        }
    }
}

/// The least number of strays of each method and phase: `PM_STRAYS`, by default 1,000.
fn stray_count() -> u64 {
    std::env::var("PM_STRAYS").map_or(1000, |count| count.parse().unwrap())
}

/// Strays anywhere in the pool while no call runs, and then to pages of the resting file while calls run.
fn strays_are_caught(path: &PathBuf, method: Method, count: u64) {
    let Some(fs) = open(path, method) else {
        println!("{method}: this machine has no protection keys");
        return;
    };
    fs.prepare().unwrap();
    let windows = || fs.heap().pool().pmem().windows();
    let (ask, is_caught) = strayer(&fs);
    let mut random = fastrand::Rng::with_seed(7);
    let stray = |offset| {
        ask.send(offset).unwrap();
        is_caught.recv().unwrap()
    };
    let offsets = resting_offsets(path);
    windows().settle();
    let before = std::fs::read(path).unwrap();
    for number in 0..count {
        let offset = random.u64(..POOL_BYTES);
        assert!(stray(offset), "{method}: stray {number} at offset {offset}, no call running");
    }
    assert_eq!(windows().stray_count(), count, "{method}");
    assert!(std::fs::read(path).unwrap() == before, "{method}: the pool has changed");

    let (is_over, rounds, mut busy) = (AtomicBool::new(false), AtomicU64::new(0), 0);
    thread::scope(|threads| {
        let start = |worker| {
            let (fs, is_over, rounds) = (&fs, &is_over, &rounds);
            threads.spawn(move || work(fs, worker, is_over, rounds))
        };
        let started: Vec<_> = (0..WORKERS).map(start).collect();
        while rounds.load(Relaxed) == 0 {
            assert!(!started.iter().any(|worker| worker.is_finished()), "{method}: a worker has failed");
            thread::yield_now();
        }
        let last = rounds.load(Relaxed) + ROUNDS;
        let mut is_stray_caught = true;
        while is_stray_caught && (busy < count || rounds.load(Relaxed) < last) {
            assert!(!started.iter().any(|worker| worker.is_finished()), "{method}: a worker has failed");
            is_stray_caught = stray(offsets[random.usize(..offsets.len())] + random.u64(..PAGE));
            busy += 1;
        }
        // Before the assertion: the threads end.
        is_over.store(true, Relaxed);
        assert!(is_stray_caught, "{method}: stray {busy}, calls running");
    });
    assert_eq!((windows().stray_count(), wrong_bytes(&fs)), (count + busy, 0), "{method}");
    let report = fs.check();
    assert!(report.problems.is_empty(), "{method}: {:#?}", report.problems);
    let rounds = rounds.into_inner();
    println!("{method}: {count} strays caught while idle, {busy} during {rounds} rounds of changes");
    drop(ask);
    fs.close().unwrap();
    let fs = Fs::open(path, &FsOptions::new()).unwrap();
    assert!(fs.check().problems.is_empty());
}

/// `PM_STRAYS` is their number for each method and phase.
#[test]
fn strays_of_other_threads_do_not_reach_files() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for method in Method::ALL {
        let path = dir.path().join(method.name());
        create(&path);
        strays_are_caught(&path, method, stray_count());
    }
}

/// That is what the protection is for, and the strays of the test above are real.
#[test]
fn strays_without_protection_reach_files() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk.pm");
    create(&path);
    let fs = open(&path, Method::None).unwrap();
    let (ask, is_caught) = strayer(&fs);
    assert_eq!(wrong_bytes(&fs), 0);
    let (offsets, count) = (resting_offsets(&path), stray_count().min(RESTING_PAGES * PAGE));
    // Each to another byte, of which one in 256 may have had the value before.
    for number in 0..count {
        let page = usize::try_from(number % RESTING_PAGES).unwrap();
        ask.send(offsets[page] + number / RESTING_PAGES).unwrap();
        assert!(!is_caught.recv().unwrap());
    }
    let reached = wrong_bytes(&fs);
    println!("none: {reached} of {count} strays changed a file");
    assert!(reached >= count * 9 / 10, "{reached} of {count}");
}
