//! The cost of each operation in lines and fences, averaged over many operations, with the splits and the allocation of space in them.

use pm_btree::format::{ExtentChunk, ROOT, StoreBlock, unchecked};
use pm_btree::{Store, StoreOptions};
use pm_core::{Counting, Link, Region, field};
use pm_testkit::{AnyPmem, any};
use std::fmt;
use std::ops::Range;

type CountedStore = Store<AnyPmem<'static>>;

/// The number of operations of each average.
const COUNT: u64 = 100_000;

/// The lines and fences of an operation, on average.
#[derive(Clone, Copy, Debug)]
struct Price {
    lines: f64,
    fences: f64,
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4} lines, {:.4} fences", self.lines, self.fences)
    }
}

impl Price {
    fn assert_at_most(self, name: &str, lines: f64, fences: f64) {
        println!("{name}: {self}");
        assert!(self.lines <= lines && self.fences <= fences, "{name}: {self}");
    }
}

fn store() -> CountedStore {
    let region = Counting::new(Region::anonymous(256 << 20).unwrap());
    Store::format(any(region), &StoreOptions::new()).unwrap()
}

/// Different keys in no order: multiples of an odd number, of which each word has one.
fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The number of extents that hold nodes, and their length, from the store's table.
fn node_extents(store: &CountedStore) -> (u64, u64) {
    store.heap().view(|view| {
        let block = view.root::<StoreBlock<'_>>(ROOT).unwrap().unwrap();
        let extent_bytes = view.read(block.field(field!(StoreBlock<'_>, header))).unwrap().extent_bytes;
        let mut link: Link<'_, ExtentChunk<'_>> =
            view.read(block.field(field!(StoreBlock<'_>, extents))).unwrap();
        let mut count = 0;
        while !link.is_null() {
            let chunk = view.read(link).unwrap();
            let is_of_nodes = |class, offset| unchecked(class, offset) == Some(1);
            count += chunk.rows.iter().filter(|row| is_of_nodes(row.class, row.extent.offset())).count();
            link = chunk.next;
        }
        (count as u64, extent_bytes)
    })
}

/// The price of `operation`, which is called for the numbers from zero to [`COUNT`].
///
/// An extent for nodes is zeroed when it is added, at once and around the cache: a stream of 16,384 lines for 511 nodes, with one fence. Those lines
/// are not in the price; the fence is.
fn price(store: &CountedStore, operation: impl FnMut(u64)) -> Price {
    price_of(store, 0..COUNT, operation)
}

/// The [price](price()) of `operation`, which is called for these numbers.
fn price_of(store: &CountedStore, numbers: Range<u64>, operation: impl FnMut(u64)) -> Price {
    let count = numbers.end - numbers.start;
    let (before, extent_bytes) = node_extents(store);
    let ((), cost) = store.heap().pool().pmem().counted().count(|| numbers.for_each(operation));
    let zeroed = (node_extents(store).0 - before) * extent_bytes.div_ceil(64);
    let average = |total: u64| total as f64 / count as f64;
    Price { lines: average(cost.lines - zeroed), fences: average(cost.fences) }
}

/// The first half of the removals leaves few leaves empty, and the second half all of them.
fn removals_cost_one_line(store: &CountedStore, name: &str, remove: impl Fn(u64) -> bool) {
    let half = price_of(store, 0..COUNT / 2, |number| assert!(remove(number)));
    half.assert_at_most(&format!("{name}, remove"), 1.1, 1.0);
    let rest = price_of(store, COUNT / 2..COUNT, |number| assert!(remove(number)));
    rest.assert_at_most(&format!("{name}, remove, with all leaves unlinked"), 1.25, 1.05);
}

#[test]
fn word_key_and_value_cost_one_line_and_a_share_of_a_split() {
    let store = store();
    let table = store.table::<u64, u64>("words").unwrap();
    let insert = price(&store, |number| assert!(table.insert(key(number), number).unwrap()));
    insert.assert_at_most("8 B key, 8 B value, insert", 1.5, 1.05);
    let update = price(&store, |number| assert!(!table.insert(key(number), !number).unwrap()));
    update.assert_at_most("8 B key, 8 B value, update", 1.05, 1.0);
    removals_cost_one_line(&store, "8 B key, 8 B value", |number| table.remove(key(number)).unwrap());
}

#[test]
fn record_costs_its_lines_in_addition() {
    let store = store();
    let table = store.table::<u64, [u8; 256]>("records").unwrap();
    let insert = price(&store, |number| assert!(table.insert(key(number), [7; 256]).unwrap()));
    insert.assert_at_most("8 B key, 256 B value, insert", 5.6, 1.05);
    let update = price(&store, |number| assert!(!table.insert(key(number), [8; 256]).unwrap()));
    // A replaced record is free one change of its leaf later, so that a few more extents are needed: each costs fences.
    update.assert_at_most("8 B key, 256 B value, update", 5.1, 1.001);
    removals_cost_one_line(&store, "8 B key, 256 B value", |number| table.remove(key(number)).unwrap());
}

/// A group of 64 changes has two fences, and a split in about one insertion of 30 two.
#[test]
fn changes_of_groups_share_fences() {
    let region = Counting::new(Region::anonymous(256 << 20).unwrap());
    let store = Store::format(any(region), &StoreOptions::new().group_commits(64)).unwrap();
    let table = store.table::<u64, [u8; 256]>("records").unwrap();
    let insert = price(&store, |number| table.insert_grouped(key(number), [7; 256]).unwrap());
    insert.assert_at_most("in groups of 64: 8 B key, 256 B value, insert", 5.7, 0.1);
    let update = price(&store, |number| table.insert_grouped(key(number), [8; 256]).unwrap());
    update.assert_at_most("in groups of 64: 8 B key, 256 B value, update", 5.2, 0.04);
    let remove = price(&store, |number| table.remove_grouped(key(number)).unwrap());
    remove.assert_at_most("in groups of 64: 8 B key, 256 B value, remove", 1.25, 0.04);
}
