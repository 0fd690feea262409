//! Stray stores to protected regions, from the thread that stores and from another, with windows open and without.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "makes stray accesses")]

use pm_core::protection::{
    Access, Method, Protected, Protection, ProtectionError, Stray, StrayPolicy, Verdict, Windows,
};
use pm_core::{Pmem, Region, RegionOptions};
use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread::Scope;

const LEN: u64 = 4 << 20;
const PAGE: u64 = 4096;

/// The environment variable that marks the child process of a test.
const CHILD: &str = "PM_CORE_STRAY_CHILD";

/// The last stray: its offset, thread and first frame. Tests that use it run one at a time.
static LAST: (AtomicU64, AtomicI32, AtomicUsize) =
    (AtomicU64::new(0), AtomicI32::new(0), AtomicUsize::new(0));
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn note(stray: &Stray) -> Verdict {
    LAST.0.store(stray.offset, SeqCst);
    LAST.1.store(stray.thread, SeqCst);
    LAST.2.store(stray.frames()[0], SeqCst);
    let expected = if cfg!(target_arch = "x86_64") { Some(Access::Write) } else { None };
    if stray.access == expected { Verdict::LetThrough } else { Verdict::Abort }
}

fn region() -> Region {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    RegionOptions::new().create(dir.path().join("region.pm"), LEN).unwrap()
}

/// The region with this protection; `None` if the machine does not have it.
fn protected(protection: &Protection) -> Option<Protected<Region>> {
    match Protected::new(region(), protection) {
        Err(ProtectionError::NoKey(_)) => None,
        other => Some(other.unwrap()),
    }
}

/// Stores a byte past all checks.
#[inline(never)]
fn stray_store(region: &Protected<Region>, offset: u64) {
    let base = region.get_ref().base_ptr().as_ptr();
    // SAFETY: none. The byte is inside the mapping, and nothing refers to it.
    unsafe { base.wrapping_add(usize::try_from(offset).unwrap()).write_volatile(7) };
}

/// `PM_STRAYS` is their number for each method, by default 200.
#[test]
fn promised_strays_are_caught() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let count = std::env::var("PM_STRAYS").map_or(200, |count| count.parse::<u64>().unwrap());
    for method in Method::ALL {
        for guard_reads in [false, true] {
            let protection =
                Protection::new(method).guard_reads(guard_reads).on_stray(StrayPolicy::Ask(note));
            let Some(region) = protected(&protection) else {
                println!("{method}: this machine has no protection keys");
                continue;
            };
            let (promised, others) =
                std::thread::scope(|threads| promised_strays(method, &region, count, threads));
            println!(
                "{method}, reads guarded {guard_reads}: {promised} strays caught, {others} into open windows"
            );
        }
    }
}

