//! Writes counted line by line at the seam, by one thread and by several, compared with an oracle that counts byte by byte.

use pm_core::{Counting, LineCounting, Pmem, Region};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

const REGION_BYTES: u64 = 4096;
const PART_BYTES: u64 = REGION_BYTES / 4;

/// A call of the seam that may write.
#[derive(Clone, Copy, Debug)]
enum Call {
    Store(u64, u64),
    StoreNt(u64, u64),
    StoreWord(u64),
    StorePair(u64),
    Exchange { word: u64, succeeds: bool },
    Flush(u64, u64),
    Fence,
}

/// Calls inside the first `PART_BYTES`.
fn call() -> impl Strategy<Value = Call> {
    let range =
        || (0..PART_BYTES, 0_u64..200).prop_map(|(offset, len)| (offset, len.min(PART_BYTES - offset)));
    prop_oneof![
        4 => range().prop_map(|(offset, len)| Call::Store(offset, len)),
        2 => range().prop_map(|(offset, len)| Call::StoreNt(offset, len)),
        3 => (0..PART_BYTES / 8).prop_map(|word| Call::StoreWord(word * 8)),
        1 => (0..PART_BYTES / 16).prop_map(|pair| Call::StorePair(pair * 16)),
        2 => (0..PART_BYTES / 8, any::<bool>())
            .prop_map(|(word, succeeds)| Call::Exchange { word: word * 8, succeeds }),
        2 => range().prop_map(|(offset, len)| Call::Flush(offset, len)),
        1 => Just(Call::Fence),
    ]
}

fn run(calls: &[Call], base: u64, pmem: &impl Pmem) {
    let bytes = |len| vec![7; usize::try_from(len).unwrap()];
    for &call in calls {
        match call {
            Call::Store(offset, len) => pmem.store(base + offset, &bytes(len)),
            Call::StoreNt(offset, len) => pmem.store_nt(base + offset, &bytes(len)),
            Call::StoreWord(offset) => pmem.store_u64(base + offset, 7),
            Call::StorePair(offset) => pmem.store_u128(base + offset, 7),
            Call::Exchange { word, succeeds } => {
                let current = pmem.load_u64(base + word).wrapping_add(u64::from(!succeeds));
                assert_eq!(pmem.compare_exchange_u64(base + word, current, 9).is_ok(), succeeds);
            }
            Call::Flush(offset, len) => pmem.flush(base + offset, len),
            Call::Fence => pmem.fence().unwrap(),
        }
    }
}

/// Adds the counts of one thread: `stored` has the stores to each line, where successive stores to one line count once; `sent` has its write-backs.
fn oracle(calls: &[Call], base: u64, stored: &mut BTreeMap<u64, u64>, sent: &mut BTreeMap<u64, u64>) {
    let mut last = None;
    for &call in calls {
        let (stores, sends) = match call {
            Call::Store(offset, len) => (offset..offset + len, 0..0),
            Call::StoreNt(offset, len) => (offset..offset + len, offset..offset + len),
            Call::StoreWord(offset) | Call::Exchange { word: offset, succeeds: true } => {
                (offset..offset + 8, 0..0)
            }
            Call::StorePair(offset) => (offset..offset + 16, 0..0),
            Call::Flush(offset, len) => (0..0, offset..offset + len),
            Call::Exchange { succeeds: false, .. } | Call::Fence => continue,
        };
        for line in stores.map(|byte| (base + byte) / 64 * 64) {
            if last.replace(line) != Some(line) {
                *stored.entry(line).or_default() += 1;
            }
        }
        for line in sends.map(|byte| (base + byte) / 64 * 64).collect::<BTreeSet<_>>() {
            *sent.entry(line).or_default() += 1;
        }
    }
}

proptest! {
    #[test]
    fn counts_of_one_thread_equal_oracle(calls in prop::collection::vec(call(), 0..100)) {
        let pmem = LineCounting::new(Counting::new(Region::anonymous(REGION_BYTES).unwrap()));
        run(&calls, 0, &pmem);
        let (mut stored, mut sent) = Default::default();
        oracle(&calls, 0, &mut stored, &mut sent);
        prop_assert_eq!(pmem.stored().by_line(), stored.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(pmem.sent().by_line(), sent.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(pmem.sent().total_writes(), pmem.get_ref().counts().lines);
    }

    /// Each thread has its own part of the region, which overlaps the next by one line. In any schedule, the counts are the sums over all threads.
    #[test]
    fn stores_are_coalesced_per_thread(
        calls in prop::collection::vec(prop::collection::vec(call(), 0..60), 3),
    ) {
        let pmem = LineCounting::new(Region::anonymous(REGION_BYTES).unwrap());
        let bases: Vec<u64> = (0..3).map(|thread| thread * (PART_BYTES - 64)).collect();
        std::thread::scope(|scope| {
            for (calls, &base) in calls.iter().zip(&bases) {
                // The result of an exchange of a shared word would depend on the schedule.
                let calls: Vec<_> = without_exchanges(calls);
                let pmem = &pmem;
                scope.spawn(move || run(&calls, base, pmem));
            }
        });
        let (mut stored, mut sent) = Default::default();
        for (calls, &base) in calls.iter().zip(&bases) {
            oracle(&without_exchanges(calls), base, &mut stored, &mut sent);
        }
        prop_assert_eq!(pmem.stored().by_line(), stored.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(pmem.sent().by_line(), sent.into_iter().collect::<Vec<_>>());
    }
}

fn without_exchanges(calls: &[Call]) -> Vec<Call> {
    calls.iter().copied().filter(|call| !matches!(call, Call::Exchange { .. })).collect()
}

#[test]
fn reset_clears_counts_and_coalescing() {
    let pmem = LineCounting::new(Region::anonymous(REGION_BYTES).unwrap());
    run(&[Call::Store(0, 8), Call::Flush(0, 8), Call::Fence], 0, &pmem);
    pmem.reset();
    assert_eq!((pmem.stored().total_writes(), pmem.sent().total_writes()), (0, 0));
    pmem.store_u64(0, 1);
    assert_eq!(pmem.stored().writes_to(0), 1, "not coalesced with the store before the reset");
}

#[test]
fn panicking_calls_are_not_counted() {
    let pmem = LineCounting::new(Region::anonymous(REGION_BYTES).unwrap());
    for call in [Call::Store(0, 8), Call::StoreNt(0, 8), Call::StoreWord(0), Call::Flush(0, 8)] {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&[call], REGION_BYTES, &pmem)));
        assert!(outcome.is_err(), "{call:?} outside the region must panic");
    }
    assert_eq!((pmem.stored().total_writes(), pmem.sent().total_writes()), (0, 0));
}
