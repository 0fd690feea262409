//! Before a takeover: repairs the driver's record of a device's queues.
//!
//! The driver records for each queue the thread that serves it, its *daemon*. It begins a recovery (START_USER_RECOVERY) by dropping the
//! daemon of each queue, and records a queue's next daemon when that thread has fetched all of the queue's tags. A server that is killed
//! between the two leaves queues without a daemon. Up to Linux 6.15 the next START_USER_RECOVERY then fails with EINVAL, if no queue has
//! one, and dereferences a null pointer in the kernel, if only some have. The driver does not tell in which of these states a device is.
//!
//! So every takeover begins with [`ensure_daemons`]: a thread offers to fetch all tags of every queue, and ends. A queue with a daemon on
//! record, the normal case, refuses. A queue without one accepts, and from then on its daemon on record is a thread that has ended, which
//! is what START_USER_RECOVERY expects. No request reaches that thread, as the device is quiesced.
//!
//! All tags of a queue are submitted in one system call, here and by a queue's own thread. A kill comes before or after it, so a queue never
//! has a part of its tags fetched: the driver could not cancel those.
//!
//! # Source
//! drivers/block/ublk_drv.c of Linux 6.12: `ublk_ctrl_start_recovery`, `ublk_queue_reinit`, `ublk_mark_io_ready`, `ublk_uring_cmd_cancel_fn`.

use super::device;
use super::error::UblkError;
use super::info::DeviceInfo;
use pm_ublk::{CharDevice, Offer, QueueError};
use rustix::io::Errno;
use std::time::Duration;

/// The longest time that the kernel takes to close a dead server's descriptors.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest time that the driver's deferred work takes, for kernels without a way to wait for it.
const DEFERRED_WORK: Duration = Duration::from_millis(50);

/// Makes every queue of a quiesced device have a daemon on record that has ended. Whether any queue had none.
///
/// # Errors
/// When the character device cannot be opened, or a ring or a thread cannot be made. The device still waits, and the next call continues
/// where this one ended.
pub(super) fn ensure_daemons(device: &DeviceInfo) -> Result<bool, UblkError> {
    let thread = std::thread::Builder::new().name(format!("ublk{}-daemon", device.device_id));
    let device = *device;
    let offering = thread.spawn(move || offer(&device)).map_err(UblkError::system("starting a thread"))?;
    // The ring is closed after its thread has ended: the driver cancels the fetches of a thread that has ended.
    let (offer, accepted) = offering.join().map_err(|_| UblkError::Queue {
        device_id: device.device_id,
        queue: 0,
        reason: "the thread that restores its record panicked".into(),
    })??;
    drop(offer);
    // Can be opened again when the driver has cancelled all fetches. This shows that the takeover will get its descriptor.
    drop(open(device.device_id)?);
    wait_for_deferred_work();
    Ok(accepted)
}

/// Fetches the tags of every queue that accepts it. The offer must be dropped after the calling thread has ended.
fn offer(device: &DeviceInfo) -> Result<(Offer, bool), UblkError> {
    let failed = |queue| {
        move |why: QueueError| UblkError::Queue {
            device_id: device.device_id,
            queue,
            reason: why.to_string(),
        }
    };
    let opened = open(device.device_id)?;
    let mut offer = Offer::new(opened, device.depth, device.features.bits()).map_err(failed(0))?;
    let mut accepted = false;
    for queue in 0..device.queues {
        accepted |= offer.fetch_all(queue, device.depth).map_err(failed(queue))?;
    }
    Ok((offer, accepted))
}

/// Opens the character device, which one process at a time may have open, once the dead server's descriptors are closed.
fn open(device_id: u32) -> Result<CharDevice, UblkError> {
    device::open(device_id, RELEASE_TIMEOUT, |errno| errno == Errno::BUSY)
}

/// Waits until the driver has run the work that it deferred when the last server's threads ended. Run later, that work would abort the tags
/// that the next server has fetched.
///
/// Reading this file makes the kernel queue work on each CPU, after all work queued before, and wait for it.
///
/// # Source
/// mm/vmstat.c, `vmstat_refresh`; kernel/workqueue.c, `schedule_on_each_cpu`.
fn wait_for_deferred_work() {
    if std::fs::read("/proc/sys/vm/stat_refresh").is_err() {
        std::thread::sleep(DEFERRED_WORK);
    }
}
