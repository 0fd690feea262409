//! Encoded operations on tables, in the order of their calls, which are committed as one batch.

use crate::error::WriteError;
use crate::maintenance::Sweep;
use crate::node::SearchKey;
use crate::ops::{Op, commit};
use crate::session::Session;
use crate::tree::Tree;
use core::ops::Range;
use pm_core::Pmem;
use std::sync::Arc;

/// Operations of a batch or of a group.
#[derive(Debug, Default)]
pub(crate) struct OpList {
    /// The tables, in the order of their first operation.
    trees: Vec<Arc<Tree>>,
    /// The keys and values.
    bytes: Vec<u8>,
    ops: Vec<Queued>,
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
        Self { trees: Vec::new(), bytes: Vec::new(), ops: Vec::new() }
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
    }

    /// Removes all operations, and keeps their memory for others.
    pub(crate) fn clear(&mut self) {
        self.trees.clear();
        self.bytes.clear();
        self.ops.clear();
    }

    /// The value that the last operation on a key gives it, `Some(None)` if it removes the key; `None` if there is no operation on it.
    pub(crate) fn find(&self, tree: &Arc<Tree>, key: &SearchKey<'_>) -> Option<Option<&[u8]>> {
        let number = self.position(tree)?;
        let is_of_key =
            |op: &&Queued| op.head == key.head() && op.tree == number && self.part(&op.key) == key.bytes();
        let last = self.ops.iter().rev().find(is_of_key)?;
        Some(last.value.as_ref().map(|value| self.part(value)))
    }

    /// The operations of each table, in ascending order of the tables' numbers and of the keys: the last one of each key.
    fn tables(&self) -> Vec<(&Tree, Vec<Op<'_>>)> {
        let order = |op: &Queued| (self.trees[op.tree].id.table, op.head, self.part(&op.key));
        let mut ops: Vec<&Queued> = self.ops.iter().collect();
        // A stable sort: of equal keys, the last operation comes last.
        ops.sort_by(|a, b| order(a).cmp(&order(b)));
        let mut tables: Vec<(&Tree, Vec<Op<'_>>)> = Vec::new();
        for (number, op) in ops.iter().enumerate() {
            if ops.get(number + 1).is_some_and(|later| order(later) == order(op)) {
                continue;
            }
            let tree = &*self.trees[op.tree];
            let key = match tree.is_word() {
                true => SearchKey::word(op.head),
                false => SearchKey::bytes_key(self.part(&op.key)),
            };
            let op = Op { key, value: op.value.as_ref().map(|value| self.part(value)) };
            match tables.last_mut() {
                Some((last, ops)) if last.id.table == tree.id.table => ops.push(op),
                _ => tables.push((tree, vec![op])),
            }
        }
        tables
    }

    /// Commits the operations as one batch. If there is no room, makes some, and tries again.
    ///
    /// # Durability
    /// As that of a [batch](crate::WriteBatch::commit).
    pub(super) fn commit<P: Pmem>(&self, session: &Session<P>, sweep: &Sweep) -> Result<(), WriteError> {
        let tables = self.tables();
        let mut room = sweep.room();
        loop {
            let committed = commit(session, &tables);
            if let Err(error) = &committed
                && room.make(session, error)?
            {
                continue;
            }
            sweep.take_due_steps(session)?;
            return committed;
        }
    }

    fn position(&self, tree: &Arc<Tree>) -> Option<usize> {
        self.trees.iter().position(|known| Arc::ptr_eq(known, tree))
    }

    fn part(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }
}
