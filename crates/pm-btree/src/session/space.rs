//! Space for nodes and records: extents, which are blocks of the heap, and maps of their free units in DRAM.
//!
//! The heap's transactions allocate extents and record them in a table. The units of an extent, nodes or records of one class, are allocated in DRAM
//! only: after a crash the units that no table reaches are free. An extent whose records are all released returns to the heap when another one is
//! needed, so that its space serves records of any length. A record that is too long for an extent has a block of its own.

use super::classes::{CLASS_COUNT, Class, Units};
use super::extent::{Chosen, Extent, Opened};
use super::extent_table::{Content, Rows, add_block, free_block, read_rows};
use super::grace::{processor_count, thread_number};
use super::long_records::{LongRecord, LongRecords};
use crate::error::{Corruption, CorruptionKind, OpenError, WriteError};
use crate::node::{FRAMES_PER_EXTENT, FrameId, RECORD_BYTES_MAX};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use pm_alloc::Heap;
use pm_core::{Domain, Pmem};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The unit of the map from offsets to extents, and the length of an extent with its header.
fn window_bytes(extent_bytes: u64) -> u64 {
    extent_bytes.next_power_of_two()
}

/// What one group of threads allocates from.
#[derive(Debug)]
struct Shard {
    /// For each class the extent in use and the unit after the last one allocated.
    current: [Option<(Chosen, u32)>; CLASS_COUNT],
}

/// A unit that was taken, and goes back when this is dropped unless it is [kept](Self::keep).
#[derive(Debug)]
pub(crate) struct Reserved<'s> {
    space: &'s Space,
    unit: SetAside,
}

impl Reserved<'_> {
    pub(crate) const fn offset(&self) -> u64 {
        self.unit.offset
    }

    /// The frame of the unit, which is a node.
    pub(crate) const fn frame(&self) -> FrameId {
        FrameId::new(self.unit.extent, self.unit.number)
    }

    /// Keeps the unit: the tree refers to it.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }

    /// Sets the unit aside, until it is [resumed](Space::resume).
    pub(super) fn set_aside(self) -> SetAside {
        let unit = self.unit;
        self.keep();
        unit
    }
}

/// The space that records of some length have, in this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordSpace {
    pub(super) bytes: u64,
    /// Whether it is a block of its own, and not a unit of an extent.
    pub(super) is_long: bool,
}

/// A unit that was taken, for later: that of an extent, or a long record.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetAside {
    /// [`LONG`](Self::LONG) if it is a long record.
    extent: u32,
    number: u32,
    offset: u64,
}

impl SetAside {
    const LONG: u32 = u32::MAX;

    const fn long(offset: u64) -> Self {
        Self { extent: Self::LONG, number: 0, offset }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let SetAside { extent, number, offset } = self.unit;
        if extent == SetAside::LONG {
            self.space.long_records.release(offset);
        } else {
            self.space.release(extent, number);
        }
    }
}

/// The space of a store.
#[derive(Debug)]
pub(crate) struct Space {
    units: Units,
    first_offset: u64,
    /// The extents by the window in which they start; two can start in one window. The number of an extent is its index here.
    extents: Vec<OnceLock<Box<Extent>>>,
    long_records: LongRecords,
    /// The extents that have become empty, and may be returned to the heap.
    emptied: Mutex<Vec<u32>>,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    growth: Mutex<Growth>,
    /// The extents that were added since the last [call](Self::take_added).
    added: AtomicU64,
    may_grow: AtomicBool,
    /// A zeroed row of the table of extents: what it has named is not known.
    lost_row: Option<Corruption>,
}

/// What changes when an extent is added or returned.
#[derive(Debug)]
struct Growth {
    /// The number of rows of the table that were ever used, and those that are free.
    row_count: u32,
    free_rows: Vec<u32>,
    by_class: Vec<Vec<u32>>,
}

impl Growth {
    /// The row for the next block.
    fn next_row(&self) -> u32 {
        self.free_rows.last().copied().unwrap_or(self.row_count)
    }

    /// Notes that the [next row](Self::next_row) is in use.
    fn use_row(&mut self) {
        if self.free_rows.pop().is_none() {
            self.row_count += 1;
        }
    }
}

