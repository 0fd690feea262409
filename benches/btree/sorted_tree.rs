//! The tree that NVMalloc compares with: a B+-tree with sorted nodes, in place, without a log. A change of a node moves the entries behind it, so a crash between
//! its stores, or after some of its lines were written back, leaves a broken node. For comparisons of speed only.

use pm_core::{FenceError, Pmem};

/// How the tree's stores reach the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persist {
    /// When the cache evicts them, or what ends an operation writes them back.
    Never,
    /// Each store is flushed.
    Flush,
    /// Around the cache.
    NonTemporal,
}

const NODE_BYTES: u64 = 2048;
/// The words of a node: its number of entries, its level, keys, and what they refer to: values, or nodes whose keys are not below.
const COUNT: u64 = 0;
const LEVEL: u64 = 8;
const KEYS: u64 = 16;
const CAPACITY: usize = 126;
const REFERENCES: u64 = KEYS + 8 * CAPACITY as u64;

/// The tree. Its memory is never used again.
#[derive(Debug)]
pub(crate) struct SortedTree<'p, P> {
    pmem: &'p P,
    persist: Persist,
    /// Ends an operation.
    end: fn(&P) -> Result<(), FenceError>,
    root: u64,
    /// The start of the free memory.
    free: u64,
}

impl<'p, P: Pmem> SortedTree<'p, P> {
    /// An empty tree in memory full of zeros.
    pub(crate) fn new(pmem: &'p P, persist: Persist, end: fn(&P) -> Result<(), FenceError>) -> Self {
        let mut tree = Self { pmem, persist, end, root: 0, free: NODE_BYTES };
        tree.root = tree.take(NODE_BYTES);
        tree
    }

    /// Inserts a key, or replaces its value.
    pub(crate) fn insert(&mut self, key: u64, value: &[u8]) -> Result<(), FenceError> {
        let record = self.take(8 + value.len() as u64);
        self.store(record, &(value.len() as u64).to_le_bytes());
        self.store(record + 8, value);
        self.insert_word(key, record)
    }

    /// Inserts a key with a word in place of a record, or replaces its word.
    pub(crate) fn insert_word(&mut self, key: u64, word: u64) -> Result<(), FenceError> {
        let mut path = Vec::new();
        let mut node = self.root;
        while self.word(node + LEVEL) != 0 {
            path.push(node);
            node = self.word(node + REFERENCES + 8 * self.child(node, key));
        }
        self.put(node, key, word, path);
        (self.end)(self.pmem)
    }

    /// The offset of the value of a key, and its length.
    pub(crate) fn get(&self, key: u64) -> Option<(u64, u64)> {
        let mut node = self.root;
        while self.word(node + LEVEL) != 0 {
            node = self.word(node + REFERENCES + 8 * self.child(node, key));
        }
        let at = self.rank(node, key);
        let is_found = at < self.word(node + COUNT) && self.word(node + KEYS + 8 * at) == key;
        is_found.then(|| {
            let record = self.word(node + REFERENCES + 8 * at);
            (record + 8, self.word(record))
        })
    }

    /// Puts a key into a node, and splits the node if it is full. `path` leads to it from the root.
    fn put(&mut self, node: u64, key: u64, reference: u64, mut path: Vec<u64>) {
        let count = self.word(node + COUNT);
        let at = self.rank(node, key);
        if at < count && self.word(node + KEYS + 8 * at) == key {
            self.store(node + REFERENCES + 8 * at, &reference.to_le_bytes());
            return;
        }
        if count < CAPACITY as u64 {
            self.shift_in(node + KEYS, at, count, key);
            self.shift_in(node + REFERENCES, at, count, reference);
            self.store(node + COUNT, &(count + 1).to_le_bytes());
            return;
        }
        let half = count / 2;
        let right = self.take(NODE_BYTES);
        let level = self.word(node + LEVEL);
        let separator = self.word(node + KEYS + 8 * half);
        self.store(right + LEVEL, &level.to_le_bytes());
        for list in [KEYS, REFERENCES] {
            let moved = self.words(node + list + 8 * half, count - half);
            self.store(right + list, &moved);
        }
        self.store(right + COUNT, &(count - half).to_le_bytes());
        self.store(node + COUNT, &half.to_le_bytes());
        match path.pop() {
            Some(parent) => self.put(parent, separator, right, path),
            None => {
                let root = self.take(NODE_BYTES);
                self.store(root + LEVEL, &(level + 1).to_le_bytes());
                for (place, word) in
                    [(KEYS, 0), (KEYS + 8, separator), (REFERENCES, node), (REFERENCES + 8, right)]
                {
                    self.store(root + place, &u64::to_le_bytes(word));
                }
                self.store(root + COUNT, &2_u64.to_le_bytes());
                self.root = root;
            }
        }
        let half_of_key = if key < separator { node } else { right };
        self.put(half_of_key, key, reference, Vec::new());
    }

    /// Puts a word into a list of `count` words.
    fn shift_in(&self, list: u64, at: u64, count: u64, word: u64) {
        let mut bytes = word.to_le_bytes().to_vec();
        bytes.extend(self.words(list + 8 * at, count - at));
        self.store(list + 8 * at, &bytes);
    }

    /// The number of keys of a node below `key`.
    fn rank(&self, node: u64, key: u64) -> u64 {
        let (mut low, mut high) = (0, self.word(node + COUNT));
        while low < high {
            let middle = u64::midpoint(low, high);
            if self.word(node + KEYS + 8 * middle) < key { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The child of an inner node for a key.
    fn child(&self, node: u64, key: u64) -> u64 {
        let at = self.rank(node, key);
        let is_equal = at < self.word(node + COUNT) && self.word(node + KEYS + 8 * at) == key;
        if is_equal { at } else { at.saturating_sub(1) }
    }

    fn take(&mut self, len_bytes: u64) -> u64 {
        let start = self.free;
        self.free += len_bytes.next_multiple_of(64);
        assert!(self.free <= self.pmem.len_bytes(), "the region is too small");
        start
    }

    fn word(&self, offset: u64) -> u64 {
        self.pmem.load_u64(offset)
    }

    fn words(&self, offset: u64, count: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(8 * count).expect("a node is small")];
        self.pmem.load(offset, &mut bytes);
        bytes
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        match self.persist {
            Persist::Never => self.pmem.store(offset, bytes),
            Persist::Flush => {
                self.pmem.store(offset, bytes);
                self.pmem.flush(offset, bytes.len() as u64);
            }
            Persist::NonTemporal => self.pmem.store_nt(offset, bytes),
        }
    }
}
