//! A heap in persistent memory: blocks are allocated, freed and changed by transactions, and survive `kill -9`, the loss of
//! power, stray writes, and their users' mistakes.
//!
//! # An example
//!
//! ```
//! use pm_alloc::{Heap, HeapOptions};
//! use pm_core::{Link, Persist, field};
//!
//! #[derive(Clone, Copy, Persist)]
//! #[repr(C)]
//! struct Order<'p> { id: u64, previous: Link<'p, Order<'p>> }
//!
//! #[derive(Clone, Copy, Persist)]
//! #[repr(C)]
//! struct Shop<'p> { newest: Link<'p, Order<'p>>, count: u64 }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("shop.pm");
//! let heap = Heap::create(&path, 1 << 20, &HeapOptions::new())?;
//! heap.transaction(|tx| {
//!     let shop = tx.alloc(&Shop { newest: Link::NULL, count: 0 })?;
//!     tx.set_root("shop", shop)
//! })?;
//!
//! let count = heap.transaction(|tx| {
//!     let shop = tx.root::<Shop>("shop")?.expect("was set above");
//!     let order = tx.alloc(&Order { id: 7, previous: tx.read(shop)?.newest })?;
//!     tx.write(shop.field(field!(Shop, newest)), &order)?;
//!     tx.edit(shop.field(field!(Shop, count)), |count| {
//!         *count += 1;
//!         *count
//!     })
//! })?; // Both fields and the new block, or nothing, at any crash.
//! assert_eq!(count, 1);
//!
//! drop(heap);
//! let heap = Heap::open(&path, &HeapOptions::new())?;
//! heap.view(|view| {
//!     let shop = view.root::<Shop>("shop")?.expect("it survived");
//!     let newest = view.read(shop)?.newest;
//!     assert_eq!(view.read(newest)?.id, 7);
//!     Ok(())
//! })
//! # }
//! ```
//!
//! The example `tasks` (`cargo run -p pm-alloc --example tasks`) is a list of tasks that kills itself and looks.
//!
//! # How it feels
//! [`Heap::transaction`] gives a [`Tx`], which is the only way to change something: what is not logged does not
//! compile. Values are copied in and out; links carry the brand `'p` of their transaction, so that none of another
//! heap, and none of a transaction that was given up, gets into this one. An error or a panic takes everything back.
//! [`Heap::view`] reads without one, stores single words and pairs, and does in one step what programs do most: a block
//! allocated with the link to it ([`View::alloc_and_link`]), or freed with it ([`View::unlink_and_free`]), in little more than
//! half the time of a transaction. The one wants a slot that is null, the other leaves one: to take a block out of the
//! middle of a list is for a transaction.
//!
//! Threads do not wait for each other here: two transactions that change the same data at the same time are as wrong as two
//! threads that write one variable, and a lock of the program's own keeps them apart.
//!
//! # What is guaranteed after a crash
//! * A transaction that returned is there; one that did not is there whole or not at all. The next opening sees to it.
//! * A block belongs to somebody or is free: none is lost by a crash, and none given to two.
//! * A block that was freed is not used again before its freeing is durable.
//! * After a failed fence nothing is known before the heap is opened again, and nothing more is stored through it.
//! * A word or pair that was stored [in place](View::store_u64) is there once the call returned. If the process is killed inside the call, the
//!   next process may read the new value and a power failure take it back, unless that process stores it again.
//!
//! # What is guaranteed after a stray write
//! Each block has a checksummed header in front of it. One that is corrupted is found when its block is allocated, freed,
//! or looked at by [`Heap::check`]; it is reported ([`Heap::take_corruption`]), never followed, and the rest goes on. If it
//! was corrupted while the heap was closed, the length of its block is not known: nothing behind it in its chunk is handed out any
//! more, and the other blocks there are found by their own headers. No repair writes into a block, or gives away what cannot be
//! proven free. What blocks hold has no checksum: that is for its owner.
//!
//! A log entry that is corrupted is found, too, and costs the data of no other transaction. While it is needed, after a kill or a crash, the
//! heap is not opened unless it is told to [go on without it](HeapOptions::discard_corrupted_records); after the heap was closed or
//! dropped none is needed (`docs/adr/0010-a-corrupted-log-line.md`).
//!
//! # What it costs
//!
//! | operation | lines | fences |
//! |---|---|---|
//! | a word or a pair in place ([`View::store_u64`], [`View::store_u64_pair`]) | 1 | 1 |
//! | a transaction of one range up to 48 bytes, or of three words | 1, and what it changed | 1 |
//! | a block freed, or allocated and filled later, with the link to it | as above, and its header | 1 |
//! | a block allocated, filled and published | as above, and its contents | 2; up to 96 bytes, 1 |
//! | a write of 2 KiB and more to an old block | 1 for each 48 bytes, and what it changed | 3; with other changes 4 |
//!
//! `tests/prices.rs` counts them. What a transaction stores in place is flushed by the lane's next one; until then the log
//! has it (`docs/adr/0007-one-fence-per-transaction.md`).
//!
//! # Wear
//! Figures that change often are in DRAM. The only lines written besides the user's are those of headers, once for an
//! allocation and once for a freeing, and of the logs, which go around. [`HeapOptions::quarantine`] keeps freed blocks
//! from being used again at once, so that no place is written too often.
//!
//! # Limitations
//! A transaction may log half of a lane: [`HeapOptions::lane_entries`] times 24 bytes, which is 24 KiB in a heap of 64
//! MiB, and less in smaller ones. A longer one fails with [`CommitError::TooLarge`]. Long writes over old blocks count,
//! for what was there is logged. What is written into new blocks does not, but for values of up to 96 bytes; the header
//! of each block does, with a third of an entry.
//!
//! There is no garbage collection: a block that nothing links to stays allocated until somebody compares
//! [`Heap::blocks`] with what he reaches.
//!
//! # Source
//! NVMalloc 3 for headers, DRAM figures and the don't-allocate list; PMFS 3.2 for the entries of the log. The bytes are in
//! `docs/format/heap.md`.

#![forbid(unsafe_code)]

pub mod format;
pub mod layout;

mod heap;
mod log;
mod parts;
mod quiet_lock;
mod space;
mod sync;
mod tx;
mod unlogged;

pub use heap::{Heap, HeapError, HeapInspection, HeapOptions, HeapPool, OpenReport};
pub use log::{CommitError, Inspection, LaneInspection, RecoverError, Recovery};
pub use space::{
    Block, CheckReport, ChunkReport, Corruption, CorruptionKind, FreeError, Piece, SpaceError, SpaceStats,
};
pub use tx::{Durability, Tx, TxError, View};
pub use unlogged::{FrozenHeap, UnloggedError, UnloggedHeap};
