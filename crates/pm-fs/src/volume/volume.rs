//! The heap with the metadata and the pages with the data: checked loads, and transactions.

use crate::error::FsError;
use crate::format::{Node, PAGE_BYTES, ROOT, Superblock};
use crate::volume::options::FsOptions;
use crate::volume::pages::Pages;
use crate::volume::seal::{Owner, seal, unseal};
use core::cell::RefCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use pm_alloc::{Heap, PoisoningPmem, Tx};
use pm_core::{InPool, Persist, Pmem, from_bytes};

/// Where words of metadata are loaded from: the heap, or a transaction, which sees its own changes.
pub(crate) trait Source {
    /// Loads a word.
    fn word(&self, offset: u64) -> Result<u64, FsError>;

    /// Loads adjacent words.
    fn words(&self, offset: u64, out: &mut [u64]) -> Result<(), FsError> {
        (offset..).step_by(8).zip(out).try_for_each(|(at, out)| {
            *out = self.word(at)?;
            Ok(())
        })
    }

    /// The seed of all checksums.
    fn seed(&self) -> u64;

    /// More nodes, and inodes with slots, than there is room for.
    fn nodes_max(&self) -> u64;

    /// Loads a sealed word.
    fn sealed(&self, owner: Owner, offset: u64) -> Result<u64, FsError> {
        let word = self.word(offset)?;
        unseal(self.seed(), owner, offset, word).ok_or(FsError::corrupted(offset, "a word"))
    }
}

/// The storage of a file system.
#[derive(Debug)]
pub(crate) struct Volume<P: Pmem> {
    pub(crate) heap: Heap<P>,
    pub(crate) pages: Pages,
    pub(crate) seed: u64,
    /// Whether writes are atomic in all files.
    pub(crate) is_strict: bool,
    clock: fn() -> u64,
    /// The last number of an inode.
    birth: AtomicU64,
}

impl<P: Pmem> Volume<P> {
    pub(crate) fn new(heap: Heap<P>, seed: u64, options: &FsOptions) -> Self {
        let pages = Pages::new(&heap.space_behind());
        let (is_strict, clock) = (options.strict, options.clock);
        Self { heap, pages, seed, is_strict, clock, birth: AtomicU64::new(0) }
    }

    /// The current time.
    pub(crate) fn now(&self) -> u64 {
        (self.clock)()
    }

    /// A number that no inode has had.
    pub(crate) fn next_birth(&self) -> u64 {
        self.birth.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes the number of an inode that exists.
    pub(crate) fn note_birth(&self, birth: u64) {
        self.birth.fetch_max(birth, Ordering::Relaxed);
    }

    /// The last number of an inode.
    pub(crate) fn last_birth(&self) -> u64 {
        self.birth.load(Ordering::Relaxed)
    }

    pub(crate) const fn pmem(&self) -> PoisoningPmem<'_, P> {
        self.heap.pmem()
    }

    /// Loads a value from the heap.
    pub(crate) fn load<T: for<'p> InPool<'p>>(&self, offset: u64) -> Result<T, FsError> {
        self.check(offset, size_of::<T>() as u64)?;
        Ok(from_bytes(|bytes| self.pmem().load(offset, bytes)))
    }

    /// Loads bytes from the heap.
    pub(crate) fn bytes(&self, offset: u64, out: &mut [u8]) -> Result<(), FsError> {
        self.check(offset, out.len() as u64)?;
        self.pmem().load(offset, out);
        Ok(())
    }

    /// Stores two words atomically and durably.
    pub(crate) fn store_pair(&self, offset: u64, words: [u64; 2]) -> Result<(), FsError> {
        self.heap.view(|view| Ok(view.store_u64_pair(view.link_at(offset)?, words)?))
    }

    /// The offset of a page in the pool.
    pub(crate) fn page(&self, number: u64) -> Result<u64, FsError> {
        match self.pages.contains(number) {
            true => Ok(number * PAGE_BYTES),
            false => Err(FsError::corrupted(number.saturating_mul(PAGE_BYTES), "the number of a page")),
        }
    }

    /// Runs a transaction. Pages that it frees are free once it is durable.
    pub(crate) fn transaction<R>(
        &self,
        run: impl for<'p> FnOnce(&mut Change<'_, 'p, P>) -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        let freed = RefCell::new(Vec::new());
        let result = self.heap.try_transaction(|tx| {
            let mut change = Change { tx, volume: self, freed: Vec::new() };
            let result = run(&mut change)?;
            freed.replace(change.freed);
            Ok::<R, FsError>(result)
        })?;
        self.pages.give_back(&freed.into_inner());
        Ok(result)
    }

    /// Checks that bytes lie in the heap: a number from the medium may be corrupted.
    fn check(&self, offset: u64, len_bytes: u64) -> Result<(), FsError> {
        let heap = self.heap.layout().chunks_start..self.heap.space_behind().start;
        let is_inside =
            offset.checked_add(len_bytes).is_some_and(|end| end <= heap.end) && heap.start <= offset;
        match is_inside && offset.is_multiple_of(8) {
            true => Ok(()),
            false => Err(FsError::corrupted(offset, "an offset")),
        }
    }
}

