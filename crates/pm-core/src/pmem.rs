//! The seam: the trait through which every crate accesses persistent memory.

use crate::fault::MediumFault;
use crate::{Domain, WriterGuard, WriterLock};
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;

/// The error of a fence that could not make data durable.
///
/// A fence fails only in the page domain, where it is a system call on a file. After a failed write-back the kernel marks the pages clean although
/// the medium has their old contents, so a retry would succeed without writing them. Therefore the first failure poisons the region: every later
/// fence fails too. Data that was fenced before the failure stays durable. Data stored since the last successful fence can still be read from this
/// region, but may be lost.
///
/// To recover, drop the region and [open](crate::Region::open) it again. Opening drops the pages from the page cache and reads the medium. Each page
/// then has the contents that it had at some moment since the last successful fence. As long as the medium fails, opening fails too.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceError {
    /// Writing back pages failed.
    #[error("in the page domain, writing back {len_bytes} bytes at offset {offset} failed: {errno}")]
    WriteBack {
        /// The first byte of the range that could not be written back.
        offset: u64,
        /// The length of that range.
        len_bytes: u64,
        /// The error of `msync`.
        errno: rustix::io::Errno,
    },
    /// This process is a child of fork(2), and the region belongs to its parent. The kernel reports a failed write-back only once, so a fence in the
    /// child could take the report that the parent needs.
    #[error("the region belongs to the parent of this process, and only the parent can write it back")]
    Inherited,
    /// An earlier fence on this region failed.
    #[error(
        "an earlier write-back failed: data stored since the last successful fence may be lost, although it can still be \
         read here; drop the region and open it again to read the medium"
    )]
    Poisoned,
}

/// Why a region has not [grown in place](Pmem::grow_in_place). It is as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// The region has no room to grow to this length while it is in use.
    #[error("the region cannot grow to {len_bytes} bytes while it is in use: no addresses are reserved")]
    Fixed {
        /// The wanted length.
        len_bytes: u64,
    },
    /// The region or its file is longer than that.
    #[error("the region has {len_bytes} bytes and cannot shrink to {wanted_bytes}")]
    Shrink {
        /// The present length.
        len_bytes: u64,
        /// The wanted length.
        wanted_bytes: u64,
    },
    /// The medium has no space.
    #[error("no space for {len_bytes} bytes")]
    NoSpace {
        /// The wanted length.
        len_bytes: u64,
    },
    /// A fence failed, or has failed before.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// Another operation failed, such as a system call.
    #[error(transparent)]
    Other(Box<dyn core::error::Error + Send + Sync>),
}

/// A byte-addressed region of persistent memory.
///
/// Code above this trait is generic over it, with [`Region`](crate::Region) as the default type, and is monomorphised. `Region` implements the trait
/// with instructions, and a crash simulator implements it with a model of the caches; [`Counting`](crate::Counting) wraps another implementation and
/// counts lines and fences.
///
/// # Model
/// `store` and the atomic stores are ordinary write-back stores: visible at once. They become durable when a thread flushes their lines with
/// [`flush`] after the store, and then calls [`fence`]. `store_nt` needs only the fence. Flushed lines become durable in any order before the fence
/// returns, and any line may become durable at any time, because caches evict lines. A store of 1, 2, 4 or 8 bytes that is aligned to its length is
/// atomic, for crashes and for other threads. Any other store is split into such pieces, in no particular order; each piece is the largest that
/// alignment and remaining length allow ([`piece_bytes`](crate::line::piece_bytes)). The exception is [`store_u128`]: a crash leaves all of its 16
/// bytes or none. See `docs/persistence-model.md`.
///
/// # Concurrency
/// All methods take `&self` and may be called from several threads at once. If threads access the same bytes without the atomics, a load may
/// return pieces of different stores, as on hardware. This is never undefined behaviour.
///
/// # Panics
/// Every method that takes an offset, except `next_data` and the hints (`prefetch`, `prefetch_read` and `populate`), panics if the range is not inside
/// the region; the atomic methods also panic if the offset is not a multiple of their size, 8 or 16. Both are bugs in the caller. A method that panics
/// has stored nothing.
///
/// [`store_u128`]: Pmem::store_u128
/// [`flush`]: Pmem::flush
/// [`fence`]: Pmem::fence
pub trait Pmem {
    /// Length of the region in bytes.
    fn len_bytes(&self) -> u64;

    /// The persistence domain, which determines what a fence on this region guarantees.
    fn domain(&self) -> Domain;

