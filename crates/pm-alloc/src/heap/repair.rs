//! Making chains of headers and the root directory whole again.

use super::{Heap, header};
use crate::error::TxError;
use crate::format::ROOT;
use crate::space::Corruption;
use pm_core::{Pmem, RootError};

impl<P: Pmem> Heap<P> {
    /// Stores a header over a corrupted one, which repairs the chain of the chunk. The extent of the corruption is never handed out
    /// again; allocated blocks inside it stay allocated. Returns false, and changes nothing, if this corruption is not there any more.
    ///
    /// If the heap was open when the header was hit, the extent is that one block. Otherwise its length is unknown, and the extent
    /// may hold several blocks: the caller makes sure that their contents are not needed, or were saved.
    ///
    /// # Errors
    /// When a fence fails, or failed before.
    ///
    /// # Durability
    /// A crash leaves the corruption or the new header. Costs one fence, and two to retire the lanes: the header is stored past the log
    /// when nothing is left in it. Stored by the log, it could come back later over the contents of a block that lies there
    /// then; and an older entry could come back over it.
    pub fn repair(&mut self, corruption: &Corruption) -> Result<bool, TxError> {
        self.log.check()?;
        let Some((offset, word)) = self.space.repair(&self.pmem(), corruption)? else { return Ok(false) };
        self.log.raise_checkpoint(&self.pmem(), self.log.latest())?;
        crate::log::store_u64(&self.log, &self.pmem(), offset, word)?;
        Ok(true)
    }

    /// Gives up the roots that corrupted slots of the root directory held, as [`Pool::discard_corrupted_roots`](pm_core::Pool::discard_corrupted_roots)
    /// does. Returns how many slots there were. What the roots named stays allocated. The root that names the heap
    /// itself is not given up: it is set again.
    ///
    /// # Errors
    /// When a fence fails, or failed before.
    ///
    /// # Durability
    /// A crash leaves each slot corrupted or free. Costs one fence, and two to retire the lanes: an entry that is left in the log could
    /// bring the root back; and one where the heap's root is set, before another slot is freed.
    pub fn discard_corrupted_roots(&mut self) -> Result<usize, TxError> {
        self.log.check()?;
        let count = self.pool().corrupted_root_count();
        if count == 0 {
            return Ok(0);
        }
        self.log.raise_checkpoint(&self.pmem(), self.log.latest())?;
        let roots = self.pool_parts().logged_roots();
        let set = match self.pool().find_root(ROOT) {
            Ok(Some(_)) => Ok(()),
            // No opening would find the heap without it, once no slot is corrupted.
            Ok(None) | Err(_) => roots.set_lost(ROOT, header::root_target(self.layout().heap_start)),
        };
        set.and_then(|()| roots.discard_corrupted()).map_err(|error| match error {
            RootError::Fence(error) => self.log.fail(error.into()).into(),
            error => TxError::from(error),
        })?;
        Ok(count)
    }
}
