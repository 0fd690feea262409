//! The parts of an open store that all its tables use.

use crate::batch_slots::{BatchSlots, SLOTS_PER_SESSION};
use crate::entry::{Commit, RecordRef, Stamp};
use crate::error::{Corruption, CorruptionKind, OpenError, WriteError};
use crate::format::{
    BATCH_SLOTS, ENTRY_BYTES, KNOWN_INCOMPAT, MAGIC, NODE_HEADER_BYTES, ROOT, StoreBlock, StoreHeader,
    VERSION, checked, state, unchecked,
};
use crate::frame::{FrameLock, Frames, flush_owed};
use crate::grace::{Active, Grace};
use crate::inner::{FANOUT_MAX, InnerNodes};
use crate::limbo::Limbo;
use crate::options::StoreOptions;
use crate::space::{Space, processor_count, thread_number};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pm_alloc::{Heap, PoisoningPmem};
use pm_core::{FenceError, Pmem, Region, field};
use std::sync::{Mutex, PoisonError};

/// The epochs that one store of the limit makes usable.
const EPOCHS: u64 = 1 << 20;

/// The parts of an open store.
#[derive(Debug)]
pub(crate) struct Core<P: Pmem> {
    pub(crate) heap: Heap<P>,
    pub(crate) space: Space,
    pub(crate) frames: Frames,
    pub(crate) inner: InnerNodes,
    pub(crate) session: Session,
    pub(crate) batches: BatchSlots,
    limbo: Limbo,
    changes_per_epoch: u32,
    /// The number of entries in a node.
    pub(crate) slots: usize,
    /// Whether reads verify checksums.
    pub(crate) verifies_reads: bool,
    is_poisoned: AtomicBool,
    /// The number of steps of searches to a right sibling.
    steps_right: AtomicU64,
    new_indexes: AtomicU64,
}

/// The most children of an inner node: as many as make inner nodes split soon where leaves do.
fn fanout(slots: usize) -> usize {
    (slots + 2).min(FANOUT_MAX)
}

impl Core<Region> {
    /// Grows the pool, and makes room for what it can hold.
    pub(crate) fn grow(&mut self, pool_bytes: u64) -> Result<(), OpenError> {
        if let Some(reason) = Space::refusal(pool_bytes, self.space.extent_bytes()) {
            return Err(OpenError::Layout { pool_bytes, reason });
        }
        self.heap.grow(pool_bytes)?;
        self.space.grow(self.heap.pmem().len_bytes());
        self.frames.grow(self.space.extent_count_max());
        Ok(())
    }
}

impl<P: Pmem> Core<P> {
    /// Starts a session on the store in `heap`.
    pub(crate) fn open(heap: Heap<P>, options: &StoreOptions) -> Result<Self, OpenError> {
        let (block, header) = find(&heap)?;
        let batches = BatchSlots::open(&heap.pmem(), block);
        let grace = Grace::new(processor_count().min(16));
        let session = Session::start(&heap.pmem(), block, grace)?;
        if session.is_unclean {
            batches.check()?;
        }
        let slots = header.node_slots as usize;
        let node_bytes = NODE_HEADER_BYTES + slots as u64 * ENTRY_BYTES;
        let pool_bytes = heap.pmem().len_bytes();
        if let Some(reason) = Space::refusal(pool_bytes, header.extent_bytes) {
            return Err(OpenError::Layout { pool_bytes, reason });
        }
        let space = Space::open(&heap, header.extent_bytes, node_bytes)?;
        let nodes_per_extent = Space::nodes_per_extent(header.extent_bytes, node_bytes);
        let frames = Frames::new(space.extent_count_max(), nodes_per_extent);
        let inner = InnerNodes::new();
        let verifies_reads = options.verifies_reads();
        let (is_poisoned, steps_right) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self {
            heap,
            space,
            frames,
            inner,
            session,
            batches,
            limbo: Limbo::new(processor_count().min(16)),
            changes_per_epoch: options.epoch_changes(),
            slots,
            verifies_reads,
            is_poisoned,
            steps_right,
            new_indexes: AtomicU64::new(0),
        })
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

    /// Flushes the lines that the next changes of the leaves would flush. The caller fences.
    pub(crate) fn flush_owed(&self) {
        for frame in self.frames.filled() {
            let leaf = frame.lock();
            flush_owed(&self.pmem(), &leaf, leaf.owed.load(Ordering::Relaxed));
        }
    }

    pub(crate) const fn node_bytes(&self) -> u64 {
        NODE_HEADER_BYTES + self.slots as u64 * ENTRY_BYTES
    }

    #[inline]
    pub(crate) fn check_not_poisoned(&self) -> Result<(), WriteError> {
        if self.is_poisoned.load(Ordering::Relaxed) { Err(WriteError::Poisoned) } else { Ok(()) }
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
        let active = self.session.grace.enter(thread_number());
        if self.session.grace.is_check_due(thread_number(), self.changes_per_epoch) {
            let is_poisoned = || self.check_not_poisoned().is_err();
            self.session.advance_durable(&self.pmem(), is_poisoned).inspect_err(|_| self.poison())?;
        }
        Ok(active)
    }

