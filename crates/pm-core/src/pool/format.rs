//! The layout of a pool: the header, its backup, and the root directory. `docs/format/pool.md` describes it in prose.

use crate::Persist;
use crate::persist::bytes_of;
use core::mem::{offset_of, size_of};

/// The first eight bytes of a pool. Like the PNG signature, they detect a transfer that converted line endings or cleared the high bit of bytes.
pub const MAGIC: [u8; 8] = *b"\x89PM\r\n\x1a\n\0";

/// The format version. A program opens only pools of its own version. A change that a feature bit can announce does not increment it.
///
/// In version 1 the bytes of a free root slot were zero, so a slot that a stray write had zeroed looked free.
pub const VERSION: u32 = 2;

/// The compatible features that this version supports. A program may ignore those that it does not support.
pub const KNOWN_COMPAT: u64 = 0;
/// The features required for writing that this version supports. A pool that requires other such features may only be read.
pub const KNOWN_RO_COMPAT: u64 = LOGGED_ROOTS;
/// The features required for opening that this version supports. A pool that requires other such features must not be opened.
pub const KNOWN_INCOMPAT: u64 = 0;

/// A bit of [`Header::features_ro_compat`]: the root directory is changed only by transactions of a log in the data area.
pub const LOGGED_ROOTS: u64 = 1;

/// The length of the header and of its backup. The pool's length and the start of its data area are multiples of this length.
pub const HEADER_BYTES: u64 = 4096;

/// The start of the root directory, after the header.
pub const ROOTS_START: u64 = HEADER_BYTES;

/// The number of root slots. One slot stays free, so that a root can always be replaced.
pub const ROOT_COUNT: u64 = 64;

/// The lowest possible start of the data area: after the root directory.
pub const DATA_START_MIN: u64 = ROOTS_START + ROOT_COUNT * size_of::<RootSlot>() as u64;

/// The length of the smallest pool: header, roots, one page of data, backup.
pub const POOL_BYTES_MIN: u64 = DATA_START_MIN + 2 * HEADER_BYTES;

/// The maximum length of a root's name, in bytes of UTF-8.
pub const ROOT_NAME_BYTES: usize = 24;

/// The pool header, at offset 0 and again in the last 4,096 bytes.
///
/// The checksum covers all bytes before it, including reserved bytes. Its offset and meaning never change, so a program distinguishes a corrupted
/// header from a header of a newer version.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// [`HEADER_BYTES`].
    pub header_bytes: u32,
    /// Features that any program may ignore.
    pub features_compat: u64,
    /// Features that a program must support to write.
    pub features_ro_compat: u64,
    /// Features that a program must support to open.
    pub features_incompat: u64,
    /// The pool's identity, by default a random UUID (RFC 9562, version 4). Neither 8-byte half is zero.
    pub uuid: [u8; 16],
    /// Incremented by each update of the header.
    pub generation: u64,
    /// The length of the whole pool.
    pub pool_bytes: u64,
    /// The start of the data area.
    pub data_start: u64,
    /// The length of the data area.
    pub data_bytes: u64,
    /// The start of the root directory: [`ROOTS_START`].
    pub roots_start: u64,
    /// The number of slots in the root directory.
    pub root_count: u64,
    /// The time at which the pool was created, in seconds since 1970.
    pub created_s: u64,
    /// Zero.
    pub reserved: [u8; 3980],
    /// CRC-32C of all bytes before it.
    pub crc: u32,
}

/// A slot of the root directory, one cache line long. A slot in use names a value in the data area.
///
/// A slot is free if its first word equals that of [`RootSlot::FREE`]. When a root is set, the first word is stored last: so a slot that is not free
/// is complete, and a wrong checksum in it is corruption. A slot of zeroes is not free. A log that changes the directory stores the words of a slot
/// in any order, so with a log a crash may also leave a wrong checksum, until the log is replayed.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct RootSlot {
    /// CRC-32C of all bytes after this field, or [`ROOT_FREE_CRC`] in a free slot.
    pub crc: u32,
    /// [`ROOT_IN_USE`] or [`ROOT_FREE`].
    pub state: u32,
    /// Of two slots with one name, the one with the higher generation is valid. A new root gets a higher generation than all slots, free or in use.
    pub generation: u64,
    /// The offset of the root's value.
    pub target_offset: u64,
    /// The length of the value.
    pub target_bytes: u64,
    /// The layout fingerprint of the value.
    pub layout: u64,
    /// The name in UTF-8, padded with zeroes.
    pub name: [u8; ROOT_NAME_BYTES],
}

/// [`RootSlot::state`] of a slot in use.
pub const ROOT_IN_USE: u32 = 1;

/// [`RootSlot::state`] of a free slot.
pub const ROOT_FREE: u32 = 2;

/// The checksum in a free root slot: the CRC-32C of [`ROOT_FREE`] and 56 zeroes, whatever the bytes after the first word are.
pub const ROOT_FREE_CRC: u32 = 0xB17C_4D87;

const _: () = {
    assert!(size_of::<Header>() as u64 == HEADER_BYTES);
    assert!(offset_of!(Header, version) == 8);
    assert!(offset_of!(Header, features_compat) == 16);
    assert!(offset_of!(Header, uuid) == 40);
    assert!(offset_of!(Header, generation) == 56);
    assert!(offset_of!(Header, pool_bytes) == 64);
    assert!(offset_of!(Header, data_start) == 72);
    assert!(offset_of!(Header, roots_start) == 88);
    assert!(offset_of!(Header, created_s) == 104);
    assert!(offset_of!(Header, reserved) == 112);
    assert!(offset_of!(Header, crc) == 4092);
    assert!(size_of::<RootSlot>() == 64);
    assert!(offset_of!(RootSlot, generation) == 8);
    assert!(offset_of!(RootSlot, name) == 40);
    assert!(DATA_START_MIN == 8192);
};

impl Header {
    /// The correct value of `crc` for the other fields.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        crc32c::crc32c(&bytes_of(self)[..offset_of!(Self, crc)])
    }

    /// The same header with the correct checksum.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.crc = self.expected_crc();
        self
    }
}

impl RootSlot {
    /// A free slot with the correct checksum.
    pub const FREE: Self = Self {
        crc: ROOT_FREE_CRC,
        state: ROOT_FREE,
        generation: 0,
        target_offset: 0,
        target_bytes: 0,
        layout: 0,
        name: [0; ROOT_NAME_BYTES],
    };

    /// The correct value of `crc` for the other fields.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        crc32c::crc32c(&bytes_of(self)[offset_of!(Self, state)..])
    }

    /// The same slot with the correct checksum.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.crc = self.expected_crc();
        self
    }

    /// The same slot, freed: only the first word differs.
    #[must_use]
    pub const fn freed(mut self) -> Self {
        (self.crc, self.state) = (ROOT_FREE_CRC, ROOT_FREE);
        self
    }

    /// The first word: checksum and state.
    #[must_use]
    pub const fn first_word(&self) -> u64 {
        (self.state as u64) << 32 | self.crc as u64
    }

    /// Whether the slot is free. This depends only on its first word.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.first_word() == Self::FREE.first_word()
    }

    /// Whether the slot holds a root: the state is [`ROOT_IN_USE`], and the checksum is correct.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.state == ROOT_IN_USE && self.crc == self.expected_crc()
    }

    /// Whether the slot is corrupted: neither free nor in use.
    #[must_use]
    pub fn is_corrupted(&self) -> bool {
        !self.is_free() && !self.is_in_use()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slot_has_correct_checksum() {
        assert_eq!(RootSlot::FREE.expected_crc(), ROOT_FREE_CRC);
    }
}
