//! Epochs: the numbers of a session, by which the next open tells what is durable.
//!
//! Each entry has a stamp: the epoch at which it was written, and its order within the leaf. A session uses epochs above all that were used before
//! it. A limit that is durable bounds the epochs in use, so that a torn commit word is not mistaken for an old entry. Everything below the durable
//! epoch is durable; it advances while the store is in use, so that a recovery has little to verify.

use super::batch_slots::SLOTS_PER_SESSION;
use super::grace::{Active, Grace, thread_number};
use crate::error::{Corruption, CorruptionKind, OpenError, WriteError};
use crate::format::{BATCH_SLOTS, StoreBlock, checked, state, unchecked};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pm_core::{FenceError, Pmem};
use std::sync::{Mutex, PoisonError};

/// The epochs that one store of the limit makes usable.
const EPOCHS: u64 = 1 << 20;

/// The numbers of a session, from an open to a close or a crash.
#[derive(Debug)]
pub(crate) struct Epochs {
    /// The offset of the store's block.
    block: u64,
    number: u64,
    epoch: AtomicU64,
    /// Epochs below this one are usable.
    limit: Mutex<u64>,
    /// The birth of the last node.
    birth: AtomicU64,
    /// Whether an earlier session was not closed: what it left is verified.
    pub(crate) is_unclean: bool,
    /// Entries of earlier epochs than this one are durable.
    pub(crate) durable_epoch: u64,
    /// The epoch at the start.
    first_epoch: u64,
    /// The oldest session whose entries may not have been verified.
    oldest_unverified: AtomicU64,
    grace: Grace,
    durable: Mutex<Durable>,
}

/// How far the durable epoch of the present session has advanced.
#[derive(Debug)]
struct Durable {
    /// Whether everything that earlier sessions left is durable. Before that the durable epoch stays.
    is_verified: bool,
    /// The epoch that becomes the durable one when the grace period has ended.
    next: Option<u64>,
}

impl Epochs {
    /// Starts a session, with epochs above all that were used.
    ///
    /// # Durability
    /// One fence. After a crash before it, the next open starts the same session.
    pub(crate) fn start<P: Pmem>(pmem: &P, block: u64, grace: Grace) -> Result<Self, OpenError> {
        let place = |word: u64| block + offset_of!(StoreBlock<'_>, state) as u64 + 8 * word;
        let load = |word: u64| {
            let corrupted = Corruption::new(place(word), CorruptionKind::State);
            unchecked(pmem.load_u64(place(word)), place(word)).ok_or(corrupted)
        };
        let (number, first_epoch) = (load(state::SESSION)? + 1, load(state::EPOCH_LIMIT)?);
        let (durable_epoch, unclean) = (load(state::DURABLE_EPOCH)?, load(state::UNCLEAN_SESSION)?);
        let is_unclean = unclean != 0;
        let durable_epoch = if is_unclean { durable_epoch } else { first_epoch };
        let epochs = Self {
            block,
            number,
            epoch: AtomicU64::new(first_epoch),
            limit: Mutex::new(first_epoch + EPOCHS),
            birth: AtomicU64::new(first_epoch << 16),
            is_unclean,
            durable_epoch,
            first_epoch,
            grace,
            durable: Mutex::new(Durable { is_verified: !is_unclean, next: None }),
            oldest_unverified: AtomicU64::new(if is_unclean { unclean } else { number }),
        };
        epochs.store(pmem, state::SESSION, number);
        epochs.store(pmem, state::EPOCH_LIMIT, first_epoch + EPOCHS);
        epochs.store(pmem, state::DURABLE_EPOCH, durable_epoch);
        epochs.store(pmem, state::UNCLEAN_SESSION, if is_unclean { unclean } else { number });
        // DURABILITY POINT
        pmem.fence()?;
        Ok(epochs)
    }

    /// Records that everything that earlier sessions left is verified and durable. Not fenced: a crash leaves old words or new ones, and both are
    /// right.
    pub(crate) fn end_verification<P: Pmem>(&self, pmem: &P) {
        if self.is_unclean {
            self.store(pmem, state::DURABLE_EPOCH, self.first_epoch);
            self.store(pmem, state::UNCLEAN_SESSION, self.number);
            self.oldest_unverified.store(self.number, Ordering::Relaxed);
        }
        self.durable.lock().unwrap_or_else(PoisonError::into_inner).is_verified = true;
    }

    /// Advances the durable epoch if all changes from before the last call have ended, so that a recovery has little to verify.
    ///
    /// # Durability
    /// The next fence of this thread makes it durable. A crash leaves the old word or the new one, and both are right.
    #[cold]
    pub(crate) fn advance_durable<P: Pmem>(
        &self,
        pmem: &P,
        is_poisoned: &AtomicBool,
    ) -> Result<(), FenceError> {
        let Ok(mut durable) = self.durable.try_lock() else { return Ok(()) };
        // A change whose fence has failed poisons the store before it ends.
        if !durable.is_verified || !self.grace.has_ended() || is_poisoned.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(epoch) = durable.next.take() {
            self.store(pmem, state::DURABLE_EPOCH, epoch);
        }
        // Changes that begin in the new period read this epoch or a later one.
        self.advance(pmem)?;
        durable.next = Some(self.epoch());
        self.grace.start();
        Ok(())
    }

    /// Records that the session has ended, and that the next one has nothing to verify. The caller fences.
    pub(crate) fn end<P: Pmem>(&self, pmem: &P) {
        self.store(pmem, state::UNCLEAN_SESSION, 0);
    }

    /// Announces a change of the calling thread, until the returned value is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Active<'_> {
        self.grace.enter(thread_number())
    }

