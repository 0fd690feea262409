//! Protection of persistent memory from stray stores, after PMBD and PMFS.
//!
//! A bug anywhere in a process can store to a mapped region, and unlike a bug in volatile memory it outlives the process. [`Protected`] wraps an
//! implementation of [`Pmem`](crate::Pmem) and keeps it closed, except in *windows*: each store of the seam opens its range, stores, and closes it. A
//! stray store outside all windows raises SIGSEGV; a handler reports it, and does what the [`StrayPolicy`] says.
//!
//! | [`Method`] | a store | a load | a stray store that is not caught |
//! |---|---|---|---|
//! | [`PageTable`](Method::PageTable) | opens its pages by mprotect(2) | direct | to an open window, from any thread |
//! | [`Async`](Method::Async) | likewise, and a thread closes them later, many together | direct | to a page that is not closed yet |
//! | [`Unmapped`](Method::Unmapped) | the kernel copies: pwrite(2) | direct | none: no address is ever writable |
//! | [`PrivateMap`](Method::PrivateMap) | through a mapping of its own, at an address that nothing else knows | likewise | to that mapping, while it exists |
//! | [`Pkey`](Method::Pkey) | opens the region to this thread by WRPKRU | direct | by the same thread during its own store, or by a thread that it starts then |
//!
//! No method sees a store of another process, or one that the kernel makes for a system call: the call fails with EFAULT, as for any address that is not
//! writable. Words and pairs of words are stored atomically in place, so `Unmapped` and `PrivateMap` open a window of pages for them.
//!
//! ```
//! use pm_core::protection::{Method, Protected, Protection};
//! use pm_core::{Pmem, RegionOptions};
//! # let dir = tempfile::tempdir()?;
//! let region = RegionOptions::new().create(dir.path().join("region.pm"), 1 << 20)?;
//! let region = Protected::new(region, &Protection::new(Method::Unmapped))?;
//! region.store_nt(4096, b"the only way in");
//! region.fence()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Source
//! PMBD (MSST 2014), III-B; PMFS (EuroSys 2014), 3.3, "Write protection"; NVMalloc (TRIOS 2013), 4 and 8.2, for `Async`.

mod choice;
mod kernel_copy;
mod late;
mod late_table;
mod page_table;
mod pkey;
mod protected;
mod region_windows;
mod stray;
mod timed_windows;
mod watch;
mod windows;

pub use choice::{Method, Protection, ProtectionError};
pub use protected::Protected;
pub use region_windows::RegionWindows;
pub use stray::{Stray, StrayPolicy, Verdict};
pub use timed_windows::TimedWindows;
pub use windows::{Access, Windows};
