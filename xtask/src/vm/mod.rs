//! A real kernel with persistent memory, in seconds, without root.
//!
//! [`Vm`] runs QEMU with an NVDIMM whose memory is a file of the host, Debian's 6.12 kernel (it has ublk),
//! and a small initramfs. Commands go to an agent in the guest over a virtio-serial port, and come back with
//! their output and exit code. The guest's second serial port carries *reports*: lines that reach the host
//! before the guest's power can be cut.
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
//! # Limitations
//! QEMU's software emulation has no caches: a store is in the NVDIMM's file as soon as it is made, and a
//! forgotten flush does not show after a power cut. What shows is a wrong order of stores, a lost write, a
//! recovery that fails.

mod builder;
mod cache;
mod elf;
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

pub use builder::{Builder, MIB, Put, Share};
pub use link::TimedOut;
pub use machine::{Output, Vm};
