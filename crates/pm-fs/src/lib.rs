//! A POSIX file system in persistent memory, used in process: every call is durable when it returns.
//!
//! ```
//! use pm_fs::{Fs, FsOptions, NewFile};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("disk.pm");
//! let fs = Fs::create(&path, 16 << 20, &FsOptions::new())?;
//! let new = NewFile { mode: 0o644, ..NewFile::default() };
//! let docs = fs.root().mkdir("docs", NewFile { mode: 0o755, ..new })?;
//! docs.create("draft", new)?.append(b"hello")?; // durable from here on
//! docs.rename("draft", &fs.root(), "letter")?; // after a crash: one name or the other
//! drop(docs);
//! drop(fs);
//!
//! let fs = Fs::open(&path, &FsOptions::new())?;
//! let mut text = [0; 5];
//! fs.lookup("letter")?.read_at(0, &mut text)?;
//! assert_eq!(&text, b"hello");
//! assert!(fs.lookup("docs")?.entries(0)?.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # How it is stored
//! Metadata is in blocks of a `pm-alloc` heap, and file data in 4 KiB pages behind it. Every change of metadata is one transaction of the heap. Data
//! is stored around the cache, and fenced before the transaction that makes it visible. Which pages are free is known in DRAM only. Closing a file
//! system saves it; after a crash the first change finds the pages in use by a pass over the metadata. The format is in `docs/format/fs.md`.
//!
//! # What is guaranteed after a crash
//! * Every call that has returned is durable.
//! * A call that changes a directory is atomic. A file's length never covers bytes that were not written. Overwritten bytes are atomic in
//!   [strict](Handle::set_strict) files.
//! * A file that was open without a name is freed before the first change.
//!
//! # Stray stores
//! The pool is mapped, so a bug anywhere in the process can store to it. [`Fs::open_protected`] keeps it closed except in windows of the stores of the file
//! system itself: a stray store of another thread raises SIGSEGV, and reaches no file. This finds bugs; it is no defence against code that means to store.
//! `docs/protection.md` has the methods, what each does not catch, and the prices. [`Fs::open_over`] opens a file system over any other wrapper.
//!
//! # Limitations
//! Permissions are stored and not checked: a process that maps the pool owns it. The metadata has a fixed share of the pool. Reads do not change the
//! time of access. File data and the targets of symbolic links have no checksum. `docs/pmfs.md` has all limits.
//!
//! # Source
//! PMFS (EuroSys 2014), sections 3 and 4.

#![forbid(unsafe_code)]

pub mod format;

mod api;
mod error;
mod maintenance;
mod node;
mod ops;
mod session;
mod volume;

pub use api::fs::{Fs, FsStats, POOL_BYTES_MIN};
pub use api::handle::{Handle, NewFile};
pub use api::map::Map;
pub use error::{Corruption, FsError};
pub use maintenance::check::CheckReport;
pub use maintenance::repair::RepairReport;
pub use node::dir::Entry;
pub use node::inode::{Attributes, FileKind};
pub use ops::attributes::SetAttributes;
pub use ops::write::ATOMIC_WRITE_BYTES;
pub use ops::xattr::SetXattr;
pub use volume::options::FsOptions;
pub use volume::pages::Frame;
