//! Damaged lines and pages of a store, closed or killed: a read returns the right value or an error. A key is absent in silence only in the cases that
//! the documentation of the crate names, after a kill.

use pm_alloc::HeapOptions;
use pm_btree::format::{NODE_MAGIC, unchecked};
use pm_btree::{Key, Store, StoreOptions, TableError};
use pm_core::{Pmem, Region};
use pm_crashsim::{Crash, Explorer, Model, Run, SimPmem};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

const REGION_BYTES: usize = 512 << 10;
const LINE: usize = 64;
const PAGE: usize = 4096;

/// The number of damaged images of each kind.
fn image_count() -> u64 {
    std::env::var("PM_FLIPS").map_or(120, |count| count.parse().expect("PM_FLIPS is a number"))
}

fn options() -> StoreOptions {
    StoreOptions::new().node_slots(12).verify_reads(true)
}

/// What is done to an image, in units of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    FlippedBit,
    ZeroedEntry,
    ZeroedLine,
    ExchangedLines,
    ZeroedPage,
    ExchangedPages,
}

impl Damage {
    const ALL: [Self; 6] = [
        Self::FlippedBit,
        Self::ZeroedEntry,
        Self::ZeroedLine,
        Self::ExchangedLines,
        Self::ZeroedPage,
        Self::ExchangedPages,
    ];

    fn apply(self, image: &mut [u8], places: &[usize], random: &mut fastrand::Rng) {
        let unit = match self {
            Self::FlippedBit => 1,
            Self::ZeroedEntry => 32,
            Self::ZeroedLine | Self::ExchangedLines => LINE,
            Self::ZeroedPage | Self::ExchangedPages => PAGE,
        };
        let mut place = || (*random.choice(places).unwrap() + random.usize(..LINE)) / unit * unit;
        let (first, second) = (place(), place());
        match self {
            Self::FlippedBit => image[first] ^= 1 << random.u32(..8),
            Self::ZeroedEntry | Self::ZeroedLine | Self::ZeroedPage => image[first..first + unit].fill(0),
            Self::ExchangedLines | Self::ExchangedPages => {
                let line = image[first..first + unit].to_vec();
                image.copy_within(second..second + unit, first);
                image[second..second + unit].copy_from_slice(&line);
            }
        }
    }
}

