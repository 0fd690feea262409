//! Size classes of records, and the units of extents.

use crate::node::FRAMES_PER_EXTENT;

/// The number of classes, with that of nodes.
pub(crate) const CLASS_COUNT: usize = 84;

/// A class: nodes, or records of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(u8);

impl Class {
    pub(crate) const NODES: Self = Self(0);

    /// The smallest class whose records have room for `bytes` bytes. `None` above 256 KiB.
    pub(crate) fn of_record(bytes: u64) -> Option<Self> {
        let number = match bytes {
            0..=48 => bytes.max(1).div_ceil(16),
            49..=1024 => 3 + bytes.div_ceil(64),
            _ => {
                // Eight steps for each doubling: `step` is an eighth of the power of two below.
                let doubling = u64::from((bytes - 1).ilog2());
                let step = 1 << (doubling - 3);
                19 + (doubling - 10) * 8 + (bytes - (1 << doubling)).div_ceil(step)
            }
        };
        u8::try_from(number).ok().filter(|number| usize::from(*number) < CLASS_COUNT).map(Self)
    }

    /// The class with this number, if there is one.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        u8::try_from(number).ok().filter(|number| usize::from(*number) < CLASS_COUNT).map(Self)
    }

    pub(crate) const fn number(self) -> u64 {
        self.0 as u64
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The length of a record of this class; `None` for nodes.
    pub(crate) const fn record_bytes(self) -> Option<u64> {
        match self.0 as u64 {
            0 => None,
            number @ 1..=3 => Some(number * 16),
            number @ 4..=19 => Some((number - 3) * 64),
            number => {
                let (doubling, step) = ((number - 20) / 8 + 10, (number - 20) % 8 + 1);
                Some((1 << doubling) + (step << (doubling - 3)))
            }
        }
    }
}

/// What an extent of a store is divided into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    pub(crate) extent_bytes: u64,
    pub(crate) node_bytes: u64,
}

impl Units {
    /// The class of a record of `len` bytes; `None` if it has a block of its own.
    pub(crate) fn class_of(self, len: u64) -> Option<Class> {
        Class::of_record(len).filter(|_| len <= (self.extent_bytes / 4).min(256 << 10))
    }

    /// The length of a unit.
    pub(super) fn bytes(self, class: Class) -> u64 {
        class.record_bytes().unwrap_or(self.node_bytes)
    }

    /// The number of units in an extent.
    pub(crate) fn count(self, class: Class) -> u32 {
        let count = u32::try_from(self.extent_bytes / self.bytes(class)).unwrap_or(u32::MAX);
        if class == Class::NODES { count.min(FRAMES_PER_EXTENT) } else { count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_has_the_smallest_class() {
        let sizes: Vec<u64> = (1..CLASS_COUNT as u64)
            .map(|number| Class::from_number(number).and_then(Class::record_bytes).expect("a record"))
            .collect();
        assert!(sizes.is_sorted_by(|small, large| small < large), "{sizes:?}");
        assert_eq!((sizes[0], sizes[3], sizes[18], sizes[19], sizes[82]), (16, 64, 1024, 1152, 256 << 10));
        for bytes in (0..5000).chain([255 << 10, (255 << 10) + 1, 256 << 10]) {
            let class = Class::of_record(bytes).expect("not too long");
            let smallest = sizes.iter().position(|size| *size >= bytes).expect("the last is larger");
            assert_eq!(class.number(), smallest as u64 + 1, "{bytes}");
        }
        assert_eq!(Class::of_record((256 << 10) + 1), None);
    }
}
