//! A process killed with the caches kept, another one after it, and then a crash.
//!
//! An outcome is of crashes after the second process acknowledged. It is written as elsewhere; what differs is that the first
//! process may have been killed anywhere.

use crate::harness::*;

fn restarted_outcomes(explorer: &Explorer, words: Words, first: Program, second: Program) -> String {
    let seen = Seen::new();
    let restarted = |run: &Run<()>| {
        second(Cpu::of(run));
        run.ack(());
    };
    let check = |crash: &Crash<'_, ()>| {
        acked_digits(words, crash).into_iter().for_each(|digits| seen.add(digits));
    };
    let operation = |run: &Run<()>| drop(first(Cpu::of(run)));
    let explorer = explorer.clone().crashes(1);
    let coverage = explorer.check_restarted(&Image::zeroed(REGION_BYTES), operation, restarted, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    joined(seen.take())
}

fn store_and_persist_x(p: Cpu) -> Cpu {
    p.store(X, 1).clwb(X).fence()
}

/// `if x { y = 1 }`, persistent. The flush and the fence have the place of the call.
#[track_caller]
fn rely_on_x(p: Cpu) -> Cpu {
    if p.load(X) == 1 { p.store(Y, 1).clwb(Y).fence() } else { p }
}

fn store_x(p: Cpu) -> Cpu {
    p.store(X, 1)
}

fn stream_x(p: Cpu) -> Cpu {
    p.nt(X, 1).fence() // teeth: a kill may come before it
}

/// By name: the words looked at; the outcomes allowed with caches lost, with caches kept, and in a file; the programs of the first and of
/// the second process.
const PROGRAMS: [(&str, Words, [&str; 3], Program, Program); 9] = [
    // In a file, the fence waits for what opening it flushed.
    ("kill_rely", XY, ["00 01 11", "00 11", "00 11"], store_and_persist_x, |p| rely_on_x(p)),
    ("kill_flush_rely", XY, ["00 11"; 3], store_and_persist_x, |p| {
        let p = p.clwb(X).fence(); // teeth(fence): the fence before the acknowledgement waits for it too
        rely_on_x(p)
    }),
    // The flush of the killed process promises nothing to the fence of the next one.
    ("kill_fence_rely", XY, ["00 01 11", "00 11", "00 11"], store_and_persist_x, |p| {
        let p = p.fence(); // teeth: of no use but in a file, and that is what is shown
        rely_on_x(p)
    }),
    ("kill_flush_without_fence", &[X], ["0 1"; 3], store_x, |p| p.clwb(X)), // teeth: not fenced
    // With caches that survive, what another process can see is durable.
    ("kill_load_without_fence", &[X], ["0 1"; 3], store_x, |p| p.loads(X, 0..=1)),
    // teeth(flush): never fenced by its process
    ("kill_store_over", &[X], ["0 1 2", "2", "0 1 2"], |p| p.store(X, 1).clwb(X), |p| p.store(X, 2).fence()),
    // The flush covers what is visible of the line, also what another process stored.
    ("kill_line_cover", XY_SAME, ["01 11"; 3], store_x, |p| p.store(Y_SAME, 1).clwb(Y_SAME).fence()),
    // The next process's fence waits for its own stores; its flush reaches what it sees.
    ("kill_non_temporal_fence", XY, ["00 01 11", "00 11", "00 11"], stream_x, |p| {
        let p = p.fence(); // teeth: of use to caches that survive
        rely_on_x(p)
    }),
    ("kill_non_temporal_flush", XY, ["00 11"; 3], stream_x, |p| {
        let p = p.clwb(X).fence(); // teeth(fence): as in `kill_flush_rely`
        rely_on_x(p)
    }),
];

#[test]
fn restarted_programs_have_exactly_the_allowed_outcomes() {
    for (name, words, [lossy, eadr, page], first, second) in PROGRAMS {
        let lossy = LOSSY.map(|model| (model, lossy));
        for (model, allowed) in lossy.into_iter().chain([(Model::Eadr, eadr), (Model::Page, page)]) {
            for reduce in [true, false] {
                let explorer = Explorer::new(model).reduce(reduce);
                let outcomes = restarted_outcomes(&explorer, words, first, second);
                assert_eq!(outcomes, allowed, "{name}: {model}, reduce {reduce}");
            }
        }
    }
}

