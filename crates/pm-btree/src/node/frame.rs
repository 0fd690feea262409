//! Frames: what readers may see of a node, in DRAM.
//!
//! A slot is published in its frame after the fence that makes it durable, and readers look only at slots that frames show. So no reader sees what a
//! crash could take back.
//!
//! # Readers
//! A reader waits for no lock and writes no shared line. It loads the version, `live`, the separators and the slots that it needs, and then the
//! version and `live` again. If they have not changed, what it has read was the state of the leaf at one moment; otherwise it starts again. The
//! version is odd while a writer changes the frame or the node. A reader does not wait for an even one: until the writer publishes, the slots in
//! `live` are unchanged. Frames are never freed while the store is open, so reading one is safe at any time.
//!
//! # Filling
//! A new frame has the version 0, and says nothing about its node. The first thread that needs it fills it, under its lock, from the node: see
//! `tree/fill.rs`.

use super::entry::entry_offset;
use super::separator::Separator;
use crate::format::ENTRY_BYTES;
#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use pm_core::Pmem;
use std::sync::OnceLock;

/// The number of frames in an array; an extent of nodes has one array, and no more nodes than that.
pub(crate) const FRAMES_PER_EXTENT: u32 = 512;

/// Identifies a frame, and so a node: the number of the extent and the index of the node in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameId(pub(crate) u32);

impl FrameId {
    /// No frame.
    pub(crate) const NONE: Self = Self(u32::MAX);
    /// The sibling of a leaf whose upper separator is being changed.
    const CHANGING: Self = Self(u32::MAX - 1);

    pub(crate) const fn new(extent: u32, index: u32) -> Self {
        Self(extent * FRAMES_PER_EXTENT + index)
    }

    pub(crate) const fn extent(self) -> u32 {
        self.0 / FRAMES_PER_EXTENT
    }

    pub(crate) const fn index(self) -> u32 {
        self.0 % FRAMES_PER_EXTENT
    }
}

/// The lowest offset of a slot's bit, and the others in turn.
pub(crate) fn slots_of(mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let slot = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        slot
    })
}

/// The state of a node in DRAM.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Frame {
    lock: AtomicU32,
    version: AtomicU32,
    /// The slots that readers may see: the newest entry of each key.
    pub(crate) live: AtomicU64,
    /// Slots of replaced entries: they were emptied, which is not flushed yet.
    pub(crate) owed: AtomicU64,
    /// Slots of corrupted entries, which are kept as evidence: they are neither live nor free.
    pub(crate) held: AtomicU64,
    /// The upper separator: the head of the right sibling's low key.
    pub(crate) high: AtomicU64,
    /// The record of the right sibling's low key, or 0.
    pub(crate) high_record: AtomicU64,
    /// The offset of the node.
    pub(crate) node: AtomicU64,
    /// The frame of the right sibling, [`FrameId::NONE`] in the last leaf.
    pub(crate) next: AtomicU32,
    /// The seed of the node's seals.
    pub(crate) seed: AtomicU32,
    fingerprints: [AtomicU64; 8],
    /// The length of the key in `high_record`.
    pub(crate) high_len: AtomicU32,
    /// The payload of the replaced entry whose slot is in `owed`; 0 if it has no record; [`RecordRef::LIST_PAYLOAD`] if a batch has replaced
    /// several. Its record is released when the slot is durably empty.
    ///
    /// [`RecordRef::LIST_PAYLOAD`]: crate::node::entry::RecordRef::LIST_PAYLOAD
    pub(crate) owed_payload: AtomicU64,
    /// The order of the last entry written.
    pub(crate) order: AtomicU16,
    /// Whether the length of the tree includes the entries, and the space maps include the node and its records: see `maintenance/sweep.rs`.
    pub(crate) is_swept: AtomicBool,
    /// The number of lines of entries in use: those up to the last one that has held an entry.
    pub(crate) used_lines: AtomicU8,
    /// The number of lines in use that the node's header says.
    pub(crate) stored_lines: AtomicU8,
    /// The number of the table among whose empty leaves the leaf is listed; 0 if it is not.
    pub(crate) listed_by: AtomicU16,
}

#[cfg(not(all(loom, test)))]
const _: () = assert!(size_of::<Frame>() == 192);

/// What a reader has loaded of a frame, to be compared at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub(crate) version: u32,
    pub(crate) live: u64,
}

