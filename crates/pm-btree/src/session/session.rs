//! A session, from an open to a close or a crash: the parts of an open store that all its tables use.

use super::batch_slots::BatchSlots;
use super::classes::{Class, Units};
use super::epochs::Epochs;
use super::grace::{Active, Grace, processor_count, thread_number};
use super::limbo::Limbo;
use super::options::StoreOptions;
use super::space::Space;
use crate::error::{Corruption, CorruptionKind, OpenError, WriteError};
use crate::format::{
    ENTRY_BYTES, KNOWN_INCOMPAT, MAGIC, NODE_HEADER_BYTES, ROOT, StoreBlock, StoreHeader, VERSION, checked,
    unchecked,
};
use crate::node::{
    Commit, FANOUT_MAX, FrameLock, Frames, InnerNodes, RecordRef, Stamp, flush_owed, store_used_lines,
};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use pm_alloc::{Heap, PoisoningPmem};
use pm_core::{FenceError, Pmem, Region, field};
use std::time::Instant;

/// The parts of an open store.
#[derive(Debug)]
pub(crate) struct Session<P: Pmem> {
    /// The offset of the store's block.
    block: u64,
    pub(crate) heap: Heap<P>,
    pub(crate) space: Space,
    pub(crate) frames: Frames,
    pub(crate) inner: InnerNodes,
    pub(crate) epochs: Epochs,
    pub(crate) batches: BatchSlots,
    limbo: Limbo,
    changes_per_epoch: u32,
    /// The number of entries in a node.
    pub(crate) slots: usize,
    /// Whether reads verify checksums.
    pub(crate) verifies_reads: bool,
    is_poisoned: AtomicBool,
    /// Whether changes wait until empty leaves are unlinked.
    is_held_off: AtomicBool,
    /// How often the time for which changes that begin may wait is doubled.
    hold_off_doublings: AtomicU32,
    /// The number of empty leaves of a tree that are unlinked together.
    pub(crate) empty_leaves: usize,
    /// The number of steps of searches to a right sibling.
    steps_right: AtomicU64,
    new_indexes: AtomicU64,
}

/// How long changes that begin may wait for those that are in progress. It is doubled each time when that was not long enough, because a fence may be a
/// system call of a millisecond, and halved when half of it was.
const HOLD_OFF: Duration = Duration::from_micros(100);

/// 12.8 milliseconds.
const HOLD_OFF_DOUBLINGS_MAX: u32 = 7;

/// Changes are held off until this is dropped: no leaf changes but by the thread that has it.
#[derive(Debug)]
pub(crate) struct HeldOff<'c> {
    is_held_off: &'c AtomicBool,
}

impl Drop for HeldOff<'_> {
    fn drop(&mut self) {
        self.is_held_off.store(false, Ordering::Release);
    }
}

/// The most children of an inner node: as many as make inner nodes split soon where leaves do.
fn fanout(slots: usize) -> usize {
    (slots + 2).min(FANOUT_MAX)
}

impl Session<Region> {
    /// Grows the pool, and makes room for what it can hold.
    pub(crate) fn grow(&mut self, pool_bytes: u64) -> Result<(), OpenError> {
        if let Some(reason) = Space::refusal(pool_bytes, self.space.units().extent_bytes) {
            return Err(OpenError::Layout { pool_bytes, reason });
        }
        self.heap.grow(pool_bytes)?;
        self.space.grow(self.heap.pmem().len_bytes());
        self.frames.grow(self.space.extent_count_max());
        Ok(())
    }
}

