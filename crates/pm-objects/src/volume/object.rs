//! What an object is: its block, verified.

use super::hints::Hints;
use super::volume::{Change, Volume};
use crate::error::{ObjectError, Structure};
use crate::format::{
    EPOCH, Entry, OBJECT_TAG, ObjectBlock, PLACE_BYTES, TABLE_CAPACITY_SHIFT, TABLE_LEAVES_SHIFT, seal, tier,
};
use core::mem::{offset_of, size_of};
use core::ops::Range;
use pm_core::{InPool, Pmem, bytes_of};

/// The type of an object's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElementType {
    pub(crate) layout: u64,
    pub(crate) bytes: u32,
}

impl ElementType {
    /// The type `T`.
    pub(crate) fn of<T: for<'p> InPool<'p>>() -> Result<Self, ObjectError> {
        let bytes = size_of::<T>();
        match u32::try_from(bytes) {
            Ok(len @ 1..) if bytes <= crate::format::ELEMENT_BYTES_MAX => {
                Ok(Self { layout: T::LAYOUT, bytes: len })
            }
            _ => Err(ObjectError::Element { bytes }),
        }
    }

    /// The length of the chunks that hold elements of this type: whole elements, if one fits.
    pub(crate) const fn chunk_bytes(&self, chunk_bytes_max: u64) -> u64 {
        let element = self.bytes as u64;
        if element <= chunk_bytes_max { chunk_bytes_max / element * element } else { chunk_bytes_max }
    }
}

/// What an object's block says of its table: in one word the place, above it the base-2 logarithm of the number of its entries or links, and whether it has leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableWord {
    pub(crate) place: u64,
    pub(crate) log2_capacity: u32,
    pub(crate) has_leaves: bool,
}

impl TableWord {
    const fn decode(word: u64) -> Self {
        Self {
            place: word & ((1 << TABLE_CAPACITY_SHIFT) - 1),
            log2_capacity: (word >> TABLE_CAPACITY_SHIFT & 0x1f) as u32,
            has_leaves: word >> TABLE_LEAVES_SHIFT & 1 != 0,
        }
    }

    const fn encode(self) -> u64 {
        self.place
            | (self.log2_capacity as u64) << TABLE_CAPACITY_SHIFT
            | (self.has_leaves as u64) << TABLE_LEAVES_SHIFT
    }
}

/// An object, as its block describes it. None of this changes.
#[derive(Clone, Debug)]
pub(crate) struct ObjectRef {
    /// The offset of its block.
    pub(crate) offset: u64,
    pub(crate) number: u64,
    pub(crate) element: ElementType,
    /// The length of its chunks but the last one.
    pub(crate) chunk_bytes: u64,
    /// What placement was told when the object was found. An object with handles has [others](crate::session::control::Control::hints) since it was pinned.
    pub(crate) hints: Hints,
}

impl ObjectRef {
    /// Verifies the object at an offset from the medium.
    pub(crate) fn find<P: Pmem>(volume: &Volume<P>, offset: u64) -> Result<Self, ObjectError> {
        let corrupted = || ObjectError::corrupted(offset, Structure::Object);
        let place = offset.is_multiple_of(PLACE_BYTES).then_some(offset / PLACE_BYTES);
        place
            .and_then(|place| volume.offset_of(place, size_of::<ObjectBlock>() as u64))
            .ok_or_else(corrupted)?;
        let block: ObjectBlock = volume.load(offset);
        let element = ElementType { layout: block.layout, bytes: block.element_bytes };
        let is_sound = block.tag == OBJECT_TAG
            && block.crc == block.expected_crc(volume.seed)
            && (1..=crate::format::ELEMENT_BYTES_MAX).contains(&(element.bytes as usize));
        if !is_sound {
            return Err(corrupted());
        }
        let chunk_bytes = element.chunk_bytes(volume.chunk_bytes);
        let hints = Hints::of(block.flags);
        Ok(Self { offset, number: block.number, element, chunk_bytes, hints })
    }

