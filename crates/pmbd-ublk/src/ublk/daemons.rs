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
#![expect(unsafe_code, reason = "the kernel is given the address of a buffer")]

use super::error::UblkError;
use super::info::DeviceInfo;
use io_uring::{IoUring, opcode, squeue, types};
use libublk_rs_sys as sys;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The longest time that the kernel takes to close a dead server's descriptors.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause between two attempts meanwhile.
const RETRY: Duration = Duration::from_millis(5);
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
    let (ring, accepted) = offering.join().map_err(|_| UblkError::Queue {
        device_id: device.device_id,
        queue: 0,
        reason: "the thread that restores its record panicked".into(),
    })??;
    drop(ring);
    // Can be opened again when the driver has cancelled all fetches. This shows that the takeover will get its descriptor.
    drop(open(device.device_id)?);
    wait_for_deferred_work();
    Ok(accepted)
}

/// Fetches the tags of every queue that accepts it. The ring must be dropped after the calling thread has ended.
fn offer(device: &DeviceInfo) -> Result<(Ring, bool), UblkError> {
    let file = open(device.device_id)?;
    let ring = IoUring::builder().build(device.depth.into());
    let mut ring = Ring { ring: ring.map_err(UblkError::system("setting up an io_uring"))?, file };
    let mut accepted = false;
    for queue in 0..device.queues {
        accepted |= ring.fetch_all(queue, device.depth)?;
    }
    Ok((ring, accepted))
}

/// A ring with commands for a character device.
struct Ring {
    ring: IoUring,
    file: File,
}

/// The buffer of every fetched tag. It is never used: a quiesced device delivers no requests.
static NO_DATA: [u8; 4096] = [0; 4096];

impl Ring {
    /// Offers to fetch all tags of a queue. Whether the driver accepted.
    fn fetch_all(&mut self, queue: u16, depth: u16) -> Result<bool, UblkError> {
        for tag in 0..depth {
            let entry = fetch(self.file.as_raw_fd(), queue, tag);
            // SAFETY: the descriptor is open for as long as `self`. The only address in the entry is that of a static, and
            // the driver does not access it while the device is quiesced.
            unsafe { self.ring.submission().push(&entry) }
                .map_err(|_| UblkError::system("filling an io_uring")(Errno::NOBUFS))?;
        }
        // One call for all tags; the kernel submits fewer only if it is out of memory.
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INTR | Errno::AGAIN)) => {}
                Err(e) => return Err(UblkError::system("fetching a queue's tags")(e)),
            }
        }
        // A refused fetch completes at once, an accepted one when it is cancelled.
        let refused = self.ring.completion().by_ref().count();
        Ok(refused < usize::from(depth))
    }
}

/// The command that fetches one tag.
#[expect(clippy::host_endian_bytes, reason = "for the kernel of this host")]
fn fetch(device: i32, queue: u16, tag: u16) -> squeue::Entry {
    let mut payload = [0; 16];
    payload[0..2].copy_from_slice(&queue.to_ne_bytes());
    payload[2..4].copy_from_slice(&tag.to_ne_bytes());
    payload[4..8].copy_from_slice(&(-1_i32).to_ne_bytes());
    payload[8..16].copy_from_slice(&(NO_DATA.as_ptr() as u64).to_ne_bytes());
    opcode::UringCmd16::new(types::Fd(device), sys::UBLK_U_IO_FETCH_REQ).cmd(payload).build()
}

/// Opens the character device, which one process at a time may have open, once the dead server's descriptors are closed.
fn open(device_id: u32) -> Result<File, UblkError> {
    let path = format!("/dev/ublkc{device_id}");
    let started = Instant::now();
    loop {
        match File::options().read(true).write(true).open(&path) {
            Err(e)
                if Errno::from_io_error(&e) == Some(Errno::BUSY) && started.elapsed() < RELEASE_TIMEOUT =>
            {
                std::thread::sleep(RETRY);
            }
            result => return result.map_err(UblkError::system("opening the ublk character device")),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn fetch_payload_matches_kernel_structure() {
        let command = sys::ublksrv_io_cmd { q_id: 0x0201, tag: 0x0403, result: -1, addr: 7 };
        assert_eq!(size_of_val(&command), 16);
        assert_eq!(
            (
                std::mem::offset_of!(sys::ublksrv_io_cmd, q_id),
                std::mem::offset_of!(sys::ublksrv_io_cmd, tag),
                std::mem::offset_of!(sys::ublksrv_io_cmd, result),
                std::mem::offset_of!(sys::ublksrv_io_cmd, addr)
            ),
            (0, 2, 4, 8)
        );
    }
}
