//! The catalogue: the tables of a store. Their descriptions are the values of a tree, with the tables' names as keys.

use crate::error::{Corruption, CorruptionKind, LeafError, OpenError, TableError, WriteError};
use crate::format::CATALOGUE;
use crate::maintenance::Sweep;
use crate::node::SearchKey;
use crate::ops::{Bounds, Expected, Scan, Side, put};
use crate::session::Session;
use crate::tree::Tree;
use crate::types::{Key, Value};
use core::ops::Bound;
use pm_core::Pmem;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The key width of a table with byte keys.
const NO_WIDTH: u8 = 0xff;

/// A table, as [`Store::tables`](crate::Store::tables) lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableInfo {
    /// The name.
    pub name: String,
    /// The name of the type of its keys.
    pub key_type: String,
    /// The name of the type of its values.
    pub value_type: String,
}

/// The description of a table: its number (2 bytes), its key width (1, 255 for byte keys), zeros (5), the offsets of its first leaf (8) and of its
/// anchor (8), the length of the key type's name (4), and both types' names; integers are little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) table: u16,
    pub(crate) width: u8,
    pub(crate) first: u64,
    pub(crate) anchor: u64,
    pub(crate) key_type: String,
    pub(crate) value_type: String,
}

impl Described {
    /// The description of a table that does not exist yet.
    pub(crate) fn of<K: Key, V: Value>() -> Self {
        let width = K::FIXED_WIDTH
            .filter(|width| *width <= 8)
            .and_then(|width| u8::try_from(width).ok())
            .unwrap_or(NO_WIDTH);
        Self { table: 0, width, first: 0, anchor: 0, key_type: K::type_name(), value_type: V::type_name() }
    }

    /// The width of keys that are words; `None` for byte keys.
    pub(crate) fn key_width(&self) -> Option<usize> {
        (self.width != NO_WIDTH).then_some(self.width.into())
    }

    pub(crate) fn has_types_of(&self, other: &Self) -> bool {
        (self.width, &self.key_type, &self.value_type) == (other.width, &other.key_type, &other.value_type)
    }

    /// The types, for messages.
    pub(crate) fn types(&self) -> String {
        format!("{} to {}", self.key_type, self.value_type)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.table.to_le_bytes());
        bytes.extend_from_slice(&[self.width, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&self.first.to_le_bytes());
        bytes.extend_from_slice(&self.anchor.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(self.key_type.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(self.key_type.as_bytes());
        bytes.extend_from_slice(self.value_type.as_bytes());
        bytes
    }

    /// `None` if the bytes are no description.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (table, rest) = bytes.split_first_chunk::<2>()?;
        let ([width, zeros @ ..], rest) = rest.split_first_chunk::<6>()?;
        let (first, rest) = rest.split_first_chunk::<8>()?;
        let (anchor, rest) = rest.split_first_chunk::<8>()?;
        let (key_len, names) = rest.split_first_chunk::<4>()?;
        let (key_type, value_type) = names.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
        let is_width = *width <= 8 || *width == NO_WIDTH;
        let text = |bytes: &[u8]| core::str::from_utf8(bytes).ok().map(str::to_owned);
        let described = Self {
            table: u16::from_le_bytes(*table),
            width: *width,
            first: u64::from_le_bytes(*first),
            anchor: u64::from_le_bytes(*anchor),
            key_type: text(key_type)?,
            value_type: text(value_type)?,
        };
        (is_width && *zeros == [0; 5] && described.table != CATALOGUE).then_some(described)
    }
}

/// The tables of a store.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    /// The tree of descriptions; `None` while there is no table.
    tree: Option<Arc<Tree>>,
    pub(super) tables: BTreeMap<String, Opened>,
}

/// A table that was opened, or could not be.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) described: Described,
    pub(super) tree: Result<Arc<Tree>, Corruption>,
}

