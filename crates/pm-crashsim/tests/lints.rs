//! The lints: the findings of each, their places, and correct programs that look similar.
//!
//! A program in here carries its findings as comments: `//~ name` on the line that is to blame. A line without one must not be blamed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::*;
use pm_core::line::LINE_BYTES;
use pm_crashsim::{Finding, Level, Lint, Role, leaks};
use proptest::collection::vec;
use proptest::prelude::*;
use std::panic::Location;
use std::thread;

const X: u64 = 0;
/// On the line of `X`.
const X2: u64 = 8;
/// On lines (and, for the page domain, sectors) of their own.
const Y: u64 = 4096;
const Z: u64 = 8192;

const CACHED: [Model; 3] = [Model::Px86Line, Model::Px86Loc, Model::Chunk8];
const FLUSHED: [Model; 4] = [Model::Px86Line, Model::Px86Loc, Model::Chunk8, Model::Page];

fn explorer(model: Model) -> Explorer {
    Explorer::new(model).crashes(1).choices_per_point(1)
}

fn findings(explorer: &Explorer, operation: impl Fn(&Run<()>)) -> Vec<Finding> {
    explorer.explore(&Image::zeroed(16384), operation, |_| ()).unwrap().findings
}

/// What the comments of this file say, from that line to the end of the statement.
fn annotated(from: u32) -> BTreeSet<(u32, String)> {
    let lines = (1..).zip(include_str!("lints.rs").lines()).skip_while(|(number, _)| *number < from);
    let mut expected = BTreeSet::new();
    for (number, line) in lines.take_while(|(_, line)| *line != "    });") {
        let names = line.split_once("//~ ").map(|(_, names)| names);
        expected.extend(
            names.into_iter().flat_map(|names| names.split(' ')).map(|name| (number, name.to_owned())),
        );
    }
    expected
}

/// Asserts that the lints find in `program`, which is then acknowledged, what its comments say, under each of the models.
#[track_caller]
fn expect(models: &[Model], program: impl Fn(&Run<()>, &SimPmem)) {
    expect_ended(models, |run, pmem| {
        program(run, pmem);
        run.ack(());
    });
}

/// The same of a program that ends without another acknowledgement.
#[track_caller]
fn expect_ended(models: &[Model], program: impl Fn(&Run<()>, &SimPmem)) {
    let expected = annotated(Location::caller().line());
    for &model in models {
        let found = findings_of(model, |run| program(run, run.pmem()));
        let places = found.iter().map(|finding| (finding.location.line(), finding.lint.to_string()));
        assert_eq!(places.collect::<BTreeSet<_>>(), expected, "{model}: {found:#?}");
        assert!(found.iter().all(|finding| finding.location.file() == file!()), "{found:#?}");
    }
}

fn store(pmem: &SimPmem, offset: u64) {
    pmem.store_u64(offset, 1);
}

/// Runs it on another thread, to its end.
fn apart(program: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(program).join().unwrap());
}

#[test]
fn unflushed_store() {
    expect_ended(&FLUSHED, |run, pmem| {
        pmem.store_u64(X, 1); //~ unflushed-store
        // teeth: nothing was flushed before it
        pmem.fence().unwrap();
        run.ack(());
        pmem.store_u64(Y, 1); //~ unflushed-store
    });
    // Half of an object, and a flush of the wrong line.
    expect(&FLUSHED, |_, pmem| {
        pmem.store(X, &[1; 128]); //~ unflushed-store
        // teeth(fence): the persist below fences too
        pmem.persist(X, 64).unwrap();
        // teeth(fence): the persist above fences too
        pmem.persist(Y, 64).unwrap(); //~ redundant-flush
    });
}

#[test]
fn one_flush_after_many_stores_has_no_finding() {
    expect(&Model::ALL, |_, pmem| {
        for value in 0..10 {
            pmem.store_u64(X, value);
            pmem.store_u64(X2, value);
        }
        pmem.store(X + 100, &[1; 100]);
        // More than was stored: the whole object, of which some lines are clean.
        pmem.flush(X, 1024);
        pmem.fence().unwrap();
    });
}

