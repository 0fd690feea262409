//! Space for nodes and records: extents, which are blocks of the heap, and maps of their free units in DRAM.
//!
//! The heap's transactions allocate extents and record them in a table. The units of an extent, nodes or records of one class, are allocated in DRAM
//! only: after a crash the units that no table reaches are free.

use super::classes::{CLASS_COUNT, Class};
use crate::error::{Corruption, CorruptionKind, OpenError, WriteError};
use crate::format::{EXTENT_CHUNK_MAGIC, ExtentChunk, ExtentRow, ROOT, ROWS, StoreBlock, checked, unchecked};
use crate::node::{FRAMES_PER_EXTENT, FrameId};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use pm_alloc::Heap;
use pm_core::{Domain, Link, Pmem, field};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The unit of the map from offsets to extents, and the length of an extent with its header.
fn window_bytes(extent_bytes: u64) -> u64 {
    extent_bytes.next_power_of_two()
}

/// An extent, and the map of its units.
#[derive(Debug)]
struct Extent {
    start: u64,
    class: Class,
    unit_bytes: u64,
    unit_count: u32,
    /// A bit for each unit: 1 if it is in use.
    used: Box<[AtomicU64]>,
    free: AtomicU32,
    /// A bit for each node: 1 if it may not be zero, because it was used.
    not_zero: Box<[AtomicU64]>,
    /// Whether it may have units in use that are not marked: it existed at the open, and no sweep has ended since. Nothing is taken from it.
    is_sealed: AtomicBool,
}

