//! The seam: the one trait through which every crate touches persistent memory.

use crate::fault::MediumFault;
use crate::{Domain, WriterGuard, WriterLock};
use core::ops::Range;
use std::sync::Arc;

/// A fence that could not make its data durable.
///
/// Only the page domain can fail: there a fence is a system call on a file. After the first write-back that failed the kernel
/// takes the pages for written although the medium has their old contents, so that a later success would mean nothing; the
/// region is therefore poisoned and every later fence fails too. What was fenced before stays durable. What was stored
/// since is still read from this region, and may be lost.
///
/// What is safe: drop the region, and [open](crate::Region::open) it again, which drops the pages from the cache and reads the
/// medium. Each page is then as of some moment since the last fence that succeeded. While the medium fails, that fails too.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceError {
    /// Writing back pages failed.
    #[error("in the page domain, writing back {len_bytes} bytes at offset {offset} failed: {errno}")]
    WriteBack {
        /// First byte of the range whose state is unknown.
        offset: u64,
        /// Length of that range.
        len_bytes: u64,
        /// What `msync` answered.
        errno: rustix::io::Errno,
    },
    /// This process is a child of fork(2), and the region belongs to its parent. The kernel reports a failed write-back once, and the
    /// report is due to the parent.
    #[error("the region belongs to the parent of this process, and only the parent can write it back")]
    Inherited,
    /// An earlier fence on this region failed.
    #[error(
        "an earlier write-back failed, so what was stored since the fence before it may be lost, even if it can still be \
         read here; drop the region and open it again to get what the medium has"
    )]
    Poisoned,
}

/// A byte-addressed region of persistent memory.
///
/// Everything above this trait is written once, generic over it with the hardware as the default, and
/// monomorphised. [`Region`](crate::Region) implements it by bare instructions; a crash simulator implements it
/// by a model of the caches; [`Counting`](crate::Counting) wraps another implementation and counts.
///
/// # Model
/// `store` and the atomics are ordinary write-back stores: visible at once, durable at the next [`fence`] of the
/// thread that called [`flush`] on their lines after them. `store_nt` needs no flush, only the fence. Between
/// fences, flushed lines become durable in any order, and any line may become durable early, on its own, at any
/// time: a cache evicts when it likes. A store of 1, 2, 4 or 8 bytes that is aligned to its length is never torn,
/// by a crash or by another thread; any other one is a set of such pieces in no order, the largest that fit
/// ([`piece_bytes`](crate::line::piece_bytes)), but for [`store_u128`], whose two words are one piece to a crash.
/// `docs/persistence-model.md` has the whole of it.
///
/// # Concurrency
/// All methods take `&self` and may be called from several threads at once. Bytes that two threads access at the
/// same time without the atomics may be read torn between two such pieces, as on hardware, but that is never
/// undefined behaviour.
///
/// # Panics
/// Every method that takes an offset panics when the range leaves the region, and the atomics when the offset is
/// not a multiple of their size, 8 or 16: both are bugs of the caller, and nothing has been written then.
///
/// [`store_u128`]: Pmem::store_u128
/// [`flush`]: Pmem::flush
/// [`fence`]: Pmem::fence
pub trait Pmem {
    /// Length of the region in bytes.
    fn len_bytes(&self) -> u64;

    /// What a fence on this region promises.
    fn domain(&self) -> Domain;

    /// Whether stores and flushes are allowed. Where they are not, they panic.
    fn is_writable(&self) -> bool {
        true
    }

    /// Takes the region's lock for a handle that writes its pool, or `None` while another handle has it. A
    /// [`Pool`](crate::Pool) takes it where it is made or opened for writing. An implementation that keeps no
    /// [`WriterLock`](crate::WriterLock) lets every handle in, and two of them overwrite each other's roots.
    fn lock_writer(&self) -> Option<WriterGuard> {
        self.writer_lock().map_or_else(|| Some(WriterGuard::unlocked()), |lock| lock.try_lock())
    }

    /// The region's lock, if it keeps one, by which a [`Pool`](crate::Pool) that only reads finds what another handle is changing.
    fn writer_lock(&self) -> Option<WriterLock> {
        None
    }

