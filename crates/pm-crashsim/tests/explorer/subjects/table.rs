//! A hash table with open addressing. A slot is valid if its token is not zero; the token is the version of its key.

use crate::harness::*;

const SLOTS: u64 = 8;
pub(crate) const LEN_BYTES: u64 = 64 + SLOTS * 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// The token is stored before the slot is durable.
    TokenTooEarly,
    /// The old version is removed before the new one is durable.
    OldGoesFirst,
    /// A removal returns before it is durable.
    RemovalNotFenced,
    /// Recovery keeps two versions of a key.
    KeepsBothVersions,
}

#[derive(Clone, Debug)]
pub(crate) struct Table(pub(crate) Flaw);

#[derive(Clone, Debug)]
pub(crate) enum TableOp {
    Put(u64, u64),
    Remove(u64),
}

fn token(slot: u64) -> u64 {
    slot * 8
}

/// The offset of the key. The value is the next word.
fn contents(slot: u64) -> u64 {
    64 + slot * 64
}

/// The valid slots of that key, oldest version first.
fn versions(pmem: &SimPmem, key: u64) -> Vec<u64> {
    let counts = |slot: &u64| pmem.load_u64(token(*slot)) != 0 && pmem.load_u64(contents(*slot)) == key;
    let mut slots: Vec<u64> = (0..SLOTS).filter(counts).collect();
    slots.sort_by_key(|&slot| pmem.load_u64(token(slot)));
    slots
}

fn free_slot(pmem: &SimPmem, key: u64) -> Option<u64> {
    (0..SLOTS).map(|step| (key + step) % SLOTS).find(|&slot| pmem.load_u64(token(slot)) == 0)
}

impl Table {
    fn set_token(pmem: &SimPmem, slot: u64, value: u64) -> Done {
        pmem.put(token(slot), value)
    }
}

impl Subject for Table {
    type Op = TableOp;
    type State = BTreeMap<u64, u64>;
    type Store = Arc<SimPmem>;
    type Error = FenceError;

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Arc<SimPmem>, FenceError> {
        for slot in 0..SLOTS {
            let key = pmem.load_u64(contents(slot));
            let versions = versions(&pmem, key);
            let is_old = versions.contains(&slot) && versions.last() != Some(&slot);
            if is_old && self.0 != Flaw::KeepsBothVersions {
                Self::set_token(&pmem, slot, 0)?;
            }
        }
        Ok(pmem)
    }

    fn apply(&self, pmem: &mut Arc<SimPmem>, op: &TableOp) -> Done {
        match *op {
            TableOp::Put(key, value) => {
                let Some(slot) = free_slot(pmem, key) else { return Ok(()) };
                let old = versions(pmem, key).last().copied();
                pmem.store_u64(contents(slot), key);
                pmem.store_u64(contents(slot) + 8, value);
                pmem.flush(contents(slot), 16);
                if self.0 != Flaw::TokenTooEarly {
                    pmem.fence()?;
                }
                let version = old.map_or(0, |old| pmem.load_u64(token(old)));
                if let Some(old) = old.filter(|_| self.0 == Flaw::OldGoesFirst) {
                    Self::set_token(pmem, old, 0)?;
                }
                Self::set_token(pmem, slot, version + 1)?;
                old.map_or(Ok(()), |old| Self::set_token(pmem, old, 0))
            }
            TableOp::Remove(key) => match versions(pmem, key).last() {
                Some(&slot) if self.0 == Flaw::RemovalNotFenced => {
                    pmem.store_u64(token(slot), 0);
                    // teeth(flush): without its fence it promises nothing: the planted flaw
                    pmem.flush(token(slot), 8);
                    Ok(())
                }
                Some(&slot) => Self::set_token(pmem, slot, 0),
                None => Ok(()),
            },
        }
    }

    fn observe(&self, pmem: &Arc<SimPmem>) -> Result<BTreeMap<u64, u64>, FenceError> {
        let counting = (0..SLOTS).filter(|&slot| pmem.load_u64(token(slot)) != 0);
        Ok(counting.map(|slot| (pmem.load_u64(contents(slot)), pmem.load_u64(contents(slot) + 8))).collect())
    }
}

oracle!(Table: BTreeMap<u64, u64> = BTreeMap::new(), |map, op| {
        match *op {
            TableOp::Put(key, value) if (map.len() as u64) < SLOTS => {
                map.insert(key, value);
            }
            TableOp::Put(..) => {}
            TableOp::Remove(key) => {
                map.remove(&key);
            }
        }
});