impl Snapshot {
    /// Whether no change was in progress.
    pub(crate) const fn is_settled(self) -> bool {
        self.version.is_multiple_of(2)
    }
}

impl Frame {
    #[inline]
    pub(crate) fn snapshot(&self) -> Snapshot {
        let version = self.version.load(Ordering::Acquire);
        Snapshot { version, live: self.live.load(Ordering::Acquire) }
    }

    /// Brings its lines into the cache, for a change.
    #[inline]
    pub(crate) fn prefetch(&self) {
        let start = core::ptr::from_ref(self).cast::<u8>();
        for line in (0..size_of::<Self>()).step_by(64) {
            pm_core::insn::prefetch(start.wrapping_add(line));
        }
    }

    /// Whether the frame says what is in its node.
    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.version.load(Ordering::Acquire) != 0
    }

    /// Whether nothing has changed since the snapshot. The caller's loads precede this.
    #[inline]
    pub(crate) fn is_current(&self, snapshot: Snapshot) -> bool {
        fence(Ordering::Acquire);
        // First `live`: after the version was loaded, the change that the snapshot found in progress could publish, and the next one restore `live`.
        let live = self.live.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        live == snapshot.live && self.version.load(Ordering::Relaxed) == snapshot.version
    }

    /// The upper separator. It counts only if there is a [right sibling](Self::next).
    #[inline]
    pub(crate) fn high(&self) -> Separator {
        let record = self.high_record.load(Ordering::Acquire);
        let len = if record == 0 { 0 } else { self.high_len.load(Ordering::Acquire) };
        Separator { head: self.high.load(Ordering::Acquire), record, len }
    }

    /// Sets the upper separator and the right sibling.
    pub(crate) fn set_next(&self, next: FrameId, high: Separator) {
        self.next.store(FrameId::CHANGING.0, Ordering::Relaxed);
        // No store of the separator becomes visible before.
        fence(Ordering::Release);
        self.high_record.store(high.record, Ordering::Release);
        self.high_len.store(high.len, Ordering::Release);
        self.high.store(high.head, Ordering::Release);
        self.next.store(next.0, Ordering::Release);
    }

    /// The right sibling and the upper separator, which belong together.
    #[inline]
    pub(crate) fn right(&self) -> Option<(FrameId, Separator)> {
        let mut next = self.next()?;
        loop {
            let high = self.high();
            fence(Ordering::Acquire);
            // Each split sets another sibling.
            let again = self.next()?;
            if again == next {
                return Some((next, high));
            }
            next = again;
        }
    }

    /// The right sibling.
    #[inline]
    pub(crate) fn next(&self) -> Option<FrameId> {
        let mut attempts = 0;
        loop {
            match FrameId(self.next.load(Ordering::Acquire)) {
                FrameId::NONE => return None,
                FrameId::CHANGING => {
                    attempts += 1;
                    pause(attempts);
                }
                next => return Some(next),
            }
        }
    }

    /// The slots that are not free.
    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        self.live.load(Ordering::Relaxed) | self.held.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn node(&self) -> u64 {
        self.node.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn seed(&self) -> u32 {
        self.seed.load(Ordering::Relaxed)
    }

    /// The slots whose fingerprint is `fingerprint`, among those of `live`.
    #[inline]
    pub(crate) fn matches(&self, fingerprint: u8, live: u64) -> u64 {
        const ONES: u64 = 0x0101_0101_0101_0101;
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let pattern = ONES * u64::from(fingerprint);
        let mut found = 0;
        for (index, word) in self.fingerprints.iter().enumerate() {
            let differs = word.load(Ordering::Relaxed) ^ pattern;
            // The highest bit of each byte that is zero, exactly; then these bits side by side.
            let equal = !(((differs & LOW) + LOW) | differs | LOW);
            found |= ((equal >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * index);
        }
        found & live
    }

    /// Sets the fingerprint of a slot. The caller has the lock.
    pub(crate) fn set_fingerprint(&self, slot: usize, fingerprint: u8) {
        let (word, shift) = (&self.fingerprints[slot / 8], 8 * (slot % 8));
        let others = word.load(Ordering::Relaxed) & !(0xff << shift);
        word.store(others | u64::from(fingerprint) << shift, Ordering::Relaxed);
    }

    pub(crate) fn fingerprint(&self, slot: usize) -> u8 {
        (self.fingerprints[slot / 8].load(Ordering::Relaxed) >> (8 * (slot % 8)) & 0xff) as u8
    }

    /// Waits for the lock, and acquires it.
    #[inline]
    pub(crate) fn lock(&self) -> FrameLock<'_> {
        let mut attempts = 0_u32;
        while self.lock.load(Ordering::Relaxed) != 0
            || self.lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            attempts += 1;
            pause(attempts);
        }
        FrameLock { frame: self }
    }
}