#[test]
fn store_is_due_at_the_acknowledgement_of_its_thread() {
    expect(&FLUSHED, |run, pmem| {
        pmem.store_u64(X, 1);
        // Another operation, of another thread, is done; this one is not.
        apart(|| {
            pmem.put(Y, 1).unwrap();
            run.ack(());
        });
        pmem.persist(X, 8).unwrap();
    });
}

#[test]
fn store_persisted_by_another_thread_has_no_finding() {
    expect(&FLUSHED, |_, pmem| {
        pmem.store_u64(X, 1);
        apart(|| pmem.persist(X, 8).unwrap());
    });
    // Neither thread can know that the other one persists the line as well.
    expect(&FLUSHED, |_, pmem| {
        pmem.store_u64(X, 1);
        // teeth(fence): the persist below is enough
        apart(|| pmem.persist(X, 8).unwrap());
        // teeth(fence): the persist above is enough
        pmem.persist(X, 8).unwrap();
    });
}

#[test]
fn unfenced_flush() {
    expect(&FLUSHED, |_, pmem| {
        pmem.store_u64(X, 1);
        pmem.flush(X, 8); //~ unfenced-flush
    });
    // Two threads: a fence waits for its own thread's flushes. (`msync` waits for all.)
    expect(&CACHED, |_, pmem| {
        pmem.store_u64(X, 1);
        apart(|| pmem.flush(X, 8)); //~ unfenced-flush
        pmem.fence().unwrap(); //~ redundant-fence
    });
    expect(&[Model::Page], |_, pmem| {
        pmem.store_u64(X, 1);
        apart(|| pmem.flush(X, 8));
        pmem.fence().unwrap();
    });
}

#[test]
fn unfenced_flush_by_clflush() {
    expect(&CACHED, |_, pmem| {
        pmem.store_u64(X, 1);
        pmem.clflush(X, 8);
        pmem.store_u64(Y, 1); // Comes after the clflush.
        pmem.clflush(Y, 8); //~ unfenced-flush
    });
    expect(&CACHED, |_, pmem| {
        pmem.store_u64(X, 1);
        pmem.clflush(X, 8);
        pmem.mfence();
    });
}

#[test]
fn unfenced_store() {
    let ragged = [1; 20];
    expect(&Model::ALL, |run, pmem| {
        pmem.store_nt(X + 4, &ragged); //~ unfenced-store
        run.ack(());
        pmem.store_nt(Y, &[1; 64]);
        pmem.store_nt(Z + 4, &ragged);
        pmem.fence().unwrap();
    });
}

#[test]
fn surviving_caches_need_only_fences() {
    expect(&[Model::Eadr], |run, pmem| {
        pmem.store_u64(X, 1);
        pmem.fence().unwrap();
        run.ack(());
        pmem.fence().unwrap(); //~ redundant-fence
        pmem.store_u64(Y, 1); //~ unfenced-store
        // teeth: does nothing where caches survive
        pmem.flush(Y, 8);
        // teeth: does nothing where caches survive
        pmem.flush(Y, 8);
    });
}

#[test]
fn exchange_fences_by_model_and_setting() {
    let program = |run: &Run<()>| {
        let pmem = run.pmem();
        store(pmem, X);
        pmem.flush(X, 8);
        pmem.compare_exchange_u64(Y, 0, 1).unwrap();
        pmem.flush(Y, 8);
        pmem.compare_exchange_u64(Z, 0, 1).unwrap();
        run.ack(());
    };
    let lints = Lints::default();
    let names = |explorer: Explorer| {
        let found = findings(&explorer.lints(lints.clone()), program);
        found.iter().map(|finding| finding.lint).collect::<Vec<_>>()
    };
    assert_eq!(names(explorer(Model::Px86Line)), [Lint::UnflushedStore], "the last exchange");
    let all = [Lint::UnfencedFlush, Lint::UnfencedFlush, Lint::UnflushedStore];
    assert_eq!(names(explorer(Model::Px86Line).exchange_fences(false)), all);
    assert_eq!(names(explorer(Model::Page)), all);
    // A fence after an exchange is not called redundant: elsewhere than on x86 it is needed.
    expect(&CACHED, |_, pmem| {
        pmem.store_u64(X, 1);
        pmem.flush(X, 8);
        pmem.compare_exchange_u64(Y, 1, 2).unwrap_err();
        pmem.fence().unwrap();
    });
}