impl Extent {
    fn new(start: u64, class: Class, extent_bytes: u64, node_bytes: u64, is_fresh: bool) -> Self {
        let unit_bytes = class.record_bytes().unwrap_or(node_bytes);
        let unit_count = match class {
            Class::NODES => Space::nodes_per_extent(extent_bytes, node_bytes),
            _ => u32::try_from(extent_bytes / unit_bytes).unwrap_or(u32::MAX),
        };
        let nodes = if class == Class::NODES { unit_count } else { 0 };
        let not_zero = if is_fresh { 0 } else { u64::MAX };
        Self {
            start,
            class,
            unit_bytes,
            unit_count,
            used: (0..unit_count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            not_zero: (0..nodes.div_ceil(64)).map(|_| AtomicU64::new(not_zero)).collect(),
            free: AtomicU32::new(unit_count),
            is_sealed: AtomicBool::new(!is_fresh),
        }
    }

    /// The unit that starts at `offset`.
    fn unit_at(&self, offset: u64) -> Option<u32> {
        let distance = offset.checked_sub(self.start)?;
        let unit = u32::try_from(distance / self.unit_bytes).ok()?;
        (distance.is_multiple_of(self.unit_bytes) && unit < self.unit_count).then_some(unit)
    }

    fn offset_of(&self, unit: u32) -> u64 {
        self.start + u64::from(unit) * self.unit_bytes
    }

    /// Marks a unit as used. Returns false if it was.
    fn take(&self, unit: u32) -> bool {
        let bit = 1 << (unit % 64);
        let was_free = self.used[unit as usize / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0;
        if was_free {
            self.free.fetch_sub(1, Ordering::Relaxed);
        }
        was_free
    }

    fn release(&self, unit: u32) {
        let bit = 1 << (unit % 64);
        // Another thread may take the unit at once, and store to it.
        let was = self.used[unit as usize / 64].fetch_and(!bit, Ordering::Release);
        // A unit of a leaf that no sweep has visited is not marked.
        if was & bit != 0 {
            self.free.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a free unit, the first one at or after `from`, or else the first.
    fn take_from(&self, from: u32) -> Option<u32> {
        if self.free.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let words = self.used.len();
        let first = from as usize / 64;
        for step in 0..=words {
            let index = (first + step) % words;
            let mut seen = self.used[index].load(Ordering::Acquire);
            if step == 0 {
                seen |= (1 << (from % 64)) - 1;
            }
            while seen != u64::MAX {
                #[expect(clippy::cast_possible_truncation, reason = "a number of units fits in u32")]
                let unit = (index * 64) as u32 + seen.trailing_ones();
                if unit >= self.unit_count {
                    break;
                }
                if self.take(unit) {
                    return Some(unit);
                }
                seen |= 1 << (unit % 64);
            }
        }
        None
    }
}

/// What one group of threads allocates from.
#[derive(Debug)]
struct Shard {
    /// For each class the extent in use and the unit after the last one allocated.
    current: [Option<(u32, u32)>; CLASS_COUNT],
}

/// A unit that was taken, and goes back when this is dropped unless it is [kept](Self::keep).
#[derive(Debug)]
pub(crate) struct Reserved<'s> {
    space: &'s Space,
    extent: u32,
    unit: u32,
    offset: u64,
}

impl Reserved<'_> {
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// The frame of the unit, which is a node.
    pub(crate) const fn frame(&self) -> FrameId {
        FrameId::new(self.extent, self.unit)
    }

    /// Keeps the unit: the tree refers to it.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }

    /// Sets the unit aside, until it is [resumed](Space::resume).
    pub(super) fn set_aside(self) -> SetAside {
        let unit = SetAside { extent: self.extent, unit: self.unit };
        self.keep();
        unit
    }
}

/// A unit that was taken, for later.
#[derive(Debug)]
pub(super) struct SetAside {
    extent: u32,
    unit: u32,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.space.extent(self.extent).release(self.unit);
    }
}

/// The space of a store.
#[derive(Debug)]
pub(crate) struct Space {
    extent_bytes: u64,
    node_bytes: u64,
    first_offset: u64,
    /// The extents by the window in which they start; two can start in one window. The number of an extent is its index here.
    extents: Vec<OnceLock<Box<Extent>>>,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    growth: Mutex<Growth>,
    /// The extents that were added since the last [call](Self::take_added).
    added: AtomicU64,
    /// A zeroed row of the table of extents: what it has named is not known.
    lost_row: Option<Corruption>,
}

/// What changes when an extent is added.
#[derive(Debug)]
struct Growth {
    row_count: usize,
    by_class: Vec<Vec<u32>>,
}

impl Space {
    /// The space with the extents in the table. They are sealed: nothing is taken from them until units in use are marked, and they are
    /// [unsealed](Self::unseal).
    pub(crate) fn open<P: Pmem>(
        heap: &Heap<P>,
        extent_bytes: u64,
        node_bytes: u64,
    ) -> Result<Self, OpenError> {
        let Rows { used, count, lost } = read_rows(heap)?;
        let space = Self { lost_row: lost, ..Self::empty(heap, extent_bytes, node_bytes) };
        let mut growth = space.growth();
        growth.row_count = count;
        for (offset, class) in used {
            let class = Class::from_number(class)
                .filter(|_| offset >= space.first_offset && offset + extent_bytes <= heap.pmem().len_bytes())
                .ok_or_else(|| Corruption::new(offset, CorruptionKind::ExtentTable))?;
            let extent = Extent::new(offset, class, extent_bytes, node_bytes, false);
            let number =
                space.insert(extent).ok_or_else(|| Corruption::new(offset, CorruptionKind::ExtentTable))?;
            growth.by_class[class.index()].push(number);
        }
        drop(growth);
        Ok(space)
    }

    /// Why no store can be so long. Frames have numbers below 2<sup>31</sup>, by the place of their extent.
    pub(crate) fn refusal(len_bytes: u64, extent_bytes: u64) -> Option<&'static str> {
        let frames = Self::extents_max(len_bytes, extent_bytes) as u64 * u64::from(FRAMES_PER_EXTENT);
        (frames > 1 << 31).then_some("its extents are too short for so long a pool")
    }