/// Waits for the holder of a lock. A holder that was preempted needs the processor.
#[cfg_attr(all(loom, test), expect(unused_variables, reason = "the model's scheduler decides"))]
fn pause(attempts: u32) {
    #[cfg(all(loom, test))]
    return loom::thread::yield_now();
    #[cfg(not(all(loom, test)))]
    if attempts.is_multiple_of(128) { std::thread::yield_now() } else { core::hint::spin_loop() }
}

/// The lock of a frame, released on drop. Only its owner changes the frame and the node.
#[derive(Debug)]
pub(crate) struct FrameLock<'f> {
    frame: &'f Frame,
}

impl core::ops::Deref for FrameLock<'_> {
    type Target = Frame;
    fn deref(&self) -> &Frame {
        self.frame
    }
}

impl Drop for FrameLock<'_> {
    #[inline]
    fn drop(&mut self) {
        self.frame.lock.store(0, Ordering::Release);
    }
}

impl FrameLock<'_> {
    /// Marks the frame as being changed, before the first store.
    #[inline]
    pub(crate) fn begin(&self) {
        let version = self.frame.version.load(Ordering::Relaxed);
        debug_assert!(version.is_multiple_of(2), "one change at a time");
        self.frame.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // No later store becomes visible before the odd version.
        fence(Ordering::Release);
    }

    /// Marks the change as complete, after everything is published.
    #[inline]
    pub(crate) fn end(&self) {
        let version = self.frame.version.load(Ordering::Relaxed);
        // Version 0 is that of a frame that is not filled.
        let next = if version == u32::MAX { 2 } else { version + 1 };
        self.frame.version.store(next, Ordering::Release);
        // No later store becomes visible before the new version: the record of a replaced entry may be overwritten next.
        fence(Ordering::Release);
    }

    /// Whether the line of a slot was never used.
    #[inline]
    pub(crate) fn is_first_use(&self, slot: usize) -> bool {
        lines_of(slot + 1) > self.frame.used_lines.load(Ordering::Relaxed)
    }

    /// Notes that an entry was written into a slot.
    #[inline]
    pub(crate) fn use_slot(&self, slot: usize) {
        let lines = lines_of(slot + 1);
        if lines > self.frame.used_lines.load(Ordering::Relaxed) {
            self.frame.used_lines.store(lines, Ordering::Relaxed);
        }
    }

    /// Makes readers see a frame that was filled, or that belongs to a new node.
    pub(crate) fn publish(&self) {
        if !self.frame.is_filled() {
            self.frame.version.store(2, Ordering::Release);
        }
    }
}

/// The number of lines that hold the first `slots` slots.
#[expect(clippy::cast_possible_truncation, reason = "a node has at most 31 lines of entries")]
pub(crate) const fn lines_of(slots: usize) -> u8 {
    slots.div_ceil(2) as u8
}

/// The two slots of the line that holds `slot`.
pub(crate) const fn line_mate(slot: usize) -> u64 {
    3 << (slot & !1)
}

/// Flushes the lines of these slots, which were emptied.
pub(crate) fn flush_owed<P: Pmem>(pmem: &P, leaf: &Frame, mut owed: u64) {
    while owed != 0 {
        let slot = owed.trailing_zeros() as usize;
        pmem.flush(entry_offset(leaf.node(), slot), ENTRY_BYTES);
        owed &= !line_mate(slot);
    }
}

/// The frames of all nodes: an array for each extent of nodes, made at its first use.
#[derive(Debug)]
pub(crate) struct Frames {
    arrays: Vec<OnceLock<Box<[Frame]>>>,
    nodes_per_extent: u32,
}

impl Frames {
    pub(crate) fn new(extent_count: usize, nodes_per_extent: u32) -> Self {
        Self { arrays: (0..extent_count).map(|_| OnceLock::new()).collect(), nodes_per_extent }
    }