    /// Whether no change is in progress. A change that begins afterwards sees what the caller has stored before.
    pub(crate) fn is_still(&self) -> bool {
        self.grace.is_still()
    }

    /// True for one of `interval` changes of a thread: then the caller [advances](Self::advance_durable) the durable epoch.
    #[inline]
    pub(crate) fn is_check_due(&self, interval: u32) -> bool {
        self.grace.is_check_due(thread_number(), interval)
    }

    /// Stores a state word, and flushes it.
    fn store<P: Pmem>(&self, pmem: &P, word: u64, value: u64) {
        let place = self.block + offset_of!(StoreBlock<'_>, state) as u64 + 8 * word;
        pmem.store_u64(place, checked(value, place));
        pmem.flush(place, 8);
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The limit of the epochs that any session has used.
    pub(crate) fn limit(&self) -> u64 {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the first of the batch slots that this session uses.
    ///
    /// # Errors
    /// When leaves of the session that used these slots before may not have been opened since: a corrupted table cannot be opened.
    pub(crate) fn batch_slots(&self) -> Result<u64, WriteError> {
        let sessions = self.number - self.oldest_unverified.load(Ordering::Relaxed);
        match sessions < BATCH_SLOTS / SLOTS_PER_SESSION {
            true => Ok(self.number * SLOTS_PER_SESSION % BATCH_SLOTS),
            false => Err(WriteError::Unverified { sessions }),
        }
    }

    /// Advances the epoch by two, and returns it.
    ///
    /// # Durability
    /// When the limit is reached, one fence makes a new limit durable before an epoch above the old one is used.
    #[cold]
    pub(crate) fn advance<P: Pmem>(&self, pmem: &P) -> Result<u64, FenceError> {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = self.epoch() + 2;
        if epoch >= *limit {
            self.store(pmem, state::EPOCH_LIMIT, *limit + EPOCHS);
            // DURABILITY POINT
            pmem.fence()?;
            *limit += EPOCHS;
        }
        self.epoch.store(epoch, Ordering::Release);
        Ok(epoch)
    }

    /// A number that no other node has, in any session.
    pub(crate) fn next_birth(&self) -> u64 {
        self.birth.fetch_add(1, Ordering::Relaxed) + 1
    }
}
