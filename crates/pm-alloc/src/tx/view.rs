//! Reading without a transaction, and the writes that need none: those in one piece.

use super::links::{link_to, value_from};
use super::nesting::outside_in_place;
use crate::error::TxError;
use crate::heap::Heap;
use crate::log;
use core::marker::PhantomData;
use core::mem::{align_of, size_of};
use pm_core::{InPool, Link, PlaceError, Pmem, Region, Root, RootError};

/// What is stored in one piece lies at a multiple of its length. Two words in themselves need only 8.
const PAIR_BYTES: u64 = 16;

/// A look at the heap of `'p`. Made by [`Heap::view`].
#[derive(Debug)]
pub struct View<'p, P: Pmem = Region> {
    pub(super) heap: &'p Heap<P>,
    brand: PhantomData<fn(&'p ()) -> &'p ()>,
}

impl<P: Pmem> Heap<P> {
    /// Runs `f` with a look at the heap, under a brand that keeps its links from leaving it.
    ///
    /// What another thread's transaction commits meanwhile may be seen in part: who reads what others change keeps them away
    /// with a lock, as everywhere.
    ///
    /// In a transaction of this thread on the same heap, it sees nothing of what that wrote, but for long values in
    /// place. What [`store_u64`](View::store_u64) and [`store_u64_pair`](View::store_u64_pair) store then is no part of it,
    /// and stays when it is given up. They refuse to store into its long values in place, which are rolled back as a whole.
    pub fn view<R>(&self, f: impl for<'p> FnOnce(&View<'p, P>) -> R) -> R {
        f(&View { heap: self, brand: PhantomData })
    }

    /// Where so many values of type `T` that the link leads to lie.
    pub(crate) fn check_link<'p, T: InPool<'p>>(
        &self,
        link: Link<'p, T>,
        count: u64,
    ) -> Result<u64, PlaceError> {
        if link.is_null() {
            return Err(PlaceError::Null);
        }
        let size_bytes = (size_of::<T>() as u64).saturating_mul(count);
        self.check_place(link.offset(), size_bytes, align_of::<T>() as u64)
    }

    /// Whether `size_bytes` at `offset` lie in the heap's chunks and are aligned.
    pub(crate) fn check_place(
        &self,
        offset: u64,
        size_bytes: u64,
        align_bytes: u64,
    ) -> Result<u64, PlaceError> {
        let data_start = self.layout().chunks_start;
        let data_end = self.layout().chunk_offset(self.space.chunk_count());
        if offset < data_start || offset.checked_add(size_bytes).is_none_or(|end| end > data_end) {
            return Err(PlaceError::OutOfRange { offset, size_bytes, data_start, data_end });
        }
        if !offset.is_multiple_of(align_bytes) {
            return Err(PlaceError::Misaligned { offset, align_bytes });
        }
        Ok(offset)
    }

    pub(crate) fn typed_root<'p, T: InPool<'p>>(&self, root: &Root) -> Result<Link<'p, T>, RootError> {
        root.expect_type(T::LAYOUT, size_of::<T>() as u64)?;
        self.check_place(root.offset(), size_of::<T>() as u64, align_of::<T>() as u64)?;
        Ok(link_to(root.offset()))
    }
}

impl<'p, P: Pmem> View<'p, P> {
    /// The root of this name, if there is one.
    ///
    /// # Errors
    /// When it holds another type, or is not found while some of the directory is corrupted.
    pub fn root<T: InPool<'p>>(&self, name: &str) -> Result<Option<Link<'p, T>>, RootError> {
        self.heap.pool_parts().find_root(name)?.map(|root| self.heap.typed_root(&root)).transpose()
    }

    /// Copies out what a link points to.
    ///
    /// # Errors
    /// When the link is null or leads out of the heap.
    pub fn read<T: InPool<'p>>(&self, link: Link<'p, T>) -> Result<T, PlaceError> {
        let offset = self.heap.check_link(link, 1)?;
        Ok(value_from(|bytes| self.heap.pmem().load(offset, bytes)))
    }

    /// Copies out `out.len()` bytes, beginning with the one that the link is to.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_bytes(&self, link: Link<'p, u8>, out: &mut [u8]) -> Result<(), PlaceError> {
        let offset = self.heap.check_link(link, out.len() as u64)?;
        self.heap.pmem().load(offset, out);
        Ok(())
    }

    /// Stores a word where it is, in one piece, without a transaction.
    ///
    /// # Errors
    /// When the link is null or leads out of the heap, or a fence fails. [`TxError::WrittenInPlace`] when the word lies in a value that
    /// this thread's transaction on the same heap has written in place, as it does with long ones.
    ///
    /// # Durability
    /// When it returns, the new word is durable; a crash before leaves it or the old one. Costs one line and one fence; one
    /// line more if a transaction wrote to the same line lately.
    ///
    /// A process that is killed before this returns may leave the new word visible to the next process and not durable: a power failure
    /// then takes it back, though not what that process has derived from it and committed. Stored again as it was found, it is durable.
    ///
    /// # Source
    /// PMFS 3.2, atomic in-place updates.
    pub fn store_u64(&self, link: Link<'p, u64>, value: u64) -> Result<(), TxError> {
        let offset = self.heap.check_link(link, 1)?;
        outside_in_place(core::ptr::from_ref(self.heap).addr(), offset, 8)?;
        log::store_u64(&self.heap.log, &self.heap.pmem(), offset, value)?;
        Ok(())
    }

    /// Stores two words where they are, both in one piece, without a transaction: a value and its version, say, or the two ends of
    /// a range.
    ///
    /// A thread that reads them meanwhile loads them one after the other, and may see the first of one pair and the second of
    /// the next: readers are kept away with a lock, as everywhere.
    ///
    /// # Errors
    /// When the link is null, leads out of the heap, or to no multiple of 16, which is
    /// [`Misaligned`](pm_core::PlaceError::Misaligned): blocks start at multiples of 64, so it is for the fields before it to
    /// see to. As [`store_u64`](Self::store_u64) within a transaction. Nothing has been stored then. Or when a fence fails.
    ///
    /// # Durability
    /// When it returns, the new pair is durable; a crash before leaves it or the old one, never a word of each. Costs one line and
    /// one fence; one line more if a transaction wrote to the same line lately.
    ///
    /// After a kill as [`store_u64`](Self::store_u64).
    ///
    /// # Source
    /// PMFS 3.2, atomic in-place updates of 16 bytes.
    pub fn store_u64_pair(&self, link: Link<'p, [u64; 2]>, value: [u64; 2]) -> Result<(), TxError> {
        let offset = self.heap.check_link(link, 1)?;
        if !offset.is_multiple_of(PAIR_BYTES) {
            return Err(PlaceError::Misaligned { offset, align_bytes: PAIR_BYTES }.into());
        }
        outside_in_place(core::ptr::from_ref(self.heap).addr(), offset, PAIR_BYTES)?;
        log::store_u64_pair(&self.heap.log, &self.heap.pmem(), offset, value)?;
        Ok(())
    }
}
