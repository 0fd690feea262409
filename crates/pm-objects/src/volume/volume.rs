//! The heap that holds the objects, and the store that has their names: checked loads, and transactions.

use super::file::FileTier;
use crate::error::{ObjectError, Structure};
use crate::format::{PLACE_BYTES, RootHeader, seal, unseal};
use pm_alloc::{Heap, PoisoningPmem, Tx, TxError};
use pm_btree::Store;
use pm_core::{InPool, Persist, Pmem, bytes_of, from_bytes};

/// The storage of a pool of objects.
#[derive(Debug)]
pub(crate) struct Volume<P: Pmem> {
    pub(crate) store: Store<P>,
    /// The lower tier.
    pub(crate) file: Option<FileTier<P>>,
    /// The seed of all checksums.
    pub(crate) seed: u64,
    /// The greatest length of a chunk.
    pub(crate) chunk_bytes: u64,
    pub(crate) slab_bytes: u64,
    pub(crate) is_read_only: bool,
}

impl<P: Pmem> Volume<P> {
    pub(crate) fn new(
        store: Store<P>,
        file: Option<FileTier<P>>,
        header: &RootHeader,
        is_read_only: bool,
    ) -> Self {
        let (seed, chunk_bytes, slab_bytes) = (header.seed, u64::from(header.chunk_bytes), header.slab_bytes);
        Self { store, file, seed, chunk_bytes, slab_bytes, is_read_only }
    }

    pub(crate) fn heap(&self) -> &Heap<P> {
        self.store.heap()
    }

    /// The lower tier, of a pool that has slots in it.
    pub(crate) fn file(&self) -> &FileTier<P> {
        self.file.as_ref().expect("only a pool with a file has slots in it")
    }

    #[inline]
    pub(crate) fn pmem(&self) -> PoisoningPmem<'_, P> {
        self.store.heap().pmem()
    }

    pub(crate) const fn check_writable(&self) -> Result<(), ObjectError> {
        if self.is_read_only { Err(ObjectError::ReadOnly) } else { Ok(()) }
    }

    /// The longest range of a chunk that is changed in place, through the log. A longer one is stored in another slot, around the cache.
    pub(crate) const fn in_place_bytes(&self) -> u64 {
        self.chunk_bytes / 4
    }

    /// The offset of a place from the medium, which has so many bytes. It lies in the heap.
    pub(crate) fn offset_of(&self, place: u64, len_bytes: u64) -> Option<u64> {
        let offset = place.checked_mul(PLACE_BYTES)?;
        let heap = self.heap().layout().chunks_start..self.heap().space_behind().start;
        let end = offset.checked_add(len_bytes)?;
        (heap.start <= offset && end <= heap.end).then_some(offset)
    }

    /// Loads a value at an offset that was checked.
    pub(crate) fn load<T: for<'p> InPool<'p>>(&self, offset: u64) -> T {
        from_bytes(|bytes| self.pmem().load(offset, bytes))
    }

    /// Loads the contents of a word of `number`, which is sealed over its offset.
    pub(crate) fn sealed(&self, number: u64, offset: u64, what: Structure) -> Result<u64, ObjectError> {
        let word = self.pmem().load_u64(offset);
        unseal(self.seed, number, offset, word).ok_or(ObjectError::corrupted(offset, what))
    }

    /// Runs a transaction.
    pub(crate) fn transaction<R>(
        &self,
        run: impl for<'p> FnOnce(&mut Change<'_, 'p, P>) -> Result<R, ObjectError>,
    ) -> Result<R, ObjectError> {
        self.check_writable()?;
        self.heap().try_transaction(|tx| run(&mut Change { tx, volume: self }))
    }
}

/// A transaction in progress.
pub(crate) struct Change<'c, 'p, P: Pmem> {
    tx: &'c mut Tx<'p, P>,
    pub(crate) volume: &'c Volume<P>,
}

impl<P: Pmem> Change<'_, '_, P> {
    /// Writes bytes to a block or a slot.
    pub(crate) fn write_bytes(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        let link = self.tx.link_at::<u8>(offset)?;
        Ok(self.tx.write_slice(link, bytes)?)
    }

    /// Writes a value.
    pub(crate) fn write<T: Persist>(&mut self, offset: u64, value: &T) -> Result<(), ObjectError> {
        // As bytes: none of the types have links.
        self.write_bytes(offset, bytes_of(value))
    }

    /// Writes a word of `number`, sealed over its offset.
    pub(crate) fn set_sealed(&mut self, number: u64, offset: u64, contents: u64) -> Result<(), ObjectError> {
        self.write(offset, &seal(self.volume.seed, number, offset, contents))
    }

    /// Allocates a block without contents, and returns its offset.
    pub(crate) fn alloc(&mut self, len_bytes: u64) -> Result<u64, ObjectError> {
        Ok(self.tx.alloc_uninit::<u8>(len_bytes)?.offset())
    }

    /// Stores bytes in a new block or in a free slot, not through the log: nothing refers to them before the commit, which fences first.
    pub(crate) fn fill(&mut self, offset: u64, bytes: &[u8]) {
        self.volume.pmem().store_nt(offset, bytes);
        self.tx.note_unfenced_stores();
    }

    /// Bytes were stored around the cache that the transaction publishes: the commit fences first.
    pub(crate) fn note_filled(&mut self) {
        self.tx.note_unfenced_stores();
    }

    /// Frees a block. One whose header is corrupted stays allocated, and the heap reports it.
    pub(crate) fn free(&mut self, offset: u64) -> Result<(), ObjectError> {
        match self.tx.free(self.tx.link_at::<u8>(offset)?) {
            Err(TxError::Free(_)) => Ok(()),
            freed => Ok(freed?),
        }
    }

    /// Makes `offset` the target of a root of the pool.
    pub(crate) fn set_root<T: for<'t> InPool<'t>>(
        &mut self,
        name: &str,
        offset: u64,
    ) -> Result<(), ObjectError> {
        let link = self.tx.link_at::<T>(offset)?;
        Ok(self.tx.set_root(name, link)?)
    }
}
