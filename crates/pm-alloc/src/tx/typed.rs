//! Values in a transaction.

use super::Tx;
use super::links::{link_to, value_from};
use crate::error::TxError;
use core::mem::{align_of, size_of};
use pm_core::{InPool, Link, Pmem, bytes_of, bytes_of_slice};

impl<'p, P: Pmem> Tx<'p, P> {
    /// A new block with `value` in it. The transaction may link to it from anywhere; it is there when the transaction is.
    ///
    /// # Errors
    /// When there is no room.
    ///
    /// # Durability
    /// With the transaction: before it commits, a crash leaves the block free. Costs the block's lines and that of its
    /// header; a fence for the transaction, if the value has more than 96 bytes, and otherwise two lines of the log or
    /// three.
    ///
    /// What a transaction reserves beyond its blocks is not free for others before it ends. So where it takes the last long free extent,
    /// that is divided first, for two lines and two fences, or four fences if its header is in a live log entry. The transaction keeps an
    /// eighth, from which the next ones allocate without that price.
    pub fn alloc<T: InPool<'p>>(&mut self, value: &T) -> Result<Link<'p, T>, TxError> {
        self.alloc_slice(core::slice::from_ref(value))
    }

    /// A new block with these values in it, one after the other; the link is to the first one, and [`Link::element`] leads to
    /// the others. How many they are is for the program to remember.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    ///
    /// # Durability
    /// As [`alloc`](Self::alloc).
    pub fn alloc_slice<T: InPool<'p>>(&mut self, values: &[T]) -> Result<Link<'p, T>, TxError> {
        let bytes = bytes_of_slice(values);
        let payload = self.reserve(bytes.len() as u64, align_of::<T>() as u64)?;
        self.store_fresh(payload, bytes)?;
        Ok(link_to(payload))
    }

    /// A new block with room for `count` values, to be filled later; what it holds is what was there before. Costs no fence of
    /// its own.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    ///
    /// # Durability
    /// As [`alloc`](Self::alloc).
    pub fn alloc_uninit<T: InPool<'p>>(&mut self, count: u64) -> Result<Link<'p, T>, TxError> {
        let bytes = count.saturating_mul(size_of::<T>() as u64);
        Ok(link_to(self.reserve(bytes, align_of::<T>() as u64)?))
    }

    /// A new block with room for `count` values, in which all bytes are zero.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    ///
    /// # Durability
    /// As [`alloc`](Self::alloc), with the fence at any length.
    pub fn alloc_zeroed<T: InPool<'p>>(&mut self, count: u64) -> Result<Link<'p, T>, TxError> {
        self.alloc_aligned(count, align_of::<T>() as u64)
    }

    /// As [`alloc_zeroed`](Self::alloc_zeroed), at a multiple of `align_bytes`, a power of two, and of what `T` needs. All blocks are
    /// at multiples of 64.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and when no block of this length can be aligned so.
    ///
    /// # Durability
    /// As [`alloc_zeroed`](Self::alloc_zeroed).
    ///
    /// # Panics
    /// When `align_bytes` is no power of two.
    pub fn alloc_aligned<T: InPool<'p>>(
        &mut self,
        count: u64,
        align_bytes: u64,
    ) -> Result<Link<'p, T>, TxError> {
        const ZEROES: [u8; 4096] = [0; 4096];
        let bytes = count.saturating_mul(size_of::<T>() as u64);
        assert!(
            align_bytes.is_power_of_two(),
            "blocks are aligned to powers of two, and {align_bytes} is none"
        );
        let payload = self.reserve(bytes, align_bytes.max(align_of::<T>() as u64))?;
        let pmem = &self.heap.pmem();
        self.heap.log.check()?;
        self.is_in_flight |= bytes > 0;
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(ZEROES.len() as u64);
            #[expect(clippy::cast_possible_truncation, reason = "at most 4,096")]
            pmem.store_nt(payload + done, &ZEROES[..step as usize]);
            done += step;
        }
        Ok(link_to(payload))
    }

    /// Frees the block that `link` is to: one that [`alloc`](Self::alloc) or its kin returned, in this transaction or before.
    /// Links to it that are left somewhere are the program's to look after.
    ///
    /// # Errors
    /// When there is no such block, it is free already, or its header is corrupted; nothing is freed then.
    ///
    /// # Durability
    /// With the transaction. Costs the line of the header. The block is not used again before that is durable for certain.
    pub fn free<T: InPool<'p>>(&mut self, link: Link<'p, T>) -> Result<(), TxError> {
        self.free_block(link.offset())
    }

    /// How many bytes the block that `link` is to has room for: as many as were asked for, or a few more.
    ///
    /// # Errors
    /// As [`free`](Self::free). A block that this transaction allocated is [free](crate::FreeError::AlreadyFree) until
    /// it commits.
    pub fn capacity_bytes<T: InPool<'p>>(&self, link: Link<'p, T>) -> Result<u64, TxError> {
        self.heap.log.check()?;
        Ok(self.heap.space.usable_bytes(&self.heap.pmem(), link.offset())?)
    }

    /// Copies out what a link points to, as this transaction has left it.
    ///
    /// # Errors
    /// When the link is null or leads out of the heap.
    pub fn read<T: InPool<'p>>(&self, link: Link<'p, T>) -> Result<T, TxError> {
        let offset = self.heap.check_link(link, 1)?;
        Ok(value_from(|bytes| self.load(offset, bytes)))
    }

    /// Copies `out.len()` bytes out, beginning with the one that the link is to.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_bytes(&self, link: Link<'p, u8>, out: &mut [u8]) -> Result<(), TxError> {
        let offset = self.heap.check_link(link, out.len() as u64)?;
        self.load(offset, out);
        Ok(())
    }

    /// Writes a value over what a link points to; a field, if the link is to one ([`Link::field`]).
    ///
    /// # Errors
    /// When the link is null or leads out of the heap. For values of 2 KiB or more also as [`Heap::transaction`], for
    /// they go in place at once.
    ///
    /// # Durability
    /// With the transaction.
    ///
    /// [`Heap::transaction`]: crate::Heap::transaction
    pub fn write<T: InPool<'p>>(&mut self, link: Link<'p, T>, value: &T) -> Result<(), TxError> {
        let offset = self.heap.check_link(link, 1)?;
        self.store(offset, bytes_of(value))
    }

    /// Writes values one after the other, beginning where the link points to.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Durability
    /// With the transaction.
    pub fn write_slice<T: InPool<'p>>(&mut self, link: Link<'p, T>, values: &[T]) -> Result<(), TxError> {
        let offset = self.heap.check_link(link, values.len() as u64)?;
        self.store(offset, bytes_of_slice(values))
    }

    /// Reads a value, lets `change` change it, and writes it again; what it returns.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Durability
    /// With the transaction.
    pub fn edit<T: InPool<'p>, R>(
        &mut self,
        link: Link<'p, T>,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, TxError> {
        let mut value = self.read(link)?;
        let result = change(&mut value);
        self.write(link, &value)?;
        Ok(result)
    }
}