#[test]
fn kill_same_line() {
    let store_y: Program = |p| p.when(X, |p| p.store(Y_SAME, 1));
    let of = |model| restarted_outcomes(&Explorer::new(model), XY_SAME, store_x, store_y);
    assert_eq!(of(Model::Px86Line), "00 10 11");
    assert_eq!(of(Model::Px86Loc), "00 01 10 11");
    assert_eq!(of(Model::Eadr), "00 10 11");
}

#[test]
fn kill_twice() {
    let next: Program = |p| match (p.load(X), p.load(Y)) {
        (_, 1) => p.store(Z, 1).clwb(Z).fence(), // teeth: what it relies on is shown, not what becomes of it
        (x, _) => p.store(Y, x),
    };
    let of = |kills| restarted_outcomes(&Explorer::default().kills(kills), XYZ, store_x, next);
    assert_eq!(of(1), "000 010 100 110");
    // What the third process relies on was stored by the second, which relied on the first.
    assert_eq!(of(2), "000 001 010 011 100 101 110 111");
}

#[test]
fn acknowledged_before_the_kill() {
    let operation = |run: &Run<u64>| {
        store_and_persist_x(Cpu::of(run));
        run.ack(1);
    };
    let second = |run: &Run<u64>| {
        let before = run.acked();
        run.pmem().store_u64(X, 2);
        run.ack(before.len() as u64 + 10);
    };
    let seen = Seen::new();
    let check = |crash: &Crash<'_, u64>| seen.add((crash.acked().to_vec(), crash.pmem().load_u64(X)));
    let image = Image::zeroed(64);
    assert!(Explorer::default().check_restarted(&image, operation, second, check).is_exhaustive());
    let of_first: [(&[u64], u64); 5] = [(&[], 0), (&[], 1), (&[], 2), (&[1], 1), (&[1], 2)];
    let of_second: [(&[u64], u64); 5] = [(&[1, 11], 1), (&[1, 11], 2), (&[10], 0), (&[10], 1), (&[10], 2)];
    let expected = of_first.into_iter().chain(of_second).map(|(acked, x)| (acked.to_vec(), x));
    assert_eq!(seen.take(), expected.collect());
}

/// The outcomes at the acknowledgement, of a program that says itself where the process is killed.
#[track_caller]
fn allows_at_ack([lossy, eadr, page]: [&str; 3], program: Program) {
    let at_ack = |model| outcomes_at_ack(&Explorer::new(model), &[X], program);
    assert_eq!(LOSSY.map(at_ack), [lossy; 3]);
    assert_eq!([at_ack(Model::Eadr), at_ack(Model::Page)], [eadr, page]);
}

#[test]
fn kill_drops_flushes() {
    // teeth(flush): dropped by the kill
    allows_at_ack(["0 1", "1", "1"], |p| p.store(X, 1).clwb(X).kill().fence());
    // teeth: not waited for
    allows_at_ack(["0 1", "1", "0 1"], |p| p.store(X, 1).clflush(X).kill().store(Y, 1));
}

#[test]
fn kill_drops_streamed_stores() {
    allows_at_ack(["0 1", "1", "1"], |p| p.nt(X, 1).kill().fence());
    allows_at_ack(["0 1", "0 1", "0 1"], |p| p.nt(X, 1).kill());
    allows_at_ack(["1"; 3], |p| p.nt(X, 1).kill().clwb(X).fence());
}

/// A kill makes durable what was in the store buffer; a crash before it does not.
#[test]
fn crash_before_a_kill_loses_any_end_of_the_stores() {
    let killed: Program = |p| p.store(X, 1).store(Y, 1).kill();
    assert_eq!(outcomes(&Explorer::new(Model::Eadr), XY, killed), "00 10 11");
}

#[test]
fn streamed_store_of_a_killed_process_is_committed_by_no_kill_and_no_load() {
    allows_at_ack(["0 1"; 3], |p| p.nt(X, 1).kill().kill());
    allows_at_ack(["0 1"; 3], |p| p.nt(X, 1).store(Y, 1).kill().loads(Y, 1..=1));
}
