//! An open store, whose tables have types that are known at run time.

use super::args::Types;
use super::failure::{Failure, StoreError};
use super::kind::{Kind, Typed};
use super::table::AnyTable;
use pm_btree::{OpenError, Store, StoreOptions, TableError, TableInfo};
use std::path::{Path, PathBuf};

/// A table, behind its types.
pub(crate) type DynTable = Box<dyn AnyTable>;

/// An open store.
pub(crate) struct Handle {
    store: Store,
    path: PathBuf,
}

impl Handle {
    /// Creates a file with an empty store.
    pub(crate) fn create(path: &Path, pool_bytes: u64) -> Result<Self, Failure> {
        let store = Store::create(path, pool_bytes, &StoreOptions::new()).map_err(Failure::open(path))?;
        Ok(Self { store, path: path.to_path_buf() })
    }

    /// Opens a store to change it.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        Self::open_grouped(path, 0)
    }

    /// Opens a store to change it, where up to so many changes wait to be made durable together.
    pub(crate) fn open_grouped(path: &Path, changes: u32) -> Result<Self, Failure> {
        let store = Store::open(path, &options().group_commits(changes));
        Ok(Self { store: store.map_err(Failure::open(path))?, path: path.to_path_buf() })
    }

    /// Opens a store to read it. It is recovered in pages of this process, and the file, which may be read-only, is unchanged.
    pub(crate) fn open_unchanged(path: &Path) -> Result<Self, Failure> {
        let store = Store::open_read_only(path, &options());
        Ok(Self { store: store.map_err(Failure::open(path))?, path: path.to_path_buf() })
    }

    /// The store itself.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// An existing table.
    pub(crate) fn table(&self, name: &str) -> Result<DynTable, Failure> {
        let info = self.info(name).ok_or_else(|| self.failure(StoreError::NoTable(name.to_owned())))?;
        self.open_table(name, self.kinds(&info)?)
    }

    /// A table. If it does not exist, it is created, unless a key and value for it are not of its types, which never change afterwards.
    pub(crate) fn table_or_new(
        &self,
        name: &str,
        types: &Types,
        row: Option<[&str; 2]>,
    ) -> Result<DynTable, Failure> {
        let kinds = match self.info(name) {
            None => {
                let kinds = [types.key_type, types.value_type].map(|kind| kind.unwrap_or(Kind::Str));
                for (kind, text) in kinds.iter().zip(row.iter().flatten()) {
                    kind.check(text).map_err(|error| self.failure(error))?;
                }
                kinds
            }
            Some(info) => {
                let stored = self.kinds(&info)?;
                let wanted = [types.key_type.unwrap_or(stored[0]), types.value_type.unwrap_or(stored[1])];
                if stored != wanted {
                    let table = name.to_owned();
                    return Err(self.failure(StoreError::OtherTypes { table, stored, wanted }));
                }
                stored
            }
        };
        self.open_table(name, kinds)
    }

    /// All tables.
    pub(crate) fn tables(&self) -> Vec<TableInfo> {
        self.store.tables()
    }

    /// The number of keys of a table; an error if a part of it cannot be read.
    pub(super) fn len(&self, table: &str) -> Result<u64, Failure> {
        let len = self.store.table_len(table).map_err(|error| self.failure(error))?;
        Ok(len.unwrap_or_default())
    }

    /// Makes the changes that wait in the group durable.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.store.sync().map_err(|error| self.failure(error))
    }

    /// Grows the file and the store.
    pub(crate) fn grow(&mut self, pool_bytes: u64) -> Result<(), Failure> {
        self.store.grow(pool_bytes).map_err(Failure::open(&self.path))
    }

    /// Releases empty nodes, and returns how many bytes they have.
    pub(crate) fn compact(&mut self) -> Result<u64, Failure> {
        self.store.compact().map_err(|error| self.failure(error))
    }

    /// Closes the store.
    pub(crate) fn close(self) -> Result<(), Failure> {
        self.store.close().map_err(OpenError::from).map_err(Failure::open(&self.path))
    }

    /// An error of this store.
    pub(crate) fn failure(&self, error: impl Into<StoreError>) -> Failure {
        Failure::new(&self.path)(error)
    }

    fn info(&self, name: &str) -> Option<TableInfo> {
        self.store.tables().into_iter().find(|table| table.name == name)
    }

    fn kinds(&self, info: &TableInfo) -> Result<[Kind; 2], Failure> {
        let types = [&info.key_type, &info.value_type];
        let [Some(key), Some(value)] = types.map(|name| Kind::of_type_name(name)) else {
            let table = info.name.clone();
            return Err(self.failure(StoreError::ForeignTypes { table, types: types.map(Clone::clone) }));
        };
        Ok([key, value])
    }

    fn open_table(&self, name: &str, [key, value]: [Kind; 2]) -> Result<DynTable, Failure> {
        let store = &self.store;
        let table = match key {
            Kind::U64 => open_with_key::<u64>(store, name, value),
            Kind::I64 => open_with_key::<i64>(store, name, value),
            Kind::Str => open_with_key::<&'static str>(store, name, value),
            Kind::Bytes => open_with_key::<&'static [u8]>(store, name, value),
        };
        table.map_err(|error| self.failure(error))
    }
}

/// The command may be a dump that is to outlive the store, so reads are verified.
fn options() -> StoreOptions {
    StoreOptions::new().verify_reads(true)
}

fn open_with_key<K: Typed + 'static>(store: &Store, name: &str, value: Kind) -> Result<DynTable, TableError> {
    Ok(match value {
        Kind::U64 => Box::new(store.table::<K, u64>(name)?),
        Kind::I64 => Box::new(store.table::<K, i64>(name)?),
        Kind::Str => Box::new(store.table::<K, &'static str>(name)?),
        Kind::Bytes => Box::new(store.table::<K, &'static [u8]>(name)?),
    })
}
