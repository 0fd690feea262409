//! Persistent memory as a block device: one [`Engine`], two transports.
//!
//! ```text
//!   ext4, XFS, fio ...            nbdcopy, qemu, nbd-client ...
//!         |                                |
//!    /dev/ublkbN                      Unix socket
//!         |                                |
//!     [ublk]  one thread per queue     [nbd]  one thread per client
//!         |                                |
//!         +-----------> Engine <-----------+      requests become stores and one fence
//!                          |
//!                   pm_core::Region               DAX file, device-dax, tmpfs, or an ordinary file
//! ```
//!
//! The command `pmbd` consists of these parts. As a library they serve any region, or any other [`Pmem`](pm_core::Pmem):
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
//! Where the CPU reaches the medium (DAX, and tmpfs, whose contents survive only a crash of the process), **every completed write is durable**,
//! with or without FUA, and Flush has nothing to do, for this queue or any other. The device reports no volatile cache. On an ordinary file the
//! device reports a write-back cache; there Flush and FUA make writes durable. So it does with [deferred](WriteScheme::Deferred) and with
//! [buffered](buffer) writes; those survive a server that is killed, because the next one finds them.
//!
//! A write that did not complete leaves any mixture of its old and new 8-byte words. If the server was killed, a later power failure can change
//! that mixture once more, even after the next server has returned it to a client ([`Engine`]).
//!
//! Creating a disk is atomic.
//!
//! # What happens when the medium fails
//!
//! A request to bytes that are missing, because the file was truncated or the memory is poisoned, fails with EIO, and the server continues. For
//! this it installs a SIGBUS handler at the first request ([`pm_core::fault`]). The bytes are accessible again when the file has grown back, or the
//! operator has cleared the poison. A corrupted pool header is restored from its backup.
//!
//! # Limitations
//!
//! Sectors are not written atomically, as with the kernel's `pmem` driver without a BTT. There is no encryption, no snapshot, and no access control
//! beyond that of the socket and of the device node.
#![deny(unsafe_code)]

pub mod buffer;
pub mod disk;
pub mod engine;
pub mod nbd;
pub mod ublk;

mod panics;
mod polling;
mod throttle;

pub use buffer::{BufferError, BufferOptions, Slots};
pub use disk::{Disk, DiskError, DiskInfo, DiskOptions};
pub use engine::{
    BlockError, BlockOp, Engine, Geometry, GeometryError, SectorSize, WriteBackError, WriteBackMark,
    WriteCache, WritePolicy, WriteScheme, WriteSetup,
};
pub use nbd::{NbdClient, NbdClients, NbdCounts, NbdError, NbdOptions, NbdPeer, NbdServer, NbdStats};