    /// Whether stores and flushes are allowed. In a region that is not writable they panic.
    fn is_writable(&self) -> bool {
        true
    }

    /// Grows the region to `len_bytes` while other threads use it: the bytes that it has keep their offsets and addresses, and the new ones are zero. Only
    /// implementations that have [reserved](crate::RegionOptions::reserve) room for it can do so.
    ///
    /// # Errors
    /// [`GrowError::Fixed`] when the implementation cannot grow in place to this length, and as for [`Region::grow`](crate::Region::grow).
    ///
    /// # Durability
    /// Before it returns, a crash leaves the old or the new length; after that, the new length.
    fn grow_in_place(&self, len_bytes: u64) -> Result<(), GrowError> {
        Err(GrowError::Fixed { len_bytes })
    }

    /// Acquires the writer lock of the region. Returns `None` if another handle holds it, or in a child of fork(2) for a region of its parent. A
    /// [`Pool`](crate::Pool) that is created, formatted or opened for writing acquires this lock. If an implementation has no
    /// [`WriterLock`](crate::WriterLock), every call succeeds, and two handles that write can overwrite each other's roots.
    fn lock_writer(&self) -> Option<WriterGuard> {
        self.writer_lock().map_or_else(|| Some(WriterGuard::without_lock()), |lock| lock.try_lock())
    }

    /// The writer lock of the region, if it has one. A read-only [`Pool`](crate::Pool) uses it to detect what another handle is changing.
    fn writer_lock(&self) -> Option<WriterLock> {
        None
    }

