//! Growing and shrinking blocks in place, without the log, for a plain `malloc` over the heap.
//!
//! The header at the block's new end is stored first. The block's own header, which has its length, is stored last. Until then, the new end lies
//! inside one block of the chain, so a kill between the two stores leaves an intact chain.

use super::arena::{Arena, Purpose};
use super::chunk_table::{ChunkOwner, HugeBlock, LockedChunks};
use super::error::{FreeError, ResizeError};
use super::headers::{
    chunk_lines, end_of, end_word, header_offset, header_word, huge_lines, line_offset, store_flushed,
};
use super::huge;
use super::reservation::ArenaSlot;
use super::scanner::Start;
use super::unlogged::Unlogged;
use crate::format::{BLOCK_LINES_MAX, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::locks::SpinGuard;
use core::ops::{Range, RangeInclusive};
use pm_core::{FenceError, Pmem};

/// The next step of resizing a block.
#[derive(Debug)]
#[must_use = "a block that can grow is unchanged when this is dropped"]
pub(crate) enum Resize<'s, P: Pmem> {
    /// Resizing has ended: the block has this number of lines. `None` if it is unchanged: too short, or huge while less than a chunk is wanted.
    Done(Option<u32>),
    /// The block can grow.
    Grow(Growth<'s, P>),
}

/// A block that can grow into free lines, with the lock of its arena or of the shared chunks held. If this is dropped before it is
/// [committed](Self::commit), the block is unchanged.
#[derive(Debug)]
pub(crate) struct Growth<'s, P: Pmem> {
    unlogged: Unlogged<'s, P>,
    target: Target<'s>,
    /// Whether nothing was stored yet, so that a panic of the caller need not poison the lock.
    is_unchanged: bool,
}

#[derive(Debug)]
enum Target<'s> {
    /// A block in a chunk of an arena, the line where it will end, and the end of the free block in which that line lies.
    Block { arena: SpinGuard<'s, Arena>, slot: u32, block: Range<u32>, end: u32, free_block_end: u32 },
    /// A huge block of `old` lines that can grow to `new` lines. The caller accepts `wanted` lines or more. If the caller refuses `new`, `least` is
    /// tried next: the length of the shortest huge block with at least `wanted` lines. `None` if that length was tried, or equals `new`.
    Huge { chunks: LockedChunks<'s>, chunk: u64, old: u32, new: u32, least: Option<u32>, wanted: u64 },
}

impl<'s, P: Pmem> Resize<'s, P> {
    /// Begins to resize the block at `payload` in place: to `*wanted.end()` lines if possible, and otherwise to at least `*wanted.start()`.
    ///
    /// # Errors
    /// As for [`Space::begin_free`](super::Space::begin_free), and when a fence fails.
    ///
    /// # Durability
    /// A kill leaves an intact chain, in which the block has its old length or its new one. If headers are made durable, a crash of the machine
    /// leaves the same. This costs one fence for each of the one or two headers that are stored, and one for each first header of a chunk that is
    /// stored or zeroed. Shrinking a huge block always costs one fence for the end headers of the freed chunks.
    pub(crate) fn begin(
        unlogged: Unlogged<'s, P>,
        payload: u64,
        wanted: RangeInclusive<u64>,
    ) -> Result<Self, ResizeError> {
        let (table, pmem) = (&unlogged.space.chunks, unlogged.pmem);
        let (chunk, line) = table.locate(payload)?;
        loop {
            let owner = table.owner(chunk);
            match owner {
                ChunkOwner::Huge => {
                    let mut chunks = table.lock();
                    if table.owner(chunk) == owner {
                        if line != 1 {
                            return Err(FreeError::NotABlock { offset: payload }.into());
                        }
                        let old = huge::look_up(&mut chunks, pmem, chunk, false)?;
                        return begin_huge(unlogged, chunks, chunk, old, wanted);
                    }
                }
                ChunkOwner::Arena(ArenaSlot { arena, slot }) => {
                    let mut arena = table.arena(arena as usize);
                    if table.owner(chunk) == owner {
                        let block = arena.look_up(pmem, slot, line, Purpose::Query)?.0;
                        return begin_in_chunk(unlogged, arena, slot, block, wanted);
                    }
                }
                ChunkOwner::Shared | ChunkOwner::Covered => {
                    // Scans the chunk, or fails.
                    unlogged.space.usable_bytes(pmem, payload)?;
                }
            }
        }
    }
}

fn begin_in_chunk<'s, P: Pmem>(
    unlogged: Unlogged<'s, P>,
    mut arena: SpinGuard<'s, Arena>,
    slot: u32,
    block: Range<u32>,
    wanted: RangeInclusive<u64>,
) -> Result<Resize<'s, P>, ResizeError> {
    let (layout, line) = (unlogged.space.layout(), block.start);
    let ends = [*wanted.start(), *wanted.end()].map(|lines| u64::from(line).saturating_add(lines));
    let [least, most] = ends.map(|end| u32::try_from(end).unwrap_or(u32::MAX));
    let map = arena.map(slot);
    if line >= map.unreachable_from {
        // It is unknown which headers lie after and inside the block, so nothing is stored there.
        return Ok(Resize::Done((least <= block.end).then_some(block.end - line)));
    }
    if most < block.end {
        unlogged.store(header_word(layout, map.chunk, BlockState::Free, most..block.end))?;
        // Even if the fence fails, the header is visible. So the map is updated anyway: copies of the heap are made from the map.
        let stored = unlogged.store(header_word(layout, map.chunk, BlockState::Allocated, line..most));
        map.starts.set(most);
        arena.quarantine(slot, most..block.end, Lsn::ZERO, unlogged.space.chunks.clock.now());
        return Ok(stored.map(|()| Resize::Done(Some(most - line)))?);
    }
    if least <= block.end {
        return Ok(Resize::Done(Some(block.end - line)));
    }
    let free_end = map.extent_end(block.end).unwrap_or(block.end);
    if free_end < least {
        return Ok(Resize::Done(None));
    }
    let mut end = most.min(free_end);
    // If only a short rest of the free block would remain after the new end, the rest is added, too.
    let free_block_end = map.next_start(end - 1);
    if free_block_end - end <= (end - line) / 64 {
        end = free_block_end;
    }
    if map.find_corrupted(unlogged.pmem, layout, block.end..free_block_end).is_some() {
        return Ok(Resize::Done(None));
    }
    let target = Target::Block { arena, slot, block, end, free_block_end };
    Ok(Resize::Grow(Growth { unlogged, target, is_unchanged: true }))
}

