//! A heap looked at from outside: its blocks, its health, its figures.

use super::Heap;
use crate::format::BlockState;
use crate::log::CommitError;
use crate::space::{Block, CheckReport, Corruption, SpaceStats};
use pm_core::Pmem;

impl<P: Pmem> Heap<P> {
    /// Looks at the header of every block. Changes nothing.
    ///
    /// Transactions that commit meanwhile may look like corruption: to be called while there are none.
    pub fn check(&self) -> CheckReport {
        self.space.check(&self.pmem())
    }

    /// As [`check`](Self::check), and tells `each` of every block, in the order in which they lie. What is out of reach
    /// where a chain is broken is listed as unreachable, in pieces between the allocated blocks there; what is below other corrupted headers is not
    /// told, but reported.
    pub fn check_with(&self, each: impl FnMut(Block)) -> CheckReport {
        CheckReport::of(&self.pmem(), self.layout(), self.space.chunk_count(), each)
    }

    /// Where all allocated blocks start, in order; what [`Tx::alloc`](crate::Tx::alloc) returned links to. A program that can
    /// list what it reaches finds what it has lost so.
    ///
    /// Behind a corrupted header that was found when the heap was opened, blocks that were freed since, or long ago, may be listed again:
    /// freeing stores nothing there, for it cannot tell the header of a block from an old one inside of a block.
    ///
    /// To be called while no transaction commits.
    pub fn blocks(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.check_with(|block| {
            if block.state == BlockState::Allocated {
                blocks.push(block.payload);
            }
        });
        blocks
    }

    /// Looks at up to so many chunks that nobody needed since the heap was opened, so that later allocations need not,
    /// and returns how many are left. For a thread with time, right after opening.
    ///
    /// # Errors
    /// When a fence fails, or failed before. After that the heap stores nothing more.
    ///
    /// # Durability
    /// Changes nothing. What a killed process left visible and not durable is made durable: a fence for each chunk.
    pub fn scan_ahead(&self, chunks: usize) -> Result<usize, CommitError> {
        self.log.check()?;
        Ok(self.space.scan_some(&self.pmem(), chunks)?)
    }

    /// How many blocks and bytes are in use, as far as it is known: chunks that nobody needed yet are not counted.
    pub fn stats(&self) -> SpaceStats {
        self.space.stats()
    }

    /// Corrupted headers that were found since the last call.
    pub fn take_corruption(&self) -> Vec<Corruption> {
        self.space.take_corruption()
    }
}
