//! The index: the inner levels of a tree, in DRAM.
//!
//! Inner nodes are immutable while they are in use, except that a pointer to a child is replaced. A change of the keys fills another inner node,
//! replaces the pointer to the old one, and retires the old one, whose memory later becomes another inner node. A reader therefore checks, after it has
//! loaded the version of a child, that the parent still points to the child and has its version; a retired node has another version. Readers wait
//! for no lock. Writers of the index exclude each other.
//!
//! The index may lag behind the leaves: a leaf that was split is found through its left sibling until its low fence is posted here.

pub(crate) use crate::fence::Fence;
use crate::frame::FrameId;
use crate::key::SearchKey;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use pm_core::Pmem;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The fan-out of an inner node.
const FANOUT: usize = 64;
/// The number of inner nodes in one allocation.
const CHUNK: usize = 16;

/// An inner node.
#[derive(Debug)]
#[repr(C, align(64))]
struct Inner {
    /// Odd while the node is not in use.
    version: AtomicU64,
    len: AtomicU32,
    kids: [AtomicU32; FANOUT],
    heads: [AtomicU64; FANOUT],
    records: [AtomicU64; FANOUT],
    lens: [AtomicU32; FANOUT],
}

impl Inner {
    fn new() -> Self {
        Self {
            version: AtomicU64::new(1),
            len: AtomicU32::new(0),
            kids: core::array::from_fn(|_| AtomicU32::new(0)),
            heads: core::array::from_fn(|_| AtomicU64::new(0)),
            records: core::array::from_fn(|_| AtomicU64::new(0)),
            lens: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    fn len(&self) -> usize {
        (self.len.load(Ordering::Relaxed) as usize).min(FANOUT)
    }

    fn fence_at(&self, index: usize) -> Fence {
        Fence {
            head: self.heads[index].load(Ordering::Relaxed),
            record: self.records[index].load(Ordering::Relaxed),
            len: self.lens[index].load(Ordering::Relaxed),
        }
    }

    /// The index of the last child whose fence `is_left` accepts; the first child if there is none.
    #[inline]
    fn child(&self, mut is_left: impl FnMut(&Fence) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low + 1 < high {
            let middle = usize::midpoint(low, high);
            if is_left(&self.fence_at(middle)) { low = middle } else { high = middle }
        }
        low
    }

    /// [`child`](Self::child) for keys whose heads decide.
    #[inline]
    fn word_child(&self, head: u64) -> usize {
        let (mut base, mut len) = (0, self.len());
        while len > 1 {
            let half = len / 2;
            base += if self.heads[base + half].load(Ordering::Relaxed) <= head { half } else { 0 };
            len -= half;
        }
        base
    }

    fn fill(&self, children: &[(Fence, u32)]) {
        for (index, (fence, kid)) in children.iter().enumerate() {
            self.heads[index].store(fence.head, Ordering::Relaxed);
            self.records[index].store(fence.record, Ordering::Relaxed);
            self.lens[index].store(fence.len, Ordering::Relaxed);
            self.kids[index].store(*kid, Ordering::Relaxed);
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
        self.len.store(children.len() as u32, Ordering::Relaxed);
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);
    }

    fn children(&self) -> Vec<(Fence, u32)> {
        (0..self.len())
            .map(|index| (self.fence_at(index), self.kids[index].load(Ordering::Relaxed)))
            .collect()
    }
}

/// The memory of the inner nodes of all trees.
#[derive(Debug)]
pub(crate) struct InnerNodes {
    chunks: Box<[OnceLock<Box<[Inner]>>]>,
    free: Mutex<FreeNodes>,
}

#[derive(Debug, Default)]
struct FreeNodes {
    retired: Vec<u32>,
    used: u32,
}

impl InnerNodes {
    /// For trees with up to `leaf_count` leaves.
    pub(crate) fn new(leaf_count: usize) -> Self {
        let count = leaf_count / 8 / CHUNK + 64;
        Self { chunks: (0..count).map(|_| OnceLock::new()).collect(), free: Mutex::default() }
    }

    #[inline]
    fn get(&self, id: u32) -> &Inner {
        let chunk = self.chunks[id as usize / CHUNK].get().expect("an id belongs to an allocated chunk");
        &chunk[id as usize % CHUNK]
    }

    fn add(&self, children: &[(Fence, u32)]) -> u32 {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let id = free.retired.pop().unwrap_or_else(|| {
            free.used += 1;
            free.used - 1
        });
        drop(free);
        self.chunks[id as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Inner::new()).collect());
        self.get(id).fill(children);
        id
    }

    fn retire(&self, id: u32) {
        let node = self.get(id);
        node.version.store(node.version.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Stores of the next use do not become visible before the odd version.
        fence(Ordering::Release);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).retired.push(id);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.iter().filter_map(OnceLock::get).map(|chunk| size_of_val(&**chunk) as u64).sum()
    }
}

/// The index of one tree.
#[derive(Debug)]
pub(crate) struct Index {
    /// The number of levels above the leaves, and the root: an inner node, or the only leaf.
    root: AtomicU64,
    writers: Mutex<()>,
}

/// A pointer that a reader has followed: it shows whether the child may have changed its place since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed {
    leaf: FrameId,
    /// The inner node, its version, and the index of the child; `None` if the root is the leaf.
    parent: Option<(u32, u64, usize)>,
    root: u64,
}

