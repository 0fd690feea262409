//! A heap in persistent memory: blocks are allocated, freed and changed by transactions, and survive `kill -9` and power failures. Stray
//! writes to block headers and to the log are detected.
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
//! })?; // A crash leaves both new fields and the new block, or none of them.
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
//! The example `tasks` (`cargo run -p pm-alloc --example tasks`) kills a process that adds to a list of tasks, and checks the list.
//!
//! # The model
//! [`Heap::transaction`] passes a [`Tx`] to a closure, which reads and changes values through it. Values are copied in and out: there are no
//! references to them, so a change that bypasses the `Tx` does not compile. Links carry the brand `'p` of their transaction, so a link from another
//! heap, or from a transaction that was rolled back, cannot be stored. After an error or a panic the transaction is rolled back.
//!
//! [`Heap::view`] reads without a transaction, and stores single words and pairs in place. It also has calls for two frequent changes, which take
//! little more than half the time of a transaction: [`View::alloc_and_link`] allocates a block and stores the link to it into a null slot, and
//! [`View::unlink_and_free`] frees a block and sets the slot to null. Removing a block from the middle of a list needs a transaction.
//!
//! Transactions are not isolated from each other: two transactions that change the same data at the same time race, like two threads that write one
//! variable. The program orders them, for example with locks.
//!
//! # What is guaranteed after a crash
//! * A transaction is atomic and durable. Once it has returned, its changes survive; if a crash interrupts it, recovery on the next open
//!   replays it or rolls it back.
//! * Each block is either allocated or free. A crash loses no block, and no block is allocated twice.
//! * A freed block is not allocated again before its freeing is durable.
//! * After a failed fence the state of the heap is unknown until it is opened again. Until then all calls that store return an error.
//! * A word or pair that was stored [in place](View::store_u64) is durable once the call returns. If the process is killed inside the call, the next
//!   process may read the new value. A power failure may then revert it, unless the next process has stored it again.
//!
//! # What is guaranteed after a stray write
//! The header before each block has a checksum. A corrupted header is found when its block is allocated, freed, or checked by [`Heap::check`]. It is
//! reported ([`Heap::take_corruption`]) and never followed, and the rest of the heap stays usable. If a header was corrupted while the heap was
//! closed, the length of its block is unknown: no line after the header is allocated again in that chunk, and the other blocks there are found by
//! their own headers. A repair neither writes into a block nor frees lines that may be in use. The contents of blocks have no checksum; the program
//! adds its own if it needs one.
//!
//! A corrupted log entry is detected, too, and does not affect the data of other transactions. If recovery after a kill or a crash may need that
//! entry, the heap opens only with [`HeapOptions::discard_corrupted_records`]. After the heap is closed or dropped, recovery needs no entry
//! (`docs/adr/0010-a-corrupted-log-line.md`).
//!
//! # What it costs
//!
//! | operation | lines | fences |
//! |---|---|---|
//! | a word or a pair in place ([`View::store_u64`], [`View::store_u64_pair`]) | 1 | 1 |
//! | a transaction of one range up to 48 bytes, or of three words | 1 and the changed lines | 1 |
//! | a block and the link to it: freed, or allocated without initialization | 1, the changed lines, and the header | 1 |
//! | a block allocated, initialized and linked | 1, the changed lines, the header, and the contents | 2; up to 96 bytes, 1 |
//! | a write of 2 KiB or more to an old block | 2, plus 1 for each 48 bytes, and the changed lines | 3; with other changes, 4 |
//!
//! `tests/library/heap/prices.rs` counts them. A transaction commits through a lane, a log that one thread at a time writes. The lane's next transaction
//! flushes the lines that this one changed; until then the log holds their contents (`docs/adr/0007-one-fence-per-transaction.md`).
//!
//! # Wear
//! Statistics and maps of free space are in DRAM. Besides the user's lines, two kinds of lines are written: lines with block headers, once to
//! allocate and once to free, and the lines of the log. [`HeapOptions::quarantine`] delays the reuse of freed blocks, so that no line is written too
//! often.
//!
//! # Limitations
//! A transaction may use at most half of a lane: [`HeapOptions::lane_entries`] times 24 bytes, which is 24 KiB in a heap of 64 MiB, and less in
//! smaller ones. A longer transaction fails with [`CommitError::TooLarge`]. Long writes to old blocks also use log space, because the old contents
//! are logged. Values of more than 96 bytes in new blocks use none. The header of each block uses a third of an entry.
//!
//! There is no garbage collection: a block that nothing links to stays allocated until the program compares [`Heap::blocks`] with the blocks
//! that it can reach, and frees the others.
//!
//! # Source
//! NVMalloc 3 for headers, state in DRAM and quarantine (its don't-allocate list); PMFS 3.2 for log entries. The format is in `docs/format/heap.md`.

#![deny(unsafe_code)]

pub mod format;
pub mod layout;

mod growth;
mod heap;
mod links;
mod locks;
mod log;
mod parts;
mod space;
mod sync;
mod tx;
mod unlogged;

pub use heap::{Heap, HeapError, HeapInspection, HeapOptions, HeapPool, OpenReport};
pub use log::{CommitError, Inspection, LaneInspection, PoisoningPmem, RecoverError, Recovery};
pub use space::{
    Block, CheckReport, ChunkReport, Corruption, CorruptionKind, FreeError, Piece, SpaceError, SpaceStats,
};
pub use tx::{Durability, Tx, TxError, View};
pub use unlogged::{FrozenHeap, UnloggedError, UnloggedHeap};
