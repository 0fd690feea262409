//! The layout of a pool: the header, its backup, and the root directory. `docs/format/pool.md` describes it in prose.

use crate::Persist;
use crate::persist::bytes_of;
use core::mem::{offset_of, size_of};

/// The first eight bytes of a pool. Like the PNG signature, they reveal a transfer that converted line endings or cleared the eighth bit.
pub const MAGIC: [u8; 8] = *b"\x89PM\r\n\x1a\n\0";

/// The format version. From version 2 on, it changes only if older programs could not read even the feature masks; other changes get a feature bit.
///
/// In version 1 a free root slot was all zeroes, so a slot in use that a stray write had zeroed looked free.
pub const VERSION: u32 = 2;

/// The bits of [`Header::features_compat`] that this program supports. A program may ignore all other bits.
pub const KNOWN_COMPAT: u64 = 0;
/// The bits of [`Header::features_ro_compat`] that this program supports. If a pool has any other of these bits, the program may only read it.
pub const KNOWN_RO_COMPAT: u64 = LOGGED_ROOTS;
/// The bits of [`Header::features_incompat`] that this program supports. If a pool has any other of these bits, the program must not open it.
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

/// The length of the smallest pool: header, root directory, one page of data, backup.
pub const POOL_BYTES_MIN: u64 = DATA_START_MIN + 2 * HEADER_BYTES;

/// The length of the longest root name, in bytes of UTF-8.
pub const ROOT_NAME_BYTES: usize = 24;

/// The pool header, at offset 0 and again in the last 4,096 bytes.
///
/// The checksum covers all bytes before it, including reserved ones. The checksum's offset and meaning never change, so every program can distinguish
/// a corrupted header from a header of a newer version.
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
    /// The whole length of the pool.
    pub pool_bytes: u64,
    /// The start of the data area.
    pub data_start: u64,
    /// The length of the data area.
    pub data_bytes: u64,
    /// The start of the root directory: [`ROOTS_START`].
    pub roots_start: u64,
    /// The number of root slots: [`ROOT_COUNT`].
    pub root_count: u64,
    /// The time at which the pool was created, in seconds since 1970.
    pub created_s: u64,
    /// Zero.
    pub reserved: [u8; 3980],
    /// CRC-32C of all bytes before this field.
    pub crc: u32,
}

/// A slot of the root directory, one cache line. A slot in use holds a root: a name for a value in the data area.
///
/// A slot is free if its first word, `crc` and `state`, is that of [`RootSlot::FREE`]; a slot of zeroes is not free. A free slot is filled with its
/// first word last. So a slot with any other first word is complete, and a wrong checksum in it is corruption. Pools with [`LOGGED_ROOTS`] differ:
/// transactions store a slot's words in any order, so a crash may leave a wrong checksum until the log is replayed.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct RootSlot {
    /// CRC-32C of all bytes after this field, or [`ROOT_FREE_CRC`] in a free slot.
    pub crc: u32,
    /// [`ROOT_IN_USE`] or [`ROOT_FREE`].
    pub state: u32,
    /// Of two slots in use with the same name, the slot with the higher generation is valid. A new root gets a higher generation than all slots have.
    pub generation: u64,
    /// The offset of the root's value.
    pub target_offset: u64,
    /// The length of the value.
    pub target_bytes: u64,
    /// The layout fingerprint of the value.
    pub layout: u64,
    /// The root's name in UTF-8, padded with zero bytes.
    pub name: [u8; ROOT_NAME_BYTES],
}

/// [`RootSlot::state`] of a slot in use.
pub const ROOT_IN_USE: u32 = 1;

/// [`RootSlot::state`] of a free slot.
pub const ROOT_FREE: u32 = 2;

/// [`RootSlot::crc`] of a free slot: the CRC-32C of [`ROOT_FREE`] and 56 zero bytes, even if the bytes after the first word are not zero.
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
    /// A free slot as in a new pool: all bytes after the first word are zero, so the checksum is correct.
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

    /// The same slot with the first word of a free slot. All other fields stay, including the name.
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

    /// Whether the slot is free. Only the first word decides this.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.first_word() == Self::FREE.first_word()
    }

    /// Whether the slot holds a root: the state is [`ROOT_IN_USE`], and the checksum is correct.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.state == ROOT_IN_USE && self.crc == self.expected_crc()
    }

    /// Whether the slot is neither free nor in use.
    #[must_use]
    pub fn is_corrupted(&self) -> bool {
        !self.is_free() && !self.is_in_use()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slot_is_sealed() {
        assert_eq!(RootSlot::FREE.expected_crc(), ROOT_FREE_CRC);
    }
}