    /// Makes room for the frames of so many extents.
    pub(crate) fn grow(&mut self, extent_count: usize) {
        self.arrays.resize_with(extent_count.max(self.arrays.len()), OnceLock::new);
    }

    /// The frame of a node in an extent of nodes.
    #[inline]
    pub(crate) fn get(&self, id: FrameId) -> &Frame {
        let array = &self.arrays[id.extent() as usize];
        let array = array.get().map(|array| &**array).unwrap_or_else(|| self.make(array));
        &array[id.index() as usize]
    }

    /// Makes the frame of a node that nothing refers to that of no node.
    pub(crate) fn reset(&mut self, id: FrameId) {
        if let Some(array) = self.arrays[id.extent() as usize].get_mut() {
            array[id.index() as usize] = Frame::default();
        }
    }

    /// Forgets the frames of an extent that was returned.
    pub(crate) fn forget(&mut self, extent: u32) {
        self.arrays[extent as usize].take();
    }

    #[cold]
    fn make<'f>(&self, array: &'f OnceLock<Box<[Frame]>>) -> &'f [Frame] {
        array.get_or_init(|| (0..self.nodes_per_extent).map(|_| Frame::default()).collect())
    }

    /// All frames that are filled.
    pub(crate) fn filled(&self) -> impl Iterator<Item = &Frame> {
        let frames = self.arrays.iter().filter_map(OnceLock::get).flatten();
        frames.filter(|frame| frame.is_filled())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.arrays.iter().filter_map(OnceLock::get).map(|array| size_of_val(&**array) as u64).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_match_exactly() {
        let frame = Frame::default();
        for slot in 0..62 {
            frame.set_fingerprint(slot, u8::try_from(slot % 5).unwrap());
        }
        for wanted in 0..=5_u8 {
            let expected =
                (0..62).filter(|slot| slot % 5 == usize::from(wanted)).fold(0, |set, slot| set | 1 << slot);
            assert_eq!(frame.matches(wanted, (1 << 62) - 1), expected);
        }
        assert_eq!(frame.matches(1, 1 << 6 | 1 << 7), 1 << 6);
        assert_eq!(frame.fingerprint(9), 4);
    }

    #[test]
    fn change_invalidates_snapshot() {
        let frame = Frame::default();
        let before = frame.snapshot();
        assert!(frame.is_current(before));
        let lock = frame.lock();
        lock.begin();
        assert!(!frame.is_current(before));
        let during = frame.snapshot();
        lock.live.store(1, Ordering::Release);
        assert!(!frame.is_current(during));
        lock.end();
        assert!(frame.is_current(frame.snapshot()));
    }
}

/// Interleavings of readers with changes of a leaf, with the orders of the C++ memory model. Run by `cargo xtask test loom`.
#[cfg(all(loom, test))]
mod interleaved {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const KEY: u64 = 7;
    const FINGERPRINT: u8 = 9;

    /// A leaf of two slots, of which one has the key: the frame, and in persistent memory two words for the entry and its record.
    #[derive(Default)]
    struct Model {
        frame: Frame,
        slots: [[AtomicU64; 2]; 2],
    }

    impl Model {
        fn new() -> Arc<Self> {
            let model = Self::default();
            model.frame.lock().publish();
            model.frame.next.store(FrameId::NONE.0, Ordering::Relaxed);
            model.put(1);
            Arc::new(model)
        }

        /// As `Tree::put_in_place`. The seam's stores of records have no order.
        fn put(&self, value: u64) {
            let leaf = self.frame.lock();
            let old = leaf.live.load(Ordering::Relaxed);
            let slot = if old == 1 { 1 } else { 0 };
            self.slots[slot][1].store(value, Ordering::Relaxed);
            leaf.begin();
            self.slots[slot][0].store(value, Ordering::Release);
            leaf.set_fingerprint(slot, FINGERPRINT);
            leaf.live.store(1 << slot, Ordering::Release);
            if old != 0 {
                self.slots[1 - slot][0].store(0, Ordering::Release);
            }
            leaf.end();
        }

        /// As `Tree::link_sibling`: the key moves to the right.
        fn split(&self) {
            let leaf = self.frame.lock();
            leaf.begin();
            leaf.set_next(FrameId(1), Separator { head: KEY, record: 0, len: 0 });
            leaf.live.store(0, Ordering::Release);
            leaf.end();
        }

