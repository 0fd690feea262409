//! The heap that serves, if there is one.

use crate::heap_file::{self, Backing, FileId};
use crate::settings::Settings;
use crate::{say, thread};
use core::fmt::Display;
use core::ops::RangeInclusive;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use pm_alloc::{FreeError, Heap, HeapError, SpaceError, UnloggedError, UnloggedHeap};
use pm_core::{OpenError, Pmem, PoolError, Region};
use std::path::Path;

/// What serves this process, for ever: a forked child has another one.
static SERVING: AtomicPtr<Serving> = AtomicPtr::new(null_mut());

/// Where the [`Phase`] of this process is: in a page that fork wipes, or in [`NOT_WIPED`].
static PHASE: AtomicPtr<AtomicU8> = AtomicPtr::new((&raw const NOT_WIPED).cast_mut());

/// The phase until there is a heap, and also then if the kernel cannot wipe a page on fork.
static NOT_WIPED: AtomicU8 = AtomicU8::new(Phase::Plain as u8);

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// glibc: the heap is not open yet, there is none, or it is the parent's. Zero, which a child finds that was made without the
    /// handlers of fork.
    Plain = 0,
    /// The heap.
    Heap,
    /// The heap, but the thread that is forking has all its locks.
    Forking,
}

/// The heap, and where it is.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) heap: UnloggedHeap<Region>,
    pub(crate) settings: Settings,
    pub(crate) backing: Backing,
    has_told_of_alignment: AtomicBool,
    has_told_of_space: AtomicBool,
    /// Of a child whose file has no name yet: its parent.
    parent: AtomicI32,
    /// How often a child was asked for a block while its file had no name.
    asked: AtomicU32,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A block.
    Block(NonNull<u8>),
    /// There is no room.
    Full,
    /// The heap has no such blocks, or a signal handler interrupted a call of this thread: glibc serves.
    Elsewhere,
}

/// Opens or makes the heap that the environment names, which does not serve yet. Says so if there is none, and leaves it to glibc.
pub(crate) fn open() -> bool {
    let settings = match Settings::of(|name| std::env::var_os(name)) {
        Ok(settings) => settings,
        Err(error) => {
            say(&format_args!("{error}; memory is volatile"));
            return false;
        }
    };
    // A program that is started without standard input or output must not find the heap in their place.
    let standard = heap_file::hold_standard_descriptors();
    let opened = heap_file::open(&settings);
    drop(standard);
    match opened {
        Ok(heap) => {
            install(Serving::new(heap, settings, 0));
            if let Some(page) = new_wiped_page() {
                PHASE.store(page, Ordering::Release);
            }
            true
        }
        Err(error) => {
            say(&format_args!("{}; memory is volatile", told(&settings.file, &error)));
            false
        }
    }
}

/// From here on the heap serves.
pub(crate) fn begin() {
    set_phase(Phase::Heap);
}

/// Why there is no heap in this file, with its path.
fn told(file: &Path, error: &HeapError) -> String {
    let path = file.display();
    match error {
        HeapError::Pool(PoolError::Region(OpenError::Busy { .. })) => {
            format!(
                "{path}: is in use by another process; with %p in PM_MALLOC_FILE each has a file of its own"
            )
        }
        // Most that concern the file name it.
        HeapError::Pool(PoolError::Region(error)) if error.to_string().starts_with(&path.to_string()) => {
            error.to_string()
        }
        error => format!("{path}: {error}"),
    }
}

/// Lets this serve from now on. What served before is not used any more, nor freed: its locks may be another thread's, that is
/// not in this process.
pub(crate) fn install(serving: Serving) {
    SERVING.store(Box::into_raw(Box::new(serving)), Ordering::Release);
}

#[inline]
fn phase() -> &'static AtomicU8 {
    // SAFETY: the static, or the start of a page that is never unmapped; any byte is an atomic one.
    unsafe { &*PHASE.load(Ordering::Acquire) }
}

