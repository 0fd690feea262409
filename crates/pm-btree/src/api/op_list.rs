//! Encoded operations on tables, in the order of their calls, which are committed as one batch.

use crate::error::WriteError;
use crate::maintenance::{Sweep, unlink_all_due};
use crate::node::SearchKey;
use crate::ops::{Op, commit};
use crate::session::{Session, Supply};
use crate::tree::Tree;
use core::ops::Range;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use pm_core::Pmem;
use rustc_hash::FxHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

/// The bytes of keys and values at which a batch of many operations ends, and another one begins.
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// Operations of a batch or of a group.
#[derive(Debug, Default)]
pub(crate) struct OpList {
    /// The tables, in the order of their first operation.
    trees: Vec<Arc<Tree>>,
    /// The keys and values.
    bytes: Vec<u8>,
    ops: Vec<Queued>,
    /// The number of the last operation on each key, if operations are looked up.
    last: Option<HashTable<usize>>,
}

/// An operation, with the places of its key and value among the bytes.
#[derive(Clone, Debug)]
struct Queued {
    tree: usize,
    head: u64,
    /// Empty for a word key.
    key: Range<usize>,
    value: Option<Range<usize>>,
}

impl OpList {
    pub(crate) const fn new() -> Self {
        Self { trees: Vec::new(), bytes: Vec::new(), ops: Vec::new(), last: None }
    }

    /// A list in which operations are looked up.
    pub(crate) fn indexed() -> Self {
        Self { last: Some(HashTable::new()), ..Self::new() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.ops.len()
    }

    /// The bytes of the keys and values.
    pub(crate) const fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds an operation: the new value of a key, or its removal.
    pub(crate) fn push(&mut self, tree: &Arc<Tree>, key: &SearchKey<'_>, value: Option<&[u8]>) {
        let known = self.position(tree);
        let number = known.unwrap_or_else(|| {
            self.trees.push(Arc::clone(tree));
            self.trees.len() - 1
        });
        let mut add = |bytes: &[u8]| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            start..self.bytes.len()
        };
        let key_bytes = add(key.bytes());
        let value = value.map(add);
        self.ops.push(Queued { tree: number, head: key.head(), key: key_bytes, value });
        if let Some(mut last) = self.last.take() {
            let op = self.ops.len() - 1;
            let hash_of = |op: &usize| self.hash_of(*op);
            let entry = last.entry(hash_of(&op), |other| self.is_of_same_key(*other, op), hash_of);
            match entry {
                Entry::Occupied(mut earlier) => *earlier.get_mut() = op,
                Entry::Vacant(new) => drop(new.insert(op)),
            }
            self.last = Some(last);
        }
    }

    fn search_key(&self, op: &Queued) -> SearchKey<'_> {
        match self.trees[op.tree].is_word() {
            true => SearchKey::word(op.head),
            false => SearchKey::bytes_key(self.part(&op.key)),
        }
    }

    /// Removes all operations, and keeps their memory for others.
    pub(crate) fn clear(&mut self) {
        self.trees.clear();
        self.bytes.clear();
        self.ops.clear();
        self.last.iter_mut().for_each(HashTable::clear);
    }

    /// The value that the last operation on a key gives it, `Some(None)` if it removes the key; `None` if there is no operation on it, or the list is not
    /// [`indexed`](Self::indexed).
    pub(crate) fn find(&self, tree: &Arc<Tree>, key: &SearchKey<'_>) -> Option<Option<&[u8]>> {
        let number = self.position(tree)?;
        let is_of_key = |op: &usize| {
            let op = &self.ops[*op];
            op.head == key.head() && op.tree == number && self.part(&op.key) == key.bytes()
        };
        let last = self.last.as_ref()?.find(hash(number, key.head(), key.bytes()), is_of_key)?;
        Some(self.ops[*last].value.as_ref().map(|value| self.part(value)))
    }

    fn hash_of(&self, op: usize) -> u64 {
        let op = &self.ops[op];
        hash(op.tree, op.head, self.part(&op.key))
    }

    fn is_of_same_key(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|op| &self.ops[op]);
        (one.tree, one.head) == (other.tree, other.head) && self.part(&one.key) == self.part(&other.key)
    }

    /// These operations by table, in ascending order of the tables' numbers and of the keys: the last one of each key.
    fn tables(&self, range: Range<usize>) -> Vec<(&Tree, Vec<Op<'_>>)> {
        let order = |op: &Queued| (self.trees[op.tree].id.table, op.head, self.part(&op.key));
        let mut ops: Vec<&Queued> = self.ops[range].iter().collect();
        // A stable sort: of equal keys, the last operation comes last.
        ops.sort_by(|a, b| order(a).cmp(&order(b)));
        let mut tables: Vec<(&Tree, Vec<Op<'_>>)> = Vec::new();
        for (number, op) in ops.iter().enumerate() {
            if ops.get(number + 1).is_some_and(|later| order(later) == order(op)) {
                continue;
            }
            let tree = &*self.trees[op.tree];
            let op = Op { key: self.search_key(op), value: op.value.as_ref().map(|value| self.part(value)) };
            match tables.last_mut() {
                Some((last, ops)) if last.id.table == tree.id.table => ops.push(op),
                _ => tables.push((tree, vec![op])),
            }
        }
        tables
    }

    /// Commits the operations as one batch, and returns the number of keys that were removed. If there is no room, makes some, and tries again.
    ///
    /// # Durability
    /// As that of a [batch](crate::WriteBatch::commit).
    pub(super) fn commit<P: Pmem>(&self, session: &Session<P>, sweep: &Sweep) -> Result<u64, WriteError> {
        let committed = self.commit_some(0..self.len(), &Supply::of(session), sweep);
        // Also those that a batch which has failed has split off.
        let unlinked = self.trees.iter().try_for_each(|tree| unlink_all_due(session, sweep, tree));
        let removed = committed?;
        unlinked?;
        Ok(removed)
    }

    /// The trees of the operations.
    pub(super) fn trees(&self) -> &[Arc<Tree>] {
        &self.trees
    }

    /// As [`commit`](Self::commit), of some of the operations in the order of their calls.
    ///
    /// # Durability
    /// As that of a [batch](crate::WriteBatch::commit).
    pub(super) fn commit_some<P: Pmem>(
        &self,
        range: Range<usize>,
        supply: &Supply<'_, P>,
        sweep: &Sweep,
    ) -> Result<u64, WriteError> {
        let session = supply.session;
        let tables = self.tables(range);
        let mut room = sweep.room();
        loop {
            let committed = commit(supply, &tables);
            if let Err(error) = &committed
                && room.make(session, error)?
            {
                continue;
            }
            sweep.take_due_steps(session)?;
            return committed;
        }
    }

    /// The number of the table of an operation, and the bytes of its key.
    pub(super) fn key(&self, op: usize) -> (u16, Vec<u8>) {
        let op = &self.ops[op];
        let tree = &self.trees[op.tree];
        let key = match tree.key_width {
            Some(width) => op.head.to_be_bytes()[..width].to_vec(),
            None => self.part(&op.key).to_vec(),
        };
        (tree.id.table, key)
    }

    fn position(&self, tree: &Arc<Tree>) -> Option<usize> {
        self.trees.iter().position(|known| Arc::ptr_eq(known, tree))
    }

    fn part(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }
}

fn hash(tree: usize, head: u64, bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    (tree, head, bytes).hash(&mut hasher);
    hasher.finish()
}
