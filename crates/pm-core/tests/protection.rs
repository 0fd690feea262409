//! Protected regions: every method stores and loads as the region itself does, from several threads, on memory and on files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::fault::MediumFault;
use pm_core::protection::{Method, Protected, Protection, ProtectionError};
use pm_core::{Pmem, Region, RegionOptions};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

const LEN: u64 = 1 << 20;

/// Every protection that this machine has.
fn protections() -> Vec<Protection> {
    let methods =
        Method::ALL.into_iter().filter(|method| match Protected::new(region(), &Protection::new(*method)) {
            Err(ProtectionError::NoKey(_)) => false,
            other => other.is_ok(),
        });
    methods
        .flat_map(|method| {
            let protection = Protection::new(method);
            [protection, protection.guard_reads(true), protection.window_bytes(2 << 20)]
        })
        .collect()
}

fn region() -> Region {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    RegionOptions::new().create(dir.path().join("region.pm"), LEN).unwrap()
}

#[derive(Clone, Debug)]
enum Call {
    Store(u64, Vec<u8>),
    StoreNt(u64, Vec<u8>),
    TryStore(u64, Vec<u8>),
    TryStoreNt(u64, Vec<u8>),
    Word(u64, u64),
    Words(u64, Vec<u64>),
    Pair(u64, u128),
    Exchange(u64, u64),
    Flush(u64, u64),
    Fence,
}

fn calls() -> impl Strategy<Value = Call> {
    let bytes = || (0..LEN - 10_000, prop::collection::vec(any::<u8>(), 0..9000));
    prop_oneof![
        bytes().prop_map(|(at, bytes)| Call::Store(at, bytes)),
        bytes().prop_map(|(at, bytes)| Call::StoreNt(at, bytes)),
        bytes().prop_map(|(at, bytes)| Call::TryStore(at, bytes)),
        bytes().prop_map(|(at, bytes)| Call::TryStoreNt(at, bytes)),
        (0..LEN / 8, any::<u64>()).prop_map(|(at, word)| Call::Word(at * 8, word)),
        (0..LEN / 8 - 2000, prop::collection::vec(any::<u64>(), 0..1500))
            .prop_map(|(at, words)| Call::Words(at * 8, words)),
        (0..LEN / 16, any::<u128>()).prop_map(|(at, pair)| Call::Pair(at * 16, pair)),
        (0..LEN / 8, any::<u64>()).prop_map(|(at, word)| Call::Exchange(at * 8, word)),
        (0..LEN, 0..LEN).prop_map(|(at, len)| Call::Flush(at, len.min(LEN - at))),
        Just(Call::Fence),
    ]
}

fn run(pmem: &impl Pmem, call: &Call) {
    match call {
        Call::Store(at, bytes) => pmem.store(*at, bytes),
        Call::StoreNt(at, bytes) => pmem.store_nt(*at, bytes),
        Call::TryStore(at, bytes) => pmem.try_store(*at, bytes).unwrap(),
        Call::TryStoreNt(at, bytes) => pmem.try_store_nt(*at, bytes).unwrap(),
        Call::Word(at, word) => pmem.store_u64(*at, *word),
        Call::Words(at, words) => pmem.store_words(*at, words),
        Call::Pair(at, pair) => pmem.store_u128(*at, *pair),
        Call::Exchange(at, word) => {
            pmem.compare_exchange_u64(*at, pmem.load_u64(*at), *word).unwrap();
        }
        Call::Flush(at, len) => {
            pmem.flush(*at, *len);
            pmem.try_flush(*at, *len).unwrap();
        }
        Call::Fence => pmem.fence().unwrap(),
    }
}

/// All bytes, by each kind of load.
fn contents(pmem: &impl Pmem) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(LEN).unwrap()];
    pmem.load(0, &mut bytes);
    let mut again = vec![1; bytes.len()];
    pmem.try_load(0, &mut again).unwrap();
    assert!(bytes == again);
    let mut words = vec![0; bytes.len() / 8];
    pmem.load_words(0, &mut words);
    assert!(words.iter().flat_map(|word| word.to_le_bytes()).eq(bytes.iter().copied()));
    assert_eq!(pmem.load_u64(LEN - 8), *words.last().unwrap());
    pmem.lend(LEN - 8, 8, &mut |lent| assert_eq!(lent.len(), 8));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn protected_region_has_the_contents_of_an_unprotected_one(calls in prop::collection::vec(calls(), 1..12)) {
        let plain = Region::anonymous(LEN).unwrap();
        calls.iter().for_each(|call| run(&plain, call));
        let expected = contents(&plain);
        // On memory, and on a file in the page domain.
        for dir in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
            for protection in protections() {
                let dir = tempfile::tempdir_in(dir).unwrap();
                let path = dir.path().join("region.pm");
                let region = RegionOptions::new().create(&path, LEN).unwrap();
                let region = Protected::new(region, &protection).unwrap();
                region.populate(0, LEN);
                calls.iter().for_each(|call| run(&region, call));
                prop_assert!(contents(&region) == expected, "{:?}", protection);
                region.fence().unwrap();
                drop(region);
                prop_assert!(std::fs::read(&path).unwrap() == expected, "{:?}", protection);
            }
        }
    }
}