fn set_phase(to: Phase) {
    phase().store(to as u8, Ordering::Release);
}

/// A page of zeroes that is one in a child too, if the kernel can do that.
///
/// # Source
/// madvise(2), `MADV_WIPEONFORK`.
fn new_wiped_page() -> Option<*mut AtomicU8> {
    let len = rustix::param::page_size();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a null hint lets the kernel choose an unused range.
    let page = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range was mapped just now, and holds nothing yet.
    let advised = unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) };
    (advised == 0).then_some(page.cast())
}

/// The heap, if it is to serve allocations of this thread: not in a child that was made without the handlers of fork, whose parent's
/// heap it is.
#[inline]
pub(crate) fn serving() -> Option<&'static Serving> {
    match phase().load(Ordering::Acquire) {
        phase if phase == Phase::Heap as u8 => current(),
        phase if phase == Phase::Plain as u8 => None,
        _ => current().filter(|_| !thread::is_forking()),
    }
}

/// The heap, whether it serves or not.
#[inline]
pub(crate) fn current() -> Option<&'static Serving> {
    // SAFETY: null, or from `Box::into_raw`, and never freed.
    unsafe { SERVING.load(Ordering::Acquire).as_ref() }
}

/// The heap, and the offset in it, if that is where the block is.
#[inline]
pub(crate) fn owner_of(block: *mut u8) -> Option<(&'static Serving, u64)> {
    let serving = current()?;
    let offset = (block.addr() as u64).checked_sub(serving.region().base_ptr().addr().get() as u64)?;
    (offset < serving.region().len_bytes()).then_some((serving, offset))
}

/// From here on the calling thread has the locks of the heap, or has given them back.
pub(crate) fn set_forking(is_forking: bool) {
    set_phase(if is_forking { Phase::Forking } else { Phase::Heap });
}

/// From here on glibc serves, in a child whose heap is its parent's.
pub(crate) fn set_plain() {
    set_phase(Phase::Plain);
}

/// Whether a thread of this process has the locks of the heap, for a fork.
pub(crate) fn is_forking() -> bool {
    phase().load(Ordering::Acquire) == Phase::Forking as u8
}

