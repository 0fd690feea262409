//! Fetches tags that are never served.
#![expect(unsafe_code, reason = "the kernel is given the address of a buffer")]

use crate::command::{IoCommand, io_payload};
use crate::device::CharDevice;
use crate::error::QueueError;
use crate::sys;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::fmt;

/// A ring of the calling thread that offers tags of a device and never serves them.
///
/// When the thread has ended, and this is dropped after that, the driver cancels the fetches. Then the thread stays on record as the server of the queue.
pub struct Offer {
    ring: IoUring,
    device: CharDevice,
    features: u64,
}

/// The buffer of every tag. The driver cannot write to it, so a write request would fail.
static NO_DATA: [u8; 4096] = [0; 4096];

impl Offer {
    /// Makes a ring for queues of `depth` tags of a device that was granted `features`.
    ///
    /// # Errors
    /// If the kernel has too little memory, or no io_uring.
    pub fn new(device: CharDevice, depth: u16, features: u64) -> Result<Self, QueueError> {
        let ring = IoUring::builder().build(depth.into());
        Ok(Self { ring: ring.map_err(QueueError::system("setting up an io_uring"))?, device, features })
    }

    /// Offers to fetch all tags of a queue, in one system call. Returns whether the driver has accepted any; it refuses if the queue has a server.
    ///
    /// # Errors
    /// If the ring fails, or has less room than the queue has tags.
    pub fn fetch_all(&mut self, queue: u16, depth: u16) -> Result<bool, QueueError> {
        for tag in 0..depth {
            let entry = self.fetch(queue, tag);
            // SAFETY: the descriptor is open for as long as `self`. The only address in the entry is that of a static.
            unsafe { self.ring.submission().push(&entry) }
                .map_err(|_| QueueError::system("filling an io_uring")(Errno::NOBUFS))?;
        }
        // The kernel submits fewer in one call only if it is out of memory.
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INTR | Errno::AGAIN)) => {}
                Err(e) => return Err(QueueError::system("fetching a queue's tags")(e)),
            }
        }
        // A refused fetch completes at once, an accepted one when it is cancelled.
        let refused = self.ring.completion().by_ref().count();
        Ok(refused < usize::from(depth))
    }

    fn fetch(&self, queue: u16, tag: u16) -> squeue::Entry {
        let address = NO_DATA.as_ptr() as u64;
        let payload = io_payload(sys::ublksrv_io_cmd { q_id: queue, tag, result: -1, addr: address });
        let number = IoCommand::Fetch.number(self.features);
        opcode::UringCmd16::new(types::Fd(self.device.raw()), number).cmd(payload).build()
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer").field("device", &self.device).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// A directory refuses each command, and /dev/null completes it.
    #[test]
    fn completed_fetches_are_not_accepted() {
        for path in ["/", "/dev/null"] {
            let device = CharDevice::of(File::open(path).unwrap());
            let mut offer = Offer::new(device, 8, 0).unwrap();
            assert!(!offer.fetch_all(0, 8).unwrap());
            assert!(!offer.fetch_all(1, 8).unwrap(), "the ring is free again");
        }
    }

    #[test]
    fn queue_deeper_than_ring_is_an_error() {
        let device = CharDevice::of(File::open("/").unwrap());
        let refused = Offer::new(device, 8, 0).unwrap().fetch_all(0, 9).unwrap_err();
        assert!(matches!(refused, QueueError::System { .. }), "{refused}");
    }
}