    /// Announces a reader. While the returned guard lives, the space of records that the reader finds is not used again.
    #[inline]
    pub(crate) fn begin_lending(&self) -> Active<'_> {
        self.limbo.enter(thread_number())
    }

    /// Releases a record that is not in a leaf any more, once no reader looks at it. The caller has the lock of the leaf.
    #[inline]
    pub(crate) fn release_record(&self, record: RecordRef) {
        // The sweep does not find a record that waits. If it has not visited the leaf yet, it cannot end before the record is marked here.
        let keep = |record: RecordRef| _ = self.space.mark_record(record.offset, record.len);
        self.limbo.release(record, keep, |record| self.space.release_record(record.offset, record.len));
    }

    /// Releases the records whose readers have ended. Returns whether there were any.
    pub(crate) fn release_waiting(&self) -> bool {
        self.limbo.drain(|record| self.space.release_record(record.offset, record.len))
    }

    /// The stamp of the next entry of a leaf, whose lock the caller has.
    #[inline]
    pub(crate) fn next_stamp(&self, leaf: &FrameLock<'_>) -> Result<Stamp, WriteError> {
        // Under the lock: the change before may have failed, and what it has stored may become durable.
        self.check_not_poisoned()?;
        let mut order = leaf.order.load(Ordering::Relaxed) + 1;
        if order > Commit::ORDER_MAX {
            self.session.advance(&self.pmem()).inspect_err(|_| self.poison())?;
            order = 0;
        }
        leaf.order.store(order, Ordering::Relaxed);
        Ok(Stamp { epoch: self.session.epoch(), order })
    }

    /// An epoch of a batch's own: above all stamps of the leaves that the caller has locked, and below all later ones.
    pub(crate) fn batch_epoch(&self) -> Result<u64, WriteError> {
        self.check_not_poisoned()?;
        Ok(self.session.advance(&self.pmem()).inspect_err(|_| self.poison())? - 1)
    }

    /// The offset of the first leaf of the catalogue, or 0.
    pub(crate) fn catalogue(&self) -> Result<u64, Corruption> {
        let place = self.session.block + offset_of!(StoreBlock<'_>, catalogue) as u64;
        unchecked(self.pmem().load_u64(place), place).ok_or(Corruption::new(place, CorruptionKind::State))
    }

    /// Sets the first leaf of the catalogue, which is durable. The caller [flushes](Self::flush_catalogue) the word.
    pub(crate) fn set_catalogue(&self, leaf: u64) {
        let place = self.session.block + offset_of!(StoreBlock<'_>, catalogue) as u64;
        self.pmem().store_u64(place, checked(leaf, place));
    }

    /// Flushes the word that refers to the catalogue's first leaf. The caller fences before anything is added to the catalogue.
    pub(crate) fn flush_catalogue(&self) {
        self.pmem().flush(self.session.block + offset_of!(StoreBlock<'_>, catalogue) as u64, 8);
    }

    /// Ends the session: the next open finds nothing to verify, if this one was finished with that. The caller has flushed all changes that no fence
    /// covers yet.
    ///
    /// # Durability
    /// One fence; the closing heap makes the end of the session durable. After a crash before that, the next open verifies all nodes.
    pub(crate) fn end_session(&self, is_verified: bool) -> Result<(), FenceError> {
        self.fence()?;
        if is_verified {
            self.session.store(&self.pmem(), state::UNCLEAN_SESSION, 0);
        }
        Ok(())
    }
}

/// A session, from an open to a close or a crash: it numbers changes.
#[derive(Debug)]
pub(crate) struct Session {
    /// The offset of the store's block.
    block: u64,
    number: u64,
    epoch: AtomicU64,
    /// Epochs below this one are usable.
    limit: Mutex<u64>,
    /// The birth of the last node.
    birth: AtomicU64,
    /// Whether an earlier session was not closed: what it left is verified.
    pub(crate) is_unclean: bool,
    /// Entries of earlier epochs than this one are durable.
    pub(crate) durable_epoch: u64,
    /// The epoch at the start.
    first_epoch: u64,
    /// The oldest session whose entries may not have been verified.
    oldest_unverified: AtomicU64,
    grace: Grace,
    durable: Mutex<Durable>,
}

/// How far the durable epoch of the present session has advanced.
#[derive(Debug)]
struct Durable {
    /// Whether everything that earlier sessions left is durable. Before that the durable epoch stays.
    is_verified: bool,
    /// The epoch that becomes the durable one when the grace period has ended.
    next: Option<u64>,
}

impl Session {
    /// Starts a session, with epochs above all that were used.
    ///
    /// # Durability
    /// One fence. After a crash before it, the next open starts the same session.
    fn start<P: Pmem>(pmem: &P, block: u64, grace: Grace) -> Result<Self, OpenError> {
        let place = |word: u64| block + offset_of!(StoreBlock<'_>, state) as u64 + 8 * word;
        let load = |word: u64| {
            let corrupted = Corruption::new(place(word), CorruptionKind::State);
            unchecked(pmem.load_u64(place(word)), place(word)).ok_or(corrupted)
        };
        let (number, first_epoch) = (load(state::SESSION)? + 1, load(state::EPOCH_LIMIT)?);
        let (durable_epoch, unclean) = (load(state::DURABLE_EPOCH)?, load(state::UNCLEAN_SESSION)?);
        let is_unclean = unclean != 0;
        let durable_epoch = if is_unclean { durable_epoch } else { first_epoch };
        let session = Self {
            block,
            number,
            epoch: AtomicU64::new(first_epoch),
            limit: Mutex::new(first_epoch + EPOCHS),
            birth: AtomicU64::new(first_epoch << 16),
            is_unclean,
            durable_epoch,
            first_epoch,
            grace,
            durable: Mutex::new(Durable { is_verified: !is_unclean, next: None }),
            oldest_unverified: AtomicU64::new(if is_unclean { unclean } else { number }),
        };
        session.store(pmem, state::SESSION, number);
        session.store(pmem, state::EPOCH_LIMIT, first_epoch + EPOCHS);
        session.store(pmem, state::DURABLE_EPOCH, durable_epoch);
        session.store(pmem, state::UNCLEAN_SESSION, if is_unclean { unclean } else { number });
        // DURABILITY POINT
        pmem.fence()?;
        Ok(session)
    }

    /// Records that everything that earlier sessions left is verified and durable. Not fenced: a crash leaves old words or new ones, and both are right.
    pub(crate) fn end_verification<P: Pmem>(&self, pmem: &P) {
        if self.is_unclean {
            self.store(pmem, state::DURABLE_EPOCH, self.first_epoch);
            self.store(pmem, state::UNCLEAN_SESSION, self.number);
            self.oldest_unverified.store(self.number, Ordering::Relaxed);
        }
        self.durable.lock().unwrap_or_else(PoisonError::into_inner).is_verified = true;
    }

    /// Advances the durable epoch if all changes from before the last call have ended, so that a recovery has little to verify.
    ///
    /// # Durability
    /// The next fence of this thread makes it durable. A crash leaves the old word or the new one, and both are right.
    #[cold]
    fn advance_durable<P: Pmem>(&self, pmem: &P, is_poisoned: impl Fn() -> bool) -> Result<(), FenceError> {
        let Ok(mut durable) = self.durable.try_lock() else { return Ok(()) };
        // A change whose fence has failed poisons the store before it ends.
        if !durable.is_verified || !self.grace.has_ended() || is_poisoned() {
            return Ok(());
        }
        if let Some(epoch) = durable.next.take() {
            self.store(pmem, state::DURABLE_EPOCH, epoch);
        }
        // Changes that begin in the new period read this epoch or a later one.
        self.advance(pmem)?;
        durable.next = Some(self.epoch());
        self.grace.start();
        Ok(())
    }

    /// Stores a state word, and flushes it.
    fn store<P: Pmem>(&self, pmem: &P, word: u64, value: u64) {
        let place = self.block + offset_of!(StoreBlock<'_>, state) as u64 + 8 * word;
        pmem.store_u64(place, checked(value, place));
        pmem.flush(place, 8);
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The limit of the epochs that any session has used.
    pub(crate) fn limit(&self) -> u64 {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the first of the batch slots that this session uses.
    ///
    /// # Errors
    /// When leaves of the session that used these slots before may not have been opened since: a corrupted table cannot be opened.
    pub(crate) fn batch_slots(&self) -> Result<u64, WriteError> {
        let sessions = self.number - self.oldest_unverified.load(Ordering::Relaxed);
        match sessions < BATCH_SLOTS / SLOTS_PER_SESSION {
            true => Ok(self.number * SLOTS_PER_SESSION % BATCH_SLOTS),
            false => Err(WriteError::Unverified { sessions }),
        }
    }

    /// Advances the epoch by two, and returns it.
    ///
    /// # Durability
    /// When the limit is reached, one fence makes a new limit durable before an epoch above the old one is used.
    #[cold]
    fn advance<P: Pmem>(&self, pmem: &P) -> Result<u64, FenceError> {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = self.epoch() + 2;
        if epoch >= *limit {
            self.store(pmem, state::EPOCH_LIMIT, *limit + EPOCHS);
            // DURABILITY POINT
            pmem.fence()?;
            *limit += EPOCHS;
        }
        self.epoch.store(epoch, Ordering::Release);
        Ok(epoch)
    }

    /// A number that no other node has, in any session.
    pub(crate) fn next_birth(&self) -> u64 {
        self.birth.fetch_add(1, Ordering::Relaxed) + 1
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
