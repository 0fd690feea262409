//! Figures about a heap's space, and the corruption that was found in it.

use super::corruption::Corruption;
use super::heap_space::Space;
use super::scan::chunk_lines;
use crate::format::LINE_BYTES;

/// How much of a heap's space is what. The figures are taken one arena after the other, while others go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceStats {
    /// Chunks of the heap.
    pub chunks: u64,
    /// Chunks that were not looked at yet since the heap was opened; nothing in them is counted below.
    pub unscanned_chunks: u64,
    /// Chunks that lie wholly below blocks longer than a chunk, or have their beginning.
    pub covered_chunks: u64,
    /// Bytes that can be handed out.
    pub free_bytes: u64,
    /// Bytes in use: allocated, reserved, waiting, or lost.
    pub used_bytes: u64,
    /// Freed blocks that wait before they are handed out again.
    pub waiting_blocks: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Reservations of transactions under way.
    pub reservations: u64,
    /// Bytes of blocks whose headers are corrupted.
    pub lost_bytes: u64,
}

impl Space {
    /// Figures.
    pub(crate) fn stats(&self) -> SpaceStats {
        let in_chunk = chunk_lines(&self.layout);
        let mut stats = SpaceStats { chunks: self.chunk_count(), ..SpaceStats::default() };
        let mut scanned = 0;
        let bytes = |lines: u32| u64::from(lines) * LINE_BYTES;
        for arena in &self.arenas {
            let arena = arena.lock_intact();
            for map in arena.slots.iter().flatten() {
                scanned += 1;
                stats.free_bytes += bytes(map.free_lines);
                stats.used_bytes += bytes(in_chunk - map.free_lines);
                stats.lost_bytes += map.lost.iter().map(|lost| bytes(lost.end - lost.start)).sum::<u64>();
            }
            stats.waiting_blocks += arena.waiting().count() as u64;
            stats.waiting_bytes += arena.waiting().map(|freed| bytes(freed.lines)).sum::<u64>();
            stats.reservations += u64::from(arena.held);
        }
        let pool = self.pool.lock();
        stats.unscanned_chunks = self.unscanned(&pool) as u64;
        stats.free_bytes += pool.fresh.len() as u64 * bytes(in_chunk - 1);
        stats.used_bytes += pool.fresh.len() as u64 * LINE_BYTES;
        stats.waiting_blocks += pool.waiting.len() as u64;
        stats.waiting_bytes += pool.waiting.iter().map(|freed| bytes(freed.lines)).sum::<u64>();
        stats.reservations += u64::from(pool.held);
        let lost = pool.huge.values().filter(|block| block.is_lost);
        stats.lost_bytes += lost.map(|block| bytes(block.lines)).sum::<u64>();
        let others = scanned + stats.unscanned_chunks + pool.fresh.len() as u64;
        stats.covered_chunks = stats.chunks.saturating_sub(others);
        stats.used_bytes += stats.covered_chunks * self.layout.chunk_bytes;
        stats
    }

    /// The corruption found since this was last asked.
    pub(crate) fn take_corruption(&self) -> Vec<Corruption> {
        let mut corruptions = std::mem::take(&mut self.pool.lock().corruptions);
        for arena in &self.arenas {
            corruptions.append(&mut arena.lock_intact().corruptions);
        }
        corruptions
    }
}
