//! The engine as `/dev/ublkbN`: the ublk transport.
//!
//! # The life of a request
//! ublk is a block driver in the kernel whose requests are served by a process. Each device has queues, each
//! queue has `depth` tags, and each tag has a buffer of the server's. A queue is served by one thread with
//! one io_uring:
//!
//! 1. At the start the thread *fetches* every tag: a command on the ring that says "the next request may use
//!    this tag and this buffer", and that completes when there is one.
//! 2. A file system submits a request to `/dev/ublkbN`. The driver takes a free tag, describes the request in
//!    memory shared with the server (operation, flags, first sector, sectors), copies a write's data into the
//!    tag's buffer, and completes the fetch.
//! 3. The thread sees the completion, checks the description (nothing of it is taken on trust), and runs it
//!    as a [`BlockOp`](crate::BlockOp) on the [`Engine`](crate::Engine), to its end: a request from memory is
//!    done before another one could be started, so there is no executor and no allocation, only a loop.
//! 4. It answers with *commit and fetch*: bytes done or a negative errno, and the same tag and buffer again.
//!    The answers of all requests that were found together go to the kernel in one system call, the one that
//!    also waits for the next. For a read the driver then copies the buffer to where the request wants it.
//!
//! Waking a thread costs more than such a request, so a queue that gets requests often looks for the next one
//! for a few microseconds before it sleeps ([`Options::spin`]).
//!
//! # Flushes
//! Where a completed write is durable the device says that it has no volatile cache, and the kernel sends
//! neither FLUSH nor FUA. Where it is not, in the page domain, it says that it has one and that it
//! understands both.
//!
//! # The life of a recovery
//! The device belongs to the driver, not to the server. With user recovery, which [`serve`] asks for, the
//! driver makes a device whose server has died *quiesced*: requests wait, those in flight too, and a mounted
//! file system notices nothing but a delay. The next [`serve`] of the same pool finds it by the mark that the
//! device carries ([`DeviceIdentity`]), checks that clients would not see it change (capacity, sector,
//! cache), and takes its counts of queues, tags and bytes from the driver. It makes all that it needs
//! (threads, rings, buffers), tells the driver that a recovery begins, fetches every tag, and tells it that the recovery
//! ends. A server that is killed in between, or fails, leaves the device waiting as it was: `settle.rs` has how. The driver *reissues* what was in
//! flight: such a request may run a second time, which is harmless, for until it completes its range may hold
//! old or new data anyway.
//!
//! # Limitations
//! Who has the device open without holding it exclusively is not seen by [`in_use`]. Data is copied once
//! between request and buffer, as the driver can do without only from kernel 6.15 on.
//!
//! # Source
//! The kernel's documentation, `Documentation/block/ublk.rst`.

mod control;
mod device;
mod error;
mod features;
mod libublk;
mod namespace;
mod options;
mod recover;
mod remove;
mod request;
mod serve;
mod settle;
mod shutdown;
mod spin;
mod transport;
mod usage;
mod workers;

pub use device::{DeviceInfo, DeviceState, devices};
pub use error::{UblkError, UblkUnavailable};
pub use features::{Features, available};
pub use namespace::isolate_mounts;
pub use options::{Affinity, DeviceIdentity, Options, OptionsError};
pub use recover::{find_recoverable, may_any_wait};
pub use remove::stop;
pub use serve::{Ended, Event, Granted, serve};
pub use shutdown::{Shutdown, ShutdownHandle, ShutdownSignal};
pub use usage::{Usage, in_use};