#[test]
fn early_flush() {
    expect(&FLUSHED, |_, pmem| {
        // teeth(fence): nothing is stored yet
        pmem.persist(X, 8).unwrap(); //~ early-flush
        pmem.store_u64(X, 1);
    });
    // Flushed once more, it was only redundant; and one in an earlier operation was not meant for this store.
    expect(&FLUSHED, |run, pmem| {
        pmem.flush(X, 8); //~ redundant-flush
        pmem.put(X, 1).unwrap();
        pmem.store_u64(X2, 1); //~ unflushed-store
        pmem.flush(Y, 8); //~ redundant-flush
        run.ack(());
        pmem.store_u64(Y, 1); //~ unflushed-store
    });
}

#[test]
fn store_in_flight() {
    expect(&FLUSHED, |_, pmem| {
        pmem.store_u64(X, 1);
        pmem.flush(X, 8);
        pmem.store_u64(X2, 1); //~ store-in-flight
        pmem.fence().unwrap();
    });
    // Flushed again in time; by another thread; after the fence; on another line; around the cache.
    expect(&FLUSHED, |_, pmem| {
        pmem.store_u64(X, 1);
        // teeth: the flush of the same line below covers it
        pmem.flush(X, 8);
        pmem.store_u64(X2, 1);
        pmem.flush(X2, 8);
        pmem.store_u64(Y, 1);
        // teeth: the other thread flushes the line too
        pmem.flush(Y, 8);
        apart(|| {
            pmem.put(Y + 8, 1).unwrap();
        });
        pmem.store_nt(Y + 16, &[1; 8]);
        // teeth: the last persist fences too
        pmem.fence().unwrap();
        pmem.put(X, 2).unwrap();
    });
}

#[test]
fn unpersisted_read() {
    // Another line is durable before what it was made of; and an answer is given.
    expect(&FLUSHED, |run, pmem| {
        pmem.store_u64(X, 1);
        apart(|| {
            let read = pmem.load_u64(X); //~ unpersisted-read
            pmem.put(Y, read).unwrap();
        });
        apart(|| {
            let mut read = [0; 64];
            pmem.load(X, &mut read); //~ unpersisted-read
            run.ack(());
        });
        pmem.persist(X, 8).unwrap();
    });
}

#[test]
fn read_persisted_before_its_effect_has_no_finding() {
    expect(&FLUSHED, |run, pmem| {
        pmem.store_u64(X, 1);
        // Its own store; a helped one; one of which nothing came; another word of the line; an effect before the read.
        assert_eq!(pmem.load_u64(X), 1);
        apart(|| {
            let read = pmem.load_u64(X);
            // teeth(fence): the next persist fences too
            pmem.persist(X, 8).unwrap();
            pmem.put(Y, read).unwrap();
            run.ack(());
        });
        pmem.store_u64(X, 2);
        apart(|| assert_eq!(pmem.load_u64(X), 2));
        apart(|| {
            assert_eq!(pmem.load_u64(X2), 0);
            run.ack(());
        });
        apart(|| {
            pmem.store_u64(Z, 1);
            assert_eq!(pmem.load_u64(X), 2);
            pmem.persist(Z, 8).unwrap();
        });
        pmem.persist(X, 8).unwrap();
    });
}