        /// As `Tree::get`: the value; `None` if the key is to the right. Gives up after some attempts.
        fn get(&self) -> Option<Option<u64>> {
            for _ in 0..3 {
                let snapshot = self.frame.snapshot();
                let is_right = self.frame.right().is_some_and(|(_, high)| high.head <= KEY);
                let slot = slots_of(self.frame.matches(FINGERPRINT, snapshot.live)).next();
                let found = slot.map(|slot| {
                    let [entry, record] = &self.slots[slot];
                    (entry.load(Ordering::Acquire), record.load(Ordering::Relaxed))
                });
                if !self.frame.is_current(snapshot) {
                    continue;
                }
                if is_right {
                    return Some(None);
                }
                let (entry, record) = found.expect("the key is in the leaf");
                assert_eq!(entry, record, "the entry and its record are of one value");
                return Some(Some(entry));
            }
            None
        }
    }

    fn check(change: fn(&Model), is_right: fn(Option<u64>, Option<u64>) -> bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let model = Model::new();
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || change(&other));
            if let (Some(first), Some(second)) = (model.get(), model.get()) {
                assert!(is_right(first, second), "{first:?}, then {second:?}");
            }
            thread.join().expect("no thread panics");
        });
    }

    #[test]
    fn loom_get_during_puts_finds_a_value_and_then_no_older_one() {
        let put_twice = |model: &Model| (2..4).for_each(|value| model.put(value));
        check(put_twice, |first, second| first.is_some() && second.is_some() && first <= second);
    }

    #[test]
    fn loom_get_during_split_finds_value_or_right_sibling() {
        check(Model::split, |first, second| matches!((first, second), (Some(1), _) | (None, None)));
    }

    /// Three leaves. The one in the middle is empty, and the key is in the last one.
    struct Chain {
        frames: [Frame; 3],
    }

    const LEFT: FrameId = FrameId(0);
    const EMPTY: FrameId = FrameId(1);
    const RIGHT: FrameId = FrameId(2);

    impl Chain {
        fn new() -> Arc<Self> {
            let frames: [Frame; 3] = Default::default();
            for (frame, next, head) in [(0, EMPTY, KEY - 1), (1, RIGHT, KEY), (2, FrameId::NONE, 0)] {
                frames[frame].set_next(next, Separator { head, record: 0, len: 0 });
                frames[frame].lock().publish();
            }
            frames[2].live.store(1, Ordering::Relaxed);
            Arc::new(Self { frames })
        }

        fn frame(&self, id: FrameId) -> &Frame {
            &self.frames[id.0 as usize]
        }

        /// As `unlink_some`, for one leaf.
        fn unlink(&self) {
            let (left, empty) = (self.frame(LEFT).lock(), self.frame(EMPTY).lock());
            left.begin();
            empty.begin();
            left.set_next(RIGHT, empty.high());
            left.end();
            empty.end();
        }

        /// As a split prepares the frame of a node that nothing refers to: here that of the leaf that was unlinked, for the last leaf of another tree.
        fn reuse(&self) {
            self.frame(EMPTY).set_next(FrameId::NONE, Separator { head: 0, record: 0, len: 0 });
        }

        /// As `Tree::move_right` and `get`, from a leaf to the left, to which an index leads that lacks the others: whether there is a slot. Gives up after some
        /// attempts.
        fn has_key(&self) -> Option<bool> {
            (0..3).find_map(|_| self.try_has_key())
        }

        /// `None` if a leaf has changed meanwhile.
        fn try_has_key(&self) -> Option<bool> {
            let mut id = LEFT;
            let mut snapshot = self.frame(id).snapshot();
            while let Some((next, high)) = self.frame(id).right()
                && high.head <= KEY
            {
                let of_right = self.frame(next).snapshot();
                if !self.frame(id).is_current(snapshot) {
                    return None;
                }
                (id, snapshot) = (next, of_right);
            }
            self.frame(id).is_current(snapshot).then_some(snapshot.live != 0)
        }
    }

    #[test]
    fn loom_get_beyond_a_leaf_that_is_unlinked_and_reused_finds_the_key() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let chain = Chain::new();
            let other = Arc::clone(&chain);
            let thread = thread::spawn(move || {
                other.unlink();
                other.reuse();
            });
            assert_ne!(chain.has_key(), Some(false), "the key is in the last leaf");
            thread.join().expect("no thread panics");
        });
    }
}
