//! The buffers of a queue's tags.

use crate::error::QueueError;
use memmap2::MmapMut;

/// A buffer for each tag of a queue, page-aligned and zeroed. It becomes memory when it is used.
pub(crate) struct Buffers {
    maps: Vec<MmapMut>,
    len_bytes: usize,
    depth: u16,
}

impl Buffers {
    /// Maps `depth` buffers of `len_bytes`.
    ///
    /// One mapping for each: the kernel refuses a single mapping that is larger than its memory, and of these only a part is used.
    pub(crate) fn map(depth: u16, len_bytes: u32) -> Result<Self, QueueError> {
        let len_bytes = len_bytes as usize;
        // The kernel places one mapping after the other. Without the page between them the buffers would have the same position modulo a power of two, and
        // could share the sets of a cache.
        let map_bytes = len_bytes.saturating_add(rustix::param::page_size());
        let maps = (0..depth).map(|_| MmapMut::map_anon(map_bytes)).collect::<Result<_, _>>();
        Ok(Self { maps: maps.map_err(QueueError::system("mapping a buffer"))?, len_bytes, depth })
    }

    /// Their number.
    pub(crate) const fn depth(&self) -> u16 {
        self.depth
    }

    /// The length of each.
    pub(crate) const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The buffer of a tag.
    ///
    /// # Panics
    /// If `tag` is not below the queue's depth.
    #[inline]
    pub(crate) fn of(&mut self, tag: u16) -> &mut [u8] {
        &mut self.maps[usize::from(tag)][..self.len_bytes]
    }

    /// Never releases their memory.
    pub(crate) fn leak(&mut self) {
        self.maps.drain(..).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_distinct_and_have_the_length() {
        let mut buffers = Buffers::map(3, 8192).unwrap();
        assert_eq!(buffers.depth(), 3);
        for tag in 0..3 {
            let buffer = buffers.of(tag);
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % 4096), (8192, 0));
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(u8::try_from(tag).unwrap() + 1);
        }
        assert!((0..3).all(|tag| buffers.of(tag).iter().all(|byte| u16::from(*byte) == tag + 1)));
    }

    /// 8 GiB, of which nothing is used.
    #[test]
    fn largest_buffers_can_be_mapped() {
        let mut buffers = Buffers::map(256, 32 << 20).unwrap();
        buffers.of(255)[(32 << 20) - 1] = 1;
    }
}
