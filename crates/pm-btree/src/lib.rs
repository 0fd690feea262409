//! An ordered store in persistent memory: every operation is durable when it returns, at one fence, and survives `kill -9` and power failures.
//!
//! # An example
//!
//! ```
//! use pm_btree::{Store, StoreOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("scores.pm");
//! let store = Store::create(&path, 16 << 20, &StoreOptions::new())?;
//! let scores = store.table::<&str, u64>("scores")?;
//! scores.insert("ada", 7)?; // durable from here on
//! scores.insert("grace", 9)?;
//! scores.remove("ada")?;
//! drop((store, scores)); // the last handle closes the store
//!
//! let store = Store::open(&path, &StoreOptions::new())?;
//! let scores = store.table::<&str, u64>("scores")?;
//! assert!(scores.get("ada")?.is_none());
//! for entry in scores.range("a"..="z") {
//!     let (name, score) = entry?;
//!     assert_eq!((name.value(), score.value()), ("grace", 9));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The model
//! A store is a file with tables. A table maps keys to values, and has a name and two types: see [`Key`] and [`Value`]. Integers, strings, byte
//! strings, arrays and tuples are keys and values, and [`Plain`] makes values of `#[derive(Persist)]` structs. Threads may share the store and its
//! tables. A table borrows nothing, and can be in one struct with the store: the store is closed when it and [all its handles](Store#handles) are
//! dropped. Reads wait for no lock, and copy what they find or [lend](Table::get_with) it; changes of keys in different leaves run in parallel.
//!
//! # What is guaranteed after a crash
//! * Every operation that has returned is durable. An operation in progress is atomic: a crash leaves its change or none of it. So is a batch of
//!   operations. Readers may see a part of a batch that is being committed.
//! * Operations of a [group](Table::insert_grouped) return before they are durable. What survives is a prefix of all operations of all threads, and
//!   lacks at most the last [few](StoreOptions::group_commits); [`Store::sync`] makes all durable.
//! * A crash during an open or a close loses nothing.
//! * Space that an operation in progress had taken is free after the next open.
//! * After a failed fence the store accepts no more changes until it is opened again, and the next open decides whether the change is durable.
//!
//! # What is guaranteed after corruption
//! Nodes, entries and records have checksums. The checksums of a node and its entries are verified when an operation first comes to it after an open,
//! those of the values of a table with fixed-width keys after a crash, by [`Store::check`], and by every read with [`StoreOptions::verify_reads`]. A
//! corrupted entry is reported: a key that it may have held is an error, and never absent. Zeroes are corruption, too: of an entry, of a line, of a page.
//!
//! After a clean close there is no exception, if what earlier kills have left was verified before: [`Table::len`], [`Store::stats`] and the like visit
//! all leaves. After a kill or a power failure, up to that, there are two, because what a crash has cut off looks like that:
//! * A flipped bit in the record of the last entry that was written to a leaf, if it was written in the killed session and not long before its end.
//!   In a store of 400 keys that was killed after 700 changes, 1 of 100 flips was such.
//! * Zeroes in place of the last lines of a leaf, of those first used in the killed session, with all entries in them: 2 of 100 zeroed lines, and 12 of
//!   100 zeroed pages.
//!
//! An ordinary file is weaker after a crash: any entry written in the killed session and not long before its end may be cut off, so a flip in it is not
//! seen.
//!
//! # What it costs
//!
//! | operation | lines | fences |
//! |---|---|---|
//! | insert or update, 8-byte key and value | 1 | 1 |
//! | insert or update, 8-byte key, value of 256 bytes | 5 | 1 |
//! | remove, pop the first or the last entry | 1 | 1 |
//! | replace, take | as an insert or a remove | 1 |
//! | compare-and-swap, update | as an insert or a remove | 1; if nothing changes, none |
//! | insert or remove in a group ([`Table::insert_grouped`]) | as alone | none; 2 for each group, besides those of splits |
//! | a batch of any length ([`WriteBatch`]) | the records and entries, and 1 | 2; and 2, with byte keys 3, for each leaf that is split |
//! | a removal of a range ([`Table::remove_range`]) | 1 an entry, and 1 for each batch of 4,096 | 2 for each batch |
//! | unlinking the leaves that removals have left empty, per entry | 0.13 | 0.0013 |
//! | a load of sorted entries ([`Table::extend_sorted`]), per entry | 0.6 with 8-byte keys and values | 0.002 |
//! | a split, in about one insertion of 30 | 19 | 1; with byte keys 2 |
//!
//! The work of a batch by key does not grow with its length. Until it is committed, its operations are in DRAM, with a few hundred bytes each besides
//! keys and values; the time by key of a batch that no cache holds is that of its misses.
//!
//! # Limitations
//! A key with its value has at most 16 MiB. Above a quarter of an extent, 256 KiB in a pool of 256 MiB or more, it has a block of the heap to itself, which
//! costs a transaction of the heap. Leaves that are nearly empty stay.
//! A child of fork(2) cannot use its parent's store: the region is not mapped there, and the first access ends the child by SIGSEGV.
//! The pool grows by itself up to [`StoreOptions::max_bytes`], or by a call, [`Store::grow`], while the store has no [handles](Store#handles). After an open, [`Table::len`] waits until every leaf was visited.
//!
//! # Source
//! NVMalloc 6 (a B-tree whose nodes are unsorted, with links to the right); FPTree (SIGMOD 2016) for fingerprints; Lehman and Yao, "Efficient Locking
//! for Concurrent Operations on B-Trees". The format is in `docs/format/store.md`.

#![deny(unsafe_code)]

pub mod format;
pub mod guide;

mod api;
mod error;
mod maintenance;
mod node;
mod ops;
mod session;
mod tree;
mod types;

pub use api::{
    CloseError, Encoded, Guard, KeyValue, LoadError, LoadFailure, Range, Store, Swap, Table, TableInfo,
    WriteBatch,
};
pub use error::{
    Corruption, CorruptionKind, DecodeError, EncodeError, LostChange, OpenError, ReadError, TableError,
    WriteError,
};
pub use maintenance::{CheckReport, Room, StoreStats};
pub use session::StoreOptions;
pub use types::{Key, LeadingKey, Plain, Prefix, Value};