    /// The number of extents that a region of `len_bytes` bytes can have.
    fn extents_max(len_bytes: u64, extent_bytes: u64) -> usize {
        usize::try_from(2 * (len_bytes / window_bytes(extent_bytes) + 2)).unwrap_or(usize::MAX)
    }

    pub(crate) const fn extent_bytes(&self) -> u64 {
        self.extent_bytes
    }

    /// The number of extents that the region can have.
    pub(crate) const fn extent_count_max(&self) -> usize {
        self.extents.len()
    }

    /// The number of nodes in an extent of nodes.
    pub(crate) fn nodes_per_extent(extent_bytes: u64, node_bytes: u64) -> u32 {
        u32::try_from(extent_bytes / node_bytes).unwrap_or(u32::MAX).min(FRAMES_PER_EXTENT)
    }

    fn empty<P: Pmem>(heap: &Heap<P>, extent_bytes: u64, node_bytes: u64) -> Self {
        let threads = processor_count().min(16);
        let count = Self::extents_max(heap.pmem().len_bytes(), extent_bytes);
        Self {
            extent_bytes,
            node_bytes,
            first_offset: heap.layout().chunks_start,
            extents: (0..count).map(|_| OnceLock::new()).collect(),
            shards: (0..threads)
                .map(|_| CachePadded::new(Mutex::new(Shard { current: [None; CLASS_COUNT] })))
                .collect(),
            growth: Mutex::new(Growth { row_count: 0, by_class: vec![Vec::new(); CLASS_COUNT] }),
            added: AtomicU64::new(0),
            lost_row: None,
        }
    }

    /// The corruption of the table of extents, if a row of it is lost: the extent of that row is not one of the store any more.
    pub(crate) fn lost_row(&self) -> Option<Corruption> {
        self.lost_row.clone()
    }

