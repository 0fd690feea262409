//! Atomic stores of pairs of words, by every supported instruction.

use pm_core::insn::PairInsn;
use pm_core::{Pmem, Region, RegionOptions};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const LEN: usize = 4096;
const LEN_BYTES: u64 = LEN as u64;

/// One region for each instruction that the CPU supports.
fn regions() -> Vec<Region> {
    let insns = [PairInsn::Vmovdqa, PairInsn::Cmpxchg16b, PairInsn::Stlxp];
    let options = insns.into_iter().filter_map(|insn| RegionOptions::new().pair_insn(insn).ok());
    let regions: Vec<_> = options.map(|options| options.anonymous(LEN_BYTES).unwrap()).collect();
    assert!(!regions.is_empty());
    regions
}

proptest! {
    /// At any offset, only the pair changes; its low word is at the lower offset. `Counting` and references forward the call.
    #[test]
    fn storing_a_pair_changes_only_its_words(pair in 0..LEN_BYTES / 16, low: u64, high: u64) {
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

/// Two threads store pairs of equal words, and never the same pair twice. A third thread loads the first word, the second, and the first again. If
/// the first word has not changed, no store came between the loads, so the two words must be equal.
#[test]
fn pair_stores_are_atomic() {
    /// The reader continues until it has seen this number of pairs: a fixed time would not suffice if the writers do not run all the time.
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
            let (mut seen, mut before, mut torn) = (0, 0, None);
            while seen < SEEN && torn.is_none() {
                let [first, second, again] = [64, 72, 64].map(|offset| region.load_u64(offset));
                if first == again {
                    seen += u64::from(first != before);
                    before = first;
                    torn = (first != second).then_some((first, second));
                }
            }
            is_done.store(true, Relaxed);
            assert_eq!(torn, None, "pair stored by {}", region.insns().pair().name());
        });
        assert_eq!(region.load_u64(64), region.load_u64(72));
    }
}

#[test]
fn unaligned_or_out_of_range_pair_panics() {
    let region = Region::anonymous(LEN_BYTES).unwrap();
    for (offset, words) in [
        (8, "must be aligned"),
        (4, "must be aligned"),
        (LEN_BYTES, "do not fit"),
        (u64::MAX - 15, "do not fit"),
    ] {
        let refused = std::panic::catch_unwind(|| region.store_u128(offset, u128::MAX)).unwrap_err();
        let text = refused.downcast_ref::<String>().unwrap();
        assert!(text.contains(words), "{text}");
    }
    let mut bytes = vec![0; LEN];
    region.load(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0), "nothing was stored");
}

#[test]
fn read_only_region_refuses_pair() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.pm");
    drop(RegionOptions::new().create(&path, LEN_BYTES).unwrap());
    let region = RegionOptions::new().read_only().open(&path).unwrap();
    let refused = std::panic::catch_unwind(|| region.store_u128(0, 1)).unwrap_err();
    assert!(refused.downcast_ref::<String>().unwrap().contains("open read-only"));
}

#[test]
fn pair_instruction_of_other_architecture_is_refused() {
    let absent = if cfg!(target_arch = "x86_64") { PairInsn::Stlxp } else { PairInsn::Vmovdqa };
    let error = RegionOptions::new().pair_insn(absent).unwrap_err();
    assert!(error.to_string().contains(absent.name()), "{error}");
}