fn begin_huge<'s, P: Pmem>(
    unlogged: Unlogged<'s, P>,
    mut chunks: LockedChunks<'s>,
    chunk: u64,
    old: u32,
    wanted: RangeInclusive<u64>,
) -> Result<Resize<'s, P>, ResizeError> {
    let layout = unlogged.space.layout();
    if *wanted.end() < u64::from(chunk_lines(layout)) {
        return Ok(Resize::Done(None));
    }
    let [least, most] = [*wanted.start(), *wanted.end()].map(|lines| huge_length(layout, lines));
    if let Some(new) = most.filter(|&new| new < old) {
        return shrink_huge(&mut chunks, unlogged, chunk, old, new);
    }
    let wanted = *wanted.start();
    let mut lengths = [most, least.filter(|_| least != most)].into_iter().flatten();
    match (lengths.next(), lengths.next()) {
        (Some(new), least) if new > old => {
            let target = Target::Huge { chunks, chunk, old, new, least, wanted };
            Ok(Resize::Grow(Growth { unlogged, target, is_unchanged: true }))
        }
        (Some(_), _) => Ok(Resize::Done(Some(old))),
        (None, _) => Ok(Resize::Done((wanted <= u64::from(old)).then_some(old))),
    }
}

impl<P: Pmem> Growth<'_, P> {
    /// The bytes of the region that the block gains.
    pub(crate) fn added_range(&self) -> Range<u64> {
        match &self.target {
            Target::Block { arena, slot, block, end, .. } => {
                let chunk =
                    arena.slots[*slot as usize].as_ref().expect("a chunk in use stays in its slot").chunk;
                let offset = |line| line_offset(self.unlogged.space.layout(), chunk, line);
                offset(block.end)..offset((*end).max(block.end))
            }
            Target::Huge { chunk, old, new, .. } => {
                let offset = |lines: &u32| {
                    self.unlogged.space.layout().first_payload(*chunk) + u64::from(*lines) * LINE_BYTES
                };
                offset(old)..offset(new)
            }
        }
    }
}