    /// Makes room for the extents of a region that has grown to `len_bytes` bytes.
    pub(crate) fn grow(&mut self, len_bytes: u64) {
        let count = Self::extents_max(len_bytes, self.extent_bytes).max(self.extents.len());
        self.extents.resize_with(count, OnceLock::new);
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extent(&self, number: u32) -> &Extent {
        self.extents[number as usize].get().expect("the number of an extent")
    }

    /// Adds an extent, and returns its number. `None` if there is no place: the extent overlaps others.
    fn insert(&self, extent: Extent) -> Option<u32> {
        let window = usize::try_from(extent.start / window_bytes(self.extent_bytes)).ok()?;
        let number = (2 * window..2 * window + 2)
            .find(|place| self.extents.get(*place).is_some_and(|place| place.get().is_none()))?;
        self.extents[number].set(Box::new(extent)).ok()?;
        u32::try_from(number).ok()
    }

    /// The extent and the unit at `offset`, if a unit of this class starts there.
    fn find(&self, offset: u64, class: Class) -> Option<(u32, u32)> {
        self.find_where(offset, |found| found == class)
    }

    /// The extent and the unit at `offset`, if a unit of such a class starts there.
    fn find_where(&self, offset: u64, is_wanted: impl Fn(Class) -> bool) -> Option<(u32, u32)> {
        let window = usize::try_from(offset / window_bytes(self.extent_bytes)).ok()?;
        let places = 2 * window.saturating_sub(1)..2 * window + 2;
        places.into_iter().find_map(|place| {
            let extent = self.extents.get(place)?.get()?;
            let unit = extent.unit_at(offset).filter(|_| is_wanted(extent.class))?;
            Some((u32::try_from(place).ok()?, unit))
        })
    }

    /// The frame of the node at `offset`; `None` if no node can start there.
    pub(crate) fn frame_of(&self, offset: u64) -> Option<FrameId> {
        let (extent, unit) = self.find(offset, Class::NODES)?;
        Some(FrameId::new(extent, unit))
    }

    /// The offset of a node.
    pub(crate) fn node_offset(&self, id: FrameId) -> u64 {
        self.extent(id.extent()).offset_of(id.index())
    }

    /// Marks the node at `offset` as used.
    pub(crate) fn mark_node(&self, offset: u64) {
        self.mark(offset, Class::NODES);
    }

    /// Marks the record at `offset` as used. Returns false if no record can be there, or it is marked already. In an extent that is not sealed every
    /// record in use is marked.
    pub(crate) fn mark_record(&self, offset: u64, len: u64) -> bool {
        Class::of_record(len).is_some_and(|class| self.mark(offset, class))
    }

    /// Marks the record of a separator, of whatever class, as used.
    pub(crate) fn mark_separator(&self, offset: u64) {
        if let Some(place) = self.find_where(offset, |class| class != Class::NODES) {
            self.mark_unit(place);
        }
    }

    fn mark(&self, offset: u64, class: Class) -> bool {
        self.find(offset, class).is_some_and(|place| self.mark_unit(place))
    }

    fn mark_unit(&self, (extent, unit): (u32, u32)) -> bool {
        let extent = self.extent(extent);
        !extent.is_sealed.load(Ordering::Relaxed) || extent.take(unit)
    }

    /// Lets the free units of all extents be taken: everything in use is marked.
    pub(crate) fn unseal(&self) {
        for extent in self.extents.iter().filter_map(OnceLock::get) {
            extent.is_sealed.store(false, Ordering::Release);
        }
    }

    /// The number of extents that were added since the last call.
    #[inline]
    pub(crate) fn take_added(&self) -> u64 {
        if self.added.load(Ordering::Relaxed) == 0 { 0 } else { self.added.swap(0, Ordering::Relaxed) }
    }

    /// Releases a record that no reader finds any more.
    pub(crate) fn release_record(&self, offset: u64, len: u64) {
        if let Some((extent, unit)) = Class::of_record(len).and_then(|class| self.find(offset, class)) {
            self.extent(extent).release(unit);
        }
    }

    /// Releases the record of a separator, of whatever class.
    pub(crate) fn release_separator(&self, offset: u64) {
        if let Some((extent, unit)) = self.find_where(offset, |class| class != Class::NODES) {
            self.extent(extent).release(unit);
        }
    }

    /// Releases a node that was taken in this session, and that nothing refers to.
    pub(crate) fn release_node(&self, offset: u64) {
        if let Some((extent, unit)) = self.find(offset, Class::NODES) {
            self.extent(extent).release(unit);
        }
    }

    /// The length of the longest record.
    pub(crate) const fn record_bytes_max(&self) -> u64 {
        let quarter = self.extent_bytes / 4;
        if quarter < 256 << 10 { quarter } else { 256 << 10 }
    }

    /// Lets each group of threads choose the extents it takes from anew, because much space was released.
    pub(crate) fn search_anew(&mut self) {
        for shard in &mut self.shards {
            shard.get_mut().unwrap_or_else(PoisonError::into_inner).current = [None; CLASS_COUNT];
        }
    }

    /// Takes a record of at least `len` bytes.
    pub(crate) fn reserve_record<P: Pmem>(
        &self,
        heap: &Heap<P>,
        len: u64,
    ) -> Result<Reserved<'_>, WriteError> {
        let class = Class::of_record(len)
            .filter(|_| len <= self.record_bytes_max())
            .ok_or(WriteError::TooLong { len_bytes: len, max_bytes: self.record_bytes_max() })?;
        self.reserve_unit(heap, class)
    }

