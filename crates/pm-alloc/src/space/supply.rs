//! Chunks that change hands: from the pool to an arena, and from one arena to another.

use super::arena::Arena;
use super::chunk::ChunkMap;
use super::heap_space::Space;
use super::pool::{Home, Pool};
use super::scan::{Content, chunk_lines, flush_headers, scan};
use crate::sync::atomic::Ordering;
use pm_core::{FenceError, Pmem};

impl Space {
    /// Takes a chunk from the pool into an arena: a fresh one and one not looked at yet in turn, while there are both.
    ///
    /// A chunk that was in use before the heap was opened may have holes, which are better filled than new chunks begun. But
    /// only one is scanned for each new chunk, because a scan takes time, and none before the first allocation, which must not wait.
    ///
    /// # Errors
    /// When a fence fails.
    ///
    /// # Durability
    /// As [`learn_through`](Self::learn_through), and [`adopt_unscanned`](Self::adopt_unscanned).
    pub(super) fn supply<P: Pmem>(&self, arena: usize, pmem: &P) -> Result<bool, FenceError> {
        let mut pool = self.pool.lock();
        let rather_unscanned = pool.is_unscanned_next;
        pool.is_unscanned_next = !rather_unscanned;
        let is_enough =
            |pool: &Pool| !pool.fresh.is_empty() || rather_unscanned && !pool.unscanned.is_empty();
        while !is_enough(&pool) && self.learn_next(&mut pool, pmem) {}
        self.fence_learned(&mut pool, pmem)?;
        let unscanned = pool.unscanned.keys().next().copied();
        match (unscanned, pool.fresh.first().copied()) {
            (Some(chunk), fresh) if rather_unscanned || fresh.is_none() => {
                self.adopt_unscanned(&mut pool, arena, pmem, chunk)?;
            }
            (_, Some(chunk)) => {
                pool.fresh.remove(&chunk);
                self.note_fresh(&pool, pmem);
                self.adopt(&pool, arena, ChunkMap::whole(chunk, chunk_lines(&self.layout)));
            }
            (_, None) => return Ok(false),
        }
        Ok(true)
    }

    /// Updates [`has_fresh`](Self::has_fresh), before a chunk is given to an arena. Of the chunks that are not known yet it reads the first
    /// header of the next one only, which is needed soon: in a large heap each costs a page fault.
    fn note_fresh<P: Pmem>(&self, pool: &Pool, pmem: &P) {
        let mut ahead = pool.unknown;
        let has_fresh = !pool.fresh.is_empty()
            || matches!(ahead.next(pmem, &self.layout, self.chunk_count()), Some((_, Content::Fresh)));
        self.has_fresh.store(has_fresh, Ordering::Release);
    }

    /// Looks at a chunk, and gives it to an arena.
    ///
    /// # Errors
    /// When the fence fails. The chunk stays where it is then.
    ///
    /// # Durability
    /// One fence, for what a killed process may have left visible and not durable: all headers of the chunk.
    pub(super) fn adopt_unscanned<P: Pmem>(
        &self,
        pool: &mut Pool,
        arena: usize,
        pmem: &P,
        chunk: u64,
    ) -> Result<(), FenceError> {
        if let Some(&start) = pool.unscanned.get(&chunk) {
            let mut corruptions = Vec::new();
            let map = scan(pmem, &self.layout, self.chunk_count(), chunk, start, &mut corruptions);
            if !self.is_new {
                flush_headers(pmem, &self.layout, &map);
                pool.fence(pmem)?;
            }
            pool.unscanned.remove(&chunk);
            pool.corruptions.append(&mut corruptions);
            self.note_fresh(pool, pmem);
            self.adopt(pool, arena, map);
        }
        Ok(())
    }

    /// Gives a chunk to an arena. Its home changes under the locks of both, and is looked at under either.
    pub(super) fn adopt(&self, _pool: &Pool, arena: usize, map: ChunkMap) {
        let chunk = map.chunk;
        let mut to = self.arena(arena);
        let slot = to.adopt(map);
        let arena = u32::try_from(arena).expect("there are fewer arenas");
        self.set_home(chunk, Home::Arena { arena, slot });
    }

    /// Takes a chunk from an arena, if nothing of it is in use. Under the pool's lock, until it has another home.
    pub(super) fn evict(&self, from: &mut Arena, slot: u32) -> Option<Box<ChunkMap>> {
        let map = from.evict(slot)?;
        self.set_home(map.chunk, Home::Covered);
        Some(map)
    }

    /// Moves a chunk of which nothing is in use from one arena to another.
    pub(super) fn move_whole(&self, from: usize, to: usize) -> bool {
        let pool = self.pool.lock();
        let mut other = self.arena(from);
        let whole = other.slots.iter().position(|slot| slot.as_ref().is_some_and(|map| map.is_whole()));
        let evicted = whole.and_then(|slot| self.evict(&mut other, u32::try_from(slot).ok()?));
        let Some(map) = evicted else { return false };
        drop(other);
        self.adopt(&pool, to, *map);
        true
    }
}