impl<'s, P: Pmem> Growth<'s, P> {
    /// Grows the block.
    ///
    /// # Errors
    /// When a fence fails. The block then has its old or its new length.
    pub(crate) fn commit(mut self) -> Result<Resize<'s, P>, ResizeError> {
        self.is_unchanged = false;
        let Self { unlogged, target, .. } = &mut self;
        let layout = unlogged.space.layout();
        match target {
            Target::Block { arena, slot, block, end, free_block_end } => {
                let map = arena.map(*slot);
                let (line, end, free_block_end) = (block.start, *end, *free_block_end);
                if end < free_block_end {
                    unlogged.store(header_word(layout, map.chunk, BlockState::Free, end..free_block_end))?;
                }
                let stored = unlogged.store(header_word(layout, map.chunk, BlockState::Allocated, line..end));
                map.hold(block.end..end);
                map.starts.clear_range(block.end..end);
                if end < free_block_end {
                    map.starts.set(end);
                }
                arena.list_extent_from(*slot, end);
                Ok(stored.map(|()| Resize::Done(Some(end - line)))?)
            }
            Target::Huge { chunks, chunk, old, new, .. } => {
                if !take_lines_after(chunks, unlogged.pmem, *chunk, *old, *new)? {
                    return Ok(self.refuse());
                }
                let new = *new;
                let stored = grow_huge(chunks, *unlogged, *chunk, *old, new);
                Ok(stored.map(|()| Resize::Done(Some(new)))?)
            }
        }
    }

    /// Declines the added lines. The block may still grow by fewer.
    pub(crate) fn refuse(mut self) -> Resize<'s, P> {
        self.is_unchanged = true;
        match &mut self.target {
            Target::Block { .. } => Resize::Done(None),
            Target::Huge { old, new, least, wanted, .. } => match least.take() {
                Some(length) if length > *old => {
                    *new = length;
                    Resize::Grow(self)
                }
                Some(_) => Resize::Done(Some(*old)),
                None => Resize::Done((*wanted <= u64::from(*old)).then_some(*old)),
            },
        }
    }
}

impl<P: Pmem> Drop for Growth<'_, P> {
    fn drop(&mut self) {
        if self.is_unchanged {
            match &mut self.target {
                Target::Block { arena, .. } => arena.ignore_panics(),
                Target::Huge { chunks, .. } => chunks.shared.ignore_panics(),
            }
        }
    }
}

/// The number of lines of a huge block with room for `lines` lines. `None` if no huge block can be that long.
fn huge_length(layout: &Layout, lines: u64) -> Option<u32> {
    let in_chunk = u64::from(chunk_lines(layout));
    let wanted = huge_lines(layout, lines);
    // The free block from which the huge block would be carved consists of whole chunks.
    let whole = wanted.saturating_add(1).div_ceil(in_chunk).saturating_mul(in_chunk) - 1;
    let is_possible = lines >= in_chunk && whole <= u64::from(BLOCK_LINES_MAX);
    u32::try_from(wanted).ok().filter(|_| is_possible)
}

/// Stores the headers of a huge block that grows into taken chunks.
fn grow_huge<P: Pmem>(
    chunks: &mut LockedChunks<'_>,
    unlogged: Unlogged<'_, P>,
    chunk: u64,
    old: u32,
    new: u32,
) -> Result<(), FenceError> {
    let layout = &chunks.table.layout;
    let (last, _) = end_of(layout, chunk, old);
    let (new_last, new_line) = end_of(layout, chunk, new);
    let end = chunk_lines(layout);
    if new_line < end {
        unlogged.store(header_word(layout, new_last, BlockState::Free, new_line..end))?;
    }
    let mut stored = unlogged.store(header_word(layout, chunk, BlockState::Allocated, 1..1 + new));
    // The old first headers inside the block are zeroed, so that they are not read even if the block's own header becomes corrupted. If a kill or a
    // crash interrupts this, the rest of them are zeroed when first headers are read after the next open.
    for covered in last + 1..=new_last {
        stored = stored.and_then(|()| unlogged.store((header_offset(layout, covered, 1), 0)));
    }
    chunks.shared.huge.insert(chunk, HugeBlock { lines: new, is_live: true, is_lost: false });
    if new_line < end {
        chunks.share(new_last, Start::Chain(new_line));
    }
    stored
}

