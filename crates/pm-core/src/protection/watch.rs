//! The handler of SIGSEGV that recognises stray accesses, and the table of regions that it watches.
#![expect(unsafe_code, reason = "handles a signal")]

use super::stray::{FRAMES_MAX, Stray, StrayPolicy, Verdict};
use super::windows::Access;
use crate::fault::chain::Chain;
use core::fmt::{self, Write as _};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The handler of this module.
static SIGSEGV: Chain = Chain::new(libc::SIGSEGV);

/// The most regions that are watched at a time. Strays in others end the process without a report.
const WATCHED_MAX: usize = 256;

static WATCHED: [Watched; WATCHED_MAX] = [const { Watched::new() }; WATCHED_MAX];

/// A region of the table. Free while `end` is zero; only the thread that has taken it changes it.
#[derive(Debug)]
struct Watched {
    is_taken: AtomicUsize,
    start: AtomicUsize,
    /// Set last, and cleared first.
    end: AtomicUsize,
    /// Leaked, because a handler may be reading it at any time; one for each region ever protected.
    policy: AtomicPtr<StrayPolicy>,
    has_key: AtomicUsize,
    /// The bytes whose protection changes together.
    unit: AtomicUsize,
    stray_count: AtomicU64,
    let_through: LetThrough,
}

/// The pages that are open because a stray access was let through. The handler adds to it, so it takes no lock.
#[derive(Debug)]
struct LetThrough {
    /// The number of additions that were not taken out; a fast way to see that there are none.
    count: AtomicUsize,
    /// Addresses of pages; zero is free.
    pages: [AtomicUsize; LET_THROUGH_MAX],
    /// Whether there were more: then every range is taken for open.
    has_overflowed: AtomicBool,
}

/// The most pages that are noted.
const LET_THROUGH_MAX: usize = 32;

impl LetThrough {
    const fn new() -> Self {
        let pages = [const { AtomicUsize::new(0) }; LET_THROUGH_MAX];
        Self { count: AtomicUsize::new(0), pages, has_overflowed: AtomicBool::new(false) }
    }

    fn clear(&self) {
        self.pages.iter().for_each(|page| page.store(0, Ordering::Relaxed));
        self.has_overflowed.store(false, Ordering::Relaxed);
        self.count.store(0, Ordering::Release);
    }

