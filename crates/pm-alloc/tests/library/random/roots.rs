//! Random transactions that set, replace and remove several roots each, in a directory with few roots or an almost full one. A kill or power failure
//! stops them at any event.

use super::prelude::*;
use crate::sim::programs::{Failure, assert_allowed, has_committed};
use pm_core::RootError;

/// The maximum number of roots besides the heap's: a directory has 64 slots, of which a replacement needs one.
const FULL: usize = 62;

/// The number of names of roots, for which a directory has too few slots.
const NAMES: u64 = 66;

/// The target of each root.
type Shadow = BTreeMap<String, u64>;

fn name(number: u64) -> String {
    format!("root {number}")
}

fn read_state(heap: &SimHeap) -> Shadow {
    let mut found = Shadow::new();
    for root in heap.pool().roots() {
        if root.name() != "pm-alloc.heap" {
            assert!(found.insert(root.name().to_owned(), root.offset()).is_none(), "{root:?} is listed once");
        }
    }
    for name in (0..NAMES).map(name) {
        let offset = heap.view(|view| view.root::<u64>(&name).unwrap().map(Link::offset));
        assert_eq!(offset, found.get(&name).copied(), "{name}");
    }
    found
}

/// Changes one root within a transaction. Asserts that the transaction then reads the changed roots.
fn change(
    tx: &mut Tx<'_, AnyPmem<'static>>,
    rng: &mut Rng,
    shadow: &mut Shadow,
    (names, block): (u64, u64),
) -> Result<(), TxError> {
    let changed = name(rng.below(names));
    if rng.one_in(3) {
        tx.remove_root(&changed)?;
        shadow.remove(&changed);
    } else {
        let target = block + 8 * rng.below(99);
        match tx.set_root(&changed, link_to::<u64>(target)) {
            Ok(()) => drop(shadow.insert(changed, target)),
            Err(TxError::Root(RootError::Full { .. })) => {
                let others = shadow.keys().filter(|other| **other != changed).count();
                assert!(others >= FULL, "full with {others} other roots");
            }
            Err(error) => return Err(error),
        }
    }
    for name in (0..NAMES).map(name) {
        let found = tx.root::<u64>(&name)?.map(Link::offset);
        assert_eq!(found, shadow.get(&name).copied(), "{name} in the transaction");
    }
    Ok(())
}

fn run(seed: u64) {
    let mut rng = Rng::of(seed);
    let options = crate::harness::options().lanes(1 + rng.below(2) as u32);
    let options = options.lane_entries([30, 44, 100][rng.below(3) as usize]).chunk_bytes(4096);
    let mut heap = Heap::format(any(Arc::new(SampledPmem::new(100 << 10))), &options).unwrap();
    let block = heap.transact(|tx| tx.alloc_zeroed::<u64>(100).map(Link::offset)).unwrap();
    let is_almost_full = rng.one_in(2);
    let names = if is_almost_full { NAMES } else { 4 };
    let mut shadow = Shadow::new();
    if is_almost_full {
        for number in 0..58 + rng.below(5) {
            let target = block + 8 * number;
            heap.transact(|tx| tx.set_root(&name(number), link_to::<u64>(target))).unwrap();
            shadow.insert(name(number), target);
        }
    }
    for round in 0..10 {
        let sim = Arc::clone(heap.pool().pmem().sampled());
        let mut stop = sim.events() + rng.below(400);
        sim.stop_at(stop);
        // Each state has the event from which on a crash must not lose the state.
        let mut states = vec![(shadow, 0)];
        for _ in 0..1 + rng.below(8) {
            let mut next = states.last().unwrap().0.clone();
            let is_rolled_back = rng.one_in(6);
            let done = heap.try_transaction(|tx| {
                for _ in 0..1 + rng.below(7) {
                    change(tx, &mut rng, &mut next, (names, block))?;
                }
                if is_rolled_back { Err(Failure::RolledBack) } else { Ok(()) }
            });
            if has_committed(done) {
                states.push((next, sim.events()));
            }
            assert_eq!(read_state(&heap), states.last().unwrap().0, "round {round}, without a crash");
        }
        let is_closed = rng.one_in(4);
        drop(heap);
        let stopped = sim.stopped().filter(|_| !is_closed).unwrap_or_else(|| {
            stop = u64::MAX - 1;
            sim.state()
        });
        let left = if rng.one_in(2) { stopped } else { stopped.crash(&mut rng) };
        let left = stopped_recoveries(left, &options, &mut rng);
        heap = Heap::attach(any(Arc::new(SampledPmem::of(left))), &options).unwrap();
        shadow = read_state(&heap);
        assert_allowed(&states, stop, &shadow, &format!("round {round}"));
    }
}

#[test]
fn changes_of_several_roots_are_atomic() {
    each_seed(40, run);
}