    /// The next range at or behind `offset` that is not a hole: what lies between was never stored to, and is zero. `None` when
    /// there is no more. A search that reads nothing but such ranges leaves a sparse file as short as it is. An implementation that
    /// knows of no holes takes all for data.
    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        (offset < self.len_bytes()).then(|| offset..self.len_bytes())
    }

    /// Copies `out.len()` bytes at `offset` into `out`. What is read may not be durable yet.
    #[track_caller]
    fn load(&self, offset: u64, out: &mut [u8]);

    /// Stores `bytes` at `offset` through the cache.
    ///
    /// # Durability
    /// None by itself: [`flush`](Pmem::flush) the range, then [`fence`](Pmem::fence).
    #[track_caller]
    fn store(&self, offset: u64, bytes: &[u8]);

    /// Stores `bytes` at `offset` around the cache. Meant for long data: whole lines cost half of a store and a
    /// flush. Ragged ends that are not aligned to 8 bytes go through the cache and are flushed by this call. Torn where
    /// a store is.
    ///
    /// # Durability
    /// Every byte is durable at this thread's next [`fence`](Pmem::fence), with no flush. Promises nothing for
    /// earlier `store`s to the same lines.
    ///
    /// # Source
    /// Intel SDM vol. 1, 10.4.6.2 (non-temporal data); PMBD III-C and Table III.
    #[track_caller]
    fn store_nt(&self, offset: u64, bytes: &[u8]);

    /// As [`load`](Pmem::load), of memory that may not be there. An implementation that cannot tell loads.
    ///
    /// # Errors
    /// [`MediumFault`] when the file was truncated or the memory is poisoned. Some of `out` may have been filled then.
    #[track_caller]
    fn try_load(&self, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        self.load(offset, out);
        Ok(())
    }

    /// As [`store_nt`](Pmem::store_nt), to memory that may not be there. An implementation that cannot tell stores.
    ///
    /// # Errors
    /// [`MediumFault`] when the file was truncated, the file system has no room for a hole, or the memory is poisoned. Some of
    /// `bytes` may have been stored then.
    ///
    /// # Durability
    /// As [`store_nt`](Pmem::store_nt), also of what was stored before a fault.
    #[track_caller]
    fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.store_nt(offset, bytes);
        Ok(())
    }

    /// Loads the little-endian word at `offset`, with acquire ordering.
    #[track_caller]
    fn load_u64(&self, offset: u64) -> u64;

    /// Stores the word at `offset` in one piece, with release ordering.
    ///
    /// # Durability
    /// None by itself, but a crash leaves the old word or the new one, never a mixture.
    #[track_caller]
    fn store_u64(&self, offset: u64, value: u64);

    /// Stores the pair of words at `offset`, a multiple of 16, in one piece, with release ordering: the low half of
    /// `value` into the first word, the high half into the second. For two words that must change together and
    /// would else need a log.
    ///
    /// There is no load of the same size: a thread that loads the words one after the other may see the first of one
    /// pair and the second of the next, and must find that out, by reading the first again, say.
    ///
    /// # Durability
    /// None by itself, but a crash leaves the old pair or the new one, never a mixture: one instruction stores both
    /// words, and both lie in one line, so that no write-back can come between them.
    ///
    /// # Source
    /// PMFS (EuroSys 2014), 3.2, "16-byte atomic updates"; Intel SDM vol. 3A, "Guaranteed Atomic Operations".
    #[track_caller]
    fn store_u128(&self, offset: u64, value: u128);

    /// Replaces the word at `offset` by `new` if it is `current`, with acquire-release ordering.
    ///
    /// # Errors
    /// The word that was there, when it was not `current`; nothing has been stored then.
    ///
    /// # Durability
    /// As [`store_u64`](Pmem::store_u64). On x86 a successful exchange also fences; do not rely on it.
    #[track_caller]
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Starts writing back every line that holds a byte of the `len_bytes` bytes at `offset`. Costs one
    /// instruction a line and orders nothing.
    ///
    /// # Durability
    /// What was stored to these lines before this call is durable at this thread's next
    /// [`fence`](Pmem::fence). Stores after this call are not covered.
    #[track_caller]
    fn flush(&self, offset: u64, len_bytes: u64);

    /// Says that the line of `offset` will be stored to soon, so that it may be in the cache by then. Nothing else comes of it:
    /// what lies outside of the region is nobody's, and no error.
    ///
    /// Worth it before a [`fence`](Pmem::fence): a store after it that misses the cache holds up every store behind it.
    #[inline]
    fn prefetch(&self, offset: u64) {
        let _ = offset;
    }

    /// Orders, and waits: when it returns, all that this thread flushed or stored non-temporally before is
    /// durable, as far as [`domain`](Pmem::domain) promises.
    ///
    /// # Errors
    /// In the page domain, when the kernel could not write back; see [`FenceError`]. Elsewhere never.
    ///
    /// # Source
    /// Intel SDM vol. 2, SFENCE and CLWB.
    #[track_caller]
    fn fence(&self) -> Result<(), FenceError>;

    /// Flushes the range and fences: one fence, [`lines_spanned`](crate::line::lines_spanned) lines.
    ///
    /// # Errors
    /// As [`fence`](Pmem::fence).
    #[inline]
    #[track_caller]
    fn persist(&self, offset: u64, len_bytes: u64) -> Result<(), FenceError> {
        self.flush(offset, len_bytes);
        self.fence()
    }
}