    /// Takes a node, whose bytes are zero.
    pub(crate) fn reserve_node<P: Pmem>(&self, heap: &Heap<P>) -> Result<Reserved<'_>, WriteError> {
        Ok(self.zeroed(heap, self.reserve_unit(heap, Class::NODES)?))
    }

    /// Zeroes a node that was used before. The next fence of this thread covers that.
    pub(super) fn zeroed<'s, P: Pmem>(&self, heap: &Heap<P>, node: Reserved<'s>) -> Reserved<'s> {
        let (word, bit) =
            (&self.extent(node.extent).not_zero[node.unit as usize / 64], 1 << (node.unit % 64));
        if word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            // Entries that an earlier node left must not look like corrupted entries of this one. The fence of the node's header covers this.
            zero(&heap.pmem(), node.offset, self.node_bytes);
        }
        node
    }

    /// Takes a unit that was [set aside](Reserved::set_aside) back.
    pub(super) fn resume(&self, SetAside { extent, unit }: SetAside) -> Reserved<'_> {
        Reserved { space: self, extent, unit, offset: self.extent(extent).offset_of(unit) }
    }

    /// Takes a unit of a class. The bytes of a node are not zeroed.
    pub(super) fn reserve_unit<P: Pmem>(
        &self,
        heap: &Heap<P>,
        class: Class,
    ) -> Result<Reserved<'_>, WriteError> {
        let number = class.index();
        let mut shard =
            self.shards[thread_number() % self.shards.len()].lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((extent, next)) = shard.current[number]
                && let Some(unit) = self.extent(extent).take_from(next)
            {
                shard.current[number] = Some((extent, unit + 1));
                return Ok(Reserved {
                    space: self,
                    extent,
                    unit,
                    offset: self.extent(extent).offset_of(unit),
                });
            }
            shard.current[number] = Some((self.next_extent(heap, class)?, 0));
        }
    }

    /// An extent with free units: the one with most, if that is at least an eighth; or else a new one; or else any.
    fn next_extent<P: Pmem>(&self, heap: &Heap<P>, class: Class) -> Result<u32, WriteError> {
        let mut growth = self.growth();
        let known = &growth.by_class[class.index()];
        let free = |number: &u32| self.extent(*number).free.load(Ordering::Relaxed);
        let is_open = |number: &u32| !self.extent(*number).is_sealed.load(Ordering::Acquire);
        let most = known.iter().copied().filter(is_open).max_by_key(free);
        if let Some(most) = most.filter(|most| free(most) * 8 >= self.extent(*most).unit_count) {
            return Ok(most);
        }
        match self.add_extent(heap, class, &mut growth) {
            Err(WriteError::Full) => most.filter(|most| free(most) > 0).ok_or(WriteError::Full),
            added => added,
        }
    }

    fn add_extent<P: Pmem>(
        &self,
        heap: &Heap<P>,
        class: Class,
        growth: &mut Growth,
    ) -> Result<u32, WriteError> {
        let start = append_row(heap, growth.row_count, self.extent_bytes, class)?;
        if heap.pmem().domain() != Domain::Page {
            // One system call instead of a page fault for each page. In the page domain all these pages would become dirty.
            heap.pmem().populate(start, self.extent_bytes);
        }
        growth.row_count += 1;
        let extent = Extent::new(start, class, self.extent_bytes, self.node_bytes, true);
        let number = self.insert(extent).expect("the heap's blocks do not overlap");
        growth.by_class[class.index()].push(number);
        self.added.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    /// The bytes of all extents, and of the units in use.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let extents = self.extents.iter().filter_map(OnceLock::get);
        extents.fold((0, 0), |(all, used), extent| {
            let in_use = u64::from(extent.unit_count - extent.free.load(Ordering::Relaxed));
            (all + self.extent_bytes, used + in_use * extent.unit_bytes)
        })
    }

    /// The offsets of all extents.
    pub(crate) fn extent_offsets(&self) -> Vec<u64> {
        self.extents.iter().filter_map(OnceLock::get).map(|extent| extent.start).collect()
    }
}

/// The number of processors. The standard library reads files for it, at each call.
pub(crate) fn processor_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Numbers the threads of the process, so that threads use different shards.
pub(crate) fn thread_number() -> usize {
    use core::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.try_with(|number| *number).unwrap_or_default()
}

