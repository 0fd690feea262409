//! Inner nodes in DRAM: their memory, and the search in one of them.

use super::frame::FrameId;
use super::separator::Separator;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The most children of an inner node; a hint node has a word for each.
pub(crate) const FANOUT_MAX: usize = 64;

/// The number of inner nodes in each of the first four chunks, as a power of two. Each four chunks are twice as long as the four before: so at most a
/// quarter of the nodes are not used, and a few chunks have room for all ids.
const FIRST_CHUNK_BITS: u32 = 4;
const CHUNK_COUNT: usize = 4 * (u32::BITS - FIRST_CHUNK_BITS - 1) as usize;

/// The chunk of an inner node, the length of that chunk, and the place of the node in it.
#[inline]
const fn place(id: u32) -> (usize, usize, usize) {
    let id = id as usize + (4 << FIRST_CHUNK_BITS);
    // The highest bit and the two below it.
    let bits = id.ilog2() - 2;
    let chunk = 4 * (bits - FIRST_CHUNK_BITS) as usize + (id >> bits) % 4;
    (chunk, 1 << bits, id % (1 << bits))
}

/// A child of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kid {
    /// The frame of a leaf, or another inner node: which of both, the level says.
    Built(u32),
    /// An inner node that is only in persistent memory: its hint node.
    Hint(FrameId),
}

impl Kid {
    const HINT: u32 = 1 << 31;

    pub(crate) const fn leaf(id: FrameId) -> Self {
        Self::Built(id.0)
    }

    pub(crate) const fn word(self) -> u32 {
        match self {
            Self::Built(id) => id,
            Self::Hint(FrameId(unit)) => unit | Self::HINT,
        }
    }

    pub(crate) const fn from_word(word: u32) -> Self {
        if word & Self::HINT == 0 { Self::Built(word) } else { Self::Hint(FrameId(word & !Self::HINT)) }
    }
}

/// An inner node.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Inner {
    /// Odd while the node is not in use.
    version: AtomicU64,
    /// The offset of the node's hint node; 0 if it has none.
    hint: AtomicU64,
    len: AtomicU32,
    kids: [AtomicU32; FANOUT_MAX],
    heads: [AtomicU64; FANOUT_MAX],
    records: [AtomicU64; FANOUT_MAX],
    lens: [AtomicU32; FANOUT_MAX],
}

impl Inner {
    fn new() -> Self {
        Self {
            version: AtomicU64::new(1),
            hint: AtomicU64::new(0),
            len: AtomicU32::new(0),
            kids: core::array::from_fn(|_| AtomicU32::new(0)),
            heads: core::array::from_fn(|_| AtomicU64::new(0)),
            records: core::array::from_fn(|_| AtomicU64::new(0)),
            lens: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline]
    pub(crate) fn version(&self, order: Ordering) -> u64 {
        self.version.load(order)
    }

    pub(crate) fn hint(&self) -> u64 {
        self.hint.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn kid(&self, index: usize) -> &AtomicU32 {
        &self.kids[index]
    }

    fn len(&self) -> usize {
        (self.len.load(Ordering::Relaxed) as usize).min(FANOUT_MAX)
    }

    /// The separator of a child, if there are so many.
    pub(crate) fn separator_at(&self, index: usize) -> Option<Separator> {
        (index < self.len()).then(|| self.separator(index))
    }

    fn separator(&self, index: usize) -> Separator {
        Separator {
            head: self.heads[index].load(Ordering::Relaxed),
            record: self.records[index].load(Ordering::Relaxed),
            len: self.lens[index].load(Ordering::Relaxed),
        }
    }

    /// The index of the last child whose separator `is_left` accepts; the first child if there is none.
    #[inline]
    pub(crate) fn child(&self, mut is_left: impl FnMut(&Separator) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low + 1 < high {
            let middle = usize::midpoint(low, high);
            if is_left(&self.separator(middle)) { low = middle } else { high = middle }
        }
        low
    }

    /// [`child`](Self::child) for keys whose heads decide.
    #[inline]
    pub(crate) fn word_child(&self, head: u64) -> usize {
        let (mut base, mut len) = (0, self.len());
        while len > 1 {
            let half = len / 2;
            base += if self.heads[base + half].load(Ordering::Relaxed) <= head { half } else { 0 };
            len -= half;
        }
        base
    }

    fn fill(&self, hint: u64, children: &[(Separator, Kid)]) {
        for (index, (separator, kid)) in children.iter().enumerate() {
            self.heads[index].store(separator.head, Ordering::Relaxed);
            self.records[index].store(separator.record, Ordering::Relaxed);
            self.lens[index].store(separator.len, Ordering::Relaxed);
            self.kids[index].store(kid.word(), Ordering::Relaxed);
        }
        self.hint.store(hint, Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
        self.len.store(children.len() as u32, Ordering::Relaxed);
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);
    }

    /// The children, for a writer.
    pub(crate) fn children(&self) -> Vec<(Separator, Kid)> {
        (0..self.len())
            .map(|index| (self.separator(index), Kid::from_word(self.kids[index].load(Ordering::Relaxed))))
            .collect()
    }
}

/// The memory of the inner nodes of all trees.
#[derive(Debug)]
pub(crate) struct InnerNodes {
    chunks: [OnceLock<Box<[Inner]>>; CHUNK_COUNT],
    free: Mutex<FreeNodes>,
}

#[derive(Debug, Default)]
struct FreeNodes {
    retired: Vec<u32>,
    used: u32,
}

impl InnerNodes {
    pub(crate) fn new() -> Self {
        Self { chunks: core::array::from_fn(|_| OnceLock::new()), free: Mutex::default() }
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &Inner {
        let (chunk, _, at) = place(id);
        &self.chunks[chunk].get().expect("an id belongs to an allocated chunk")[at]
    }

    /// Makes an inner node.
    pub(crate) fn add(&self, hint: u64, children: &[(Separator, Kid)]) -> u32 {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let id = free.retired.pop().unwrap_or_else(|| {
            free.used += 1;
            free.used - 1
        });
        drop(free);
        let (chunk, len, _) = place(id);
        self.chunks[chunk].get_or_init(|| (0..len).map(|_| Inner::new()).collect());
        self.get(id).fill(hint, children);
        id
    }

    /// Takes an inner node out of use. Nothing refers to it any more, but readers may still look at it.
    pub(crate) fn retire(&self, id: u32) {
        let node = self.get(id);
        node.version.store(node.version.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Stores of the next use do not become visible before the odd version.
        fence(Ordering::Release);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).retired.push(id);
    }

    /// The offsets of the hint nodes of all inner nodes in use.
    pub(crate) fn hints(&self) -> impl Iterator<Item = u64> {
        let nodes = self.chunks.iter().filter_map(OnceLock::get).flatten();
        let in_use = nodes.filter(|node| node.version(Ordering::Relaxed).is_multiple_of(2));
        in_use.map(Inner::hint).filter(|hint| *hint != 0)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.iter().filter_map(OnceLock::get).map(|chunk| size_of_val(&**chunk) as u64).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_are_consecutive() {
        let mut next = (0, 0);
        for id in 0..100_000 {
            let (chunk, len, at) = place(id);
            assert_eq!((chunk, at), next, "{id}");
            next = if at + 1 == len { (chunk + 1, 0) } else { (chunk, at + 1) };
        }
        let (last, len, at) = place(u32::MAX >> 1);
        assert!(last < CHUNK_COUNT && at < len);
    }
}
