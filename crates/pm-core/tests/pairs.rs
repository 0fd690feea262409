//! Pairs of words stored in one piece: by every instruction that the CPU has for it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::insn::PairInsn;
use pm_core::{Pmem, Region, RegionOptions};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const LEN: usize = 4096;
const LEN_BYTES: u64 = LEN as u64;

/// A region for each instruction.
fn regions() -> Vec<Region> {
    let insns = [PairInsn::Vmovdqa, PairInsn::Cmpxchg16b, PairInsn::Stlxp];
    let options = insns.into_iter().filter_map(|insn| RegionOptions::new().pair_insn(insn).ok());
    let regions: Vec<_> = options.map(|options| options.anonymous(LEN_BYTES).unwrap()).collect();
    assert!(!regions.is_empty());
    regions
}

proptest! {
    /// Wherever in the line, just the pair changes, low word first; `Counting` and pointers forward it.
    #[test]
    fn a_pair_is_its_two_words_and_no_other_byte_changes(pair in 0..LEN_BYTES / 16, low: u64, high: u64) {
        for region in regions() {
            region.store(0, &[0xEE; LEN]);
            let seam = pm_core::Counting::new(&region);
            seam.store_u128(pair * 16, u128::from(high) << 64 | u128::from(low));
            prop_assert_eq!((region.load_u64(pair * 16), region.load_u64(pair * 16 + 8)), (low, high));
            let mut bytes = vec![0; LEN];
            region.load(0, &mut bytes);
            let at = usize::try_from(pair * 16).unwrap();
            bytes.drain(at..at + 16);
            prop_assert!(bytes.iter().all(|&byte| byte == 0xEE));
        }
    }
}

/// Two threads store pairs of equal words, none of them twice. A third that loads the first word, the second, and the same
/// first again knows that no store came between: the second must be equal too.
#[test]
fn a_pair_is_never_seen_half_stored() {
    /// The reader looks until it has seen so many of their pairs: threads need not run all the time.
    const SEEN: u64 = 5000;
    for region in regions() {
        let is_done = AtomicBool::new(false);
        let (region, is_done) = (&region, &is_done);
        std::thread::scope(|threads| {
            for writer in [0, 1] {
                threads.spawn(move || {
                    for word in (2 + writer..).step_by(2).take_while(|_| !is_done.load(Relaxed)) {
                        region.store_u128(64, word << 64 | word);
                    }
                });
            }
            let (mut seen, mut before, mut halved) = (0, 0, None);
            while seen < SEEN && halved.is_none() {
                let [first, second, again] = [64, 72, 64].map(|offset| region.load_u64(offset));
                if first == again {
                    seen += u64::from(first != before);
                    before = first;
                    halved = (first != second).then_some((first, second));
                }
            }
            is_done.store(true, Relaxed);
            assert_eq!(halved, None, "by {}", region.insns().pair().name());
        });
        assert_eq!(region.load_u64(64), region.load_u64(72));
    }
}

#[test]
fn a_pair_that_is_not_aligned_or_leaves_the_region_panics() {
    let region = Region::anonymous(LEN_BYTES).unwrap();
    for (offset, words) in
        [(8, "must be aligned"), (4, "must be aligned"), (LEN_BYTES, "leave"), (u64::MAX - 15, "leave")]
    {
        let refused = std::panic::catch_unwind(|| region.store_u128(offset, u128::MAX)).unwrap_err();
        let text = refused.downcast_ref::<String>().unwrap();
        assert!(text.contains(words), "{text}");
    }
    let mut bytes = vec![0; LEN];
    region.load(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0), "nothing was stored");
}

#[test]
fn a_read_only_region_refuses_a_pair() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.pm");
    drop(RegionOptions::new().create(&path, LEN_BYTES).unwrap());
    let region = RegionOptions::new().read_only().open(&path).unwrap();
    let refused = std::panic::catch_unwind(|| region.store_u128(0, 1)).unwrap_err();
    assert!(refused.downcast_ref::<String>().unwrap().contains("open read-only"));
}

#[test]
fn an_instruction_of_another_architecture_is_refused() {
    let absent = if cfg!(target_arch = "x86_64") { PairInsn::Stlxp } else { PairInsn::Vmovdqa };
    let error = RegionOptions::new().pair_insn(absent).unwrap_err();
    assert!(error.to_string().contains(absent.name()), "{error}");
}