/// Windows of several threads over the same pages: one that closes does not close the others.
#[test]
fn windows_of_threads_overlap() {
    for protection in protections() {
        let region = Protected::new(region(), &protection).unwrap();
        let done = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for thread in 0..3_u8 {
                let (region, done) = (&region, &done);
                threads.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(u64::from(thread));
                    for _ in 0..3000 {
                        let at = random.u64(..6) * 2048 + 64 * u64::from(thread);
                        let len = [8, 64, 5000][random.usize(..3)];
                        match random.u8(..4) {
                            0 => region.store_u64(at, 1),
                            1 => region.load(at, &mut vec![0; len]),
                            2 => region.try_store_nt(at, &vec![thread; len]).unwrap(),
                            _ => region.store(at, &vec![thread; len]),
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(done.into_inner(), 3);
    }
}

#[test]
fn store_to_truncated_file_is_error_and_does_not_lengthen_it() {
    for protection in protections() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("region.pm");
        let region = RegionOptions::new().create(&path, LEN).unwrap();
        let region = Protected::new(region, &protection).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(8192).unwrap();
        for len in [1, 4096, 8192] {
            assert_eq!(region.try_store_nt(8192, &vec![1; len]), Err(MediumFault), "{protection:?}");
            assert_eq!(region.try_store(8192, &vec![1; len]), Err(MediumFault), "{protection:?}");
            assert_eq!(region.try_load(8192, &mut vec![1; len]), Err(MediumFault), "{protection:?}");
        }
        assert_eq!(region.try_store_nt(4096, &[1; 4096]), Ok(()));
        assert_eq!(file.metadata().unwrap().len(), 8192, "{protection:?}");
    }
}

/// Two changes of the page table, whatever the number of words.
#[test]
fn words_are_stored_in_one_window() {
    let region = Protected::new(region(), &Protection::new(Method::PageTable)).unwrap();
    let before = region.windows().change_count();
    region.store_words(4096 - 24, &[1, 2, 3, 4, 5, 6]);
    assert_eq!(region.windows().change_count() - before, 2);
    let mut found = [0; 8];
    region.load_words(4096 - 32, &mut found);
    assert_eq!(found, [0, 1, 2, 3, 4, 5, 6, 0]);
}

#[test]
fn out_of_range_stores_panic_and_change_nothing() {
    for protection in protections() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("region.pm");
        let region = RegionOptions::new().create(&path, LEN).unwrap();
        let region = Protected::new(region, &protection).unwrap();
        let panics = |call: &dyn Fn()| {
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err(), "{protection:?}");
        };
        panics(&|| region.store_nt(LEN - 1, &[1; 2]));
        panics(&|| region.store(u64::MAX, &[1; 2]));
        panics(&|| region.store_u64(LEN, 1));
        panics(&|| region.store_u64(4, 1));
        panics(&|| region.store_words(4, &[1]));
        panics(&|| region.store_words(LEN - 8, &[1; 2]));
        assert_eq!((region.load_u64(0), region.load_u64(LEN - 8)), (0, 0), "{protection:?}");
        panics(&|| assert!(region.try_load(LEN, &mut [1]).is_ok()));
        region.store(0, &[1; 8]);
        drop(region);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), LEN);
    }
}

#[test]
fn unsuitable_regions_are_refused() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("region.pm");
    drop(RegionOptions::new().create(&path, LEN).unwrap());
    for (method, refused) in [
        (Method::PageTable, None),
        (Method::Unmapped, Some(ProtectionError::Scratch)),
        (Method::PrivateMap, Some(ProtectionError::Scratch)),
    ] {
        let scratch = RegionOptions::new().scratch().open(&path).unwrap();
        assert_eq!(Protected::new(scratch, &Protection::new(method)).err(), refused);
        let read_only = RegionOptions::new().read_only().open(&path).unwrap();
        let read_only = Protected::new(read_only, &Protection::new(method)).unwrap();
        assert_eq!(contents(&read_only), vec![0; usize::try_from(LEN).unwrap()]);
    }
    assert_eq!("mprotect".parse::<Method>(), Err(ProtectionError::UnknownMethod("mprotect".to_owned())));
    assert!(Method::ALL.iter().all(|method| method.name().parse() == Ok(*method)));
}