    /// The next range of data at or after `offset`. The bytes before this range are a hole of a sparse file: they were never stored to, and read as
    /// zero. `None` if there is no more data. A search that reads only ranges of data does not allocate blocks for the holes. An implementation
    /// without holes returns everything from `offset` to the end of the region.
    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        (offset < self.len_bytes()).then(|| offset..self.len_bytes())
    }

    /// Copies `out.len()` bytes at `offset` into `out`. These bytes are not necessarily durable.
    #[track_caller]
    fn load(&self, offset: u64, out: &mut [u8]);

    /// Calls `with` with the address of these bytes, or of a copy of them. The bytes can be read without a copy where the region is memory: the address is
    /// valid until `with` returns.
    ///
    /// `with` may read the bytes through a reference only if nothing stores to them before it returns, neither this process nor another. A structure
    /// can promise that for bytes that it never changes in place, and whose space it does not reuse meanwhile. This is the one way to read persistent
    /// memory by reference; all other accesses are loads and stores of the seam, which may overlap with those of other threads.
    #[track_caller]
    fn lend(&self, offset: u64, len_bytes: usize, with: &mut dyn FnMut(NonNull<[u8]>)) {
        let mut bytes = vec![0; len_bytes];
        self.load(offset, &mut bytes);
        with(NonNull::from(bytes.as_slice()));
    }

    /// Stores `bytes` at `offset` through the cache.
    ///
    /// # Durability
    /// None by itself: [`flush`](Pmem::flush) the range, then [`fence`](Pmem::fence).
    #[track_caller]
    fn store(&self, offset: u64, bytes: &[u8]);

    /// Stores `bytes` at `offset` around the cache, with non-temporal stores. Use it for long data: for a whole line, it costs half as much as a
    /// store and a flush. Parts of 8-byte words at either end go through the cache, and this call flushes them. Atomic in the same pieces as `store`.
    ///
    /// # Durability
    /// Every byte is durable at this thread's next [`fence`](Pmem::fence), without a flush. Earlier `store`s to the same lines still need a flush.
    ///
    /// # Source
    /// Intel SDM vol. 1, 10.4.6.2 (non-temporal data); PMBD III-C and Table III.
    #[track_caller]
    fn store_nt(&self, offset: u64, bytes: &[u8]);

    /// Like [`load`](Pmem::load), with an error if the memory cannot be accessed. An implementation that cannot detect this calls `load`.
    ///
    /// # Errors
    /// [`MediumFault`] when the file was truncated or the memory is poisoned. A part of `out` may have been filled.
    #[track_caller]
    fn try_load(&self, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        self.load(offset, out);
        Ok(())
    }

    /// Like [`store_nt`](Pmem::store_nt), with an error if the memory cannot be accessed. An implementation that cannot detect this calls `store_nt`.
    ///
    /// # Errors
    /// [`MediumFault`] when the file was truncated, the file system has no space to fill a hole, or the memory is poisoned. A part of `bytes` may
    /// have been stored.
    ///
    /// # Durability
    /// As [`store_nt`](Pmem::store_nt); this includes the bytes that were stored before a fault.
    #[track_caller]
    fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.store_nt(offset, bytes);
        Ok(())
    }

    /// Like [`store`](Pmem::store), with an error if the memory cannot be accessed. An implementation that cannot detect this calls `store`.
    ///
    /// # Errors
    /// As [`try_store_nt`](Pmem::try_store_nt).
    ///
    /// # Durability
    /// As [`store`](Pmem::store).
    #[track_caller]
    fn try_store(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.store(offset, bytes);
        Ok(())
    }

    /// Like [`flush`](Pmem::flush), with an error if the memory cannot be accessed. An implementation that cannot detect this calls `flush`.
    ///
    /// # Errors
    /// [`MediumFault`] when the file was truncated or the memory is poisoned. Some of the lines may not have been written back.
    ///
    /// # Durability
    /// As [`flush`](Pmem::flush).
    #[track_caller]
    fn try_flush(&self, offset: u64, len_bytes: u64) -> Result<(), MediumFault> {
        self.flush(offset, len_bytes);
        Ok(())
    }

    /// Loads the little-endian word at `offset` atomically, with acquire ordering.
    #[track_caller]
    fn load_u64(&self, offset: u64) -> u64;

    /// Loads the little-endian words at `offset`, a multiple of 8, into `out`: each word atomically, in no particular order, and all with acquire
    /// ordering. An implementation checks the range once, so that this costs less than a [`load_u64`](Pmem::load_u64) for each word.
    #[track_caller]
    fn load_words(&self, offset: u64, out: &mut [u64]) {
        for (at, word) in (offset..).step_by(size_of::<u64>()).zip(out) {
            *word = self.load_u64(at);
        }
    }

    /// Stores the word at `offset` atomically, with release ordering.
    ///
    /// # Durability
    /// None by itself, but a crash leaves the old word or the new one.
    #[track_caller]
    fn store_u64(&self, offset: u64, value: u64);

    /// Stores words at `offset`, a multiple of 8, in ascending order, each as [`store_u64`](Pmem::store_u64) does. A [protected](crate::protection::Protected)
    /// region opens one window for all of them.
    ///
    /// # Durability
    /// None by itself, but a crash leaves the first few of the words of each line new, and the others old.
    #[inline]
    #[track_caller]
    fn store_words(&self, offset: u64, words: &[u64]) {
        let end = offset.checked_add(size_of_val(words) as u64);
        assert!(
            end.is_some_and(|end| end <= self.len_bytes()),
            "{} words at offset {offset} do not fit",
            words.len()
        );
        for (at, word) in (offset..).step_by(size_of::<u64>()).zip(words) {
            self.store_u64(at, *word);
        }
    }

    /// Stores the pair of words at `offset`, a multiple of 16, atomically, with release ordering: the low half of `value` into the first word,
    /// the high half into the second. Use it for two words that must change together and would otherwise need a log.
    ///
    /// There is no load of the same size. A thread that loads the two words separately may get the first word of one pair and the second word of a
    /// later pair. Loading the first word again detects this, unless the first word has returned to its earlier value.
    ///
    /// # Durability
    /// None by itself, but a crash leaves the old pair or the new one: one instruction stores both words, and both lie in one line, so that no
    /// write-back happens between them.
    ///
    /// # Source
    /// PMFS (EuroSys 2014), 3.2, "16-byte atomic updates"; Intel SDM vol. 3A, "Guaranteed Atomic Operations".
    #[track_caller]
    fn store_u128(&self, offset: u64, value: u128);

    /// Replaces the word at `offset` with `new` if it equals `current`, with acquire-release ordering. Returns the replaced word.
    ///
    /// # Errors
    /// The word found at `offset`, if it differs from `current`. Nothing has been stored.
    ///
    /// # Durability
    /// As for [`store_u64`](Pmem::store_u64). On x86 a successful exchange happens to fence too; do not rely on it.
    #[track_caller]
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Starts to write back every line that holds a byte of the `len_bytes` bytes at `offset`: one instruction per line. Orders nothing.
    ///
    /// # Durability
    /// Data stored to these lines before this call is durable at this thread's next [`fence`](Pmem::fence). Later stores need another flush.
    #[track_caller]
    fn flush(&self, offset: u64, len_bytes: u64);

    /// Hints that the line of `offset` will be stored to soon. An implementation may load the line into the cache. The call has no other effect, and
    /// an offset outside the region is not an error.
    ///
    /// A prefetch is useful before a [`fence`](Pmem::fence): a store that follows the fence and misses the cache delays all later stores.
    #[inline]
    fn prefetch(&self, offset: u64) {
        let _ = offset;
    }

    /// Hints that the line of `offset` will be loaded soon, and perhaps by other threads too: unlike [`prefetch`](Pmem::prefetch), this does not take
    /// the line from the caches of other CPUs. The call has no other effect, and an offset outside the region is not an error.
    #[inline]
    fn prefetch_read(&self, offset: u64) {
        let _ = offset;
    }

    /// Hints that the `len_bytes` bytes at `offset` will be stored to. An implementation may allocate and map the pages that lie in this range, so that
    /// the stores need no page faults. No byte changes. A part of the range outside the region is ignored, and an error of the system call too.
    fn populate(&self, offset: u64, len_bytes: u64) {
        let _ = (offset, len_bytes);
    }

    /// Orders this thread's earlier flushes and non-temporal stores before its later stores, and waits for them: when the fence returns, their data
    /// is durable, within the limits of the [`domain`](Pmem::domain).
    ///
    /// # Errors
    /// In the page domain, when the kernel could not write pages back: see [`FenceError`]. In other domains a fence does not fail.
    ///
    /// # Source
    /// Intel SDM vol. 2, SFENCE and CLWB.
    #[track_caller]
    fn fence(&self) -> Result<(), FenceError>;

    /// Flushes the range and fences. Costs one fence and [`lines_spanned`](crate::line::lines_spanned) lines.
    ///
    /// # Errors
    /// As for [`fence`](Pmem::fence).
    #[inline]
    #[track_caller]
    fn persist(&self, offset: u64, len_bytes: u64) -> Result<(), FenceError> {
        self.flush(offset, len_bytes);
        self.fence()
    }
}

