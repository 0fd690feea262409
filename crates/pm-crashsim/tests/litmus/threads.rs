//! Two threads.

use crate::harness::*;
use loom::model::Builder;

/// Runs two programs on threads of their own, one after the other.
fn in_order(first: Program, second: Program) -> String {
    let on_its_own_thread =
        |p: Cpu, program: Program| std::thread::spawn(move || program(p)).join().expect("no program panics");
    outcomes(&Explorer::default(), XY, |p| [first, second].into_iter().fold(p, on_its_own_thread))
}

/// Every outcome of two programs at the same time: of each interleaving, and of crashes anywhere in it.
fn at_once(model: Model, words: Words, first: Program, second: Program) -> String {
    let seen = Seen::new();
    let operation = move |run: &Arc<Run<()>>| {
        let other = Cpu::of(run);
        let thread = loom::thread::spawn(move || drop(first(other)));
        second(Cpu::of(run));
        thread.join().expect("no program panics");
    };
    let check = |crash: &Crash<'_, ()>| seen.add(digits(words, crash));
    let explorer = Explorer::new(model).crashes(1);
    let explored =
        pm_crashsim::under_loom::explore(&explorer, &Builder::new(), REGION_BYTES, operation, check);
    let coverage = explored.unwrap();
    assert!(coverage.is_complete && coverage.crashes.is_exhaustive(), "{coverage}");
    joined(seen.take())
}

/// By name: the outcomes allowed with caches lost and with caches kept, of a writer of x in parallel with this reader.
const READERS: [(&str, &str, &str, Program); 4] = [
    ("mp_help", "00 10 17", "00 10 17", |p| p.when(X, |p| p.clwb(X).fence().store(Y, 7))),
    // teeth: without a flush it orders nothing
    ("mp_nohelp", "00 07 10 17", "00 10 17", |p| p.when(X, |p| p.fence().store(Y, 7))),
    // teeth: without a fence it orders nothing
    ("mp_nofence", "00 07 10 17", "00 10 17", |p| p.when(X, |p| p.clwb(X).store(Y, 7))),
    // teeth: it flushes what it may not have seen, and what the fence waits for may have come too early
    ("mp_blind", "00 07 10 17", "00 07 10 17", |p| p.clwb(X).fence().store(Y, 7)),
];

#[test]
fn message_passing_has_exactly_the_allowed_outcomes() {
    let writer: Program = |p| p.store(X, 1);
    for (name, lossy, eadr, reader) in READERS {
        for model in LOSSY {
            assert_eq!(at_once(model, XY, writer, reader), lossy, "{name}: {model}");
        }
        assert_eq!(at_once(Model::Eadr, XY, writer, reader), eadr, "{name}: eadr");
    }
}

/// A load is ordered with another thread's store even when a load stands between: each sees the other's store.
#[test]
fn loads_are_ordered_with_stores_of_other_threads() {
    let there: Program = |p| p.store(X, 1).when(Y, |p| p.store(Z, 1));
    let back: Program = |p| p.when(X, |p| p.store(Y, 1));
    for (first, second) in [(there, back), (back, there)] {
        assert_eq!(at_once(Model::Eadr, XYZ, first, second), "000 100 110 111");
    }
}

#[test]
fn fence_commits_its_own_thread_only() {
    // teeth: the fence is of another thread
    let flush_here: Program = |p| p.store(X, 1).clwb(X);
    // teeth: the flush is of another thread
    let fence_there: Program = |p| p.fence().store(Y, 7);
    assert_eq!(in_order(flush_here, fence_there), "00 07 10 17");
    let nt_here: Program = |p| p.nt(X, 1);
    assert_eq!(in_order(nt_here, fence_there), "00 07 10 17");
}

/// With caches kept, what another thread has read has left the store buffer, and is durable when that thread acknowledges.
#[test]
fn value_that_another_thread_has_read_is_durable_with_kept_caches() {
    let seen = Seen::new();
    let operation = |run: &Arc<Run<u64>>| {
        let other = Arc::clone(run);
        let thread = loom::thread::spawn(move || other.pmem().store_u64(X, 1));
        run.ack(run.pmem().load_u64(X));
        thread.join().expect("no program panics");
    };
    let check = |crash: &Crash<'_, u64>| {
        if let [read] = *crash.acked() {
            seen.add((read, crash.pmem().load_u64(X)));
        }
    };
    let explorer = Explorer::new(Model::Eadr);
    pm_crashsim::under_loom::explore(&explorer, &Builder::new(), 64, operation, check).unwrap();
    assert_eq!(seen.take(), BTreeSet::from([(0, 0), (0, 1), (1, 1)]));
}

/// Neither store of more than a word needs to be done when the other begins.
#[test]
fn long_stores_of_two_threads_are_both_torn() {
    const TORN: Words = &[0, 8, 16, 24];
    let first: Program = |p| p.store_bytes(0, &TWO_ONES);
    let second: Program = |p| p.store_bytes(16, &TWO_ONES);
    for model in [Model::Eadr, Model::Px86Line, Model::Page] {
        let seen = at_once(model, TORN, first, second);
        assert_eq!(seen.split(' ').count(), 16, "{model}: {seen}");
    }
    // One thread's stores are in order.
    let one_thread = outcomes(&Explorer::new(Model::Eadr), TORN, |p| second(first(p)));
    assert_eq!(one_thread, "0000 0100 1000 1100 1101 1110 1111");
}
