//! Functions that random programs on heaps share.

use super::SimHeap;
use crate::links::link_to;
use core::fmt::Debug;
use pm_alloc::layout::Layout;
use pm_alloc::{CommitError, Heap, HeapOptions, SpaceError, Tx, TxError};
use pm_core::line::LINE_BYTES;
use pm_core::{Link, Pmem};
use pm_testkit::{AnyPmem, SampledPmem, any};
use pm_testkit::{Rng, State, seeds};
use std::sync::Arc;

/// Runs the program of each seed in a new thread, and prints the seed if it panics. Returns the results in order.
pub(crate) fn each_seed<R: Send>(count: u64, run: impl Fn(u64) -> R + Sync) -> Vec<R> {
    let one = |seed: u64| {
        std::thread::scope(|scope| scope.spawn(|| run(seed)).join()).unwrap_or_else(|panic| {
            eprintln!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1");
            std::panic::resume_unwind(panic)
        })
    };
    seeds(count).map(one).collect()
}

/// The words of a block, its number first.
pub(crate) fn content(id: u64, words: usize) -> Vec<u64> {
    (0..words as u64).map(|at| if at == 0 { id } else { id.wrapping_mul(31).wrapping_add(at) }).collect()
}

/// Whether the error is a lack of room in the heap or the lane. A test does not fail then.
pub(crate) fn is_refusal(error: &TxError) -> bool {
    match error {
        TxError::Space(error) => is_out_of_room(error),
        TxError::Commit(error) => matches!(error, CommitError::TooLarge { .. }),
        _ => false,
    }
}

pub(crate) fn is_out_of_room(error: &SpaceError) -> bool {
    matches!(error, SpaceError::Full { .. } | SpaceError::TooLong { .. } | SpaceError::Alignment { .. })
}

/// Durably corrupts a line of the rings, of a lane's header or of the state words: the whole line or one of its words.
pub(crate) fn corrupt_log(sim: &SampledPmem, layout: &Layout, rng: &mut Rng) {
    let (state, lanes) = (layout.heap_start + 4096, layout.lane_offset(0));
    let line = if rng.one_in(6) {
        state + [0, 64, 2048, 2112][rng.below(4) as usize]
    } else {
        lanes + LINE_BYTES * rng.below((layout.lanes_end() - lanes) / LINE_BYTES)
    };
    match rng.below(4) {
        0 => sim.store(line, &[0; 64]),
        1 => sim.store(line, &[0xA5; 64]),
        2 => sim.store_u64(line + 56, 0),
        _ => {
            let at = line + 8 * rng.below(8);
            sim.store_u64(at, sim.load_u64(at) ^ 1 << rng.below(64));
        }
    }
    sim.flush(line, LINE_BYTES);
    sim.fence().unwrap();
}

/// An error of a transaction of a random program. `RolledBack` is intended.
#[derive(Debug)]
pub(crate) enum Failure {
    RolledBack,
    Tx(TxError),
}

impl From<TxError> for Failure {
    fn from(error: TxError) -> Self {
        Self::Tx(error)
    }
}

/// Whether the transaction committed. It may be rolled back by the program or for lack of room; other errors fail the test.
pub(crate) fn has_committed(done: Result<(), Failure>) -> bool {
    if let Err(Failure::Tx(error)) = &done {
        assert!(is_refusal(error), "{error:?}");
    }
    done.is_ok()
}

/// Allocates a block and writes these contents to it: an aligned block, a slice, or an uninitialized block that is written in parts.
pub(crate) fn new_block<'p>(
    tx: &mut Tx<'p, AnyPmem<'static>>,
    rng: &mut Rng,
    words: &[u64],
) -> Result<Link<'p, u64>, TxError> {
    let count = words.len() as u64;
    if rng.one_in(6) {
        let align = 128 << rng.below(4);
        let block = tx.alloc_aligned::<u64>(count, align)?;
        assert!(block.offset().is_multiple_of(align));
        tx.write_slice(block, words)?;
        return Ok(block);
    }
    if !rng.one_in(3) {
        return tx.alloc_slice(words);
    }
    let (block, part) = (tx.alloc_uninit::<u64>(count)?, 5 + 2 * rng.below(2));
    for (number, words) in (0..).zip(words.chunks(part as usize)) {
        tx.write_slice(block.element(part * number), words)?;
    }
    Ok(block)
}

/// Links the slot at `place` to a new block with these contents. Returns false, and changes nothing, if the macro has no type of this length.
pub(crate) fn alloc_and_link(heap: &SimHeap, place: u64, words: &[u64]) -> Result<bool, TxError> {
    macro_rules! publish {
        ($($len:literal)*) => {
            match words.len() {
                $($len => heap.view(|view| {
                    let value: &[u64; $len] = words.try_into().unwrap();
                    view.alloc_and_link(link_to(place), value).map(|_| true)
                }),)*
                _ => Ok(false),
            }
        };
    }
    publish!(1 3 7 8 12 13 14 15 23 40 71 100 300 600 1100)
}

/// The medium after a random number of recoveries. A kill or a power failure stops each at one of the stores, flushes or fences of opening and
/// closing the heap.
pub(crate) fn stopped_recoveries(mut left: State, options: &HeapOptions, rng: &mut Rng) -> State {
    while rng.one_in(2) {
        let run = |sim: &Arc<SampledPmem>| drop(Heap::attach(any(Arc::clone(sim)), options).unwrap());
        let whole = Arc::new(SampledPmem::of(left.clone()));
        run(&whole);
        let sim = Arc::new(SampledPmem::of(left));
        sim.stop_at(rng.below(whole.events()));
        run(&sim);
        left = sim.stopped().unwrap();
        if rng.one_in(2) {
            left = left.crash(rng);
        }
    }
    left
}

/// The states of a program. A crash at or after the event of a state must not lose the state; `u64::MAX` means that a crash may always lose it.
pub(crate) type States<S> = Vec<(S, u64)>;

/// Asserts that a crash at `stop` has left the last acknowledged state or a later one, at most the state after the interrupted operation.
pub(crate) fn assert_allowed<S: Debug + PartialEq>(states: &States<S>, stop: u64, found: &S, case: &str) {
    let acked = states.iter().rposition(|state| state.1 != u64::MAX && state.1 <= stop).unwrap_or(0);
    let stopped = states.iter().position(|state| state.1 != u64::MAX && state.1 > stop);
    let allowed = &states[acked..stopped.map_or(states.len(), |at| at + 1)];
    assert!(allowed.iter().any(|state| state.0 == *found), "{case}: found {found:?}, allowed {allowed:#?}");
}
