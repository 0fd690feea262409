//! One type for all implementations of the seam.

use crate::{Half, Hooked, SampledPmem};
use pm_core::counters::LineCounters;
use pm_core::protection::Protected;
use pm_core::{Counting, LineCounting, Pmem, Region};
use pm_crashsim::SimPmem;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Any implementation of the seam. Calls of the simulator are static, because it names a flush and a fence by the place of the call, which a call through
/// a trait object does not have.
#[derive(Clone)]
pub enum AnyPmem<'p> {
    /// The simulator.
    Sim(Arc<SimPmem>),
    /// The sampling simulator.
    Sampled(Arc<SampledPmem>),
    /// Memory that counts lines and fences.
    Counted(Arc<Counting<Region>>),
    /// A part of the simulator.
    Half(Arc<Half>),
    /// Another implementation.
    Other(Arc<dyn Pmem + Send + Sync + 'p>),
}

/// The same memory as an [`AnyPmem`].
pub fn any<'p>(pmem: impl Into<AnyPmem<'p>>) -> AnyPmem<'p> {
    pmem.into()
}

impl<'p> AnyPmem<'p> {
    /// The counters of the memory, which must be [`Counted`](Self::Counted).
    #[must_use]
    pub fn counted(&self) -> &Counting<Region> {
        match self {
            Self::Counted(counted) => counted,
            _ => panic!("{self:?} does not count"),
        }
    }

    /// The sampling simulator, which this memory must be.
    #[must_use]
    pub fn sampled(&self) -> &Arc<SampledPmem> {
        match self {
            Self::Sampled(sampled) => sampled,
            _ => panic!("{self:?} is not a SampledPmem"),
        }
    }

    /// An implementation that is not a simulator, and that may borrow.
    pub fn other(pmem: impl Pmem + Send + Sync + 'p) -> Self {
        Self::Other(Arc::new(pmem))
    }
}

impl<P: Pmem + Send + Sync + 'static> From<Arc<P>> for AnyPmem<'_> {
    fn from(pmem: Arc<P>) -> Self {
        let shared = || Arc::clone(&pmem) as Arc<dyn Any + Send + Sync>;
        if let Ok(sim) = shared().downcast::<SimPmem>() {
            return Self::Sim(sim);
        }
        if let Ok(sampled) = shared().downcast::<SampledPmem>() {
            return Self::Sampled(sampled);
        }
        shared().downcast::<Counting<Region>>().map_or_else(|_| Self::Other(pmem), Self::Counted)
    }
}

impl<P: Pmem + Send + Sync + 'static> From<&Arc<P>> for AnyPmem<'_> {
    fn from(pmem: &Arc<P>) -> Self {
        Arc::clone(pmem).into()
    }
}

impl From<Region> for AnyPmem<'_> {
    fn from(region: Region) -> Self {
        Self::other(region)
    }
}

/// Wrappers of the seam that are no simulators.
macro_rules! from_wrapper {
    ($($wrapper:ident<$($parameter:ident),+>;)+) => {$(
        impl<'p, $($parameter),+> From<$wrapper<$($parameter),+>> for AnyPmem<'p>
        where
            $wrapper<$($parameter),+>: Pmem + Send + Sync + 'p,
        {
            fn from(pmem: $wrapper<$($parameter),+>) -> Self {
                Self::other(pmem)
            }
        }

        impl<'p, $($parameter),+> From<&'p $wrapper<$($parameter),+>> for AnyPmem<'p>
        where
            $wrapper<$($parameter),+>: Pmem + Send + Sync,
        {
            fn from(pmem: &'p $wrapper<$($parameter),+>) -> Self {
                Self::other(pmem)
            }
        }
    )+};
}

from_wrapper! {
    Hooked<R, H>;
    LineCounters<P>;
    LineCounting<P>;
    Protected<P, W>;
}

impl<'p> From<&'p Region> for AnyPmem<'p> {
    fn from(region: &'p Region) -> Self {
        Self::other(region)
    }
}

impl From<Counting<Region>> for AnyPmem<'_> {
    fn from(counted: Counting<Region>) -> Self {
        Self::Counted(Arc::new(counted))
    }
}

impl From<Half> for AnyPmem<'_> {
    fn from(half: Half) -> Self {
        Self::Half(Arc::new(half))
    }
}

impl From<SimPmem> for AnyPmem<'_> {
    fn from(sim: SimPmem) -> Self {
        Self::Sim(Arc::new(sim))
    }
}

impl fmt::Debug for AnyPmem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sim(sim) => sim.fmt(f),
            Self::Sampled(sampled) => sampled.fmt(f),
            Self::Counted(counted) => counted.fmt(f),
            Self::Half(half) => half.fmt(f),
            Self::Other(other) => {
                f.debug_struct("Other").field("len_bytes", &other.len_bytes()).finish_non_exhaustive()
            }
        }
    }
}

/// The wrapped implementation by a static call to the simulator, or by a dynamic one.
macro_rules! forward_to_either {
    ($($method:ident($($arg:ident: $ty:ty),*) -> $output:ty;)+) => {$(
        #[inline]
        fn $method(&self, $($arg: $ty),*) -> $output {
            match self {
                Self::Sim(pmem) => pmem.$method($($arg),*),
                Self::Sampled(pmem) => pmem.$method($($arg),*),
                Self::Counted(pmem) => pmem.$method($($arg),*),
                Self::Half(pmem) => pmem.$method($($arg),*),
                Self::Other(pmem) => pmem.$method($($arg),*),
            }
        }
    )+};
}

impl Pmem for AnyPmem<'_> {
    forward_to_either! {
        len_bytes() -> u64;
        grow_in_place(len_bytes: u64) -> Result<(), pm_core::GrowError>;
        domain() -> pm_core::Domain;
        is_writable() -> bool;
        lock_writer() -> Option<pm_core::WriterGuard>;
        writer_lock() -> Option<pm_core::WriterLock>;
        next_data(offset: u64) -> Option<core::ops::Range<u64>>;
        load(offset: u64, out: &mut [u8]) -> ();
        lend(offset: u64, len_bytes: usize, with: &mut dyn FnMut(core::ptr::NonNull<[u8]>)) -> ();
        store(offset: u64, bytes: &[u8]) -> ();
        store_nt(offset: u64, bytes: &[u8]) -> ();
        try_load(offset: u64, out: &mut [u8]) -> Result<(), pm_core::fault::MediumFault>;
        try_store_nt(offset: u64, bytes: &[u8]) -> Result<(), pm_core::fault::MediumFault>;
        try_store(offset: u64, bytes: &[u8]) -> Result<(), pm_core::fault::MediumFault>;
        try_flush(offset: u64, len_bytes: u64) -> Result<(), pm_core::fault::MediumFault>;
        load_u64(offset: u64) -> u64;
        load_words(offset: u64, out: &mut [u64]) -> ();
        store_u64(offset: u64, value: u64) -> ();
        store_words(offset: u64, words: &[u64]) -> ();
        store_u128(offset: u64, value: u128) -> ();
        compare_exchange_u64(offset: u64, current: u64, new: u64) -> Result<u64, u64>;
        flush(offset: u64, len_bytes: u64) -> ();
        prefetch(offset: u64) -> ();
        prefetch_read(offset: u64) -> ();
        populate(offset: u64, len_bytes: u64) -> ();
        fence() -> Result<(), pm_core::FenceError>;
    }
}
