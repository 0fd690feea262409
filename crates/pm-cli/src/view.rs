//! A heap as recovery on the next open will leave it, without changing the file.

use crate::error::AtPath;
use crate::findings::{self, Finding, Remedy};
use crate::report;
use pm_alloc::format::{BlockState, ROOT};
use pm_alloc::layout::Layout;
use pm_alloc::{Block, CheckReport, Heap, HeapInspection, HeapOptions};
use pm_core::{Pool, Region, RegionOptions, Root};
use std::path::Path;

/// The blocks between two steps of the progress bar.
const BLOCKS_PER_STEP: u64 = 1 << 14;

/// A heap, as it is and as recovery will leave it.
pub(crate) struct View {
    /// The pool as it is.
    pub(crate) pool: Pool<Region>,
    /// The heap's logs and words as they are.
    pub(crate) inspection: HeapInspection,
    /// The heap after recovery, in pages of this process.
    pub(crate) heap: Heap<Region>,
}

/// The result of a complete check.
pub(crate) struct Checked {
    pub(crate) view: View,
    pub(crate) report: CheckReport,
    pub(crate) roots: Roots,
    pub(crate) findings: Vec<Finding>,
}

impl View {
    pub(crate) fn open(path: &Path) -> Result<Self, AtPath> {
        let pool = open_read_only(path)?;
        let inspection = HeapInspection::of(&pool).map_err(AtPath::new(path))?;
        let heap = recovered(path)?;
        Ok(Self { pool, inspection, heap })
    }

    /// Checks everything, and calls `each` with every block.
    pub(crate) fn check(self, mut each: impl FnMut(&Block)) -> Checked {
        let Self { pool, inspection, heap } = &self;
        let layout = heap.layout();
        let (start, end) = (layout.chunks_start, layout.chunk_offset(inspection.chunk_count));
        let bar = report::progress(end - start, "checking blocks");
        let (mut roots, mut steps) = (Roots::of(heap.pool().roots()), 0_u64);
        let report = heap.check_with(|block| {
            roots.note(&block);
            each(&block);
            steps += 1;
            if steps.is_multiple_of(BLOCKS_PER_STEP) {
                bar.set_position(block.payload - start);
            }
        });
        bar.finish_and_clear();
        let mut findings: Vec<Finding> = findings::of_pool_header(pool).into_iter().collect();
        // Transactions change the directory too, so it is checked as recovery leaves it.
        findings.extend(findings::of_heap_roots(heap, Remedy::Lose));
        findings.extend(findings::of_heap(inspection));
        findings.extend(report.corruptions.iter().map(findings::of_block));
        let dangling = roots.iter().filter(|(_, is_held)| !is_held);
        findings.extend(
            dangling.map(|(root, _)| findings::of_dangling(root.name(), root.offset(), root.len_bytes())),
        );
        Checked { view: self, report, roots, findings }
    }
}

/// The pool at `path`, unchanged. The file's pages stay in the page cache, and so does the error of a failed write-back: the server that
/// takes over a disk needs both.
pub(crate) fn open_read_only(path: &Path) -> Result<Pool<Region>, AtPath> {
    Pool::open(path, &RegionOptions::new().read_only().keep_pages(true)).map_err(AtPath::new(path))
}

/// The heap at `path`, recovered in pages of this process. The file is unchanged, as by [`open_read_only`].
pub(crate) fn recovered(path: &Path) -> Result<Heap<Region>, AtPath> {
    let region = RegionOptions::new().scratch().keep_pages(true);
    let options = HeapOptions::new().region(region).discard_corrupted_records(true);
    Heap::open(path, &options).map_err(AtPath::new(path))
}

/// The roots of a heap except the heap's own, by offset; and for each whether its value lies in an allocated block.
pub(crate) struct Roots(Vec<(Root, bool)>);

impl Roots {
    pub(crate) fn of(mut roots: Vec<Root>) -> Self {
        roots.retain(|root| root.name() != ROOT);
        roots.sort_by_key(Root::offset);
        Self(roots.into_iter().map(|root| (root, false)).collect())
    }

    /// Records a block.
    pub(crate) fn note(&mut self, block: &Block) {
        let end = block.payload + Layout::usable_bytes(block.lines);
        let first = self.0.partition_point(|(root, _)| root.offset() < block.payload);
        for (root, is_held) in self.0[first..].iter_mut().take_while(|(root, _)| root.offset() < end) {
            let root_end = root.offset().checked_add(root.len_bytes());
            *is_held =
                block.state == BlockState::Allocated && root_end.is_some_and(|root_end| root_end <= end);
        }
    }

    /// All roots, after all blocks were recorded.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Root, bool)> {
        self.0.iter().map(|(root, is_held)| (root, *is_held))
    }
}
