//! The heap that serves, if there is one.

use crate::settings::Settings;
use crate::{fork, say};
use core::fmt::Display;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use pm_alloc::{DirectError, DirectHeap, FreeError, Heap, HeapError, HeapOptions, SpaceError};
use pm_core::{OpenError, Pmem, PoolError, Region};
use std::path::Path;
use std::sync::OnceLock;

static SERVING: OnceLock<Serving> = OnceLock::new();

static PHASE: AtomicU8 = AtomicU8::new(Phase::Plain as u8);

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// glibc: the heap is not open yet, or there is none.
    Plain,
    /// The heap.
    Heap,
    /// glibc again: this is the child of a process that the heap serves. Blocks that are in it can be read and written, and
    /// are never freed.
    Forked,
}

/// The heap, and where it is.
#[derive(Debug)]
pub(crate) struct Serving {
    heap: DirectHeap<Region>,
    /// No block that was handed out ends behind this offset.
    used_end: AtomicU64,
    has_told_of_alignment: AtomicBool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A block.
    Block(NonNull<u8>),
    /// There is no room.
    Full,
    /// The heap has no such blocks: glibc does.
    Elsewhere,
}

/// Opens or makes the heap that the environment names. Says so if there is none, and leaves it to glibc.
pub(crate) fn start() {
    let settings = match Settings::of(|name| std::env::var_os(name)) {
        Ok(settings) => settings,
        Err(error) => return say(&format_args!("{error}; memory is volatile")),
    };
    match open(&settings) {
        Ok(heap) => {
            let heap = DirectHeap::new(heap).durable(settings.durable);
            let serving =
                Serving { heap, used_end: AtomicU64::new(0), has_told_of_alignment: AtomicBool::new(false) };
            if SERVING.set(serving).is_ok() {
                fork::watch();
                PHASE.store(Phase::Heap as u8, Ordering::Release);
            }
        }
        Err(error) => say(&format_args!("{}; memory is volatile", told(&settings.file, &error))),
    }
}

fn open(settings: &Settings) -> Result<Heap, HeapError> {
    // Lanes are for transactions. Chunks are long, so that few blocks are longer.
    let chunk_bytes = (settings.file_bytes / 64).clamp(64 << 10, 4 << 20);
    let options = HeapOptions::new()
        .lanes(2)
        .lane_entries(30)
        .chunk_bytes(1 << chunk_bytes.ilog2())
        .reuse_after(settings.reuse_after);
    if settings.file.exists() {
        return Heap::open(&settings.file, &options);
    }
    Heap::create(&settings.file, settings.file_bytes, &options)
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

/// The heap, if it is to serve allocations.
pub(crate) fn serving() -> Option<&'static Serving> {
    if PHASE.load(Ordering::Acquire) == Phase::Heap as u8 { SERVING.get() } else { None }
}

/// The heap, and the offset in it, if that is where the block is, and whether it can be freed.
pub(crate) fn owner_of(block: *mut u8) -> Option<(&'static Serving, u64, bool)> {
    let phase = PHASE.load(Ordering::Acquire);
    if phase == Phase::Plain as u8 {
        return None;
    }
    let serving = SERVING.get()?;
    let offset = (block.addr() as u64).checked_sub(serving.region().base_ptr().addr().get() as u64)?;
    (offset < serving.region().len_bytes()).then_some((serving, offset, phase == Phase::Heap as u8))
}

/// From here on this process is a child that has its own copy of the heap, if any.
pub(crate) fn leave() {
    PHASE.store(Phase::Forked as u8, Ordering::Release);
}

impl Serving {
    pub(crate) fn region(&self) -> &Region {
        self.heap.heap().pool().pmem()
    }

    /// Where in the region blocks lie that were handed out.
    pub(crate) fn used(&self) -> core::ops::Range<u64> {
        let start = self.heap.heap().layout().chunks_start;
        start..self.used_end.load(Ordering::Acquire).max(start)
    }

    pub(crate) fn allocate(&self, bytes: usize, align_bytes: usize) -> Answer {
        match self.heap.alloc(bytes as u64, align_bytes as u64) {
            Ok(offset) => {
                let end = offset + bytes as u64;
                if self.used_end.load(Ordering::Relaxed) < end {
                    self.used_end.fetch_max(end, Ordering::AcqRel);
                }
                let at = usize::try_from(offset).expect("the region is mapped");
                let block = NonNull::new(self.region().base_ptr().as_ptr().wrapping_add(at));
                block.map_or(Answer::Full, Answer::Block)
            }
            Err(DirectError::Space(SpaceError::Alignment { align_bytes, .. })) => {
                if !self.has_told_of_alignment.swap(true, Ordering::Relaxed) {
                    say(&format_args!("long blocks at multiples of {align_bytes} bytes are volatile"));
                }
                Answer::Elsewhere
            }
            Err(DirectError::Space(SpaceError::Full { .. } | SpaceError::TooLong { .. })) => Answer::Full,
            Err(error) => {
                say(&error);
                Answer::Full
            }
        }
    }

    pub(crate) fn free(&self, offset: u64) {
        if let Err(error) = self.heap.free(offset) {
            self.complain("free", &error);
        }
    }

    /// How many bytes there are room for in a block, if it is one.
    pub(crate) fn usable_bytes(&self, offset: u64, asked_by: &str) -> Option<usize> {
        let told = |error: FreeError| self.complain(asked_by, &error);
        let bytes = self.heap.usable_bytes(offset).map_err(told).ok()?;
        usize::try_from(bytes).ok()
    }

    fn complain(&self, function: &str, error: &dyn Display) {
        let path = self.region().path().display();
        say(&format_args!("{function}: {error} in {path}; it is left alone"));
    }
}