impl<P: Pmem> Session<P> {
    /// Starts a session on the store in `heap`.
    pub(crate) fn open(heap: Heap<P>, options: &StoreOptions) -> Result<Self, OpenError> {
        let (block, header) = find(&heap)?;
        let batches = BatchSlots::open(&heap.pmem(), block);
        let grace = Grace::new(processor_count().min(16));
        let epochs = Epochs::start(&heap.pmem(), block, grace)?;
        if epochs.is_unclean {
            batches.check()?;
        }
        let slots = header.node_slots as usize;
        let node_bytes = NODE_HEADER_BYTES + slots as u64 * ENTRY_BYTES;
        let pool_bytes = heap.max_bytes().max(heap.pmem().len_bytes());
        if let Some(reason) = Space::refusal(pool_bytes, header.extent_bytes) {
            return Err(OpenError::Layout { pool_bytes, reason });
        }
        let units = Units { extent_bytes: header.extent_bytes, node_bytes };
        let space = Space::open(&heap, units)?;
        let frames = Frames::new(space.extent_count_max(), units.count(Class::NODES));
        let inner = InnerNodes::new();
        let verifies_reads = options.verifies_reads();
        let (is_poisoned, steps_right) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self {
            block,
            heap,
            space,
            frames,
            inner,
            epochs,
            batches,
            limbo: Limbo::new(processor_count().min(16)),
            changes_per_epoch: options.epoch_changes(),
            slots,
            verifies_reads,
            is_poisoned,
            is_held_off: AtomicBool::new(false),
            hold_off_doublings: AtomicU32::new(0),
            empty_leaves: options.empty_leaves_max(),
            steps_right,
            new_indexes: AtomicU64::new(0),
        })
    }

    /// Returns the extents and blocks that are not in use to the heap. No other thread uses the store.
    ///
    /// # Durability
    /// One transaction of the heap for each.
    pub(crate) fn return_all_unused(&mut self) -> Result<(), WriteError> {
        self.space.search_anew();
        self.space.return_unused(&self.heap)?;
        self.return_unused_nodes()
    }

    /// As [`return_all_unused`](Self::return_all_unused), of extents of nodes.
    pub(crate) fn return_unused_nodes(&mut self) -> Result<(), WriteError> {
        let Self { space, heap, frames, .. } = self;
        space.return_unused_nodes(heap, |extent| frames.forget(extent))
    }

    #[inline]
    pub(crate) fn pmem(&self) -> PoisoningPmem<'_, P> {
        self.heap.pmem()
    }

    /// The slots of a node, as a bitmap.
    #[inline]
    pub(crate) const fn all_slots(&self) -> u64 {
        (1 << self.slots) - 1
    }

    pub(crate) fn fanout(&self) -> usize {
        fanout(self.slots)
    }

    /// Counts a new index that was made from the leaves, because a hint node was corrupted.
    pub(crate) fn count_new_index(&self) {
        self.new_indexes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn new_indexes(&self) -> u64 {
        self.new_indexes.load(Ordering::Relaxed)
    }

    /// Counts a step of a search to a right sibling. This is rare: the index had no pointer to the sibling yet, or has lost it.
    #[cold]
    pub(crate) fn count_step(&self) {
        self.steps_right.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn steps_right(&self) -> u64 {
        self.steps_right.load(Ordering::Relaxed)
    }

    /// Flushes the lines that the next changes of the leaves would flush, and stores how many lines of entries the leaves use: these are durable. The
    /// caller fences.
    pub(crate) fn flush_leaves(&self) {
        // A word of a hint node that a thread has replaced without a fence may not come back once the node that it named is unlinked.
        let words = 8 * self.fanout() as u64;
        self.inner.hints().for_each(|hint| self.pmem().flush(hint + NODE_HEADER_BYTES, words));
        for frame in self.frames.filled() {
            let leaf = frame.lock();
            flush_owed(&self.pmem(), &leaf, leaf.owed.load(Ordering::Relaxed));
            let lines = leaf.used_lines.load(Ordering::Relaxed);
            if lines != leaf.stored_lines.swap(lines, Ordering::Relaxed) {
                store_used_lines(&self.pmem(), leaf.node(), lines);
            }
        }
    }

    pub(crate) const fn node_bytes(&self) -> u64 {
        NODE_HEADER_BYTES + self.slots as u64 * ENTRY_BYTES
    }

    #[inline]
    pub(crate) fn check_not_poisoned(&self) -> Result<(), WriteError> {
        if self.is_poisoned.load(Ordering::Relaxed) { Err(WriteError::Poisoned) } else { Ok(()) }
    }

    /// As [`check_not_poisoned`](Self::check_not_poisoned), for a change that has no fence: one of the heap may have failed, when it added an extent.
    pub(crate) fn check_may_fence(&self) -> Result<(), WriteError> {
        if self.pmem().is_poisoned() {
            self.poison();
        }
        self.check_not_poisoned()
    }

    /// Makes all later changes fail: it is unknown what of the present one is durable.
    pub(crate) fn poison(&self) {
        self.is_poisoned.store(true, Ordering::Relaxed);
    }

    /// Fences. A failed fence poisons the store.
    #[inline]
    #[track_caller]
    pub(crate) fn fence(&self) -> Result<(), FenceError> {
        self.pmem().fence().inspect_err(|_| self.poison())
    }

    /// Announces a change. Its entries get their stamps while the returned guard lives.
    #[inline]
    pub(crate) fn begin_change(&self) -> Result<Active<'_>, WriteError> {
        self.check_not_poisoned()?;
        let mut active = self.epochs.enter();
        while self.is_held_off.load(Ordering::Acquire) {
            drop(active);
            self.wait_for_release();
            active = self.epochs.enter();
        }
        if self.epochs.is_check_due(self.changes_per_epoch) {
            self.epochs.advance_durable(&self.pmem(), &self.is_poisoned).inspect_err(|_| self.poison())?;
        }
        Ok(active)
    }

    #[cold]
    fn wait_for_release(&self) {
        let mut attempts = 0_u32;
        while self.is_held_off.load(Ordering::Acquire) {
            attempts += 1;
            if attempts.is_multiple_of(128) { std::thread::yield_now() } else { core::hint::spin_loop() }
        }
    }

    /// Lets changes that begin wait, until the result is dropped. `None` if changes are in progress for too long, or another thread holds changes off.
    /// The calling thread has no change in progress.
    pub(crate) fn hold_off_changes(&self) -> Option<HeldOff<'_>> {
        if self.is_held_off.swap(true, Ordering::AcqRel) {
            return None;
        }
        let held_off = HeldOff { is_held_off: &self.is_held_off };
        let doublings = self.hold_off_doublings.load(Ordering::Relaxed);
        let (begin, most) = (Instant::now(), HOLD_OFF * (1 << doublings));
        while !self.epochs.is_still() {
            if begin.elapsed() > most {
                let longer = (doublings + 1).min(HOLD_OFF_DOUBLINGS_MAX);
                self.hold_off_doublings.store(longer, Ordering::Relaxed);
                return None;
            }
            std::thread::yield_now();
        }
        if begin.elapsed() < most / 2 {
            self.hold_off_doublings.store(doublings.saturating_sub(1), Ordering::Relaxed);
        }
        Some(held_off)
    }

    /// Announces a reader. While the returned guard lives, the space of records that the reader finds is not used again.
    #[inline]
    pub(crate) fn begin_lending(&self) -> Active<'_> {
        self.limbo.enter(thread_number())
    }

    /// Releases a record that is not in a leaf any more, once no reader looks at it. The caller has the lock of the leaf.
    #[inline]
    pub(crate) fn release_record(&self, record: RecordRef) {
        if self.limbo.has_readers() {
            // The sweep does not find a record that waits. If it has not visited the leaf yet, it cannot end before the record is marked here.
            self.space.mark_record(record.offset, record.len);
            self.reuse(self.limbo.wait(record));
            return;
        }
        self.space.release_record(record.offset, record.len);
        if self.limbo.is_used() {
            self.reuse(self.limbo.drain());
        }
    }

    /// Lets the space of records be used again.
    #[cold]
    fn reuse(&self, records: Vec<RecordRef>) {
        records.iter().for_each(|record| self.space.release_record(record.offset, record.len));
    }

    /// Notes that the entries that the last change of a leaf has replaced are durably gone, and releases their records.
    pub(crate) fn settle_owed(&self, leaf: &FrameLock<'_>) {
        leaf.owed.store(0, Ordering::Relaxed);
        let release = |record: RecordRef| self.release_record(record);
        match leaf.owed_payload.swap(0, Ordering::Relaxed) {
            0 => (),
            RecordRef::LIST_PAYLOAD => self.batches.take_replaced(leaf.node()).into_iter().for_each(release),
            payload => release(RecordRef::from_payload(payload)),
        }
    }

    /// The records of the entries that the last change of a leaf has replaced, which are not released yet.
    pub(crate) fn owed_records(&self, leaf: &FrameLock<'_>) -> Vec<RecordRef> {
        match leaf.owed_payload.load(Ordering::Relaxed) {
            0 => Vec::new(),
            RecordRef::LIST_PAYLOAD => self.batches.replaced(leaf.node()),
            payload => vec![RecordRef::from_payload(payload)],
        }
    }

    /// Releases the records whose readers have ended. Returns whether there were any.
    pub(crate) fn release_waiting(&self) -> bool {
        let ended = self.limbo.drain();
        let has_ended = !ended.is_empty();
        self.reuse(ended);
        has_ended
    }

    /// The stamp of the next entry of a leaf, whose lock the caller has.
    #[inline]
    pub(crate) fn next_stamp(&self, leaf: &FrameLock<'_>) -> Result<Stamp, WriteError> {
        // Under the lock: the change before may have failed, and what it has stored may become durable.
        self.check_not_poisoned()?;
        let mut order = leaf.order.load(Ordering::Relaxed) + 1;
        if order > Commit::ORDER_MAX {
            self.epochs.advance(&self.pmem()).inspect_err(|_| self.poison())?;
            order = 0;
        }
        leaf.order.store(order, Ordering::Relaxed);
        Ok(Stamp { epoch: self.epochs.epoch(), order })
    }

    /// An epoch of a batch's own: above all stamps of the leaves that the caller has locked, and below all later ones.
    pub(crate) fn batch_epoch(&self) -> Result<u64, WriteError> {
        self.check_not_poisoned()?;
        Ok(self.epochs.advance(&self.pmem()).inspect_err(|_| self.poison())? - 1)
    }

    /// The offset of the first leaf of the catalogue, or 0.
    pub(crate) fn catalogue(&self) -> Result<u64, Corruption> {
        let place = self.block + offset_of!(StoreBlock<'_>, catalogue) as u64;
        unchecked(self.pmem().load_u64(place), place).ok_or(Corruption::new(place, CorruptionKind::State))
    }

    /// Sets the first leaf of the catalogue, which is durable. The caller [flushes](Self::flush_catalogue) the word.
    pub(crate) fn set_catalogue(&self, leaf: u64) {
        let place = self.block + offset_of!(StoreBlock<'_>, catalogue) as u64;
        self.pmem().store_u64(place, checked(leaf, place));
    }

    /// Flushes the word that refers to the catalogue's first leaf. The caller fences before anything is added to the catalogue.
    pub(crate) fn flush_catalogue(&self) {
        self.pmem().flush(self.block + offset_of!(StoreBlock<'_>, catalogue) as u64, 8);
    }

    /// Ends the session: the next open finds nothing to verify, if this one was finished with that. The caller has flushed all changes that no fence
    /// covers yet.
    ///
    /// # Durability
    /// One fence; the closing heap makes the end of the session durable. After a crash before that, the next open verifies all nodes.
    pub(crate) fn end_session(&self, is_verified: bool) -> Result<(), FenceError> {
        self.fence()?;
        if is_verified {
            self.epochs.end(&self.pmem());
        }
        Ok(())
    }
}

/// The offset of the store's block in the heap, and its constants.
fn find<P: Pmem>(heap: &Heap<P>) -> Result<(u64, StoreHeader), OpenError> {
    let (block, header) = heap.view(|view| {
        let store = view.root::<StoreBlock<'_>>(ROOT)?.ok_or(OpenError::NotAStore)?;
        let header = view.read(store.field(field!(StoreBlock<'_>, header)))?;
        Ok::<_, OpenError>((store.offset(), header))
    })?;
    let corrupted = Corruption::new(block, CorruptionKind::Header);
    if header.magic != MAGIC || header.crc != header.expected_crc() {
        return Err(corrupted.into());
    }
    if header.version != VERSION {
        return Err(OpenError::Version { found: header.version, supported: VERSION });
    }
    let unknown = header.features_incompat & !KNOWN_INCOMPAT;
    if unknown != 0 {
        return Err(OpenError::UnknownFeatures { unknown });
    }
    let is_possible = header.node_slots.is_multiple_of(2)
        && (4..=62).contains(&header.node_slots)
        && (4096 - 128..=1 << 20).contains(&header.extent_bytes);
    if !is_possible { Err(corrupted.into()) } else { Ok((block, header)) }
}
