//! The requests of a queue, as the driver describes them in memory that it shares with the server.
#![expect(unsafe_code, reason = "reads memory that the kernel writes")]

use crate::error::QueueError;
use crate::sys;
use memmap2::{MmapOptions, MmapRaw};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The descriptors of one queue, one for each tag.
pub(crate) struct Descriptors {
    map: MmapRaw,
    depth: u16,
}

/// The length of an array of descriptors.
const fn array_bytes(depth: u32) -> usize {
    depth as usize * size_of::<sys::ublksrv_io_desc>()
}

/// The position of a queue's descriptors in the character device: each queue has room for the greatest depth, in whole pages.
fn offset_bytes(queue: u16, page_bytes: usize) -> u64 {
    let stride = array_bytes(sys::UBLK_MAX_QUEUE_DEPTH).next_multiple_of(page_bytes);
    u64::from(sys::UBLKSRV_CMD_BUF_OFFSET) + u64::from(queue) * stride as u64
}

impl Descriptors {
    /// Maps those of `queue`.
    pub(crate) fn map(device: BorrowedFd<'_>, queue: u16, depth: u16) -> Result<Self, QueueError> {
        let offset = offset_bytes(queue, rustix::param::page_size());
        let mut options = MmapOptions::new();
        let options = options.offset(offset).len(array_bytes(depth.into())).populate();
        let map = options.map_raw_read_only(device.as_raw_fd());
        Ok(Self { map: map.map_err(QueueError::system("mapping a queue's descriptors"))?, depth })
    }

    /// The request of a tag whose command has completed.
    ///
    /// # Panics
    /// If `tag` is not below the queue's depth.
    #[inline]
    pub(crate) fn read(&self, tag: u16) -> sys::ublksrv_io_desc {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        let at = self.map.as_ptr().cast::<sys::ublksrv_io_desc>().wrapping_add(tag.into());
        // SAFETY: the mapping is page-aligned, has `depth` descriptors, and lives as long as `self`; every bit pattern is a descriptor.
        // The driver writes a descriptor only while the tag is its own. If it did at another time, the volatile read would return a mixture, which
        // the server checks as it checks every request.
        unsafe { at.read_volatile() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn queues_have_room_for_the_greatest_depth() {
        assert_eq!(array_bytes(128), 3072);
        assert_eq!(offset_bytes(0, 4096), 0);
        // 24 pages of 4 KiB, and two of 64 KiB.
        assert_eq!(offset_bytes(3, 4096), 3 * 98304);
        assert_eq!(offset_bytes(3, 65536), 3 * 131_072);
        assert_eq!(offset_bytes(u16::MAX, 65536), 65535 * 131_072);
    }

    #[test]
    #[should_panic(expected = "tag 8 of 8")]
    fn tag_beyond_depth_is_not_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        Descriptors::map(file.as_fd(), 0, 8).unwrap().read(8);
    }

    #[test]
    fn unmappable_device_is_an_error() {
        let directory = std::fs::File::open("/").unwrap();
        assert!(matches!(Descriptors::map(directory.as_fd(), 0, 8), Err(QueueError::System { .. })));
    }
}