impl Space {
    /// The space with the extents in the table. They are sealed: nothing is taken from them until units in use are marked, and they are
    /// [unsealed](Self::unseal).
    pub(crate) fn open<P: Pmem>(heap: &Heap<P>, units: Units) -> Result<Self, OpenError> {
        let Rows { used, free, count, lost } = read_rows(heap)?;
        let space = Self { lost_row: lost, ..Self::empty(heap, units) };
        let mut growth = space.growth();
        (growth.row_count, growth.free_rows) = (count, free);
        for (row, offset, content) in used {
            let corrupted = || Corruption::new(offset, CorruptionKind::ExtentTable);
            let bytes = match content {
                Content::Extent(_) => units.extent_bytes,
                Content::LongRecord { bytes } => bytes,
            };
            if offset < space.first_offset || offset + bytes > heap.pmem().len_bytes() {
                return Err(corrupted().into());
            }
            match content {
                Content::Extent(class) => {
                    let number =
                        space.insert(&space.opened(offset, class, row, false)).ok_or_else(corrupted)?;
                    growth.by_class[class.index()].push(number);
                }
                Content::LongRecord { bytes } => {
                    if !space.long_records.add(LongRecord { offset, bytes, row }, false) {
                        return Err(corrupted().into());
                    }
                }
            }
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

    pub(crate) const fn units(&self) -> Units {
        self.units
    }

    /// The number of extents that the region can have.
    pub(crate) const fn extent_count_max(&self) -> usize {
        self.extents.len()
    }

    fn empty<P: Pmem>(heap: &Heap<P>, units: Units) -> Self {
        let threads = processor_count().min(16);
        // Places for all extents that the heap may have once it has grown while the store is in use.
        let count = Self::extents_max(heap.max_bytes().max(heap.pmem().len_bytes()), units.extent_bytes);
        Self {
            units,
            first_offset: heap.layout().chunks_start,
            extents: (0..count).map(|_| OnceLock::new()).collect(),
            long_records: LongRecords::default(),
            emptied: Mutex::default(),
            shards: (0..threads)
                .map(|_| CachePadded::new(Mutex::new(Shard { current: [None; CLASS_COUNT] })))
                .collect(),
            growth: Mutex::new(Growth {
                row_count: 0,
                free_rows: Vec::new(),
                by_class: vec![Vec::new(); CLASS_COUNT],
            }),
            added: AtomicU64::new(0),
            may_grow: AtomicBool::new(false),
            lost_row: None,
        }
    }

    /// The corruption of the table of extents, if a row of it is lost: the extent of that row is not one of the store any more.
    pub(crate) fn lost_row(&self) -> Option<Corruption> {
        self.lost_row.clone()
    }

    /// Makes room for the extents of a region that has grown to `len_bytes` bytes.
    pub(crate) fn grow(&mut self, len_bytes: u64) {
        let count = Self::extents_max(len_bytes, self.units.extent_bytes).max(self.extents.len());
        self.extents.resize_with(count, OnceLock::new);
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extent(&self, number: u32) -> &Extent {
        self.extents[number as usize].get().expect("the number of an extent")
    }

    /// What the extent at `start` is.
    fn opened(&self, start: u64, class: Class, row: u32, is_fresh: bool) -> Opened {
        let (unit_bytes, unit_count) = (self.units.bytes(class), self.units.count(class));
        Opened { start, class, unit_bytes, unit_count, row, is_fresh }
    }

    /// Adds an extent, and returns its number. `None` if there is no place: the extent overlaps others.
    fn insert(&self, opened: &Opened) -> Option<u32> {
        let window = usize::try_from(opened.start / window_bytes(self.units.extent_bytes)).ok()?;
        let number = (2 * window..2 * window + 2).find(|place| {
            let place = self.extents.get(*place).map(OnceLock::get);
            place.is_some_and(|place| place.is_none_or(|place| place.is_vacant()))
        })?;
        self.extents[number].get_or_init(|| Box::new(Extent::vacant())).open(opened);
        u32::try_from(number).ok()
    }

    /// The extent and the unit at `offset`, if a unit of this class starts there.
    fn find(&self, offset: u64, class: Class) -> Option<(u32, u32)> {
        self.find_where(offset, |found| found == class)
    }

    /// The extent and the unit at `offset`, if a unit of such a class starts there.
    fn find_where(&self, offset: u64, is_wanted: impl Fn(Class) -> bool) -> Option<(u32, u32)> {
        let window = usize::try_from(offset / window_bytes(self.units.extent_bytes)).ok()?;
        let places = 2 * window.saturating_sub(1)..2 * window + 2;
        places.into_iter().find_map(|place| {
            let extent = self.extents.get(place)?.get()?;
            let unit = extent.unit_at(offset).filter(|_| is_wanted(extent.class()))?;
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
        match self.units.class_of(len) {
            Some(class) => self.mark(offset, class),
            None => self.long_records.mark(offset, Some(len)),
        }
    }

    /// Marks the record of a separator, of whatever class, as used.
    pub(crate) fn mark_separator(&self, offset: u64) {
        match self.find_where(offset, |class| class != Class::NODES) {
            Some(place) => drop(self.mark_unit(place)),
            None => drop(self.long_records.mark(offset, None)),
        }
    }

    fn mark(&self, offset: u64, class: Class) -> bool {
        self.find(offset, class).is_some_and(|place| self.mark_unit(place))
    }

    fn mark_unit(&self, (extent, unit): (u32, u32)) -> bool {
        let extent = self.extent(extent);
        !extent.is_sealed() || extent.mark(unit)
    }

    /// Lets the free units of all extents be taken: everything in use is marked.
    pub(crate) fn unseal(&self) {
        for (number, extent) in (0..).zip(&self.extents) {
            if let Some(extent) = extent.get() {
                extent.unseal();
                self.queue_if_empty(number, extent);
            }
        }
        self.long_records.unseal();
    }

    /// Lets the heap grow, if it may: every leaf was visited, so that there is no more room without that.
    pub(crate) fn allow_growth(&self) {
        self.may_grow.store(true, Ordering::Relaxed);
    }

    /// Queues an extent that has become empty.
    #[inline]
    fn queue_if_empty(&self, number: u32, extent: &Extent) {
        if extent.enters_queue() {
            self.emptied.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        }
    }

    fn release(&self, extent: u32, unit: u32) {
        let number = extent;
        let extent = self.extent(number);
        extent.release(unit);
        self.queue_if_empty(number, extent);
    }

    /// The number of extents that were added since the last call.
    #[inline]
    pub(crate) fn take_added(&self) -> u64 {
        if self.added.load(Ordering::Relaxed) == 0 { 0 } else { self.added.swap(0, Ordering::Relaxed) }
    }

    /// Releases a record that no reader finds any more.
    pub(crate) fn release_record(&self, offset: u64, len: u64) {
        match self.units.class_of(len) {
            Some(class) => {
                if let Some((extent, unit)) = self.find(offset, class) {
                    self.release(extent, unit);
                }
            }
            None => drop(self.long_records.release(offset)),
        }
    }

    /// Releases the record of a separator, of whatever class.
    pub(crate) fn release_separator(&self, offset: u64) {
        match self.find_where(offset, |class| class != Class::NODES) {
            Some((extent, unit)) => self.release(extent, unit),
            None => drop(self.long_records.release(offset)),
        }
    }

    /// Releases a node that was taken in this session, and that nothing refers to.
    pub(crate) fn release_node(&self, offset: u64) {
        if let Some((extent, unit)) = self.find(offset, Class::NODES) {
            self.release(extent, unit);
        }
    }

    /// The space that a record of `len` bytes has.
    pub(super) fn space_of(&self, len: u64) -> RecordSpace {
        match self.units.class_of(len).and_then(Class::record_bytes) {
            Some(bytes) => RecordSpace { bytes, is_long: false },
            None => RecordSpace { bytes: LongRecords::block_bytes(len), is_long: true },
        }
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
        match self.units.class_of(len) {
            Some(class) => self.reserve_unit(heap, class),
            None if len <= RECORD_BYTES_MAX => self.reserve_long_record(heap, len),
            None => Err(WriteError::TooLong { len_bytes: len, max_bytes: RECORD_BYTES_MAX }),
        }
    }

    /// Takes a block for a long record: one of the same length that is not in use any more, or a new one.
    #[cold]
    fn reserve_long_record<P: Pmem>(&self, heap: &Heap<P>, len: u64) -> Result<Reserved<'_>, WriteError> {
        let bytes = LongRecords::block_bytes(len);
        let mut growth = self.growth();
        let offset = match self.long_records.take(bytes) {
            Some(offset) => offset,
            None => {
                let content = Content::LongRecord { bytes };
                let (row, offset) = self.add_block(heap, &mut growth, bytes, content)?;
                self.long_records.add(LongRecord { offset, bytes, row }, true);
                offset
            }
        };
        Ok(Reserved { space: self, unit: SetAside::long(offset) })
    }

    /// Takes a node, whose bytes are zero.
    pub(crate) fn reserve_node<P: Pmem>(&self, heap: &Heap<P>) -> Result<Reserved<'_>, WriteError> {
        Ok(self.zeroed(heap, self.reserve_unit(heap, Class::NODES)?))
    }

    /// Zeroes a node that was used before. The next fence of this thread covers that.
    pub(super) fn zeroed<'s, P: Pmem>(&self, heap: &Heap<P>, node: Reserved<'s>) -> Reserved<'s> {
        if self.extent(node.unit.extent).use_node(node.unit.number) {
            // Entries that an earlier node left must not look like corrupted entries of this one. The fence of the node's header covers this.
            zero(&heap.pmem(), node.offset(), self.units.node_bytes);
        }
        node
    }

    /// Takes a unit that was [set aside](Reserved::set_aside) back.
    pub(super) const fn resume(&self, unit: SetAside) -> Reserved<'_> {
        Reserved { space: self, unit }
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
            if let Some((Chosen { place: extent, generation }, next)) = shard.current[number]
                && let Some(unit) = self.extent(extent).take_from(generation, next)
            {
                shard.current[number] = Some((Chosen { place: extent, generation }, unit + 1));
                let offset = self.extent(extent).offset_of(unit);
                return Ok(Reserved { space: self, unit: SetAside { extent, number: unit, offset } });
            }
            shard.current[number] = Some((self.next_extent(heap, class)?, 0));
        }
    }

    /// An extent with free units: the one with most, if that is at least an eighth; or else a new one; or else any.
    fn next_extent<P: Pmem>(&self, heap: &Heap<P>, class: Class) -> Result<Chosen, WriteError> {
        let mut growth = self.growth();
        let known = &growth.by_class[class.index()];
        let free = |number: &u32| self.extent(*number).free();
        let most = known.iter().copied().filter(|number| !self.extent(*number).is_sealed()).max_by_key(free);
        let choose = |place: u32| Chosen { place, generation: self.extent(place).generation() };
        if let Some(most) = most.filter(|most| self.extent(*most).has_many_free()) {
            return Ok(choose(most));
        }
        match self.add_extent(heap, class, &mut growth) {
            // The extents that this has returned are of other classes, or were empty.
            Err(WriteError::Full) => {
                let known = growth.by_class[class.index()].iter().copied();
                let most = known.filter(|number| !self.extent(*number).is_sealed()).max_by_key(free);
                most.filter(|most| free(most) > 0).map(choose).ok_or(WriteError::Full)
            }
            added => added.map(choose),
        }
    }

    fn add_extent<P: Pmem>(
        &self,
        heap: &Heap<P>,
        class: Class,
        growth: &mut Growth,
    ) -> Result<u32, WriteError> {
        let (row, start) = self.add_block(heap, growth, self.units.extent_bytes, Content::Extent(class))?;
        if heap.pmem().domain() != Domain::Page {
            // One system call instead of a page fault for each page. In the page domain all these pages would become dirty.
            heap.pmem().populate(start, self.units.extent_bytes);
        }
        let number =
            self.insert(&self.opened(start, class, row, true)).expect("the heap's blocks do not overlap");
        growth.by_class[class.index()].push(number);
        self.added.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    /// Allocates a block, after it has returned those that are not in use; if the heap is full, also the spare ones. Returns the block's row and
    /// offset.
    ///
    /// # Durability
    /// One transaction of the heap for the block, and one for each that is returned.
    fn add_block<P: Pmem>(
        &self,
        heap: &Heap<P>,
        growth: &mut Growth,
        bytes: u64,
        content: Content,
    ) -> Result<(u32, u64), WriteError> {
        self.return_emptied(heap, growth, true)?;
        // Nodes are zeroed, so that leftovers do not look like corrupted entries; the transaction fences the zeros.
        let is_zeroed = content == Content::Extent(Class::NODES);
        let may_grow = self.may_grow.load(Ordering::Relaxed);
        let add = |row| add_block(heap, row, bytes, content, is_zeroed, may_grow);
        let mut row = growth.next_row();
        let offset = match add(row) {
            Err(WriteError::Full) if self.return_emptied(heap, growth, false)? > 0 => {
                row = growth.next_row();
                add(row)?
            }
            added => added?,
        };
        growth.use_row();
        Ok((row, offset))
    }

    /// Returns the extents of records and the blocks that are not in use to the heap, the spare ones, too.
    ///
    /// # Durability
    /// One transaction of the heap for each.
    pub(crate) fn return_unused<P: Pmem>(&self, heap: &Heap<P>) -> Result<(), WriteError> {
        self.return_emptied(heap, &mut self.growth(), false).map(drop)
    }

    /// The free units of each class, in the extents from which units are taken before another extent is added.
    pub(crate) fn free_units(&self) -> [u64; CLASS_COUNT] {
        let mut units = [0; CLASS_COUNT];
        for extent in self.open_extents().filter(|extent| !extent.is_sealed() && extent.has_many_free()) {
            units[extent.class().index()] += u64::from(extent.free());
        }
        units
    }

    /// Returns the extents of nodes that are not in use to the heap, and passes their numbers to `forget`. No other thread uses the store.
    ///
    /// # Durability
    /// One transaction of the heap for each.
    pub(crate) fn return_unused_nodes<P: Pmem>(
        &mut self,
        heap: &Heap<P>,
        mut forget: impl FnMut(u32),
    ) -> Result<(), WriteError> {
        let nodes = self.growth().by_class[Class::NODES.index()].clone();
        for number in nodes {
            let extent = self.extent(number);
            if extent.is_sealed() || extent.free() != extent.unit_count() {
                continue;
            }
            let mut growth = self.growth();
            if free_row(heap, &mut growth, extent.row())? {
                growth.by_class[Class::NODES.index()].retain(|known| *known != number);
                drop(growth);
                self.extents[number as usize].take();
                forget(number);
            }
        }
        Ok(())
    }

    /// Returns the extents and blocks that are not in use to the heap, and their number. `keeps_spare`: one extent of each class stays, so that a
    /// class that needs an extent now and then does not allocate one each time.
    fn return_emptied<P: Pmem>(
        &self,
        heap: &Heap<P>,
        growth: &mut Growth,
        keeps_spare: bool,
    ) -> Result<u64, WriteError> {
        let mut returned = 0;
        let mut has_spare = [!keeps_spare; CLASS_COUNT];
        let emptied = core::mem::take(&mut *self.emptied.lock().unwrap_or_else(PoisonError::into_inner));
        for (at, number) in emptied.iter().copied().enumerate() {
            let extent = self.extent(number);
            let class = extent.class().index();
            if extent.may_close() && extent.free() == extent.unit_count() && !has_spare[class] {
                has_spare[class] = true;
                self.emptied.lock().unwrap_or_else(PoisonError::into_inner).push(number);
                continue;
            }
            extent.leave_queue();
            if !extent.close_if_empty() {
                continue;
            }
            match free_row(heap, growth, extent.row()) {
                Ok(true) => {
                    growth.by_class[class].retain(|known| *known != number);
                    extent.vacate();
                    returned += 1;
                }
                Ok(false) => extent.reopen(),
                Err(error) => {
                    extent.reopen();
                    let mut queue = self.emptied.lock().unwrap_or_else(PoisonError::into_inner);
                    queue.extend_from_slice(&emptied[at + 1..]);
                    return Err(error);
                }
            }
        }
        for record in self.long_records.take_unused() {
            let freed = free_row(heap, growth, record.row);
            returned += u64::from(matches!(freed, Ok(true)));
            if !matches!(freed, Ok(true)) {
                self.long_records.put_back(record);
            }
            freed?;
        }
        Ok(returned)
    }

    /// The extents that are open.
    fn open_extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents
            .iter()
            .filter_map(OnceLock::get)
            .map(|extent| &**extent)
            .filter(|extent| !extent.is_vacant())
    }

    /// The bytes of all extents, and of the units in use.
    pub(crate) fn usage(&self) -> (u64, u64) {
        self.open_extents().fold(self.long_records.usage(), |(all, used), extent| {
            let in_use = u64::from(extent.unit_count().saturating_sub(extent.free()));
            (all + self.units.extent_bytes, used + in_use * extent.unit_bytes())
        })
    }

    /// The offsets of all extents and of the blocks of long records.
    pub(crate) fn block_offsets(&self) -> Vec<u64> {
        let extents = self.open_extents().map(Extent::start);
        extents.chain(self.long_records.offsets()).collect()
    }
}

/// Frees the block of a row. False if the heap refuses that, because a header is corrupted: then the block stays as it is.
fn free_row<P: Pmem>(heap: &Heap<P>, growth: &mut Growth, row: u32) -> Result<bool, WriteError> {
    match free_block(heap, row) {
        Ok(()) => {
            growth.free_rows.push(row);
            Ok(true)
        }
        Err(error) if heap.check_not_poisoned().is_err() => Err(error),
        Err(_) => Ok(false),
    }
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
