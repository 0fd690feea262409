//! What a store has room for, so that a caller knows before a change whether the store will be full.

use crate::error::WriteError;
use crate::node::{INLINE_BYTES, RECORD_BYTES_MAX, RECORD_LENGTHS_BYTES};
use crate::session::{CLASS_COUNT, Class, LongRecords, Session, Units};
use pm_alloc::TxError;
use pm_core::Pmem;

/// What a store has room for, as it was when [`Store::room`](crate::Store::room) returned this.
///
/// Free space is of two kinds. *Whole pieces* are as long as an extent or more, and serve entries of any length up to the one that was asked for. Within extents there are free
/// *units*, each of which serves only records that are nearly as long. The first record of a length that has no free unit takes a whole piece. So many
/// lengths fill a store that still has free space, and a bound on bytes alone cannot tell when.
///
/// A program that must not meet [`WriteError::Full`], because it cannot undo what it has announced, [takes](Self::take) the entries from this before
/// it begins to insert them. It is mostly told too early that there is no room: each insertion is taken to split a leaf, and to need space beside that
/// of the value it replaces. So it measures the room anew, after the insertions, before it believes that the store is full. It keeps some pieces for what
/// is not known before: keys in a leaf that is split can be longer than the new one, and so is their separator; and threads that insert at a time may each
/// open an extent for one length.
///
/// ```
/// # use pm_btree::{Store, StoreOptions};
/// # use pm_core::Region;
/// let store = Store::format(Region::anonymous(4 << 20)?, &StoreOptions::new())?;
/// let table = store.table::<&[u8], &[u8]>("values")?;
/// let mut room = store.room(1000)?;
/// // A quarter of the store is kept.
/// let kept_bytes = store.stats()?.pool_bytes / 4;
/// let mut number = 0_u32;
/// while room.take(4, 1000, kept_bytes) {
///     table.insert(&number.to_le_bytes()[..], &[7; 1000][..])?;
///     number += 1;
/// }
/// assert!(number > 500);
/// assert!(store.room(1000)?.whole_bytes() >= kept_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Room {
    units: Units,
    piece_bytes: u64,
    pieces: u64,
    /// The free units of each class.
    free: [u64; CLASS_COUNT],
}

impl Room {
    /// Measures the room in whole pieces for records of `len` bytes. Returns extents and blocks that are not in use to the heap.
    pub(crate) fn measure<P: Pmem>(session: &Session<P>, len: u64) -> Result<Self, WriteError> {
        let Session { heap, space, .. } = session;
        space.return_unused(heap)?;
        let units = space.units();
        let piece_bytes = units.extent_bytes.max(LongRecords::block_bytes(len.min(RECORD_BYTES_MAX)));
        // Before the pieces: an extent that is added meanwhile is not counted as both.
        let free = space.free_units();
        let pieces = heap.room_for(piece_bytes).map_err(TxError::from)?;
        Ok(Self { units, piece_bytes, pieces, free })
    }

    /// The length of all whole pieces, in bytes.
    #[must_use]
    pub const fn whole_bytes(&self) -> u64 {
        self.pieces * self.piece_bytes
    }

    /// Lets the whole pieces have this length, and no units be free, if that is less: another store that takes the same entries has no more, and may have
    /// no such units.
    pub fn limit(&mut self, whole_bytes: u64) {
        let pieces = whole_bytes / self.piece_bytes;
        if pieces < self.pieces {
            (self.pieces, self.free) = (pieces, [0; CLASS_COUNT]);
        }
    }

    /// Takes what the insertion of an entry needs into a table whose keys are byte strings, or whatever encodes to more than 8 bytes. The lengths are those of
    /// the encoded key and value. False, and nothing is taken, if there is not so much, or less than `kept_bytes` of whole pieces would be left by a piece
    /// that it needs. An entry that is longer than what was measured, and than an extent, has no room.
    #[must_use]
    pub fn take(&mut self, key_bytes: u64, value_bytes: u64, kept_bytes: u64) -> bool {
        let inline = INLINE_BYTES as u64;
        let is_inline = key_bytes <= inline && value_bytes <= inline;
        let record = RECORD_LENGTHS_BYTES.saturating_add(key_bytes).saturating_add(value_bytes);
        // A leaf that is split needs a node, and a record for the separator.
        let separator = (key_bytes > inline).then_some(key_bytes);
        self.take_all([(!is_inline).then_some(record), separator], kept_bytes)
    }

    /// As [`take`](Self::take), into a table whose keys are numbers of 8 bytes, such as `u64`.
    #[must_use]
    pub fn take_for_number(&mut self, value_bytes: u64, kept_bytes: u64) -> bool {
        let record = (value_bytes > INLINE_BYTES as u64).then_some(value_bytes);
        self.take_all([record, None], kept_bytes)
    }

    /// Takes records and a node, or nothing.
    fn take_all(&mut self, records: [Option<u64>; 2], kept_bytes: u64) -> bool {
        let mut left = self.clone();
        let has_room = left.take_unit(Class::NODES, kept_bytes)
            && records.into_iter().flatten().all(|len| left.take_record(len, kept_bytes));
        if has_room {
            *self = left;
        }
        has_room
    }

    fn take_record(&mut self, len: u64, kept_bytes: u64) -> bool {
        match self.units.class_of(len) {
            Some(class) => self.take_unit(class, kept_bytes),
            None if len > RECORD_BYTES_MAX => false,
            // Pieces need not be adjacent.
            None if LongRecords::block_bytes(len) > self.piece_bytes => false,
            None => self.take_piece(kept_bytes),
        }
    }

    fn take_unit(&mut self, class: Class, kept_bytes: u64) -> bool {
        if self.free[class.index()] == 0 {
            if !self.take_piece(kept_bytes) {
                return false;
            }
            self.free[class.index()] = u64::from(self.units.count(class));
        }
        self.free[class.index()] -= 1;
        true
    }

    fn take_piece(&mut self, kept_bytes: u64) -> bool {
        let left = self.pieces.checked_sub(1);
        match left.filter(|left| left.saturating_mul(self.piece_bytes) >= kept_bytes) {
            Some(left) => {
                self.pieces = left;
                true
            }
            None => false,
        }
    }
}
