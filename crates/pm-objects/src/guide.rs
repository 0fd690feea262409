//! A guide: from `cargo add` to a program whose state survives crashes.
//!
//! `pm-objects` keeps typed state that outlives the program: it is loaded and stored by name, and every store is durable when it returns. This guide makes a program with it.
//!
//! # A first program
//!
//! ```console
//! $ cargo new game && cd game
//! $ cargo add --path .../crates/pm-objects
//! $ cargo add --path .../crates/pm-core
//! ```
//!
//! The elements of an object have a type without padding and references, for which [`Persist`](pm_core::Persist) is derived:
//!
//! ```no_run
//! use pm_core::Persist;
//! use pm_objects::{Contents, Objects, ObjectsOptions, OpenError};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, Persist)]
//! #[repr(C)]
//! struct Player { x: f32, y: f32, lives: u64 }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let options = ObjectsOptions::new();
//!     let world = match Objects::open_pool("world.pmo", &options) {
//!         Err(OpenError::Store(_)) => Objects::create_pool("world.pmo", 64 << 20, &options)?,
//!         opened => opened?,
//!     };
//!     let new = Player { x: 0.0, y: 0.0, lives: 3 };
//!     let players = world.open_or_create("level 1/players", Contents::Slice(&[new; 4]))?;
//!     let lives = players.edit(2, |player| { player.lives -= 1; player.lives });
//!     println!("{lives:?}");
//!     Ok(())
//! }
//! ```
//!
//! Each run prints one life less. A kill at any moment leaves the last number that was printed, or the one that was about to be.
//!
//! # What is atomic
//!
//! | call | after a crash |
//! |---|---|
//! | `set`, `write`, `store`, `edit`, `append`; `resize` to a longer length | all of it, or nothing |
//! | `transaction` of several objects | all of it, or nothing |
//! | `create`, `replace`, `delete`, `rename` | the old names and contents, or the new ones |
//! | `resize` to a shorter length | a length between the old one and the new one |
//! | `pin` | some chunks have moved; contents are the same |
//!
//! Loads take no lock. A load of several elements sees each store to the object whole or not at all; loads of two objects may see a transaction in the one and not yet in the other.
//!
//! # Changing several objects
//!
//! ```
//! # use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let world = Objects::create_pool(dir.path().join("w.pmo"), 16 << 20, &ObjectsOptions::new())?;
//! # let gold = world.create("gold", Contents::Slice(&[100_u64, 0]))?;
//! # let log = world.create("trades", Contents::Slice(&[0_u64; 8]))?;
//! world.transaction(&[&gold, &log], |tx| {
//!     let left = tx.get(&gold, 0)?.checked_sub(30).ok_or(ObjectError::NotFound)?; // an error: nothing changes
//!     tx.set(&gold, 0, &left)?;
//!     let sum = tx.get(&gold, 1)? + 30;
//!     tx.set(&gold, 1, &sum)?;
//!     tx.set(&log, 0, &30)
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! The closure may load any object, and changes these only through `tx`: other changes are `ObjectError::Nested`. All threads lock objects in the same order, so transactions do not wait for each other for ever.
//!
//! # More than the memory
//!
//! `ObjectsOptions::file_bytes` gives a new pool a file beside it, `world.pmo.file`, for example on a disk; `dram_bytes` gives an open pool copies in DRAM. Chunks of up to 4 KiB move between the three by
//! their use. `Hints` say in advance how an object is going to be used, and `pin` decides for all of its chunks. `Objects::stats` says how much is where, and how many have moved.
//!
//! If the file is missing, `ObjectsOptions::without_file` opens the pool all the same: objects with chunks in the file are `ObjectError::Tier`, and all others work.
//!
//! # When something is wrong
//!
//! | error | what to do |
//! |---|---|
//! | `ObjectError::Full` | grow the pool (`Objects::grow`, `pm object import` does), or delete objects |
//! | `ObjectError::Corrupted` | other objects are not affected; `pm object check` lists what is corrupted, and space that was lost |
//! | `ObjectError::Type` | the program's type has changed: its fingerprint is that of its fields |
//! | `ObjectError::Poisoned` | a fence has failed: open the pool again, which decides whether the last change is durable |
//! | `OpenError::ForeignFile` | the file beside the pool is that of another pool, or none |
//!
//! What is promised depends on the medium, as for all crates here: `docs/persistence-model.md`.
