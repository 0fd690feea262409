//! Virtual machines with a real kernel and persistent memory, booted in seconds without root.
//!
//! [`Vm`] runs QEMU with an NVDIMM backed by a file of the host, Debian's 6.12 kernel, which has ublk, and a small initramfs. An agent in the guest
//! runs commands that it receives over a virtio-serial port, and returns their output and exit codes. The guest's second serial port carries
//! *reports*: lines that survive a power cut once they are written.
//!
//! ```no_run
//! use xtask::vm::Vm;
//!
//! # fn main() -> miette::Result<()> {
//! let mut vm = Vm::builder().dax(true).start()?;
//! let output = vm.run("df /mnt/pmem")?;
//! assert_eq!(output.status, 0);
//! vm.run("echo hello > /mnt/pmem/file; sync; echo written > /dev/report")?;
//! let reports = vm.power_cut()?; // SIGKILL; the NVDIMM's file keeps what the guest had stored
//! assert_eq!(reports, ["written"]);
//! # Ok(())
//! # }
//! ```
//!
//! Two guests are joined by a network cable: see [`Plug`].
//!
//! # Limitations
//! QEMU's software emulation has no caches: a store is in the NVDIMM's file at once, so a power cut does not reveal a missing flush. It reveals stores
//! in the wrong order, lost writes, and failing recovery.

mod builder;
mod cache;
mod frame;
mod initramfs;
mod kernel;
mod link;
mod machine;
mod modules;
mod nvdimm;
mod qemu;
mod report;
mod setup;
mod tree;

pub use builder::{Builder, MIB, Plug, Put, Share};
pub use link::TimedOut;
pub use machine::{Output, Vm};