impl<P: Pmem> Source for Volume<P> {
    fn word(&self, offset: u64) -> Result<u64, FsError> {
        self.check(offset, 8)?;
        Ok(self.pmem().load_u64(offset))
    }

    fn words(&self, offset: u64, out: &mut [u64]) -> Result<(), FsError> {
        self.check(offset, 8 * out.len() as u64)?;
        self.pmem().load_words(offset, out);
        Ok(())
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn nodes_max(&self) -> u64 {
        let heap_bytes = self.heap.space_behind().start - self.heap.layout().chunks_start;
        heap_bytes / size_of::<Node>() as u64 + 2
    }
}

/// A block that a transaction has allocated, and whose contents are not stored yet. They depend on the offset, which their checksums cover.
#[must_use = "its contents are not stored yet"]
pub(crate) struct NewBlock<T> {
    pub(crate) offset: u64,
    contents: PhantomData<T>,
}

/// A transaction in progress.
pub(crate) struct Change<'c, 'p, P: Pmem> {
    tx: &'c mut Tx<'p, P>,
    pub(crate) volume: &'c Volume<P>,
    freed: Vec<u64>,
}

impl<P: Pmem> Change<'_, '_, P> {
    /// Writes a value.
    pub(crate) fn write<T: Persist>(&mut self, offset: u64, value: &T) -> Result<(), FsError> {
        self.volume.check(offset, size_of::<T>() as u64)?;
        // As bytes: the types of metadata have no links.
        let link = self.tx.link_at::<u8>(offset)?;
        Ok(self.tx.write_slice(link, pm_core::bytes_of(value))?)
    }

    /// Writes bytes.
    pub(crate) fn write_bytes(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FsError> {
        self.volume.check(offset, bytes.len() as u64)?;
        let link = self.tx.link_at::<u8>(offset)?;
        Ok(self.tx.write_slice(link, bytes)?)
    }

    /// Writes a word.
    pub(crate) fn set(&mut self, offset: u64, word: u64) -> Result<(), FsError> {
        self.write(offset, &word)
    }

    /// Writes a sealed word.
    pub(crate) fn set_sealed(&mut self, owner: Owner, offset: u64, contents: u64) -> Result<(), FsError> {
        self.set(offset, seal(self.volume.seed, owner, offset, contents))
    }

    /// Loads bytes, with the changes of this transaction.
    pub(crate) fn bytes(&self, offset: u64, out: &mut [u8]) -> Result<(), FsError> {
        self.volume.check(offset, out.len() as u64)?;
        Ok(self.tx.read_bytes(self.tx.link_at::<u8>(offset)?, out)?)
    }

    /// Loads a value, with the changes of this transaction.
    pub(crate) fn load<T: for<'t> InPool<'t>>(&self, offset: u64) -> Result<T, FsError> {
        let mut loaded = Ok(());
        let value = from_bytes(|bytes| loaded = self.bytes(offset, bytes));
        loaded.map(|()| value)
    }

    /// Allocates the superblock, and makes it the pool's root.
    pub(crate) fn set_root(&mut self, superblock: &Superblock) -> Result<(), FsError> {
        let link = self.tx.alloc(superblock)?;
        Ok(self.tx.set_root(ROOT, link)?)
    }

    /// Allocates a block without contents for a value of this length.
    pub(crate) fn alloc_uninit(&mut self, len_bytes: u64) -> Result<u64, FsError> {
        Ok(self.tx.alloc_uninit::<u8>(len_bytes)?.offset())
    }

    /// Allocates a block for a value.
    pub(crate) fn alloc<T: Persist>(&mut self) -> Result<NewBlock<T>, FsError> {
        let offset = self.alloc_uninit(size_of::<T>() as u64)?;
        Ok(NewBlock { offset, contents: PhantomData })
    }

    /// Stores the contents of a new block, and returns its offset.
    pub(crate) fn init<T: Persist>(&mut self, block: NewBlock<T>, contents: &T) -> u64 {
        // Not through the log: nothing links to the block before the commit, which fences first.
        self.volume.pmem().store_nt(block.offset, pm_core::bytes_of(contents));
        self.tx.note_unfenced_stores();
        block.offset
    }

    /// Frees a block.
    pub(crate) fn free(&mut self, offset: u64) -> Result<(), FsError> {
        Ok(self.tx.free(self.tx.link_at::<u8>(offset)?)?)
    }

    /// Frees a page, once the transaction is durable.
    pub(crate) fn free_page(&mut self, number: u64) {
        self.freed.push(number);
    }

    /// Data in pages that the transaction publishes was stored and not fenced.
    pub(crate) fn note_data(&mut self) {
        self.tx.note_unfenced_stores();
    }
}

impl<P: Pmem> Source for Change<'_, '_, P> {
    fn word(&self, offset: u64) -> Result<u64, FsError> {
        let mut word = [0; 8];
        self.bytes(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn seed(&self) -> u64 {
        self.volume.seed
    }

    fn nodes_max(&self) -> u64 {
        self.volume.nodes_max()
    }
}
