//! A guide from `cargo add` to a program that is tested with crashes.
//!
//! # 1. A store
//! `cargo add pm-btree` makes the crate available. A store is one file. On a file system with DAX on persistent memory, changes are durable without a
//! system call; on another file system each change syncs the pages that it has written, which is slower, and as durable as the disk.
//!
//! ```
//! use pm_btree::{Store, StoreOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("bank.pm");
//! let store = Store::create(&path, 64 << 20, &StoreOptions::new())?;
//! let accounts = store.table::<&str, u64>("accounts")?;
//! accounts.insert("ada", 70)?;
//! accounts.insert("grace", 30)?;
//! # Ok(())
//! # }
//! ```
//!
//! The file has its full length from the start, but a sparse file takes space on the medium only where the store has written.
//!
//! # 2. Changes
//! Each call is atomic, and durable when it returns. For a change that depends on the present value there are [`Table::update`] and
//! [`Table::compare_and_swap`]; [`Table::replace`](crate::Table::replace) and [`Table::take`](crate::Table::take) return the value that a key had. For
//! changes that belong together there is a [batch](crate::WriteBatch).
//!
//! ```
//! # use pm_btree::{Encoded, Store, StoreOptions};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let store = Store::create(dir.path().join("bank.pm"), 64 << 20, &StoreOptions::new())?;
//! # let accounts = store.table::<&str, u64>("accounts")?;
//! # accounts.insert("ada", 70)?;
//! # accounts.insert("grace", 30)?;
//! accounts.update("ada", |balance| Some(Encoded::new(balance.unwrap_or(0) + 5)))?;
//!
//! let mut batch = store.batch();
//! batch.insert(&accounts, "ada", 65)?;
//! batch.insert(&accounts, "grace", 40)?;
//! batch.commit()?; // after a crash: both or neither
//! # Ok(())
//! # }
//! ```
//!
//! ## Which durability?
//! | call | a crash leaves | fences | choose it for |
//! |---|---|---|---|
//! | [`insert`](crate::Table::insert) | the change, once it has returned | 1 | a change that is acknowledged to another program |
//! | [batch](crate::WriteBatch) | all changes or none | 2 a batch | changes that belong together |
//! | [`insert_grouped`](crate::Table::insert_grouped) | a prefix of all changes, without the last few | 2 a group | many changes, of which the last few may be lost: counters, caches, imports |
//!
//! Where a fence takes about 100 ns, groups save little: on two AMD EPYCs, in DRAM, with records of 256 bytes, groups of 64 made 0.8 to 1.5 times as many changes
//! a second as the same changes alone. A medium on which fences take longer gains more. `./x bench btree -- --only paper` measures it.
//!
//! # 3. Reads
//! A read returns a [guard](crate::Guard) with a copy of the value. Ranges go in both directions, while other threads change the table, and
//! [`Table::prefix`](crate::Table::prefix) is the range of the keys with a prefix. For long values,
//! [`Table::get_with`](crate::Table::get_with) and [`Table::visit`](crate::Table::visit) copy nothing: they lend the value to a closure.
//!
//! ```
//! # use pm_btree::{Store, StoreOptions};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let store = Store::create(dir.path().join("bank.pm"), 64 << 20, &StoreOptions::new())?;
//! # let accounts = store.table::<&str, u64>("accounts")?;
//! # accounts.insert("ada", 65)?;
//! # accounts.insert("grace", 40)?;
//! let mut sum = 0;
//! for entry in accounts.range("a".."h") {
//!     let (_name, balance) = entry?;
//!     sum += balance.value();
//! }
//! assert_eq!(sum, 105);
//! # Ok(())
//! # }
//! ```
//!
//! # 4. The structure of a program
//! A [`Table`](crate::Table) borrows nothing from its store, and neither do iterators and batches. So a program has the store and its tables in one
//! struct, opens each table once, and moves the struct where it is needed. Threads share a table, or have clones of it.
//!
//! ```
//! use pm_btree::{Encoded, Store, StoreOptions, Table};
//! use std::path::Path;
//! use std::thread;
//!
//! struct Bank {
//!     accounts: Table<&'static str, u64>,
//!     transfers: Table<u64, (&'static str, &'static str)>,
//!     store: Store,
//! }
//!
//! impl Bank {
//!     fn open(path: &Path) -> Result<Self, Box<dyn std::error::Error>> {
//!         let store = Store::open(path, &StoreOptions::new())?;
//!         Ok(Self { accounts: store.table("accounts")?, transfers: store.table("transfers")?, store })
//!     }
//!
//!     fn transfer(&self, number: u64, from: &str, to: &str, sum: u64) -> Result<(), Box<dyn std::error::Error>> {
//!         let balance = |name| Ok::<u64, pm_btree::ReadError>(self.accounts.get(name)?.map_or(0, |found| found.value()));
//!         let mut batch = self.store.batch();
//!         batch.insert(&self.accounts, from, balance(from)?.checked_sub(sum).ok_or("no cover")?)?;
//!         batch.insert(&self.accounts, to, balance(to)? + sum)?;
//!         batch.insert(&self.transfers, number, (from, to))?;
//!         Ok(batch.commit()?)
//!     }
//!
//!     fn close(self) -> Result<(), Box<dyn std::error::Error>> {
//!         let Self { accounts, transfers, store } = self;
//!         drop((accounts, transfers));
//!         Ok(store.close()?)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("bank.pm");
//! # Store::create(&path, 64 << 20, &StoreOptions::new())?.table::<&str, u64>("accounts")?.insert("ada", 70)?;
//! let bank = Bank::open(&path)?;
//! let teller = thread::spawn(move || bank.transfer(1, "ada", "grace", 5).map(|()| bank).map_err(|error| error.to_string()));
//! let bank = teller.join().expect("no panic")?;
//! assert_eq!(bank.accounts.get("grace")?.unwrap().value(), 5);
//!
//! bank.close()?; // not needed for durability: it reports errors that a drop ignores
//! # Ok(())
//! # }
//! ```
//!
//! The last handle that is dropped closes the store. Until then the file cannot be opened again, also in the same process: the error is
//! [`OpenError::StillOpen`](crate::OpenError::StillOpen). [`Store::open_read_only`](crate::Store::open_read_only) is for programs that only look.
//!
//! # 5. Space
//! A store that is full says so with an error, and loses nothing. [`Store::grow`](crate::Store::grow) makes it larger, and
//! with [`StoreOptions::max_bytes`](crate::StoreOptions::max_bytes) it grows by itself, while tables are in use.
//! Space of removed entries serves any others, and a queue takes no more after millions of pops. [`Store::compact`](crate::Store::compact) also returns
//! the space of all nodes that are not in use to the heap. Both need a store without handles: drop the tables before, and open them again afterwards.
//!
//! # 6. Crashes
//! A store needs no shutdown: after `kill -9` or a power failure [`Store::open`](crate::Store::open) finds every change that had returned. What your own
//! program makes of several changes is for you to test. `cargo add --dev pm-crashsim` adds a simulator of persistent memory, which runs a piece of your
//! program, and then opens the store after every legal crash of it. This test proves that a transfer never loses money; with two insertions in place
//! of the batch it fails, and prints the crash.
//!
//! ```
//! use pm_btree::{Store, StoreOptions};
//! use pm_crashsim::{Crash, Explorer, Model, Run, SimPmem};
//! use std::sync::Arc;
//!
//! type SimStore = Store<Arc<SimPmem>>;
//!
//! fn transfer(store: &SimStore, sum: u64) -> Result<(), Box<dyn std::error::Error>> {
//!     let accounts = store.table::<&str, u64>("accounts")?;
//!     let balance = |name| Ok::<u64, pm_btree::ReadError>(accounts.get(name)?.map_or(0, |found| found.value()));
//!     let mut batch = store.batch();
//!     batch.insert(&accounts, "ada", balance("ada")? - sum)?;
//!     batch.insert(&accounts, "grace", balance("grace")? + sum)?;
//!     Ok(batch.commit()?)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A small heap: the simulator records every store, and a test needs no more.
//! let options = StoreOptions::new().extent_bytes(4096).node_slots(4);
//! let pmem = Arc::new(SimPmem::new(128 << 10));
//! let store = Store::format(Arc::clone(&pmem), &options)?;
//! let accounts = store.table::<&str, u64>("accounts")?;
//! accounts.insert("ada", 70)?;
//! accounts.insert("grace", 30)?;
//! drop(accounts);
//! store.close()?;
//!
//! let operation = |run: &Run<()>| {
//!     let store = Store::attach(Arc::clone(run.pmem()), &options).unwrap();
//!     transfer(&store, 5).unwrap();
//!     run.ack(()); // the transfer has returned
//! };
//! let check = |crash: &Crash<()>| {
//!     let store = Store::attach(Arc::clone(crash.pmem()), &options).map_err(|error| error.to_string())?;
//!     let accounts = store.table::<&str, u64>("accounts").map_err(|error| error.to_string())?;
//!     let balance = |name| accounts.get(name).unwrap().unwrap().value();
//!     match (balance("ada"), balance("grace")) {
//!         (65, 35) => Ok(()),
//!         (70, 30) if crash.acked().is_empty() => Ok(()),
//!         balances => Err(format!("{balances:?}")),
//!     }
//! };
//! Explorer::new(Model::Px86Line).crashes(1).choices_per_point(64).check(&pmem.to_image(), operation, check);
//! # Ok(())
//! # }
//! ```
//!
//! [`Table::update`]: crate::Table::update
//! [`Table::compare_and_swap`]: crate::Table::compare_and_swap