    /// Allocates the block of a new object, whose contents [`init`](Self::init) stores.
    pub(crate) fn alloc<P: Pmem>(
        change: &mut Change<'_, '_, P>,
        number: u64,
        element: ElementType,
        hints: Hints,
    ) -> Result<Self, ObjectError> {
        let offset = change.alloc(size_of::<ObjectBlock>() as u64)?;
        let chunk_bytes = element.chunk_bytes(change.volume.chunk_bytes);
        Ok(Self { offset, number, element, chunk_bytes, hints })
    }

    /// Stores the block of a new object.
    pub(crate) fn init<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        len_bytes: u64,
        table: Option<TableWord>,
        entry: Option<Entry>,
    ) {
        let seed = change.volume.seed;
        let word = |at: usize, contents| seal(seed, self.number, self.offset + at as u64, contents);
        let block = ObjectBlock {
            tag: OBJECT_TAG,
            crc: 0,
            number: self.number,
            layout: self.element.layout,
            element_bytes: self.element.bytes,
            flags: self.hints.flags(),
            reserved: 0,
            secret: 0,
            born: EPOCH,
            reserved_1: 0,
            len_bytes: word(offset_of!(ObjectBlock, len_bytes), len_bytes),
            table: word(offset_of!(ObjectBlock, table), table.map_or(0, TableWord::encode)),
            newest: word(offset_of!(ObjectBlock, newest), 0),
            entry: entry.unwrap_or_else(|| Entry::new(seed, self.number, 0, tier::HOLE, 0)),
            reserved_2: [0; 3],
        };
        let block = ObjectBlock { crc: block.expected_crc(seed), ..block };
        change.fill(self.offset, bytes_of(&block));
    }

    /// Changes what placement is told of the object.
    pub(crate) fn write_hints<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        hints: Hints,
    ) -> Result<(), ObjectError> {
        let block: ObjectBlock = change.volume.load(self.offset);
        let block = ObjectBlock { flags: hints.flags(), ..block };
        let crc = block.expected_crc(change.volume.seed);
        change.write(self.offset + offset_of!(ObjectBlock, flags) as u64, &block.flags)?;
        change.write(self.offset + offset_of!(ObjectBlock, crc) as u64, &crc)
    }

    /// The length of the contents.
    pub(crate) fn len_bytes<P: Pmem>(&self, volume: &Volume<P>) -> Result<u64, ObjectError> {
        let at = self.offset + offset_of!(ObjectBlock, len_bytes) as u64;
        let len_bytes = volume.sealed(self.number, at, Structure::Object)?;
        match len_bytes <= crate::format::OBJECT_BYTES_MAX
            && len_bytes.is_multiple_of(self.element.bytes.into())
        {
            true => Ok(len_bytes),
            false => Err(ObjectError::corrupted(at, Structure::Object)),
        }
    }

    /// What the block says of the table. `None` if there is none.
    pub(crate) fn table<P: Pmem>(&self, volume: &Volume<P>) -> Result<Option<TableWord>, ObjectError> {
        let word = volume.sealed(self.number, self.table_at(), Structure::Object)?;
        Ok((word != 0).then(|| TableWord::decode(word)))
    }

    const fn table_at(&self) -> u64 {
        self.offset + offset_of!(ObjectBlock, table) as u64
    }

    /// The object has another table.
    pub(crate) fn write_table<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        table: Option<TableWord>,
    ) -> Result<(), ObjectError> {
        let word = table.map_or(0, TableWord::encode);
        change.set_sealed(self.number, self.table_at(), word)
    }

    /// The object has another length.
    pub(crate) fn write_len_bytes<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        len_bytes: u64,
    ) -> Result<(), ObjectError> {
        let at = self.offset + offset_of!(ObjectBlock, len_bytes) as u64;
        change.set_sealed(self.number, at, len_bytes)
    }

    /// The offset of the entry of an object with one chunk.
    pub(crate) const fn inline_entry(&self) -> u64 {
        self.offset + offset_of!(ObjectBlock, entry) as u64
    }

    /// The number of chunks of so many bytes.
    pub(crate) const fn chunks(&self, len_bytes: u64) -> u64 {
        len_bytes.div_ceil(self.chunk_bytes)
    }

    /// The bytes of a chunk, of an object of so many.
    pub(crate) fn chunk(&self, index: u64, len_bytes: u64) -> Range<u64> {
        let start = index * self.chunk_bytes;
        start..(start + self.chunk_bytes).min(len_bytes)
    }
}
