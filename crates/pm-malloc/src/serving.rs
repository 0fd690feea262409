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

/// The heap of this process, never freed: a forked child has another one.
static SERVING: AtomicPtr<Serving> = AtomicPtr::new(null_mut());

/// The place of this process's [`Phase`]: in a page that fork wipes, or in [`NOT_WIPED`].
static PHASE: AtomicPtr<AtomicU8> = AtomicPtr::new((&raw const NOT_WIPED).cast_mut());

/// The phase until there is a heap, and afterwards if the kernel cannot wipe a page on fork.
static NOT_WIPED: AtomicU8 = AtomicU8::new(Phase::Plain as u8);

/// The allocator that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// glibc: the heap is not open yet, there is none, or it belongs to the parent. Zero, which a child that was made without fork handlers finds.
    Plain = 0,
    /// The heap.
    Heap,
    /// The heap, but the forking thread has all its locks.
    Forking,
}

/// The heap, and its file.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) heap: UnloggedHeap<Region>,
    pub(crate) settings: Settings,
    pub(crate) backing: Backing,
    has_reported_alignment: AtomicBool,
    has_reported_space: AtomicBool,
    /// Of a child whose file has no name yet: its parent.
    parent: AtomicI32,
    /// The allocations of a child whose file has no name yet.
    unnamed_count: AtomicU32,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A block.
    Block(NonNull<u8>),
    /// There is no space.
    Full,
    /// glibc serves: the heap has no such blocks, or a signal handler interrupted a call of this thread.
    Elsewhere,
}

/// Opens or makes the heap that the environment names, which does not serve yet. If that fails, prints a message, and glibc serves.
pub(crate) fn open() -> bool {
    let settings = match Settings::of(|name| std::env::var_os(name)) {
        Ok(settings) => settings,
        Err(error) => {
            say(&format_args!("{error}; memory is volatile"));
            return false;
        }
    };
    // A program that is started without standard input or output must not find the heap's file under their numbers.
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
            say(&format_args!("{}; memory is volatile", message(&settings.file, &error)));
            false
        }
    }
}

/// Makes the heap serve.
pub(crate) fn begin() {
    set_phase(Phase::Heap);
}

/// The message for an error of the heap's file, with its path.
fn message(file: &Path, error: &HeapError) -> String {
    let path = file.display();
    match error {
        HeapError::Pool(PoolError::Region(OpenError::Busy { .. })) => {
            format!(
                "{path}: is in use by another process; with %p in PM_MALLOC_FILE each has a file of its own"
            )
        }
        // Most errors of the region name the path.
        HeapError::Pool(PoolError::Region(error)) if error.to_string().starts_with(&path.to_string()) => {
            error.to_string()
        }
        error => format!("{path}: {error}"),
    }
}

/// Makes this the heap from now on. The previous one is not freed: its locks may be held by a thread that does not exist in this process.
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

/// A page that the kernel zeroes in forked children, if it can.
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

/// The heap, if it serves allocations of this thread: not in a child that was made without fork handlers, as the heap belongs to its parent.
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

/// The heap, and the offset of the block in it, if the block is in the heap.
#[inline]
pub(crate) fn owner_of(block: *mut u8) -> Option<(&'static Serving, u64)> {
    let serving = current()?;
    let offset = (block.addr() as u64).checked_sub(serving.region().base_ptr().addr().get() as u64)?;
    (offset < serving.region().len_bytes()).then_some((serving, offset))
}

/// Records that the calling thread holds the locks of the heap for a fork, or has released them.
pub(crate) fn set_forking(is_forking: bool) {
    set_phase(if is_forking { Phase::Forking } else { Phase::Heap });
}

/// Makes glibc serve, in a child whose heap belongs to its parent.
pub(crate) fn set_plain() {
    set_phase(Phase::Plain);
}

/// Whether a thread of this process holds the locks of the heap for a fork.
pub(crate) fn is_forking() -> bool {
    phase().load(Ordering::Acquire) == Phase::Forking as u8
}

impl Serving {
    /// `parent` is the parent of a child whose file has no name, or zero.
    pub(crate) fn new(heap: Heap, settings: Settings, parent: i32) -> Self {
        let backing = Backing::new(heap.pool().pmem(), settings.sparse || parent != 0);
        Self {
            heap: UnloggedHeap::new(heap).durable(settings.durable),
            settings,
            backing,
            has_reported_alignment: AtomicBool::new(false),
            has_reported_space: AtomicBool::new(false),
            parent: AtomicI32::new(parent),
            unnamed_count: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        self.heap.heap().pool().pmem()
    }

    /// Whether the region's descriptor still refers to its file: the program has not closed it.
    pub(crate) fn has_file(&self) -> bool {
        FileId::of(self.region().file()).is_some_and(|id| self.backing.file_id() == Some(id))
    }

    #[inline]
    pub(crate) fn allocate(&self, bytes: usize, align_bytes: usize) -> Answer {
        if self.parent.load(Ordering::Relaxed) != 0 {
            self.look_for_parent();
        }
        let base = self.region().base_ptr();
        // An aligned offset must be an aligned address.
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
                if !self.has_reported_space.swap(true, Ordering::Relaxed) {
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
        if !self.has_reported_alignment.swap(true, Ordering::Relaxed) {
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

    /// The number of bytes that a block has room for, if it is valid.
    pub(crate) fn usable_bytes(&self, offset: u64, caller: &str) -> Option<usize> {
        let invalid = |error: FreeError| self.complain(caller, &error);
        let bytes = self.heap.usable_bytes(offset).map_err(invalid).ok()?;
        usize::try_from(bytes).ok()
    }

    /// Resizes a block in place, and returns its new room.
    pub(crate) fn resize(&self, offset: u64, bytes: RangeInclusive<usize>, caller: &str) -> Option<usize> {
        let bytes = *bytes.start() as u64..=*bytes.end() as u64;
        let ensure = |offset, len| self.backing.ensure(self.region(), offset, len);
        match thread::with_locks(|| self.heap.resize(offset, bytes, ensure))? {
            Ok(room) => usize::try_from(room?).ok(),
            Err(error) => {
                self.complain(caller, &error);
                None
            }
        }
    }

    fn complain(&self, function: &str, error: &dyn Display) {
        let path = self.settings.file.display();
        say(&format_args!("{function}: {error} in {path}; it is ignored"));
    }

    /// Gives a child's file its name once its parent has ended. Checks often at first: a daemon's parent ends at once.
    #[cold]
    fn look_for_parent(&self) {
        let count = self.unnamed_count.fetch_add(1, Ordering::Relaxed);
        if count < 64 || count.is_multiple_of(64) {
            self.name_orphan();
        }
    }

    /// If the file of each process is kept, names the file of a child that ends by `exit`.
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

    /// Names the file of a child that has outlived its parent.
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
                "outlives its parent, process {parent}, and its heap cannot be named {name}: {errno}; it ends with this process"
            )),
        }
    }
}
