//! The bytes of the slots. `docs/format/slots.md` documents them.

use pm_core::Persist;

/// The unit of buffering: 4 KiB of the device, at a multiple of 4 KiB.
pub const BLOCK: usize = 4096;

/// [`BLOCK`], for offsets.
pub const BLOCK_BYTES: u64 = 4096;

/// The first word of the slots.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PMBDSLOT");

/// The most slots.
pub const SLOTS_MAX: u64 = 1 << 32;

/// The bits of a filled slot's block: two, so that one flipped bit does not make the slot look free.
pub const FILLED: u64 = 3 << 62;

/// The offset of the first slot's header.
pub const HEADERS_OFFSET: u64 = 64;

/// The start of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct SlotsHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// The number that the device's mark has while these slots belong to it.
    pub session: u64,
    /// The number of slots.
    pub slot_count: u64,
    /// The device number of the file system with the disk that the slots belong to; zero if it has no file.
    pub disk_device: u64,
    /// The disk's inode number there.
    pub disk_inode: u64,
    /// CRC-32C of the bytes before it.
    pub crc: u32,
    /// Zero.
    pub reserved: u32,
    /// The disk's next generation, stored before the disk has it.
    pub generation_next: u64,
    /// The disk's generation, stored after the disk has it.
    pub generation: u64,
}

impl SlotsHeader {
    /// The checksum that its contents give.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        pm_core::crc32c_bytes(0, &pm_core::bytes_of(self)[..core::mem::offset_of!(Self, crc)])
    }
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct SlotHeader {
    /// The number of the block with [`FILLED`] set; zero if the slot is free. Stored last.
    pub filled_block: u64,
    /// Of two slots with the same block, the one with the higher number is the newer.
    pub sequence: u64,
    /// The length of the block: less than 4 KiB only at the end of the device.
    pub len_bytes: u32,
    /// CRC-32C of the block's number, the sequence number and the bytes.
    pub crc: u32,
    /// Zero.
    pub reserved: u64,
}

const _: () = {
    assert!(size_of::<SlotsHeader>() == 64);
    assert!(core::mem::offset_of!(SlotsHeader, generation_next) == 48);
    assert!(HEADERS_OFFSET == size_of::<SlotsHeader>() as u64);
    assert!(size_of::<SlotHeader>() == 32);
};