/// Stores `bytes` at `offset` word by word, in ascending order. The offset and the length must be multiples of eight.
///
/// The words of one large store become durable in any order: a crash leaves one of `2^n` mixtures of `n` words. If the words are stored in order, a
/// crash leaves the first few of each line: one of 9 states per line. A checksum, or a word written last, detects both, but a test can enumerate only
/// the smaller set. Atomic words take longer than a copy, but for headers and roots the flush and the fence take most of the time.
pub(crate) fn store_words<P: Pmem>(pmem: &P, offset: u64, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<{ size_of::<u64>() }>();
    assert!(rest.is_empty(), "{} bytes are not whole words", bytes.len());
    for (at, word) in (offset..).step_by(size_of::<u64>()).zip(words) {
        pmem.store_u64(at, u64::from_le_bytes(*word));
    }
}

/// Implements methods of [`Pmem`] for a type that wraps another implementation: each method calls the same method of the wrapped one.
///
/// ```
/// use pm_core::{FenceError, Pmem, Region, forward_pmem};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// struct FenceCounter { inner: Region, fence_count: AtomicU64 }
///
/// impl Pmem for FenceCounter {
///     forward_pmem!(|this| this.inner => len_bytes, domain, is_writable, writer_lock, next_data, load, store, store_nt);
///     forward_pmem!(|this| this.inner => load_u64, store_u64, store_u128, compare_exchange_u64, flush);
///     fn fence(&self) -> Result<(), FenceError> {
///         self.fence_count.fetch_add(1, Ordering::Relaxed);
///         self.inner.fence()
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_pmem {
    (|$this:ident| $inner:expr => $($method:ident),+) => {$($crate::forward_pmem!(@$method $this $inner);)+};
    (@len_bytes $($to:tt)+) => { $crate::forward_pmem!(@fn len_bytes() -> u64, $($to)+); };
    (@grow_in_place $($to:tt)+) => {
        $crate::forward_pmem!(@fn grow_in_place(len_bytes: u64) -> Result<(), $crate::GrowError>, $($to)+);
    };
    (@domain $($to:tt)+) => { $crate::forward_pmem!(@fn domain() -> $crate::Domain, $($to)+); };
    (@is_writable $($to:tt)+) => { $crate::forward_pmem!(@fn is_writable() -> bool, $($to)+); };
    (@lock_writer $($to:tt)+) => { $crate::forward_pmem!(@fn lock_writer() -> Option<$crate::WriterGuard>, $($to)+); };
    (@writer_lock $($to:tt)+) => { $crate::forward_pmem!(@fn writer_lock() -> Option<$crate::WriterLock>, $($to)+); };
    (@next_data $($to:tt)+) => {
        $crate::forward_pmem!(@fn next_data(offset: u64) -> Option<::core::ops::Range<u64>>, $($to)+);
    };
    (@load $($to:tt)+) => { $crate::forward_pmem!(@fn load(offset: u64, out: &mut [u8]) -> (), $($to)+); };
    (@lend $($to:tt)+) => {
        $crate::forward_pmem!(@fn lend(offset: u64, len_bytes: usize, with: &mut dyn FnMut(::core::ptr::NonNull<[u8]>)) -> (), $($to)+);
    };
    (@store $($to:tt)+) => { $crate::forward_pmem!(@fn store(offset: u64, bytes: &[u8]) -> (), $($to)+); };
    (@store_nt $($to:tt)+) => { $crate::forward_pmem!(@fn store_nt(offset: u64, bytes: &[u8]) -> (), $($to)+); };
    (@try_load $($to:tt)+) => {
        $crate::forward_pmem!(@fn try_load(offset: u64, out: &mut [u8]) -> Result<(), $crate::fault::MediumFault>, $($to)+);
    };
    (@try_store_nt $($to:tt)+) => {
        $crate::forward_pmem!(@fn try_store_nt(offset: u64, bytes: &[u8]) -> Result<(), $crate::fault::MediumFault>, $($to)+);
    };
    (@try_store $($to:tt)+) => {
        $crate::forward_pmem!(@fn try_store(offset: u64, bytes: &[u8]) -> Result<(), $crate::fault::MediumFault>, $($to)+);
    };
    (@try_flush $($to:tt)+) => {
        $crate::forward_pmem!(@fn try_flush(offset: u64, len_bytes: u64) -> Result<(), $crate::fault::MediumFault>, $($to)+);
    };
    (@load_u64 $($to:tt)+) => { $crate::forward_pmem!(@fn load_u64(offset: u64) -> u64, $($to)+); };
    (@load_words $($to:tt)+) => { $crate::forward_pmem!(@fn load_words(offset: u64, out: &mut [u64]) -> (), $($to)+); };
    (@store_u64 $($to:tt)+) => { $crate::forward_pmem!(@fn store_u64(offset: u64, value: u64) -> (), $($to)+); };
    (@store_words $($to:tt)+) => { $crate::forward_pmem!(@fn store_words(offset: u64, words: &[u64]) -> (), $($to)+); };
    (@store_u128 $($to:tt)+) => { $crate::forward_pmem!(@fn store_u128(offset: u64, value: u128) -> (), $($to)+); };
    (@compare_exchange_u64 $($to:tt)+) => {
        $crate::forward_pmem!(@fn compare_exchange_u64(offset: u64, current: u64, new: u64) -> Result<u64, u64>, $($to)+);
    };
    (@flush $($to:tt)+) => { $crate::forward_pmem!(@fn flush(offset: u64, len_bytes: u64) -> (), $($to)+); };
    (@prefetch $($to:tt)+) => { $crate::forward_pmem!(@fn prefetch(offset: u64) -> (), $($to)+); };
    (@prefetch_read $($to:tt)+) => { $crate::forward_pmem!(@fn prefetch_read(offset: u64) -> (), $($to)+); };
    (@populate $($to:tt)+) => { $crate::forward_pmem!(@fn populate(offset: u64, len_bytes: u64) -> (), $($to)+); };
    (@fence $($to:tt)+) => { $crate::forward_pmem!(@fn fence() -> Result<(), $crate::FenceError>, $($to)+); };
    (@fn $name:ident($($arg:ident: $ty:ty),*) -> $output:ty, $this:ident $inner:expr) => {
        #[inline]
        fn $name(&self, $($arg: $ty),*) -> $output {
            let $this = self;
            $inner.$name($($arg),*)
        }
    };
}

/// Forwards all methods through a pointer, so that `&P` and `Arc<P>` implement [`Pmem`] too.
macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<P: Pmem + ?Sized> Pmem for $pointer {
            forward_pmem!(|this| (**this) => grow_in_place);
            forward_pmem!(|this| (**this) => len_bytes, domain, is_writable, lock_writer, writer_lock, next_data, load);
            forward_pmem!(|this| (**this) => lend, store, store_nt, try_load, try_store_nt, try_store, try_flush, load_u64, load_words);
            forward_pmem!(|this| (**this) => store_u64, store_words, store_u128, compare_exchange_u64, flush, prefetch, prefetch_read, populate, fence);
        }
    )*};
}
forward!(&P, Arc<P>);
