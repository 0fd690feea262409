//! The engine as `/dev/ublkbN`: the ublk transport.
//!
//! # The life of a request
//! ublk is a block driver in the kernel whose requests are served by a process. Each device has queues, each queue has `depth` tags, and
//! each tag has a buffer of the server's. A queue is served by one thread with one io_uring (`queue.rs`, over the crate `pm-ublk`):
//!
//! 1. At the start the thread *fetches* every tag: a command on the ring that offers the tag and its buffer for the next request, and that
//!    completes when there is one.
//! 2. A file system submits a request to `/dev/ublkbN`. The driver takes a free tag, describes the request in memory shared with the server
//!    (operation, flags, first sector, sectors), copies a write's data into the tag's buffer, and completes the fetch.
//! 3. The thread sees the completion, checks the description (`queue.rs`), and runs it as a [`BlockOp`](crate::BlockOp) on the
//!    [`Engine`](crate::Engine), to its end: a request from memory completes before another one could be started, so there is no executor
//!    and no allocation, only a loop.
//! 4. The thread answers with *commit and fetch*: bytes done or a negative errno, and the same tag and buffer again. The answers of all
//!    requests that were found together are submitted in one system call, which also waits for the next. For a read the driver then copies
//!    the buffer to the request's pages.
//!
//! Waking a thread costs more than such a request, so a busy queue polls for some microseconds before it sleeps ([`Options::spin`]).
//!
//! # Flushes
//! Where a completed write is durable the device reports no volatile cache, and the kernel sends neither FLUSH nor FUA. In the page domain
//! the device reports a volatile cache, and supports both.
//!
//! # The life of a recovery
//! The device belongs to the driver, not to the server. With user recovery, which [`serve`] requests, the driver makes a device whose server
//! has died *quiesced*: requests wait, those in flight too, and a mounted file system notices only a delay. The next [`serve`] of the same
//! pool finds it by the mark that the device carries ([`DeviceIdentity`]), checks that clients would not see it change (capacity, sector,
//! cache), and takes its counts of queues, tags and bytes from the driver. It makes all that it needs (threads, rings, buffers), begins the
//! recovery, fetches every tag, and ends the recovery. A server that is killed in between, or fails, leaves the device waiting as it was:
//! see `daemons.rs`. The driver *reissues* the requests that were in flight. Such a request may run a second time, which is harmless: until
//! it completes its range may hold old or new data anyway.
//!
//! # Limitations
//! [`in_use`] does not see processes that have the device open without holding it exclusively. Data is copied once between request and
//! buffer, which the driver can avoid only from kernel 6.15 on.
//!
//! # Source
//! The kernel's documentation, `Documentation/block/ublk.rst`.

mod daemons;
mod device;
mod devices;
mod error;
mod info;
mod mounts;
mod options;
mod queue;
mod serve;
mod shutdown;
mod spec;
mod usage;
mod workers;

pub use devices::{available, devices, find_recoverable, may_any_wait};
pub use error::{OptionsError, UblkError, UblkUnavailable, Usage};
pub use info::{DeviceIdentity, DeviceInfo, DeviceState, Features};
pub use mounts::isolate_mounts;
pub use options::{Affinity, Options};
pub use serve::{Ended, Event, Granted, serve};
pub use shutdown::{Shutdown, ShutdownHandle, ShutdownSignal};
pub use usage::{in_use, stop};
