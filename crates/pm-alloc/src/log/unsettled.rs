//! Groups that were not fenced: the last of transactions committed lazily.

use crate::sync::{AtomicUsize, Mutex, Ordering::SeqCst, before_flushing_others_stores, lock};
use pm_core::line::line_start;
use pm_core::{FenceError, Pmem};

use crate::format::LINE_BYTES;

/// What commits these groups, by lane: the entry, and the word that says that the lane's undo entries are dead.
///
/// Nothing that depends on a transaction may be durable before it is. So a commit flushes both words of the other lanes, and fences,
/// first: either of them may be corrupted later. A lane's own need no fence: a later group of the same lane commits the ones before.
#[derive(Debug)]
pub(super) struct Unsettled {
    count: AtomicUsize,
    entries: Mutex<Vec<(u32, [u64; 2])>>,
}

impl Unsettled {
    pub(super) fn new() -> Self {
        Self { count: AtomicUsize::new(0), entries: Mutex::new(Vec::new()) }
    }

    /// The lines at `offsets`, which commit in `lane`, were not fenced.
    pub(super) fn add(&self, lane: u32, offsets: [u64; 2]) {
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.0 != lane);
        entries.push((lane, offsets));
        self.count.store(entries.len(), SeqCst);
    }

    /// Those of this lane are durable.
    pub(super) fn remove(&self, lane: u32) {
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.0 != lane);
        self.count.store(entries.len(), SeqCst);
    }

    /// Makes all durable but those of one lane. The lock is held until they are: who finds none may rely on it.
    #[inline]
    pub(super) fn settle<P: Pmem>(&self, pmem: &P, but: Option<u32>) -> Result<(), FenceError> {
        if self.count.load(SeqCst) == 0 { Ok(()) } else { self.settle_some(pmem, but) }
    }

    #[cold]
    fn settle_some<P: Pmem>(&self, pmem: &P, but: Option<u32>) -> Result<(), FenceError> {
        let mut entries = lock(&self.entries);
        if entries.iter().all(|&(lane, _)| Some(lane) == but) {
            return Ok(());
        }
        before_flushing_others_stores();
        for &(_, offsets) in entries.iter().filter(|&&(lane, _)| Some(lane) != but) {
            offsets.iter().for_each(|&offset| pmem.flush(line_start(offset), LINE_BYTES));
        }
        pmem.fence()?;
        entries.retain(|&(lane, _)| Some(lane) == but);
        self.count.store(entries.len(), SeqCst);
        Ok(())
    }
}