impl Catalogue {
    /// Opens the catalogue and all tables in it.
    pub(super) fn open<P: Pmem>(session: &Session<P>) -> Result<Self, OpenError> {
        let first = session.catalogue()?;
        if first == 0 {
            return Ok(Self::default());
        }
        let tree = Tree::open(session, CATALOGUE, None, first, 0)?;
        let mut tables = BTreeMap::new();
        let mut scan = Scan::new(Some(Bounds { from: Bound::Unbounded, to: Bound::Unbounded }));
        while let Some(found) = scan.next(session, &tree, Side::Front) {
            let found = found?;
            let name = core::str::from_utf8(found.key().as_slice()).map(str::to_owned).ok();
            let (name, described) = name
                .zip(Described::decode(found.value().as_slice()))
                .ok_or_else(|| Corruption::new(first, CorruptionKind::Catalogue))?;
            let Described { table, first, anchor, .. } = described;
            let opened = match Tree::open(session, table, described.key_width(), first, anchor) {
                Ok(tree) => Ok(tree),
                Err(LeafError::Corrupted(corruption)) => Err(corruption),
                Err(LeafError::Fence(error)) => return Err(error.into()),
            };
            tables.insert(name, Opened { described, tree: opened.map(Arc::new) });
        }
        Ok(Self { tree: Some(Arc::new(tree)), tables })
    }

    /// The name of the table with this number.
    pub(super) fn name_of(&self, table: u16) -> Option<&str> {
        let (name, _) = self.tables.iter().find(|(_, opened)| opened.described.table == table)?;
        Some(name)
    }

    /// A sweep of all trees. `has_all_extents`: it can mark all that is in use.
    pub(super) fn sweep(&self, has_all_extents: bool) -> Sweep {
        let trees = self.tables.values().filter_map(|opened| opened.tree.clone().ok());
        let is_complete = has_all_extents && self.tables.values().all(|opened| opened.tree.is_ok());
        Sweep::new(trees.chain(self.tree.clone()).collect(), is_complete)
    }

    /// Creates a table.
    ///
    /// # Durability
    /// The first leaf is durable before the catalogue refers to it.
    pub(super) fn create<P: Pmem>(
        &mut self,
        session: &Session<P>,
        name: &str,
        described: &Described,
    ) -> Result<(), TableError> {
        if !(1..=255).contains(&name.len()) {
            return Err(TableError::Name { len_bytes: name.len() });
        }
        if self.tree.is_none() {
            let (first, tree) = Tree::create(session, CATALOGUE, None)?;
            session.set_catalogue(first);
            self.tree = Some(Arc::new(tree));
        }
        // An earlier call, perhaps in a killed process, may have set it without a fence. The fence of the new leaf covers it.
        session.flush_catalogue();
        let last = self.tables.values().map(|opened| opened.described.table).max().unwrap_or(CATALOGUE);
        let table = last.checked_add(1).ok_or(TableError::TooMany)?;
        let key_width = described.key_width();
        let (first, tree) = Tree::create(session, table, key_width)?;
        let described = Described { table, first, anchor: tree.index.anchor(), ..described.clone() };
        let catalogue = self.tree.as_ref().expect("it was created above");
        let name_key = SearchKey::bytes_key(name.as_bytes());
        if let Err(error) = put(session, catalogue, &name_key, &described.encode(), Expected::Any) {
            if matches!(error, WriteError::Full) {
                session.space.release_node(first);
                session.space.release_node(tree.index.anchor());
            }
            return Err(error.into());
        }
        self.tables.insert(name.to_owned(), Opened { described, tree: Ok(Arc::new(tree)) });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_is_decoded() {
        let described = Described { table: 7, first: 4096, anchor: 8192, ..Described::of::<u32, &str>() };
        assert_eq!(Described::decode(&described.encode()), Some(described.clone()));
        assert_eq!(described.key_width(), Some(4));
        assert_eq!(Described::of::<&str, ()>().key_width(), None);
        for len in 0..28 {
            assert_eq!(Described::decode(&described.encode()[..len]), None);
        }
    }
}
