//! Lints and made-up programs: silent on every right one, and not on one from which a flush or a fence is missing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::Pmem;
use pm_crashsim::{Explorer, Finding, Image, Lint, Lints, Model, Run};
use proptest::prelude::*;

const LINES: u64 = 12;
/// Lines lie this far apart: a sector, so that the page model has no more to say than the others.
const STEP: u64 = 512;

/// What an operation does to one line before its fence.
#[derive(Clone, Debug)]
struct Write {
    line: u64,
    start: u64,
    len: usize,
    around_the_cache: bool,
}

/// Stores to different lines, a flush of each that needs one, and a fence.
type Step = Vec<Write>;

fn write() -> impl Strategy<Value = Write> {
    (0..LINES, 0_u64..56, 1_usize..=8, any::<bool>()).prop_map(|(line, start, len, around_the_cache)| Write {
        line,
        start,
        len,
        around_the_cache,
    })
}

fn step() -> impl Strategy<Value = Step> {
    proptest::collection::vec(write(), 1..5).prop_map(|mut writes| {
        writes.sort_by_key(|write| write.line);
        writes.dedup_by_key(|write| write.line);
        writes
    })
}

/// What is left out of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Missing {
    Nothing,
    /// Of a step, the flush of a write.
    Flush(usize, usize),
    /// Of a step.
    Fence(usize),
}

/// Every write of a step, then every flush, then the fence, then the acknowledgement.
fn run(run: &Run<()>, steps: &[Step], missing: Missing) {
    let pmem = run.pmem();
    for (number, writes) in steps.iter().enumerate() {
        for Write { line, start, len, around_the_cache } in writes {
            let (offset, bytes) = (line * STEP + start, vec![1; *len]);
            match around_the_cache {
                true => pmem.store_nt(offset, &bytes),
                false => pmem.store(offset, &bytes),
            }
        }
        for (index, write) in writes.iter().enumerate() {
            if !write.around_the_cache && missing != Missing::Flush(number, index) {
                pmem.flush(write.line * STEP + write.start, write.len as u64);
            }
        }
        if missing != Missing::Fence(number) {
            pmem.fence().unwrap();
        }
        run.ack(());
    }
}

fn findings(model: Model, program: impl Fn(&Run<()>)) -> Vec<Finding> {
    let explorer = Explorer::new(model).crashes(1).choices_per_point(1).lints(Lints::default());
    explorer.explore(&Image::zeroed(LINES * STEP), program, |_| ()).unwrap().findings
}

/// What was found, and how often.
fn counted(findings: &[Finding]) -> Vec<(Lint, usize)> {
    findings.iter().map(|finding| (finding.lint, finding.count)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn correct_program_has_no_findings(steps in proptest::collection::vec(step(), 1..8)) {
        for model in Model::ALL {
            let found = findings(model, |this| run(this, &steps, Missing::Nothing));
            prop_assert!(found.is_empty(), "{}: {:#?}", model, found);
        }
    }

    /// The same with whole objects: several stores, some of the same bytes, one flush over all and more.
    #[test]
    fn one_flush_for_many_stores_has_no_findings(
        objects in proptest::collection::vec(proptest::collection::vec((0_u64..500, 1_usize..12), 1..10), 1..6),
    ) {
        for model in Model::ALL {
            let found = findings(model, |this| {
                for (object, stores) in (0_u64..).zip(&objects) {
                    for &(start, len) in stores {
                        this.pmem().store(object * 512 + start, &vec![1; len]);
                    }
                    this.pmem().persist(object * 512, 1024).unwrap();
                }
                this.ack(());
            });
            prop_assert!(found.is_empty(), "{}: {:#?}", model, found);
        }
    }

    #[test]
    fn each_missing_flush_and_fence_is_found(steps in proptest::collection::vec(step(), 1..5)) {
        for model in [Model::Px86Line, Model::Chunk8, Model::Page] {
            for (number, writes) in steps.iter().enumerate() {
                for index in (0..writes.len()).filter(|&index| !writes[index].around_the_cache) {
                    let found = findings(model, |this| run(this, &steps, Missing::Flush(number, index)));
                    prop_assert_eq!(counted(&found), [(Lint::UnflushedStore, 1)], "{}: {:#?}", model, found);
                    prop_assert_eq!(found[0].offset, writes[index].line * STEP + writes[index].start);
                    prop_assert_eq!(found[0].len_bytes, writes[index].len as u64);
                }
                let found = counted(&findings(model, |this| run(this, &steps, Missing::Fence(number))));
                let around = writes.iter().filter(|write| write.around_the_cache).count();
                let expected = [(Lint::UnfencedStore, around), (Lint::UnfencedFlush, writes.len() - around)];
                let expected: Vec<_> = expected.into_iter().filter(|(_, count)| *count > 0).collect();
                prop_assert_eq!(found, expected, "{}, fence {}", model, number);
            }
        }
    }
}
