//! The simulated region as a region: the seam's contract, and what it records of its callers.

use pm_core::{Counting, Counts, Domain, Pmem};
use pm_crashsim::{Image, Model, SimPmem, SiteKind};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const LEN: u64 = 1024;

#[derive(Clone, Debug)]
enum Op {
    Store(u64, Vec<u8>),
    StoreNt(u64, Vec<u8>),
    StoreWord(u64, u64),
    Exchange { word: u64, expect_found: bool, new: u64 },
    Persist(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = || {
        (0..LEN).prop_flat_map(|offset| {
            let longest = usize::try_from((LEN - offset).min(200)).expect("at most 200");
            (Just(offset), proptest::collection::vec(any::<u8>(), 0..=longest))
        })
    };
    let word = || (0..LEN / 8).prop_map(|word| word * 8);
    prop_oneof![
        bytes().prop_map(|(offset, bytes)| Op::Store(offset, bytes)),
        bytes().prop_map(|(offset, bytes)| Op::StoreNt(offset, bytes)),
        (word(), any::<u64>()).prop_map(|(word, value)| Op::StoreWord(word, value)),
        (word(), any::<bool>(), any::<u64>()).prop_map(|(word, expect_found, new)| Op::Exchange {
            word,
            expect_found,
            new
        }),
        bytes().prop_map(|(offset, bytes)| Op::Persist(offset, bytes.len() as u64)),
    ]
}

fn word_at(oracle: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(oracle[offset..offset + 8].try_into().expect("eight bytes"))
}

fn put(oracle: &mut [u8], offset: u64, bytes: &[u8]) {
    let at = usize::try_from(offset).expect("in the region");
    oracle[at..at + bytes.len()].copy_from_slice(bytes);
}

proptest! {
    #[test]
    fn region_reads_as_an_array_of_bytes(
        start in proptest::collection::vec(any::<u8>(), 1024..=1024),
        ops in proptest::collection::vec(op(), 0..40),
        model in proptest::sample::select(Model::ALL.to_vec()),
    ) {
        let pmem = SimPmem::from_image(&Image::from_bytes(start.clone()), model);
        let mut oracle = start;
        for op in ops {
            match op {
                Op::Store(offset, bytes) | Op::StoreNt(offset, bytes) if bytes.is_empty() => {
                    pmem.store(offset, &bytes);
                    pmem.store_nt(offset, &bytes);
                }
                Op::Store(offset, bytes) => {
                    pmem.store(offset, &bytes);
                    put(&mut oracle, offset, &bytes);
                }
                Op::StoreNt(offset, bytes) => {
                    pmem.store_nt(offset, &bytes);
                    put(&mut oracle, offset, &bytes);
                }
                Op::StoreWord(offset, value) => {
                    pmem.store_u64(offset, value);
                    put(&mut oracle, offset, &value.to_le_bytes());
                }
                Op::Exchange { word, expect_found, new } => {
                    let there = word_at(&oracle, usize::try_from(word)?);
                    let current = if expect_found { there } else { !there };
                    let expected = if expect_found { Ok(there) } else { Err(there) };
                    prop_assert_eq!(pmem.compare_exchange_u64(word, current, new), expected);
                    if expect_found {
                        put(&mut oracle, word, &new.to_le_bytes());
                    }
                }
                // teeth: it changes nothing of what is read, and must not
                Op::Persist(offset, len_bytes) => pmem.persist(offset, len_bytes)?,
            }
            let mut read = vec![0; oracle.len() - 3];
            pmem.load(3, &mut read);
            prop_assert_eq!(&read[..], &oracle[3..]);
        }
        for word in (0..oracle.len()).step_by(8) {
            prop_assert_eq!(pmem.load_u64(word as u64), word_at(&oracle, word));
        }
        let mut words = vec![0; oracle.len() / 8 - 2];
        pmem.load_words(16, &mut words);
        prop_assert_eq!(words, (16..oracle.len()).step_by(8).map(|at| word_at(&oracle, at)).collect::<Vec<_>>());
        prop_assert_eq!(pmem.to_image().to_bytes(), oracle);
    }
}

#[test]
fn out_of_range_panics_and_changes_nothing() {
    let pmem = SimPmem::new(LEN);
    let refused: [&dyn Fn(); 13] = [
        &|| pmem.load(LEN - 1, &mut [0; 2]),
        &|| pmem.store(LEN - 1, &[1; 2]),
        &|| pmem.store_nt(LEN - 1, &[1; 2]),
        &|| pmem.store(u64::MAX, &[1; 2]),
        &|| pmem.flush(LEN, 1),
        &|| pmem.clflush(0, LEN + 1),
        &|| pmem.store_u64(4, 1),
        &|| pmem.store_u64(LEN, 1),
        &|| {
            pmem.load_u64(12);
        },
        &|| {
            pmem.load_u64(LEN - 4);
        },
        &|| pmem.load_words(12, &mut [0; 2]),
        &|| pmem.load_words(LEN - 8, &mut [0; 2]),
        &|| {
            pmem.compare_exchange_u64(LEN, 0, 1).ok();
        },
    ];
    for (number, access) in refused.iter().enumerate() {
        assert!(catch_unwind(AssertUnwindSafe(access)).is_err(), "access {number} was accepted");
    }
    assert_eq!(pmem.to_image().to_bytes(), vec![0; 1024]);
    pmem.store(LEN, &[]);
    pmem.flush(LEN, 0); // teeth: it is accepted, and that is all
}

#[test]
fn region_length_is_whole_lines() {
    for len_bytes in [0, 63, 65] {
        assert!(catch_unwind(|| Image::zeroed(len_bytes)).is_err());
    }
}

#[test]
fn domains_follow_the_model() {
    let domain = |model| SimPmem::from_image(&Image::zeroed(64), model).domain();
    assert_eq!(domain(Model::Eadr), Domain::Eadr);
    assert_eq!(domain(Model::Page), Domain::Page);
    for model in [Model::Px86Line, Model::Px86Loc, Model::Chunk8] {
        assert_eq!(domain(model), Domain::Adr);
    }
}

/// Sites are where the caller stands, however many layers of the seam lie between.
#[test]
fn sites_are_the_call_sites() {
    let pmem = Arc::new(SimPmem::new(LEN));
    let counting = Counting::new(Arc::clone(&pmem));
    let line = line!() + 2;
    // teeth: a site is one even when it is suppressed
    counting.persist(0, 8).expect("the simulated fence never fails");
    assert_eq!(counting.counts(), Counts { lines: 1, fences: 1 });
    let sites = pmem.sites();
    let kinds: Vec<_> = sites.iter().map(|site| site.kind).collect();
    assert_eq!(kinds, [SiteKind::Flush, SiteKind::Fence]);
    for site in sites {
        assert_eq!((site.location.file(), site.location.line()), (file!(), line), "{site}");
    }
}

#[test]
fn threads_share_the_region() {
    fn assert_shareable<T: Send + Sync>(_: &T) {}
    let pmem = SimPmem::new(LEN);
    assert_shareable(&pmem);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let mut seen = pmem.load_u64(0);
                    while let Err(found) = pmem.compare_exchange_u64(0, seen, seen + 1) {
                        seen = found;
                    }
                }
            });
        }
    });
    assert_eq!(pmem.load_u64(0), 400);
}
