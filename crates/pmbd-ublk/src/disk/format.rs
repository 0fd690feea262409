//! The bytes of a disk in a pool: its descriptor, and the place of its sectors. `docs/format/disk.md` documents them.

use crate::engine::WriteBackMark;
use pm_core::Persist;
use pm_core::pool::format::{DATA_START_MIN, HEADER_BYTES};

/// The name of the root that links to the descriptor.
pub const ROOT: &str = "pmbd.disk";

/// The offset of the descriptor in a pool created by this program; no other data is in this page.
pub const DESCRIPTOR_OFFSET: u64 = DATA_START_MIN;

/// The alternate offset of the descriptor. Each change of the disk writes the descriptor that the root does not link to, so the root always links
/// to a complete one.
pub const ALTERNATE_DESCRIPTOR_OFFSET: u64 = DESCRIPTOR_OFFSET + size_of::<Descriptor>() as u64;

/// The sectors of a large disk start at this offset, and the length of its file is a multiple of it, so that huge pages can map the disk.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The smallest capacity of a large disk.
pub const LARGE_DISK_BYTES_MIN: u64 = 64 << 20;

/// The start of a small disk's sectors: after the descriptor's page.
pub const SMALL_START: u64 = DESCRIPTOR_OFFSET + HEADER_BYTES;

/// A pool's record of its disk. One cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Descriptor {
    /// The offset of the first sector in the region, a multiple of 4,096.
    pub start_bytes: u64,
    /// The disk's size.
    pub capacity_bytes: u64,
    /// The logical sector: 512 or 4,096.
    pub sector_bytes: u32,
    /// Zero.
    pub reserved_0: u32,
    /// [`UNFLUSHED`](Self::UNFLUSHED) while completed writes may be in the CPU's caches only, and were not asked to be durable; else zero. Any other
    /// value counts as the former. Changes in place.
    pub unflushed: u64,
    /// While writes are buffered, the number of times that stores to the sectors were begun. It tells an older copy of the disk, which the slots must not
    /// be stored to. Else any value. Changes in place, as `unflushed`.
    pub generation: u64,
    /// Zero.
    pub reserved: [u8; 20],
    /// CRC-32C of all bytes before this field, computed with zero for `unflushed` and `generation`.
    pub crc: u32,
}

const _: () = {
    assert!(size_of::<Descriptor>() == 64);
    assert!(core::mem::offset_of!(Descriptor, capacity_bytes) == 8);
    assert!(core::mem::offset_of!(Descriptor, sector_bytes) == 16);
    assert!(core::mem::offset_of!(Descriptor, unflushed) == 24);
    assert!(core::mem::offset_of!(Descriptor, generation) == 32);
    assert!(core::mem::offset_of!(Descriptor, crc) == 60);
    assert!(SMALL_START == 12_288);
};

impl Descriptor {
    /// The value of [`unflushed`](Self::unflushed) while a server defers writes.
    pub const UNFLUSHED: u64 = WriteBackMark::SET;

    /// A sealed descriptor.
    #[must_use]
    pub fn new(start_bytes: u64, capacity_bytes: u64, sector_bytes: u32) -> Self {
        let mut descriptor = Self {
            start_bytes,
            capacity_bytes,
            sector_bytes,
            reserved_0: 0,
            unflushed: 0,
            generation: 0,
            reserved: [0; 20],
            crc: 0,
        };
        descriptor.crc = descriptor.expected_crc();
        descriptor
    }

    /// The checksum of these fields.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        let checked = Self { unflushed: 0, generation: 0, ..*self };
        crc32c::crc32c(&pm_core::bytes_of(&checked)[..core::mem::offset_of!(Self, crc)])
    }

    /// The mark of the disk whose descriptor is at `offset`.
    #[must_use]
    pub const fn mark(offset: u64) -> WriteBackMark {
        WriteBackMark::at(offset + core::mem::offset_of!(Self, unflushed) as u64)
    }
}

/// The start of the sectors of a disk of this capacity, and the length of its pool. `None` if the length exceeds 64 bits.
#[must_use]
pub fn pool_layout(capacity_bytes: u64) -> Option<(u64, u64)> {
    let (start_bytes, multiple) = start_and_multiple(capacity_bytes >= LARGE_DISK_BYTES_MIN);
    let end = start_bytes.checked_add(capacity_bytes)?.checked_add(HEADER_BYTES)?;
    Some((start_bytes, end.checked_next_multiple_of(multiple)?))
}

/// The start of the sectors, and the capacity, of the largest disk in a region of a given length. The capacity is zero if none fits.
#[must_use]
pub fn largest_in(region_bytes: u64, sector_bytes: u64) -> (u64, u64) {
    let (start_bytes, _) = start_and_multiple(region_bytes >= LARGE_DISK_BYTES_MIN + 2 * HUGE_PAGE_BYTES);
    let room = region_bytes.saturating_sub(HEADER_BYTES).saturating_sub(start_bytes);
    (start_bytes, room - room % sector_bytes)
}

const fn start_and_multiple(large: bool) -> (u64, u64) {
    if large { (HUGE_PAGE_BYTES, HUGE_PAGE_BYTES) } else { (SMALL_START, HEADER_BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn disk_lies_between_descriptor_and_backup(capacity in 1_u64..1 << 50) {
            let (start, pool) = pool_layout(capacity).unwrap();
            prop_assert!(start >= SMALL_START);
            prop_assert!(start + capacity <= pool - HEADER_BYTES);
            prop_assert!(pool - capacity <= 2 * HUGE_PAGE_BYTES + HEADER_BYTES);
            prop_assert!(pool.is_multiple_of(HEADER_BYTES));
            prop_assert!(capacity < LARGE_DISK_BYTES_MIN || pool.is_multiple_of(HUGE_PAGE_BYTES));
        }

        #[test]
        fn largest_disk_fits(region in 0_u64..1 << 50) {
            let (start, capacity) = largest_in(region, 4096);
            prop_assert!(capacity.is_multiple_of(4096));
            prop_assert!(capacity == 0 || start + capacity <= region - HEADER_BYTES);
        }
    }

    #[test]
    fn capacity_beyond_64_bits_is_none() {
        assert_eq!(pool_layout(u64::MAX - 100), None);
    }
}
