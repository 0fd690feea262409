//! The server's side of ublk, the block driver of Linux whose requests are served by a process.
//!
//! - [`Control`] sends the commands of `/dev/ublk-control`: adding, starting, stopping and deleting devices, and their recovery.
//! - [`CharDevice`] is `/dev/ublkcN`, through which the server of device `N` gets its requests.
//! - [`Queue`] serves one queue of a device on one thread: it gets requests, lends the buffer of each, and submits the answers.
//! - [`Offer`] fetches tags that it never serves, for the repair of a device whose takeover was interrupted.
//! - [`sys`] has the constants and structures of `<linux/ublk_cmd.h>`.
//!
//! # The life of a device
//! [`Control::add`] makes `/dev/ublkcN`. For each queue a thread makes a [`PreparedQueue`], which allocates what it needs, and offers all tags with
//! [`PreparedQueue::fetch`] and a first [`Queue::turn`]. [`Control::set_params`] and [`Control::start`] make `/dev/ublkbN`. Each further
//! [`Queue::turn`] serves the requests that have arrived, until [`Control::stop`] aborts all tags. [`Control::delete`] removes `/dev/ublkcN`.
//!
//! A device with `UBLK_F_USER_RECOVERY` outlives its server. The next server calls [`Control::begin_recovery`], offers all tags of the queues, and calls
//! [`Control::end_recovery`].
//!
//! ```no_run
//! use pm_ublk::{CharDevice, Control, PreparedQueue, Turn, sys};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (depth, max_io_bytes) = (64, 1 << 19);
//! let wanted = sys::ublksrv_ctrl_dev_info {
//!     nr_hw_queues: 1,
//!     queue_depth: depth,
//!     max_io_buf_bytes: max_io_bytes,
//!     dev_id: pm_ublk::ANY_DEVICE,
//!     ..Default::default()
//! };
//! let mut control = Control::open()?;
//! let added = control.add(&wanted)?;
//! let device = CharDevice::open(added.dev_id)?;
//! let mut queue = PreparedQueue::new(depth, max_io_bytes)?.fetch(&device, &added, 0, None)?;
//! // Another thread calls `set_params` and `start` after the first turn. Here each request succeeds, and reads return zeros.
//! while let Turn::Served { .. } = queue.turn(1, |request, _buffer| Ok(request.nr_sectors * 512))? {}
//! # Ok(())
//! # }
//! ```
//!
//! # Limitations
//! Data is copied between a request and the buffer of its tag. There are no zoned devices, no zero copy, no devices of other users than root
//! (`UBLK_F_UNPRIVILEGED_DEV`), and no big-endian hosts.
//!
//! # Source
//! The kernel's documentation, `Documentation/block/ublk.rst`, and its header `<linux/ublk_cmd.h>`.
#![deny(unsafe_code)]

pub mod sys;

mod buffers;
mod command;
mod control;
mod descriptors;
mod device;
mod error;
mod offer;
mod queue;

pub use control::{ANY_DEVICE, Control};
pub use device::{CharDevice, DeviceRecord};
pub use error::{ControlError, QueueError};
pub use offer::Offer;
pub use queue::{PreparedQueue, Queue, Turn};