    /// Adds a page.
    fn add(&self, page: usize) {
        let is_taken = |place: &AtomicUsize| {
            place.compare_exchange(0, page, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if !self.pages.iter().any(is_taken) {
            self.has_overflowed.store(true, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Takes out the pages that overlap a range of addresses. Returns whether one may be among them.
    #[cold]
    fn take(&self, range: &Range<usize>, unit: usize) -> bool {
        let mut is_found = self.has_overflowed.load(Ordering::Relaxed);
        for place in &self.pages {
            let page = place.load(Ordering::Relaxed);
            let overlaps = page != 0 && page < range.end && range.start < page + unit;
            if overlaps && place.compare_exchange(page, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.count.fetch_sub(1, Ordering::Relaxed);
                is_found = true;
            }
        }
        is_found
    }
}

impl Watched {
    const fn new() -> Self {
        Self {
            is_taken: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            policy: AtomicPtr::new(core::ptr::null_mut()),
            has_key: AtomicUsize::new(0),
            unit: AtomicUsize::new(0),
            stray_count: AtomicU64::new(0),
            let_through: LetThrough::new(),
        }
    }
}

/// Keeps a region watched until it is dropped, which must be before the region is unmapped.
#[derive(Debug)]
pub(super) struct Watch {
    /// `None` if nothing is watched.
    watched: Option<&'static Watched>,
    /// The number of pages that are open because a stray access was let through.
    let_through: &'static AtomicUsize,
}

impl Watch {
    /// Watches these addresses, whose protection changes in multiples of `unit` bytes. `has_key` if they have a protection key.
    pub(super) fn new(pages: Range<usize>, unit: usize, policy: StrayPolicy, has_key: bool) -> Self {
        SIGSEGV.install(on_sigsegv);
        let taken = WATCHED.iter().find(|watched| {
            watched.is_taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        if let Some(watched) = taken {
            watched.start.store(pages.start, Ordering::Relaxed);
            watched.policy.store(Box::leak(Box::new(policy)), Ordering::Relaxed);
            watched.has_key.store(usize::from(has_key), Ordering::Relaxed);
            watched.unit.store(unit, Ordering::Relaxed);
            watched.stray_count.store(0, Ordering::Relaxed);
            watched.let_through.clear();
            watched.end.store(pages.end, Ordering::Release);
        }
        match taken {
            Some(watched) => Self { watched: taken, let_through: &watched.let_through.count },
            None => Self::of_nothing(),
        }
    }

    /// Watches nothing.
    pub(super) const fn of_nothing() -> Self {
        static NONE: AtomicUsize = AtomicUsize::new(0);
        Self { watched: None, let_through: &NONE }
    }

    /// Whether pages of the region may be open because a stray access was let through.
    #[inline(always)]
    pub(super) fn has_let_through(&self) -> bool {
        self.let_through.load(Ordering::Acquire) != 0
    }

    /// Whether pages in this range of the region, of offsets, may be open because a stray access was let through. The caller closes them: they are not
    /// noted any more.
    pub(super) fn take_let_through(&self, range: &Range<u64>) -> bool {
        let Some(watched) = self.watched else { return false };
        let start = watched.start.load(Ordering::Relaxed);
        let address = |offset: u64| start + usize::try_from(offset).unwrap_or(usize::MAX - start);
        let range = address(range.start)..address(range.end);
        watched.let_through.take(&range, watched.unit.load(Ordering::Relaxed))
    }

    /// The number of stray accesses so far.
    pub(super) fn stray_count(&self) -> u64 {
        self.watched.map_or(0, |watched| watched.stray_count.load(Ordering::Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(watched) = self.watched {
            watched.end.store(0, Ordering::Relaxed);
            watched.is_taken.store(0, Ordering::Release);
        }
    }
}

/// Handles SIGSEGV: reports a stray access, and passes every other signal on.
extern "C" fn on_sigsegv(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// Codes of siginfo_t: the mapping forbids the access; its protection key does.
    const ACCESS: [libc::c_int; 2] = [2, 4];
    // The interrupted code does not expect its errno to change. SAFETY: the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let found = unsafe { *errno };
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid `siginfo_t`.
    let facts = unsafe { &*info };
    let code = facts.si_code;
    if ACCESS.contains(&code) {
        // SAFETY: with these codes it holds the address.
        let address = unsafe { facts.si_addr() }.addr();
        let watched = WATCHED.iter().find(|watched| {
            let end = watched.end.load(Ordering::Acquire);
            address < end && watched.start.load(Ordering::Relaxed) <= address
        });
        if let Some(watched) = watched
            // SAFETY: the kernel gives a handler with SA_SIGINFO the interrupted context.
            && handle(watched, address, unsafe { &*context.cast::<libc::ucontext_t>() }) == Verdict::LetThrough
        {
            // SAFETY: as above.
            unsafe { *errno = found };
            return;
        }
    }
    SIGSEGV.pass_on(code, info, context);
}

/// Reports a stray access, and opens its page if the verdict is to let it through.
fn handle(watched: &Watched, address: usize, context: &libc::ucontext_t) -> Verdict {
    watched.stray_count.fetch_add(1, Ordering::Relaxed);
    let stray = stray(address, address - watched.start.load(Ordering::Relaxed), context);
    // SAFETY: set before `end`, to a value that is never freed.
    let policy = unsafe { *watched.policy.load(Ordering::Relaxed) };
    let verdict = match policy {
        StrayPolicy::Ask(decide) => decide(&stray),
        StrayPolicy::LetThrough => {
            say(&stray);
            Verdict::LetThrough
        }
        StrayPolicy::Abort => {
            say(&stray);
            Verdict::Abort
        }
    };
    let is_let_through = verdict == Verdict::LetThrough && !is_fetch(address, context);
    if is_let_through && open_page(watched, address, stray.access) {
        Verdict::LetThrough
    } else {
        Verdict::Abort
    }
}

/// Opens the page of a stray access. A read-only region can be opened for loads only.
fn open_page(watched: &Watched, address: usize, access: Option<Access>) -> bool {
    let unit = watched.unit.load(Ordering::Relaxed);
    let start = (address / unit * unit) as *mut libc::c_void;
    let open = |flags: libc::c_int| match watched.has_key.load(Ordering::Relaxed) {
        // SAFETY: async-signal-safe; the page belongs to the region.
        0 => unsafe { libc::mprotect(start, unit, flags) == 0 },
        // SAFETY: as above. Key 0 is open to every thread.
        _ => unsafe { libc::syscall(SYS_PKEY_MPROTECT, start, unit, flags, 0) == 0 },
    };
    let is_open =
        open(libc::PROT_READ | libc::PROT_WRITE) || access == Some(Access::Read) && open(libc::PROT_READ);
    if is_open {
        // After that: a write that has just looked closes the page the next time, and does not leave it open and unnoted.
        watched.let_through.add(start.addr());
    }
    is_open
}

#[cfg(target_arch = "x86_64")]
const SYS_PKEY_MPROTECT: libc::c_long = libc::SYS_pkey_mprotect;
#[cfg(not(target_arch = "x86_64"))]
const SYS_PKEY_MPROTECT: libc::c_long = -1;

/// What is known about an access.
fn stray(address: usize, offset: usize, context: &libc::ucontext_t) -> Stray {
    let (instruction, mut frame, access) = registers(context);
    let mut frames = [0; FRAMES_MAX];
    frames[0] = instruction;
    let mut frame_count = 1;
    // A frame begins with the address of the next, and the return address. The chain ends at a value that is none.
    while frame_count < FRAMES_MAX {
        let Some([next, return_address]) = read_words(frame) else { break };
        if next <= frame || return_address == 0 {
            break;
        }
        frames[frame_count] = return_address;
        frame_count += 1;
        frame = next;
    }
    // SAFETY: takes no pointers, and is async-signal-safe.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    // SAFETY: as above. The program headers follow the 64 bytes of the ELF header, at the start of the program.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) };
    Stray {
        address,
        offset: offset as u64,
        access,
        thread: i32::try_from(thread).unwrap_or(0),
        program: usize::try_from(program).unwrap_or(0).saturating_sub(64),
        frames,
        frame_count,
    }
}

/// The instruction, the frame pointer, and the kind of the access.
#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> (usize, usize, Option<Access>) {
    /// The bit of a page fault's error code that tells a store.
    const IS_STORE: i64 = 2;
    #[expect(
        clippy::cast_sign_loss,
        reason = "numbers of registers are not negative, and addresses have no sign"
    )]
    let register = |number: libc::c_int| context.uc_mcontext.gregs[number as usize];
    let address = |number| usize::try_from(register(number).cast_unsigned()).unwrap_or(0);
    let access = if register(libc::REG_ERR) & IS_STORE == 0 { Access::Read } else { Access::Write };
    (address(libc::REG_RIP), address(libc::REG_RBP), Some(access))
}

/// The instruction, the frame pointer, and the kind of the access.
#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> (usize, usize, Option<Access>) {
    let address = |register: u64| usize::try_from(register).unwrap_or(0);
    (address(context.uc_mcontext.pc), address(context.uc_mcontext.regs[29]), None)
}

/// Whether the CPU wanted to execute the bytes at the address, which opening their page does not permit.
#[cfg(target_arch = "x86_64")]
fn is_fetch(_: usize, context: &libc::ucontext_t) -> bool {
    /// The bit of a page fault's error code that tells an instruction fetch.
    const IS_FETCH: i64 = 16;
    let number = usize::try_from(libc::REG_ERR).unwrap_or(0);
    context.uc_mcontext.gregs[number] & IS_FETCH != 0
}

/// Whether the CPU wanted to execute the bytes at the address, which opening their page does not permit.
#[cfg(target_arch = "aarch64")]
fn is_fetch(address: usize, context: &libc::ucontext_t) -> bool {
    usize::try_from(context.uc_mcontext.pc).is_ok_and(|instruction| instruction == address)
}

/// Reads two words of this process, wherever they are: the kernel checks the address.
fn read_words(address: usize) -> Option<[usize; 2]> {
    let mut words = [0_usize; 2];
    let len = size_of_val(&words);
    let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len };
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: async-signal-safe; the kernel writes to `words` only, and refuses an address that cannot be read.
    let read = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    (usize::try_from(read) == Ok(len)).then_some(words)
}

/// Writes a report to standard error, without allocating.
fn say(stray: &Stray) {
    let mut line = Line { bytes: [0; 1024], len: 0 };
    // A line that is too long is cut.
    writeln!(line, "pm-core: {stray}").ok();
    // SAFETY: async-signal-safe, and the buffer is valid for its length.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len) };
}

/// A line of text on the stack.
struct Line {
    bytes: [u8; 1024],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let to = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}