/// Makes `count` strays that must be caught. Returns their number, and that of strays into open windows.
fn promised_strays<'a>(
    method: Method,
    region: &'a Protected<Region>,
    count: u64,
    threads: &'a Scope<'a, '_>,
) -> (u64, u64) {
    // Started outside all windows: with protection keys, a thread inherits the windows of the one that starts it.
    let ((ask, asked), (made, is_made)) = (channel::<u64>(), channel());
    threads.spawn(move || {
        for offset in asked {
            stray_store(region, offset);
            made.send(()).unwrap();
        }
    });
    let mut random = fastrand::Rng::with_seed(7);
    let (mut promised, mut others) = (0, 0);
    let mut let_through = HashSet::new();
    while promised < count {
        let offset = random.u64(..LEN);
        let page = offset / PAGE;
        // With keys, a page stays open for good.
        if method == Method::Pkey && let_through.contains(&page) {
            continue;
        }
        // With a window open on another page, on the same page, or none.
        let window = match random.u8(..3) {
            0 => Some(random.u64(..LEN / PAGE)).filter(|other| *other != page),
            1 => Some(page),
            _ => None,
        };
        let range = window.map(|page| page * PAGE..(page + 1) * PAGE);
        let is_own = random.bool();
        // A window of page tables is open to every thread; an open key, to its own thread, on every page.
        let is_promised = match method {
            Method::Pkey => window.is_none() || !is_own,
            _ => window != Some(page),
        };
        // Without it, the last window over the page may not be closed yet.
        region.windows().settle();
        let before = region.windows().stray_count();
        let opened =
            range.clone().map(|range| region.windows().open(region.get_ref(), range, Access::Write).unwrap());
        if is_own {
            stray_store(region, offset);
        } else {
            ask.send(offset).unwrap();
            is_made.recv().unwrap();
        }
        if let (Some(range), Some(opened)) = (range, opened) {
            region.windows().close(region.get_ref(), range, Access::Write, opened);
        }
        let caught = region.windows().stray_count() - before;
        if is_promised {
            promised += 1;
            let_through.insert(page);
            assert_eq!(caught, 1, "{method}, stray {promised} at {offset}: own {is_own}, window {window:?}");
            assert_eq!(LAST.0.load(SeqCst), offset);
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            assert_eq!(LAST.1.load(SeqCst) == own, is_own);
        } else {
            others += 1;
            assert_eq!(caught, 0, "{method}, into an open window");
        }
        // It was let through, which a later window ends.
        let mut byte = [0];
        region.load(offset, &mut byte);
        assert_eq!(byte, [7]);
        region.store_u64(offset / 8 * 8, 0);
    }
    (promised, others)
}

/// The thread closes pages without a call.
#[test]
fn stray_is_caught_after_the_batch() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let protection = Protection::new(Method::Async).batch(std::time::Duration::from_micros(50));
    let region = protected(&protection.on_stray(StrayPolicy::Ask(note))).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    for page in 0..LEN / PAGE {
        region.store(page * PAGE, &[1; 4096]);
        let before = region.windows().stray_count();
        while region.windows().stray_count() == before {
            assert!(std::time::Instant::now() < deadline, "page {page} stays open");
            stray_store(&region, page * PAGE);
        }
    }
}

#[test]
fn stray_load_is_caught_if_reads_are_guarded() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    for method in Method::ALL {
        let protection = Protection::new(method).guard_reads(true).on_stray(StrayPolicy::LetThrough);
        let Some(region) = protected(&protection) else { continue };
        region.store(PAGE, &[9; 8]);
        region.windows().settle();
        let base = region.get_ref().base_ptr().as_ptr();
        // SAFETY: none. The byte is inside the mapping.
        let byte = unsafe { base.wrapping_add(4096).read_volatile() };
        assert_eq!((byte, region.windows().stray_count()), (9, 1), "{method}");
    }
}

/// A page that is open because a stray was let through is closed by the next write to it, by every method, and no other page is.
#[test]
fn page_of_a_stray_is_closed_by_the_next_write() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    for method in Method::ALL {
        if method == Method::None {
            continue;
        }
        let Some(region) = protected(&Protection::new(method).on_stray(StrayPolicy::LetThrough)) else {
            continue;
        };
        let (one, other) = (PAGE, 3 * PAGE);
        let mut expected = 0;
        let mut stray = |offset: u64, is_caught: bool, told: &str| {
            stray_store(&region, offset);
            expected += u64::from(is_caught);
            assert_eq!(region.windows().stray_count(), expected, "{method}: {told}");
        };
        stray(other, true, "closed from the start");
        let writes: [&dyn Fn(); 4] = [
            &|| region.store(one + 8, &[1; 16]),
            &|| region.store_nt(one + 64, &[1; 64]),
            &|| region.store(one - 8, &[1; 4096]),
            &|| region.store_u64(one, 7),
        ];
        for (number, write) in writes.iter().enumerate() {
            stray(one + 5, true, &format!("closed by the write before {number}"));
            stray(one + 6, false, "open until it is written");
            write();
            region.windows().settle();
            stray(other + 5, false, "not written, so still open");
        }
        stray(one + 5, true, "closed by the last write");
    }
}

