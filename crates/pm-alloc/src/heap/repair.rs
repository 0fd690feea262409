//! Making chains of headers whole again.

use super::Heap;
use crate::error::TxError;
use crate::space::Damage;
use pm_core::Pmem;

impl<P: Pmem> Heap<P> {
    /// Stores a header where a damaged one was found, so that the chain leads over it again. The extent of the damage becomes
    /// one block that is nobody's and is never handed out; what is behind it in the chunk, and free, can be again. False if
    /// what is there is not that damage any more, and nothing was done.
    ///
    /// It is for somebody to decide who knows that what the extent holds is not needed, or was saved: behind a damaged header
    /// may lie more than one block.
    ///
    /// # Errors
    /// As [`transaction`](Self::transaction).
    ///
    /// # Durability
    /// A transaction: a crash leaves the damage or the new header. Costs one fence.
    pub fn repair(&mut self, damage: &Damage) -> Result<bool, TxError> {
        let Some((offset, word)) = self.space.repair(self.pmem(), damage) else { return Ok(false) };
        self.transaction(|tx| {
            tx.store_header(offset, word);
            Ok::<_, TxError>(())
        })?;
        let (pmem, space) = self.parts();
        space.repaired(pmem, damage);
        Ok(true)
    }
}