/// Keys of up to eight bytes: the head of an entry has the whole key.
trait ShortKey: Key {
    fn with<R>(number: u64, use_key: impl FnOnce(Self::View<'_>) -> R) -> R;
    fn head(number: u64) -> u64;
}

impl ShortKey for u64 {
    fn with<R>(number: u64, use_key: impl FnOnce(u64) -> R) -> R {
        use_key(number)
    }

    fn head(number: u64) -> u64 {
        number
    }
}

impl ShortKey for &str {
    fn with<R>(number: u64, use_key: impl FnOnce(&str) -> R) -> R {
        use_key(&format!("{number:06}"))
    }

    fn head(number: u64) -> u64 {
        u64::from_be_bytes(format!("{number:06}\0\0").as_bytes().try_into().unwrap())
    }
}

type Map = BTreeMap<u64, Vec<u8>>;

/// Makes random changes, singly and in batches.
fn change<K: ShortKey>(store: &Store<AnyPmem<'static>>, map: &mut Map, random: &mut fastrand::Rng) {
    const CHANGES: usize = 700;
    let table = store.table::<K, &[u8]>("t").unwrap();
    for _ in 0..CHANGES {
        let mut changed = Map::new();
        let count = if random.u8(..8) == 0 { random.usize(2..9) } else { 1 };
        for _ in 0..count {
            changed.insert(random.u64(..400), vec![random.u8(..); random.usize(..40)]);
        }
        let mut batch = store.batch();
        for (number, value) in changed {
            let is_removed = random.u8(..4) == 0;
            K::with(number, |key| match (count, is_removed) {
                (1, true) => table.remove(key).map(drop),
                (1, false) => table.insert(key, &value).map(drop),
                (_, true) => batch.remove(&table, key),
                (_, false) => batch.insert(&table, key, &value),
            })
            .unwrap();
            match is_removed {
                true => drop(map.remove(&number)),
                false => drop(map.insert(number, value)),
            }
        }
        batch.commit().unwrap();
    }
}

/// A store in two sessions, of which the second was closed or killed: its bytes, the places of its lines, and its entries.
fn image<K: ShortKey>(is_killed: bool) -> (Vec<u8>, Vec<usize>, Map) {
    let pmem = Arc::new(Region::anonymous(REGION_BYTES as u64).unwrap());
    let (mut map, mut random) = (Map::new(), fastrand::Rng::with_seed(9));
    let store = Store::format(any(Arc::clone(&pmem)), &options()).unwrap();
    change::<K>(&store, &mut map, &mut random);
    store.close().unwrap();
    let store = Store::attach(any(Arc::clone(&pmem)), &options()).unwrap();
    change::<K>(&store, &mut map, &mut random);
    // The heap's own blocks have tests of their own.
    let of_block = |block: u64| (block as usize..block as usize + PAGE - 128).step_by(LINE);
    let places = store.blocks().into_iter().flat_map(of_block).collect();
    match is_killed {
        true => std::mem::forget(store),
        false => store.close().unwrap(),
    }
    let mut bytes = vec![0; REGION_BYTES];
    pmem.load(0, &mut bytes);
    (bytes, places, map)
}

/// What a damaged store says of its entries: the keys that are absent without an error.
fn silently_absent<K: ShortKey>(bytes: &[u8], map: &Map) -> Vec<u64> {
    let pmem = Arc::new(Region::anonymous(REGION_BYTES as u64).unwrap());
    pmem.store(0, bytes);
    let Ok(store) = Store::attach(any(pmem), &options()) else { return Vec::new() };
    let table = match store.open_table::<K, &[u8]>("t") {
        Ok(table) => table.expect("the table is not absent"),
        Err(TableError::Corrupted(_)) => return Vec::new(),
        Err(error) => panic!("{error}"),
    };
    let mut absent = Vec::new();
    let (mut has_error, mut found_count) = (false, 0);
    for number in 0..400 {
        match (K::with(number, |key| table.get(key)), map.get(&number)) {
            (Ok(Some(found)), stored) => {
                assert_eq!(Some(found.value()), stored.map(Vec::as_slice), "key {number}");
                found_count += 1;
            }
            (Ok(None), Some(_)) => absent.push(number),
            (Ok(None), None) => (),
            (Err(_), _) => has_error = true,
        }
    }
    let scanned: Result<Vec<_>, _> = table.range(..).collect();
    if let Ok(scanned) = scanned {
        assert!(!has_error, "a scan without an error finds what cannot be read");
        assert_eq!(scanned.len(), found_count);
    }
    absent
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Whether the absence of a key is one that the documentation names: it was in a line behind those that the leaf's header counts, and no line from there
/// on has an entry that counts; or its record is wrong, and its entry was the last one of its leaf.
fn is_named<K: ShortKey>(before: &[u8], after: &[u8], number: u64) -> bool {
    let is_leaf = |node: &usize| word(before, *node) & 0xff_ffff_ffff == u64::from(NODE_MAGIC);
    let slots = |node: usize| (0..12).map(move |slot| node + 64 + 32 * slot);
    let commit = |bytes: &[u8], at: usize| word(bytes, at + 24);
    let is_entry = |bytes: &[u8], at: usize| (1..7).contains(&(commit(bytes, at) & 7));
    let with_key = (0..before.len()).step_by(LINE).filter(is_leaf).filter_map(|node| {
        let is_of_key = |at: &usize| word(before, *at) == K::head(number) && is_entry(before, *at);
        let newest = slots(node).filter(is_of_key).max_by_key(|at| commit(before, *at) >> 4)?;
        Some((word(before, node + 16), node, newest))
    });
    // Leaves to the left may still have an entry that a split has moved.
    let (_, node, at) = with_key.max().expect("the key was in a leaf");
    let state = unchecked(word(before, node + 8), node as u64 + 8).unwrap();
    let line = (at - node) / LINE;
    let is_behind = line > (state >> 8) as usize
        && slots(node).filter(|slot| (slot - node) / LINE >= line).all(|slot| !is_entry(after, slot));
    let stamp = |at: usize| (commit(before, at) >> 16, commit(before, at) >> 4 & 0xfff);
    let is_newest = slots(node).filter(|slot| is_entry(before, *slot)).all(|slot| stamp(slot) <= stamp(at));
    let is_unchanged = before[at..at + 32] == after[at..at + 32];
    is_behind || (is_newest && is_unchanged)
}

fn check<K: ShortKey>(is_killed: bool) {
    let (bytes, places, map) = image::<K>(is_killed);
    assert!(silently_absent::<K>(&bytes, &map).is_empty(), "the image is sound");
    let mut random = fastrand::Rng::with_seed(3);
    for damage in Damage::ALL {
        let mut absent_count = 0;
        for _ in 0..image_count() {
            let mut damaged = bytes.clone();
            damage.apply(&mut damaged, &places, &mut random);
            let absent = silently_absent::<K>(&damaged, &map);
            absent_count += usize::from(!absent.is_empty());
            for number in absent {
                assert!(is_killed, "{damage:?}: key {number} is absent after a clean close");
                assert!(is_named::<K>(&bytes, &damaged, number), "{damage:?}: key {number} is absent");
            }
        }
        println!("{damage:?}, killed {is_killed}: {absent_count} of {} with absent keys", image_count());
    }
}

/// The number of lines in use is durable when a close has returned: after a power failure, zeroes in place of the last line of a leaf are an error.
#[test]
fn lines_in_use_are_durable_when_a_close_returns() {
    let sim = Arc::new(SimPmem::new(96 << 10));
    let options = options().extent_bytes(4096).heap(HeapOptions::new().lanes(1));
    let store = Store::format(any(Arc::clone(&sim)), &options).unwrap();
    drop(store.table::<u64, u64>("t").unwrap());
    store.close().unwrap();
    let operation = |run: &Run<()>| {
        let store = Store::attach(any(Arc::clone(run.pmem())), &options).unwrap();
        let table = store.table::<u64, u64>("t").unwrap();
        (0..5).for_each(|key| assert!(table.insert(key, 0xABCD_EF01_2345_6789).unwrap()));
        drop(table);
        store.close().unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        if crash.acked().is_empty() {
            return;
        }
        let pmem = crash.pmem();
        let value = u64::from_le_bytes(0xABCD_EF01_2345_6789_u64.to_be_bytes());
        let is_last = |at: &u64| (pmem.load_u64(*at), pmem.load_u64(at + 8)) == (4, value);
        let last = (0..pmem.len_bytes() - 16).step_by(32).find(is_last).expect("the entry of key 4");
        pmem.store(last / 64 * 64, &[0; 64]);
        let store = Store::attach(any(Arc::clone(pmem)), &options).unwrap();
        let found = store.table::<u64, u64>("t").unwrap().get(4);
        assert!(found.is_err(), "{:?} was found in place of zeroes", found.map(|found| found.is_some()));
    };
    Explorer::new(Model::Px86Line).crashes(1).choices_per_point(16).check(&sim.to_image(), operation, check);
}

#[test]
fn damaged_closed_store_reports_what_it_lacks() {
    check::<u64>(false);
    check::<&str>(false);
}

#[test]
fn damaged_killed_store_reports_what_it_lacks_but_for_named_cases() {
    check::<u64>(true);
    check::<&str>(true);
}