/// More pages than the handler notes.
#[test]
fn pages_of_many_strays_are_closed_by_writes() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    for method in Method::ALL {
        if method == Method::None {
            continue;
        }
        let Some(region) = protected(&Protection::new(method).on_stray(StrayPolicy::LetThrough)) else {
            continue;
        };
        let pages = LEN / PAGE;
        assert!(pages > 40, "more than are noted");
        let stray_all = || (0..pages).for_each(|page| stray_store(&region, page * PAGE + 5));
        stray_all();
        (0..pages).for_each(|page| region.store(page * PAGE, &[1; 8]));
        region.windows().settle();
        stray_all();
        assert_eq!(region.windows().stray_count(), 2 * pages, "{method}");
    }
}

/// What the window of a store of one word costs with a key: two WRPKRU, and a few instructions around each. Counted in single steps.
#[cfg(target_arch = "x86_64")]
#[test]
fn key_window_costs_few_instructions() {
    static STEPS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn step(_: libc::c_int) {
        STEPS.fetch_add(1, SeqCst);
    }
    fn steps(run: impl FnOnce()) -> usize {
        STEPS.store(0, SeqCst);
        // SAFETY: the trap flag makes each instruction raise SIGTRAP, which has a handler.
        unsafe { core::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        run();
        // SAFETY: it is cleared again.
        unsafe { core::arch::asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
        STEPS.load(SeqCst)
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let Some(with_key) = protected(&Protection::new(Method::Pkey)) else {
        println!("this machine has no protection keys");
        return;
    };
    // SAFETY: an all-zero `sigaction` is valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = step as *const () as usize;
    // SAFETY: the handler is async-signal-safe.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, core::ptr::null_mut()) }, 0);
    let plain = protected(&Protection::new(Method::None)).unwrap();
    let cost = |region: &Protected<Region>| {
        region.store_u64(64, 1);
        steps(|| region.store_u64(64, 2))
    };
    let (with_key, plain) = (cost(&with_key), cost(&plain));
    println!("a store of one word: {with_key} instructions in a window with a key, {plain} without");
    assert!(plain > 0 && with_key > plain, "the trap flag works");
    // A third of it in a release build. A system call would be one instruction, but its preparation and check are more.
    assert!(with_key - plain <= 80, "{with_key} and {plain}");
}

/// The message, and the end of the process. A fault elsewhere is not taken for a stray.
#[test]
fn stray_ends_the_process_with_a_report() {
    let child = std::env::var(CHILD).ok();
    if let Some(child) = child.as_deref() {
        let region = protected(&Protection::new(child.parse().unwrap_or(Method::PageTable))).unwrap();
        region.store(0, b"stored");
        if child == "elsewhere" {
            // SAFETY: none. It ends the process.
            unsafe { core::ptr::without_provenance_mut::<u8>(8).write_volatile(7) };
        }
        stray_store(&region, 0x3210);
        unreachable!("the store must end the process");
    }
    for child in ["page-table", "unmapped", "private-map", "elsewhere"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["stray_ends_the_process_with_a_report", "--exact", "--nocapture", "--test-threads=1"]);
        let output = command.env(CHILD, child).output().unwrap();
        assert_eq!(output.status.signal(), Some(11), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let report = said.lines().find(|line| line.starts_with("pm-core: stray"));
        if child == "elsewhere" {
            assert_eq!(report, None);
            continue;
        }
        let report = report.unwrap_or_else(|| panic!("no report in {said}"));
        assert!(report.contains("at offset 0x3210, address 0x"), "{report}");
        assert!(report.contains("program at 0x") && report.contains("instructions 0x"), "{report}");
    }
}

/// The address of a region that was dropped is not watched.
#[test]
fn more_regions_than_are_watched_are_protected_all_the_same() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let protection = Protection::new(Method::PageTable).on_stray(StrayPolicy::Ask(note));
    for _ in 0..2 {
        let regions: Vec<_> = (0..300).map(|_| protected(&protection).unwrap()).collect();
        stray_store(&regions[0], 0);
        assert_eq!(regions[0].windows().stray_count(), 1);
        regions.iter().for_each(|region| region.store(0, &[1; 8]));
        assert_eq!(regions[299].windows().stray_count(), 0);
    }
}