impl Serving {
    /// `parent` is that of a child whose file has no name, or zero.
    pub(crate) fn new(heap: Heap, settings: Settings, parent: i32) -> Self {
        let backing = Backing::new(heap.pool().pmem(), settings.sparse || parent != 0);
        Self {
            heap: UnloggedHeap::new(heap).durable(settings.durable),
            settings,
            backing,
            has_told_of_alignment: AtomicBool::new(false),
            has_told_of_space: AtomicBool::new(false),
            parent: AtomicI32::new(parent),
            asked: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        self.heap.heap().pool().pmem()
    }

    /// Whether the region's descriptor still leads to its file: the program has not closed it.
    pub(crate) fn has_file(&self) -> bool {
        FileId::of(self.region().file()).is_some_and(|id| self.backing.file_id() == Some(id))
    }

    #[inline]
    pub(crate) fn allocate(&self, bytes: usize, align_bytes: usize) -> Answer {
        if self.parent.load(Ordering::Relaxed) != 0 {
            self.look_for_parent();
        }
        let base = self.region().base_ptr();
        // What is aligned in the region must be so in memory.
        if !base.addr().get().is_multiple_of(align_bytes) {
            return self.elsewhere(align_bytes as u64);
        }
        let ensure = |offset, len| self.backing.ensure(self.region(), offset, len);
        match thread::with_locks(|| self.heap.alloc_if(bytes as u64, align_bytes as u64, ensure)) {
            Some(Ok(offset)) => {
                let at = usize::try_from(offset).expect("the region is mapped");
                let block = NonNull::new(base.as_ptr().wrapping_add(at));
                block.map_or(Answer::Full, Answer::Block)
            }
            Some(Err(error)) => self.refuse(&error),
            None => Answer::Elsewhere,
        }
    }

    #[cold]
    fn refuse(&self, error: &UnloggedError) -> Answer {
        match error {
            UnloggedError::Space(SpaceError::Alignment { align_bytes, .. }) => self.elsewhere(*align_bytes),
            UnloggedError::Space(SpaceError::Full { .. } | SpaceError::TooLong { .. }) => Answer::Full,
            UnloggedError::NoBacking => {
                if !self.has_told_of_space.swap(true, Ordering::Relaxed) {
                    say(&format_args!("{}: the file system is full", self.settings.file.display()));
                }
                Answer::Full
            }
            error => {
                say(error);
                Answer::Full
            }
        }
    }

    #[cold]
    fn elsewhere(&self, align_bytes: u64) -> Answer {
        if !self.has_told_of_alignment.swap(true, Ordering::Relaxed) {
            say(&format_args!("long blocks at multiples of {align_bytes} bytes are volatile"));
        }
        Answer::Elsewhere
    }

    pub(crate) fn free(&self, offset: u64) {
        match thread::with_locks(|| self.heap.free(offset)) {
            Some(Ok(())) => {}
            Some(Err(error)) => self.complain("free", &error),
            None => thread::free_later(offset),
        }
    }

    /// How many bytes there are room for in a block, if it is one.
    pub(crate) fn usable_bytes(&self, offset: u64, asked_by: &str) -> Option<usize> {
        let told = |error: FreeError| self.complain(asked_by, &error);
        let bytes = self.heap.usable_bytes(offset).map_err(told).ok()?;
        usize::try_from(bytes).ok()
    }

    /// Makes a block longer or shorter where it is, and says how many bytes there is room for then.
    pub(crate) fn resize(&self, offset: u64, bytes: RangeInclusive<usize>, asked_by: &str) -> Option<usize> {
        let bytes = *bytes.start() as u64..=*bytes.end() as u64;
        let ensure = |offset, len| self.backing.ensure(self.region(), offset, len);
        match thread::with_locks(|| self.heap.resize(offset, bytes, ensure))? {
            Ok(room) => usize::try_from(room?).ok(),
            Err(error) => {
                self.complain(asked_by, &error);
                None
            }
        }
    }

    fn complain(&self, function: &str, error: &dyn Display) {
        let path = self.settings.file.display();
        say(&format_args!("{function}: {error} in {path}; it is left alone"));
    }

    /// Gives a child's file its name once the child is on its own. Looks often at first: a daemon's parent ends at once.
    #[cold]
    fn look_for_parent(&self) {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        if asked < 64 || asked.is_multiple_of(64) {
            self.name_orphan();
        }
    }

    /// Where the file of each process is kept, so are those of children that end as they should.
    pub(crate) fn name_at_exit(&self) {
        self.name_orphan();
        let is_kept = self.settings.keep && self.settings.is_for_each_process();
        if is_kept
            && self.parent.swap(0, Ordering::Relaxed) != 0
            && let Some(name) = self.settings.name_of_child()
            && let Err(errno) = heap_file::give_name(self.region(), self.backing.file_id(), &name)
        {
            say(&format_args!("the heap cannot be named {}: {errno}", name.display()));
        }
    }

    /// Gives the file of a child that has outlived its parent its name.
    pub(crate) fn name_orphan(&self) {
        let parent = self.parent.load(Ordering::Relaxed);
        let is_orphan = std::os::unix::process::parent_id().cast_signed() != parent;
        if parent == 0 || !is_orphan || self.parent.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let Some(name) = self.settings.name_of_child() else { return };
        let named = heap_file::give_name(self.region(), self.backing.file_id(), &name);
        let name = name.display();
        match named {
            Ok(()) => say(&format_args!("outlives its parent, process {parent}, with its heap in {name}")),
            Err(errno) => say(&format_args!(
                "outlives its parent, process {parent}, and its heap cannot be named {name}: {errno}; it is gone when this ends"
            )),
        }
    }
}