#[test]
fn redundant_flush() {
    expect(&FLUSHED, |_, pmem| {
        pmem.store_u64(X, 1);
        pmem.flush(X, 8);
        pmem.flush(X2, 8); //~ redundant-flush
        // teeth: a later fence follows
        pmem.fence().unwrap();
        pmem.flush(X, 8); //~ redundant-flush
        pmem.flush(Y, 256); //~ redundant-flush
        // teeth: no bytes, no line
        pmem.flush(Y, 0);
        pmem.store_nt(Z, &[1; 64]);
        pmem.flush(Z, 64); //~ redundant-flush
        pmem.fence().unwrap();
    });
    // One dirty line is enough; a store in between makes it useful; a sector is two lines, and both are flushed.
    expect(&FLUSHED, |_, pmem| {
        pmem.store_u64(X, 1);
        // teeth: the line is flushed again below
        pmem.flush(X, 8);
        pmem.store_u64(X, 2);
        pmem.store_u64(X + LINE_BYTES, 1);
        pmem.flush(X, 8);
        // teeth: the last persist flushes it too
        pmem.flush(X + LINE_BYTES, 8);
        // teeth: the last persist fences too
        pmem.fence().unwrap();
        pmem.store_u64(X + LINE_BYTES, 2);
        pmem.persist(X, 1024).unwrap();
    });
}

#[test]
fn redundant_fence() {
    expect(&FLUSHED, |_, pmem| {
        pmem.fence().unwrap(); //~ redundant-fence
        pmem.put(X, 1).unwrap();
        pmem.fence().unwrap(); //~ redundant-fence
        pmem.persist(X, 8).unwrap(); //~ redundant-flush redundant-fence
    });
    // Two fences that have something to wait for: stores around the cache, ragged and not.
    expect(&Model::ALL, |_, pmem| {
        pmem.store_nt(X, &[1; 64]);
        // teeth: the fence below waits for both stores
        pmem.fence().unwrap();
        pmem.store_nt(Y + 1, &[1; 3]);
        pmem.fence().unwrap();
    });
}

#[test]
fn findings_of_one_place_are_merged_with_related_places() {
    let operation = |run: &Run<()>| {
        let pmem = run.pmem();
        for (number, offset) in (X..).step_by(64).take(5).enumerate() {
            store(pmem, offset);
            if number != 3 {
                pmem.flush(offset, 8);
            }
            pmem.fence().unwrap();
            run.ack(());
        }
    };
    let found = findings_of(Model::Px86Line, operation);
    assert_eq!(found.len(), 1, "{found:#?}");
    let Finding { lint, level, offset, len_bytes, count, runs, ref related, .. } = found[0];
    assert_eq!((lint, level), (Lint::UnflushedStore, Level::Warn));
    assert_eq!((offset, len_bytes, count, runs), (3 * 64, 8, 1, 5));
    let [(Role::Fenced, fence), (Role::Acknowledged, ack)] = &related[..] else { panic!("{related:?}") };
    assert_eq!(ack.line(), fence.line() + 1);
}

