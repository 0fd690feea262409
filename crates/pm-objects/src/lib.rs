//! Named, typed objects in persistent memory: a program loads and stores elements, and every store is durable when it returns.
//!
//! ```
//! use pm_core::Persist;
//! use pm_objects::{Contents, Objects, ObjectsOptions};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, Persist)]
//! #[repr(C)]
//! struct Player { x: f32, y: f32, lives: u64 }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("world.pmo");
//! let world = Objects::create_pool(&path, 16 << 20, &ObjectsOptions::new())?;
//! let players = [Player { x: 0.0, y: 0.0, lives: 3 }; 100];
//! let players = world.create("level 1/players", Contents::Slice(&players))?;
//! players.edit(7, |player| player.lives -= 1)?; // durable from here on
//! assert_eq!(players.get(7)?.lives, 2);
//!
//! drop((players, world)); // a kill or a power failure would do as well
//! let world = Objects::open_pool(&path, &ObjectsOptions::new())?;
//! let players = world.open::<Player>("level 1/players")?;
//! assert_eq!(players.get(7)?.lives, 2);
//! # Ok(())
//! # }
//! ```
//!
//! The [guide] leads from `cargo add` to a program.
//!
//! # The model
//! An object is a name, a type and elements of that type. The names are in a table of a `pm-btree` store, and the contents in chunks of up to 4 KiB, in
//! blocks of the `pm-alloc` heap that holds the store. An [`Object`] is a handle: a load copies elements out of persistent memory, takes no lock, and
//! sees each store whole or not at all. A store changes up to a quarter of a chunk in place, by the heap's log, and otherwise stores the chunk elsewhere and
//! then changes the entry that names its place.
//!
//! An object gets longer by [`append`](Object::append) and [`resize`](Object::resize), and a [transaction](Objects::transaction) changes several objects at once.
//!
//! # Three tiers
//! A pool may have a [file](ObjectsOptions::file_bytes) beside it, on a disk for example. When the pool is full, chunks move down to the file, 64 with one fence. They are
//! read from there, with a checksum. So a pool holds more than its memory. It may also have [copies of chunks in DRAM](ObjectsOptions::dram_bytes), if its memory is
//! slower.
//!
//! Chunks that are loaded often are copied to DRAM, and move up from the file; chunks that are stored to move up at once. [Hints] tell in advance how an object is going to be used, and
//! [`Object::pin`] decides for all of its chunks:
//!
//! ```
//! use pm_objects::{Contents, Hints, Locality, Objects, ObjectsOptions, Tier};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("tiers.pmo");
//! let options = ObjectsOptions::new().file_bytes(64 << 20).dram_bytes(1 << 20);
//! let objects = Objects::create_pool(&path, 16 << 20, &options)?;
//! let log = Hints::new().locality(Locality::Cold);
//! objects.create_with("log", Contents::Slice(&[0_u8; 100_000]), &log)?;
//! let index = objects.create("index", Contents::Slice(&[0_u64; 512]))?;
//! index.pin(Tier::Dram)?;
//! assert_eq!(objects.stats()?.dram_used_bytes, 64 << 10);
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed after a crash
//! * Every call that has returned is durable.
//! * A store is atomic, and so is each change of names: an object is complete before it has a name, and a name that is replaced always has an object.
//! * No space is lost: recovery frees objects that were not complete, and those that had lost their names.
//! * After a failed fence nothing more changes until the pool is opened again. Objects that were being changed then return
//!   [`ObjectError::Poisoned`]; others are read.
//!
//! # What is guaranteed after corruption
//! Everything but contents in the pool has checksums. A corrupted structure is an error of the calls that come to it, is never followed, and takes nothing
//! else with it. What cannot be verified is not freed. [`Objects::check`] finds corruption, and space that was lost by it.
//!
//! # Costs
//!
//! | operation | fences |
//! |---|---|
//! | a load | 0 |
//! | a store of up to 1 KiB in one chunk | 1 |
//! | a longer store | 2 |
//! | a transaction of several objects, with up to 1 KiB a chunk and 4 KiB in all | 1 |
//! | up to 1 KiB appended, where the last chunk's slot has room | 1 |
//! | an object of up to 128 KiB created | 3 |
//! | an object deleted | 3 |
//!
//! `tests/library/prices.rs` counts them, and flushed lines.
//!
//! # Limits
//! A name has 1 to 255 bytes, an element 1 byte to 64 KiB, an object 16 GiB. A store or a transaction changes at most 64 chunks. Contents in the pool
//! have no checksum. A child of fork(2) must not use handles.
//!
//! # Source
//! PMM (named persistent objects by load and store). The format is in `docs/format/objects.md`.

#![forbid(unsafe_code)]

pub mod format;
pub mod guide;

mod api;
mod error;
mod maintenance;
mod ops;
mod session;
mod volume;

pub use api::contents::Contents;
pub use api::list::List;
pub use api::object::Object;
pub use api::objects::{Objects, Stat, Stats};
pub use api::transaction::{AnyObject, Transaction};
pub use error::{Corruption, ObjectError, OpenError, Structure};
pub use format::{ELEMENT_BYTES_MAX, OBJECT_BYTES_MAX};
pub use maintenance::check::{CheckReport, Problem};
pub use volume::hints::{Hints, Locality, Tier};
pub use volume::options::ObjectsOptions;