/// Zeroes bytes around the cache.
fn zero<P: Pmem>(pmem: &P, start: u64, len: u64) {
    const ZEROES: [u8; 4096] = [0; 4096];
    let mut done = 0;
    while done < len {
        let step = (len - done).min(ZEROES.len() as u64);
        #[expect(clippy::cast_possible_truncation, reason = "at most 4,096")]
        pmem.store_nt(start + done, &ZEROES[..step as usize]);
        done += step;
    }
}

/// Allocates an extent, and appends a row for it to the table. Returns its offset.
///
/// # Durability
/// One transaction of the heap: a crash leaves both or neither.
fn append_row<P: Pmem>(
    heap: &Heap<P>,
    row: usize,
    extent_bytes: u64,
    class: Class,
) -> Result<u64, WriteError> {
    let appended = heap.transaction(|tx| {
        let store = tx.root::<StoreBlock<'_>>(ROOT)?.expect("the store is open");
        // Nodes are zeroed, so that leftovers do not look like corrupted entries; this transaction fences the zeros.
        let extent: Link<'_, u8> = if class == Class::NODES {
            tx.alloc_zeroed(extent_bytes)?
        } else {
            tx.alloc_uninit(extent_bytes)?
        };
        let mut chunk = tx.read(store.field(field!(StoreBlock<'_>, extents)))?;
        for _ in 0..row / ROWS {
            let place = chunk.field(field!(ExtentChunk<'_>, next));
            let mut next = tx.read(place)?;
            if next.is_null() {
                next = tx.alloc_zeroed(1)?;
                tx.write(next.field(field!(ExtentChunk<'_>, magic)), &EXTENT_CHUNK_MAGIC)?;
                tx.write(place, &next)?;
            }
            chunk = next;
        }
        let rows = chunk.field(field!(ExtentChunk<'_>, rows));
        let place = rows.get((row % ROWS) as u64).expect("a row of the block");
        // The class of nodes is 0, and the checked word of 0 is 0 at any place.
        let class = checked(class.number() + 1, extent.offset());
        tx.write(place, &ExtentRow { extent, class })?;
        Ok(extent.offset())
    });
    appended.map_err(WriteError::from)
}

/// The rows of the table of extents.
#[derive(Default)]
struct Rows {
    /// The offset and the class of each extent.
    used: Vec<(u64, u64)>,
    /// The number of rows up to the last one that is used.
    count: usize,
    /// The first row before that one which is not used: rows are only appended.
    lost: Option<Corruption>,
}

fn read_rows<P: Pmem>(heap: &Heap<P>) -> Result<Rows, OpenError> {
    heap.view(|view| {
        let store = view.root::<StoreBlock<'_>>(ROOT)?.ok_or(OpenError::NotAStore)?;
        let corrupted = |offset| Corruption::new(offset, CorruptionKind::ExtentTable);
        let mut link = view.read(store.field(field!(StoreBlock<'_>, extents)))?;
        let (mut rows, mut row, mut first_zero) = (Rows::default(), 0, None);
        let mut chunks_left = heap.pmem().len_bytes() / size_of::<ExtentChunk<'_>>() as u64;
        while !link.is_null() {
            let chunk = view.read(link).map_err(|_| corrupted(link.offset()))?;
            if chunk.magic != EXTENT_CHUNK_MAGIC || chunks_left == 0 {
                return Err(corrupted(link.offset()).into());
            }
            chunks_left -= 1;
            let places = (link.offset() + offset_of!(ExtentChunk<'_>, rows) as u64..)
                .step_by(size_of::<ExtentRow<'_>>());
            for (ExtentRow { extent, class }, place) in chunk.rows.iter().zip(places) {
                row += 1;
                if extent.is_null() && *class == 0 {
                    first_zero = first_zero.or(Some(place));
                    continue;
                }
                let class = unchecked(*class, extent.offset()).filter(|class| *class > 0);
                rows.used.push((extent.offset(), class.ok_or_else(|| corrupted(extent.offset()))? - 1));
                rows.count = row;
                rows.lost = first_zero.map(corrupted);
            }
            link = chunk.next;
        }
        Ok(rows)
    })
}