#[test]
fn finding_prints_like_a_compiler_warning() {
    let operation = |run: &Run<()>| {
        let pmem = run.pmem();
        pmem.store(X + 60, &[1; 100]);
        pmem.flush(X, 8);
        pmem.fence().unwrap();
        run.ack(());
        store(pmem, Y);
        pmem.flush(Y, 8);
        store(pmem, Y + 8);
        pmem.fence().unwrap();
        apart(|| {
            pmem.load_u64(Y + 8);
            run.ack(());
        });
    };
    let found = findings_of(Model::Px86Line, operation);
    let text = found.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n\n");
    // Places of this file move when it is edited.
    let text: String = text
        .split_inclusive('\n')
        .map(|line| line.split(".rs:").next().unwrap().trim_end().to_owned() + "\n")
        .collect();
    insta::assert_snapshot!(text, @r"
    warning[store-in-flight]: 8 bytes from 0x1008 were stored to a line between its flush and the fence, which may miss them
      --> crates/pm-crashsim/tests/lints
       = flushed at crates/pm-crashsim/tests/lints
       = fenced at crates/pm-crashsim/tests/lints
       = on 1 of 2 occasions
       = help: flush(0x1008, 8) before the fence, or store after the fence

    warning[unflushed-store]: 96 of 100 bytes from 0x40 were stored and not flushed before the operation was acknowledged
      --> crates/pm-crashsim/tests/lints
       = fenced at crates/pm-crashsim/tests/lints
       = acknowledged at crates/pm-crashsim/tests/lints
       = help: a fence alone writes nothing back: flush(0x40, 96) before it

    warning[unpersisted-read]: 8 bytes from 0x1008 were read that another thread had not made durable, and what came of it was acknowledged
      --> crates/pm-crashsim/tests/lints
       = stored at crates/pm-crashsim/tests/lints
       = acknowledged at crates/pm-crashsim/tests/lints
       = help: persist(0x1008, 8) before acting on what was read, or before publishing it
    ");
}

#[test]
fn denied_finding_fails_before_any_crash() {
    let operation = |run: &Run<()>| store(run.pmem(), X);
    let denying = explorer(Model::Px86Line).lints(Lints::all_denied());
    let failure = denying.explore(&Image::zeroed(4096), operation, |_| ()).unwrap_err();
    assert!(failure.message.starts_with("error[unflushed-store]: 8 bytes from 0x0 were stored"), "{failure}");
    assert_eq!((failure.coverage.recoveries(), failure.coverage.findings.len()), (0, 1));
    let redundant = denying.clone().lints(Lints::default());
    assert_eq!(findings(&redundant, operation)[0].level, Level::Warn);
    let allowed = [
        Lints::all_allowed(),
        Lints::all_denied().allow(Lint::UnflushedStore),
        Lints::all_denied().allow_in(Lint::UnflushedStore, "tests/lints.rs"),
    ];
    for lints in allowed {
        assert_eq!(findings(&explorer(Model::Px86Line).lints(lints), operation), []);
    }
    let elsewhere = Lints::default().allow_in(Lint::UnflushedStore, "tests/other.rs");
    assert_eq!(findings(&explorer(Model::Px86Line).lints(elsewhere), operation).len(), 1);
}

#[test]
fn recoveries_are_linted_without_redundancy_lints() {
    let operation = |run: &Run<()>| run.pmem().put(X, 1);
    let recover = |repair: bool| {
        let lints = Lints::default().deny(Lint::UnflushedStore);
        Explorer::default().lints(lints).explore(&Image::zeroed(4096), operation, move |crash| {
            // teeth: redundant, and allowed: that is what is shown
            crash.pmem().persist(X, 8).unwrap();
            if repair {
                store(crash.pmem(), X2);
            }
        })
    };
    assert_eq!(recover(false).unwrap().findings, []);
    assert!(recover(true).unwrap_err().message.starts_with("error[unflushed-store]"));
}

/// What is denied in general stays denied where a more telling lint, less strict, knows the reason.
#[test]
fn specific_lint_does_not_lower_the_level() {
    let operation = |run: &Run<()>| {
        let pmem = run.pmem();
        pmem.flush(X, 8);
        store(pmem, X);
        store(pmem, Y);
        pmem.flush(Y, 8);
        pmem.store_u64(Y + 8, 1);
        pmem.fence().unwrap();
    };
    let lints = Lints::default().deny(Lint::UnflushedStore);
    let failure = explorer(Model::default()).lints(lints).explore(&Image::zeroed(8192), operation, |_| ());
    let found = failure.unwrap_err().coverage.findings;
    let names: Vec<_> = found.iter().map(|finding| (finding.lint.name(), finding.count)).collect();
    let one_each = ["unflushed-store", "redundant-flush", "unflushed-store", "store-in-flight"];
    assert_eq!(names, one_each.map(|name| (name, 1)));
}

/// A suppressed flush shows as a lint too, which must not be taken for the check's noticing.
#[test]
fn lints_do_not_count_for_redundant_sites() {
    let operation = |run: &Run<()>| run.pmem().put(X, 1);
    let denying = Explorer::default().lints(Lints::all_denied());
    assert_eq!(denying.redundant_sites(&Image::zeroed(4096), operation, |_| ()).unwrap().len(), 2);
}

#[test]
fn each_lint_has_a_name_and_an_explanation() {
    let names: BTreeSet<&str> = Lint::ALL.iter().map(|lint| lint.name()).collect();
    assert_eq!(names.len(), Lint::ALL.len());
    for lint in Lint::ALL {
        assert_eq!(Lint::from_name(lint.name()), Some(lint));
        assert_eq!(Lints::default().level(lint), lint.default_level());
        assert!(lint.explain().len() > 100 && !lint.explain().contains("  "), "{lint}");
    }
    assert_eq!(Lint::from_name("no-such-lint"), None);
}

#[test]
fn leaks_reports_each_kind_of_disagreement() {
    assert_eq!(leaks([0..0, 64..128], [64..96, 96..128, 5..5]), Ok(()));
    let leak = leaks([0..64, 64..128, 256..320, 300..340], [32..48, 40..64, 500..510, 256..340]).unwrap_err();
    assert_eq!(leak.leaked, [0..32, 64..128]);
    assert_eq!(leak.doubly_used, std::iter::once(40..48).collect::<Vec<_>>());
    assert_eq!(leak.doubly_allocated, std::iter::once(300..320).collect::<Vec<_>>());
    assert_eq!(leak.unallocated, std::iter::once(500..510).collect::<Vec<_>>());
    assert_eq!(
        leak.to_string(),
        "leaked 0x0..0x20, leaked 0x40..0x80, doubly used 0x28..0x30, doubly allocated 0x12c..0x140, \
         used but not allocated 0x1f4..0x1fe"
    );
}

/// The number of lines of random programs.
const LINES: u64 = 12;
/// Lines lie this far apart: a sector, so that the page model has no more to say than the others.
const STEP: u64 = 512;

/// What a random program does to one line before its fence.
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
    vec(write(), 1..5).prop_map(|mut writes| {
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

fn findings_of(model: Model, program: impl Fn(&Run<()>)) -> Vec<Finding> {
    findings(&explorer(model).lints(Lints::default()), program)
}

/// What was found, and how often.
fn counted(findings: &[Finding]) -> Vec<(Lint, usize)> {
    findings.iter().map(|finding| (finding.lint, finding.count)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn correct_program_has_no_findings(steps in vec(step(), 1..8)) {
        for model in Model::ALL {
            let found = findings_of(model, |this| run(this, &steps, Missing::Nothing));
            prop_assert!(found.is_empty(), "{}: {:#?}", model, found);
        }
    }

    /// The same with whole objects: several stores, some of the same bytes, one flush over all and more.
    #[test]
    fn one_flush_for_many_stores_has_no_findings(
        objects in vec(vec((0_u64..500, 1_usize..12), 1..10), 1..6),
    ) {
        for model in Model::ALL {
            let found = findings_of(model, |this| {
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
    fn each_missing_flush_and_fence_is_found(steps in vec(step(), 1..5)) {
        for model in [Model::Px86Line, Model::Chunk8, Model::Page] {
            for (number, writes) in steps.iter().enumerate() {
                for index in (0..writes.len()).filter(|&index| !writes[index].around_the_cache) {
                    let found = findings_of(model, |this| run(this, &steps, Missing::Flush(number, index)));
                    prop_assert_eq!(counted(&found), [(Lint::UnflushedStore, 1)], "{}: {:#?}", model, found);
                    prop_assert_eq!(found[0].offset, writes[index].line * STEP + writes[index].start);
                    prop_assert_eq!(found[0].len_bytes, writes[index].len as u64);
                }
                let found = counted(&findings_of(model, |this| run(this, &steps, Missing::Fence(number))));
                let around = writes.iter().filter(|write| write.around_the_cache).count();
                let expected = [(Lint::UnfencedStore, around), (Lint::UnfencedFlush, writes.len() - around)];
                let expected: Vec<_> = expected.into_iter().filter(|(_, count)| *count > 0).collect();
                prop_assert_eq!(found, expected, "{}, fence {}", model, number);
            }
        }
    }
}
