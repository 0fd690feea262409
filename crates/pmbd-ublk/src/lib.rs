//! Persistent memory as a block device: one [`Engine`], two transports.
//!
//! ```text
//!   ext4, XFS, fio ...            nbdcopy, qemu, nbd-client ...
//!         |                                |
//!    /dev/ublkbN                      Unix socket
//!         |                                |
//!     [ublk]  one thread a queue       [nbd]  one thread a client
//!         |                                |
//!         +-----------> Engine <-----------+      requests become stores and one fence
//!                          |
//!                   pm_core::Region               DAX file, device-dax, tmpfs, or an ordinary file
//! ```
//!
//! The command `pmbd` is made of these parts. As a library they serve any region, or any other
//! [`Pmem`](pm_core::Pmem):
//!
//! ```
//! use pmbd::{BlockOp, Disk, DiskOptions};
//! # let dir = tempfile::tempdir_in("/dev/shm").unwrap();
//! # let path = dir.path().join("disk.pm");
//! let disk = Disk::create(&path, 64 << 20, &DiskOptions::default())?;
//! println!("{:?}: {}", disk.info().medium, disk.info().domain.promise());
//! let engine = disk.into_engine()?;
//! engine.execute(0, BlockOp::Write { data: &[1; 4096], fua: false }).expect("inside the disk");
//! # Ok::<(), pmbd::DiskError>(())
//! ```
//!
//! # What is guaranteed after a crash
//!
//! Where the CPU reaches the medium (DAX, and tmpfs as far as it goes), **every write that completed is there**, with or
//! without FUA, and Flush has nothing left to do: not for this queue, and not for any other. The kernel is told that the
//! device has no volatile cache. On an ordinary file the device has a write-back cache and says so; there Flush and FUA are
//! what makes writes durable.
//!
//! A write that did not complete leaves any mixture of its old and new 8-byte words. Where the server was killed and the machine was not,
//! a power failure can change that mixture once more, after the next server has shown it ([`Engine`]).
//!
//! # What happens when the medium fails
//!
//! A request to bytes that are not there, because the file was truncated or the memory is poisoned, fails with EIO, and the
//! server goes on ([`pm_core::fault`]): it installs a handler for SIGBUS with the first request. The bytes can be had
//! again when the file has grown back, or the poison was cleared by whoever manages the memory.
//!
//! A disk that was being created is there whole, or not at all. A corrupted pool header is restored from its backup.
//!
//! # What it does not do
//!
//! Sectors are not written atomically, as on the kernel's own `pmem` driver without a BTT. There is no encryption, no
//! snapshot, and no access control beyond that of the socket and of the device node.
#![deny(unsafe_code)]

pub mod disk;
pub mod engine;
pub mod nbd;
pub mod ublk;

mod polling;
mod throttle;

pub use disk::{Disk, DiskError, DiskInfo, DiskOptions};
pub use engine::{BlockError, BlockOp, Engine, Geometry, GeometryError, SectorSize, WriteCache};
pub use nbd::{NbdClient, NbdClients, NbdCounts, NbdError, NbdOptions, NbdPeer, NbdServer, NbdStats};