/// Stores `bytes` at `offset`, one word after the other, from the first to the last. Both are multiples of eight.
///
/// The words of one large store reach the medium in any order. Of `n` words a crash then leaves one of `2^n` mixtures; of the
/// same words stored in order, each line holds the first few, and that is one of 9 for each line. The checksum or the word
/// that is written last has to find out either way, but so few are all tried by a test. Atomic words take longer than
/// a copy, which headers and roots can afford: the flush and the fence that follow take most of the time.
pub(crate) fn store_words<P: Pmem>(pmem: &P, offset: u64, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<{ size_of::<u64>() }>();
    assert!(rest.is_empty(), "{} bytes are not whole words", bytes.len());
    for (at, word) in (offset..).step_by(size_of::<u64>()).zip(words) {
        pmem.store_u64(at, u64::from_le_bytes(*word));
    }
}

/// Forwards the seam through a pointer, so that `&P` and `Arc<P>` can stand where `P` does.
macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<P: Pmem + ?Sized> Pmem for $pointer {
            #[inline]
            fn len_bytes(&self) -> u64 { (**self).len_bytes() }
            #[inline]
            fn domain(&self) -> Domain { (**self).domain() }
            #[inline]
            fn is_writable(&self) -> bool { (**self).is_writable() }
            #[inline]
            fn lock_writer(&self) -> Option<WriterGuard> { (**self).lock_writer() }
            #[inline]
            fn writer_lock(&self) -> Option<WriterLock> { (**self).writer_lock() }
            #[inline]
            fn next_data(&self, offset: u64) -> Option<Range<u64>> { (**self).next_data(offset) }
            #[inline]
            fn load(&self, offset: u64, out: &mut [u8]) { (**self).load(offset, out); }
            #[inline]
            fn store(&self, offset: u64, bytes: &[u8]) { (**self).store(offset, bytes); }
            #[inline]
            fn store_nt(&self, offset: u64, bytes: &[u8]) { (**self).store_nt(offset, bytes); }
            #[inline]
            fn try_load(&self, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
                (**self).try_load(offset, out)
            }
            #[inline]
            fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
                (**self).try_store_nt(offset, bytes)
            }
            #[inline]
            fn load_u64(&self, offset: u64) -> u64 { (**self).load_u64(offset) }
            #[inline]
            fn store_u64(&self, offset: u64, value: u64) { (**self).store_u64(offset, value); }
            #[inline]
            fn store_u128(&self, offset: u64, value: u128) { (**self).store_u128(offset, value); }
            #[inline]
            fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
                (**self).compare_exchange_u64(offset, current, new)
            }
            #[inline]
            fn flush(&self, offset: u64, len_bytes: u64) { (**self).flush(offset, len_bytes); }
            #[inline]
            fn prefetch(&self, offset: u64) { (**self).prefetch(offset); }
            #[inline]
            fn fence(&self) -> Result<(), FenceError> { (**self).fence() }
        }
    )*};
}
forward!(&P, Arc<P>);
