//! PMDK's transactions, and a node of its B-tree changed in one. What a transaction changes, it first logs as it was.

use crate::harness::*;

/// The node: how many items there are, and on the next line the items, keys in order.
const N: u64 = 0;
const ITEMS: u64 = 64;
const ITEM_COUNT: usize = 4;
const ITEMS_BYTES: u64 = 32;

/// The undo log: how many entries are valid, and the entries: offset, length, and the old bytes on a line of their own.
const LOG_COUNT: u64 = 512;
const LOG_ENTRIES: u64 = 576;
const ENTRY_BYTES: u64 = 128;

struct Tx<'p> {
    pmem: &'p SimPmem,
    ranges: Vec<(u64, u64)>,
}

impl<'p> Tx<'p> {
    const fn begin(pmem: &'p SimPmem) -> Self {
        Self { pmem, ranges: Vec::new() }
    }

    /// `pmemobj_tx_add_range`: from here on the range may be changed.
    fn add(&mut self, offset: u64, len_bytes: u64) -> Done {
        let entry = LOG_ENTRIES + self.ranges.len() as u64 * ENTRY_BYTES;
        let old = load_bytes(self.pmem, offset, len_bytes);
        self.pmem.store(entry, &bytes_of(&[offset, len_bytes]));
        self.pmem.store(entry + 64, &old);
        self.pmem.persist(entry, ENTRY_BYTES)?;
        self.ranges.push((offset, len_bytes));
        self.pmem.put(LOG_COUNT, self.ranges.len() as u64)
    }

    /// Makes durable what was logged and changed, then forgets the log.
    fn commit(self) -> Done {
        self.ranges.iter().for_each(|&(offset, len_bytes)| self.pmem.flush(offset, len_bytes));
        self.pmem.fence()?;
        forget_log(self.pmem)
    }
}

fn load_bytes(pmem: &SimPmem, offset: u64, len_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len_bytes).expect("a short range")];
    pmem.load(offset, &mut bytes);
    bytes
}

fn forget_log(pmem: &SimPmem) -> Done {
    pmem.put(LOG_COUNT, 0)
}

/// Undoes a transaction that did not commit, last entry first.
fn recover(pmem: &SimPmem) -> Done {
    let count = pmem.load_u64(LOG_COUNT);
    for number in (0..count).rev() {
        let entry = LOG_ENTRIES + number * ENTRY_BYTES;
        let [offset, len_bytes] = load_words(pmem, entry);
        pmem.store(offset, &load_bytes(pmem, entry + 64, len_bytes));
        pmem.flush(offset, len_bytes);
    }
    if count > 0 {
        pmem.fence()?;
        forget_log(pmem)?;
    }
    Ok(())
}

/// What an insertion logs, of the count and the items that it changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Logged {
    Both,
    ItemsOnly,
    ItemsLate,
}

fn insert(pmem: &SimPmem, logged: Logged, key: u64) -> Done {
    let mut tx = Tx::begin(pmem);
    let mut items = keys(pmem);
    items.push(key);
    items.sort_unstable();
    if logged != Logged::ItemsOnly {
        tx.add(N, 8)?;
    }
    if logged != Logged::ItemsLate {
        tx.add(ITEMS, ITEMS_BYTES)?;
    }
    let n = items.len() as u64;
    items.resize(ITEM_COUNT, 0);
    pmem.store(ITEMS, &bytes_of(&items)); //~ B21 kept
    if logged == Logged::ItemsLate {
        tx.add(ITEMS, ITEMS_BYTES)?;
    }
    pmem.store_u64(N, n); //~ B20 kept
    tx.commit()
}

fn keys(pmem: &SimPmem) -> Vec<u64> {
    let items: [u64; ITEM_COUNT] = load_words(pmem, ITEMS);
    let n = usize::try_from(pmem.load_u64(N)).expect("a node's count");
    assert!(items.iter().take(n).all(|&item| item != 0), "{n} items are counted in {items:?}");
    assert!(items.iter().skip(n).all(|&item| item == 0), "{n} items are counted in {items:?}");
    items[..n].to_vec()
}

fn insert_case(logged: Logged) -> Case {
    let two_items = image(|pmem| {
        pmem.store_u64(N, 2);
        pmem.store(ITEMS, &bytes_of(&[20, 40]));
    });
    let states = [vec![20, 40], vec![20, 30, 40], vec![10, 20, 30, 40]];
    Case::steps(
        two_items,
        [30, 10],
        move |pmem, key| insert(pmem, logged, key),
        states,
        |pmem| {
            recover(pmem)?;
            Ok(keys(pmem))
        },
    )
}

/// B20, reported by PMTest: an insertion changes the node's count in a transaction that logged the items only. The
/// transaction is undone, the count is not: it counts an item that is not there.
pub(crate) fn field_changed_without_being_logged(form: Form) -> Case {
    insert_case(if form == Form::Bug { Logged::ItemsOnly } else { Logged::Both })
}

/// B21, reported by PMTest: an insertion changes the items and then logs them. What is logged as old is new, or not
/// logged yet: the transaction cannot be undone, and leaves half of it.
pub(crate) fn range_logged_after_it_was_written(form: Form) -> Case {
    insert_case(if form == Form::Bug { Logged::ItemsLate } else { Logged::Both })
}