impl Followed {
    pub(crate) const fn leaf(&self) -> FrameId {
        self.leaf
    }
}

const fn root_word(level: u32, id: u32) -> u64 {
    (level as u64) << 32 | id as u64
}

impl Index {
    /// The index of these leaves, in ascending order of their fences. There is at least one.
    pub(crate) fn build(inner: &InnerNodes, leaves: &[(Fence, FrameId)]) -> Self {
        /// Leaves room for insertions.
        const FILL: usize = FANOUT * 3 / 4;
        let mut level = 0;
        let mut nodes: Vec<(Fence, u32)> = leaves.iter().map(|(fence, id)| (*fence, id.0)).collect();
        while nodes.len() > 1 {
            nodes = nodes.chunks(FILL).map(|children| (children[0].0, inner.add(children))).collect();
            level += 1;
        }
        Self { root: AtomicU64::new(root_word(level, nodes[0].1)), writers: Mutex::new(()) }
    }

    /// The leaf for `key`, or one to the left of it.
    #[inline]
    pub(crate) fn find<P: Pmem>(&self, inner: &InnerNodes, pmem: &P, key: &SearchKey<'_>) -> Followed {
        if key.is_word() {
            self.descend(inner, |node| node.word_child(key.head()))
        } else {
            self.descend(inner, |node| node.child(|fence| fence.is_at_or_below(pmem, key)))
        }
    }

    /// The last leaf with a fence below `key`, or one to the left of it; the last leaf if there is no key.
    pub(crate) fn find_below<P: Pmem>(
        &self,
        inner: &InnerNodes,
        pmem: &P,
        key: Option<&SearchKey<'_>>,
    ) -> Followed {
        self.descend(inner, |node| node.child(|fence| key.is_none_or(|key| fence.is_below(pmem, key))))
    }

    #[inline]
    fn descend(&self, inner: &InnerNodes, choose: impl Fn(&Inner) -> usize) -> Followed {
        'restart: loop {
            let root = self.root.load(Ordering::Acquire);
            #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
            let (mut level, mut id) = ((root >> 32) as u32, root as u32);
            let mut parent: Option<(u32, u64, usize)> = None;
            loop {
                let followed = Followed { leaf: FrameId(id), parent, root };
                if level == 0 {
                    return followed;
                }
                let node = inner.get(id);
                let version = node.version.load(Ordering::Acquire);
                if !version.is_multiple_of(2) || !self.is_current(inner, &followed) {
                    continue 'restart;
                }
                let at = choose(node);
                parent = Some((id, version, at));
                id = node.kids[at].load(Ordering::Acquire);
                fence(Ordering::Acquire);
                if node.version.load(Ordering::Relaxed) != version {
                    continue 'restart;
                }
                level -= 1;
            }
        }
    }

    /// Whether the pointer is still there. The caller loads the version of the child before.
    #[inline]
    pub(crate) fn is_current(&self, inner: &InnerNodes, followed: &Followed) -> bool {
        fence(Ordering::Acquire);
        match followed.parent {
            None => self.root.load(Ordering::Relaxed) == followed.root,
            Some((parent, version, at)) => {
                let node = inner.get(parent);
                node.version.load(Ordering::Relaxed) == version
                    && node.kids[at].load(Ordering::Relaxed) == followed.leaf.0
            }
        }
    }

    /// Adds a leaf, which was split off its left sibling.
    pub(crate) fn post<P: Pmem>(
        &self,
        inner: &InnerNodes,
        pmem: &P,
        low: Fence,
        leaf: FrameId,
        key: &SearchKey<'_>,
    ) {
        let _writers: MutexGuard<'_, ()> = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut fence, mut child) = (low, leaf.0);
        let mut level = 1;
        loop {
            let root = self.root.load(Ordering::Relaxed);
            #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
            let (root_level, root_id) = ((root >> 32) as u32, root as u32);
            if root_level < level {
                let id = inner.add(&[(Fence::LOWEST, root_id), (fence, child)]);
                self.root.store(root_word(level, id), Ordering::Release);
                return;
            }
            // The node at this level, and the place of the pointer to it.
            let mut place: Option<(u32, usize)> = None;
            let mut id = root_id;
            for _ in level..root_level {
                let node = inner.get(id);
                let at = node.child(|fence| fence.is_at_or_below(pmem, key));
                place = Some((id, at));
                id = node.kids[at].load(Ordering::Relaxed);
            }
            let mut children = inner.get(id).children();
            let at = inner.get(id).child(|fence| fence.is_at_or_below(pmem, key));
            children.insert(at + 1, (fence, child));
            let right = (children.len() > FANOUT).then(|| children.split_off(FANOUT / 2));
            let left = inner.add(&children);
            let right = right.map(|children| (children[0].0, inner.add(&children)));
            match (place, right) {
                (Some((parent, at)), _) => inner.get(parent).kids[at].store(left, Ordering::Release),
                // Until the new root exists, keys of the right half would not be found below the left one.
                (None, Some((fence, right))) => {
                    let id = inner.add(&[(Fence::LOWEST, left), (fence, right)]);
                    self.root.store(root_word(root_level + 1, id), Ordering::Release);
                }
                (None, None) => self.root.store(root_word(root_level, left), Ordering::Release),
            }
            inner.retire(id);
            match (place, right) {
                (Some(_), Some(right)) => (fence, child) = right,
                _ => return,
            }
            level += 1;
        }
    }
}
