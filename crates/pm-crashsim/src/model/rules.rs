//! The persistency models: which stores a crash may lose, given which others it keeps.

use crate::trace::{Event, EventKind};
use core::fmt;
use core::ops::Range;
use pm_core::{Domain, line::LINE_BYTES};

/// Bytes that a disk writes in one piece; what [`Model::Page`] tears at.
const SECTOR_BYTES: u64 = 512;

/// The order in which stores become durable.
///
/// From the second to the fourth, each model allows all images of the one before and more: code that is correct under [`Chunk8`](Model::Chunk8) is
/// correct under all three. Two stores to different lines are unordered under each of them, unless a flush and a fence separate them. A pair of words
/// stored in one piece ([`store_u128`](pm_core::Pmem::store_u128)) survives in one piece; only `Chunk8` tears it too.
///
/// # Source
/// Raad et al., "Persistency Semantics of the Intel-x86 Architecture" (POPL'20); Khyzha and Lahav, "Taming x86-TSO Persistency" (POPL'21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Model {
    /// Caches survive (eADR): a crash leaves a prefix of the stores in the order in which they became visible,
    /// and flushes do nothing. Non-temporal stores wait outside the caches, and are lost without a fence.
    Eadr,
    /// Caches are lost (ADR); stores to one line become durable in order. Real memory controllers behave so, and published structures rely on it.
    #[default]
    Px86Line,
    /// Caches are lost; only stores to one aligned 8-byte word, and of pairs to both of their words, become durable in order. The
    /// letter of the papers.
    Px86Loc,
    /// Caches are lost; any subset of the pending stores may survive, in pieces of at most a word: halves of a pair too, as where
    /// no instruction is trusted with more than a word. The weakest model.
    Chunk8,
    /// An ordinary file: the kernel may write a page back at any time, the disk tears it at 512 bytes, and
    /// nothing is promised before the fence, which stands for `msync`.
    Page,
}

impl Model {
    /// Every model, for tests that must pass under each.
    pub const ALL: [Self; 5] = [Self::Eadr, Self::Px86Line, Self::Px86Loc, Self::Chunk8, Self::Page];

    /// A stable lower-case name: `eadr`, `px86-line`, `px86-loc`, `chunk8` or `page`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eadr => "eadr",
            Self::Px86Line => "px86-line",
            Self::Px86Loc => "px86-loc",
            Self::Chunk8 => "chunk8",
            Self::Page => "page",
        }
    }

    /// The persistence domain that a region under this model reports.
    #[must_use]
    pub const fn domain(self) -> Domain {
        match self {
            Self::Eadr => Domain::Eadr,
            Self::Px86Line | Self::Px86Loc | Self::Chunk8 => Domain::Adr,
            Self::Page => Domain::Page,
        }
    }

    /// Whether stores to one word become durable in order, some around the cache and others through it.
    pub(crate) const fn orders_words(self) -> bool {
        match self {
            Self::Eadr | Self::Px86Line | Self::Px86Loc => true,
            // Any subset; and pages know no stores around the cache.
            Self::Chunk8 | Self::Page => false,
        }
    }

    /// The number of the unit that contains `offset`. A unit is what one flush commits: no ordering, and no flush, extends over its ends.
    pub(crate) const fn unit(self, offset: u64) -> u64 {
        match self {
            Self::Eadr => 0,
            Self::Px86Line | Self::Px86Loc | Self::Chunk8 => offset / LINE_BYTES,
            Self::Page => offset / SECTOR_BYTES,
        }
    }

    /// The numbers of the units that a range touches. None for no bytes.
    pub(crate) const fn units(self, offset: u64, len_bytes: u64) -> Range<u64> {
        let first = self.unit(offset);
        first..if len_bytes == 0 { first } else { self.unit(offset + len_bytes - 1) + 1 }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The model, with the decisions that the manuals leave open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) model: Model,
    /// Whether `sfence` only orders, so that the operation may return before its data is durable.
    pub(crate) strict_ack: bool,
    /// Whether a successful compare-exchange commits what the thread flushed, as a locked instruction does.
    pub(crate) exchange_fences: bool,
    /// Whether lints ask, which judge code written once for all models. A flush then covers no more than the lines of its range, a fence of
    /// an ordinary file waits for the flushes of all threads, and a store counts even if it changes nothing. What was ordered before a
    /// store counts as durable; contents are not kept.
    pub(crate) for_lints: bool,
}

impl Rules {
    /// As [`Model::unit`].
    pub(crate) const fn unit(&self, offset: u64) -> u64 {
        match self.model {
            Model::Page if self.for_lints => offset / LINE_BYTES,
            model => model.unit(offset),
        }
    }

    /// As [`Model::units`].
    pub(crate) const fn units(&self, offset: u64, len_bytes: u64) -> Range<u64> {
        let first = self.unit(offset);
        first..if len_bytes == 0 { first } else { self.unit(offset + len_bytes - 1) + 1 }
    }

    /// Whether the event waits until all stores of its thread have left the store buffer.
    pub(crate) fn drains(&self, event: &Event) -> bool {
        match event.kind {
            EventKind::Exchange { .. } => self.exchange_commits(),
            EventKind::Fence => !self.fence_only_orders(),
            EventKind::FullFence => self.model != Model::Page,
            _ => false,
        }
    }

    /// A locked instruction empties the store buffer, its own store included; with caches kept, it is then durable.
    pub(crate) fn is_durable_at_once(&self, event: &Event) -> bool {
        matches!(event.kind, EventKind::Exchange { .. })
            && self.exchange_commits()
            && self.model == Model::Eadr
    }

    /// `msync` waits, whatever `sfence` does.
    pub(crate) fn fence_only_orders(&self) -> bool {
        self.strict_ack && self.model != Model::Page
    }

    /// Whether a fence also waits for the flushes of other threads.
    pub(crate) fn waits_for_all_threads(&self) -> bool {
        self.for_lints && self.model == Model::Page
    }

    fn exchange_commits(&self) -> bool {
        self.exchange_fences && self.model != Model::Page
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self { model: Model::default(), strict_ack: false, exchange_fences: true, for_lints: false }
    }
}