/// Takes all lines after a huge block of `old` lines, up to the end of the chunk in which the block will end with `new` lines. Returns false, and
/// takes nothing, if some of them are in use.
fn take_lines_after<P: Pmem>(
    chunks: &mut LockedChunks<'_>,
    pmem: &P,
    chunk: u64,
    old: u32,
    new: u32,
) -> Result<bool, FenceError> {
    let table = chunks.table;
    let (last, line) = end_of(&table.layout, chunk, old);
    let (new_last, _) = end_of(&table.layout, chunk, new);
    if new_last >= table.chunk_count() {
        return Ok(false);
    }
    chunks.read_first_headers_through(pmem, new_last)?;
    let added = last + 1..new_last + 1;
    for chunk in added.clone() {
        chunks.scan_into(table.own_arena(), pmem, chunk)?;
    }
    if chunks.take_chunks(added.clone()).is_err() {
        return Ok(false);
    }
    // If the block ends at a chunk's end, no line of that chunk is left.
    if line == chunk_lines(&table.layout) || take_rest_of_chunk(chunks, pmem, last, line)? {
        return Ok(true);
    }
    chunks.return_chunks(added);
    Ok(false)
}

/// Takes the lines from `line` on in `chunk`, in which a huge block ends. Returns false if some of them are in use.
fn take_rest_of_chunk<P: Pmem>(
    chunks: &mut LockedChunks<'_>,
    pmem: &P,
    chunk: u64,
    line: u32,
) -> Result<bool, FenceError> {
    let table = chunks.table;
    if table.owner(chunk) == ChunkOwner::Shared {
        chunks.scan_into(table.own_arena(), pmem, chunk)?;
    }
    let ChunkOwner::Arena(ArenaSlot { arena, slot }) = table.owner(chunk) else { return Ok(false) };
    let end = chunk_lines(&table.layout);
    let mut arena = table.arena(arena as usize);
    let map = arena.map(slot);
    let is_free = map.first == line && map.extent_end(line) == Some(end);
    if !is_free || map.find_corrupted(pmem, &table.layout, line..end).is_some() {
        return Ok(false);
    }
    arena.remove(slot);
    chunks.set_owner(chunk, ChunkOwner::Covered);
    Ok(true)
}

/// Shrinks a huge block by freeing the chunks at its end. A block that would end in the same chunk as before stays as it is.
fn shrink_huge<'s, P: Pmem>(
    chunks: &mut LockedChunks<'_>,
    unlogged: Unlogged<'_, P>,
    chunk: u64,
    old: u32,
    new: u32,
) -> Result<Resize<'s, P>, ResizeError> {
    let layout = &chunks.table.layout;
    let (last, line) = end_of(layout, chunk, old);
    let (new_last, new_line) = end_of(layout, chunk, new);
    // With a quarantine time the block stays as it is, because only whole huge blocks are quarantined.
    if chunks.table.clock.is_used() || new_last == last {
        return Ok(Resize::Done(Some(old)));
    }
    let end = chunk_lines(layout);
    // The end header of a freed chunk is always made durable here: no other code flushes the end header of a free shared chunk.
    for freed in (new_last..last).chain((line == end).then_some(last)) {
        store_flushed(unlogged.pmem, end_word(layout, freed));
    }
    unlogged.pmem.fence()?;
    if new_line < end {
        unlogged.store(header_word(layout, new_last, BlockState::Free, new_line..end))?;
    }
    for freed in new_last + 1..last {
        unlogged.store(header_word(layout, freed, BlockState::Free, 1..end))?;
    }
    if line > 1 {
        unlogged.store(header_word(layout, last, BlockState::Free, 1..line))?;
    }
    let stored = unlogged.store(header_word(layout, chunk, BlockState::Allocated, 1..1 + new));
    chunks.shared.huge.insert(chunk, HugeBlock { lines: new, is_live: true, is_lost: false });
    if new_line < end {
        chunks.share(new_last, Start::Chain(new_line));
    }
    (new_last + 1..last).for_each(|chunk| chunks.share_free(chunk));
    chunks.free_front(last, line);
    Ok(stored.map(|()| Resize::Done(Some(new)))?)
}
