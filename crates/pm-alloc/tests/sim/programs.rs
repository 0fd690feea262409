//! Shared by random programs on heaps.

use super::{LINE, Rng, Sim, seeds};
use pm_alloc::layout::Layout;
use pm_alloc::{CommitError, SpaceError, TxError};
use pm_core::{Pmem, PoolOptions, Uuid};

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

/// The same pool in each run.
pub(crate) fn pool_options() -> PoolOptions {
    PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0)
}

/// The words of a block, its number first.
pub(crate) fn content(id: u64, words: usize) -> Vec<u64> {
    (0..words as u64).map(|at| if at == 0 { id } else { id.wrapping_mul(31).wrapping_add(at) }).collect()
}

/// Whether the error is a lack of room in the heap or the lane, which is no failure of a test.
pub(crate) fn is_refusal(error: &TxError) -> bool {
    match error {
        TxError::Space(error) => is_no_room(error),
        TxError::Commit(error) => matches!(error, CommitError::TooLarge { .. }),
        _ => false,
    }
}

pub(crate) fn is_no_room(error: &SpaceError) -> bool {
    matches!(error, SpaceError::Full { .. } | SpaceError::TooLong { .. } | SpaceError::Alignment { .. })
}

/// Corrupts a line of the log, of a lane's header or of the state words, or one word of it, durably.
pub(crate) fn hit_log(sim: &Sim, layout: &Layout, rng: &mut Rng) {
    let (state, lanes) = (layout.heap_start + 4096, layout.lane_offset(0));
    let line = if rng.one_in(6) {
        state + [0, 64, 2048, 2112][rng.below(4) as usize]
    } else {
        lanes + LINE * rng.below((layout.lanes_end() - lanes) / LINE)
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
    sim.flush(line, LINE);
    sim.fence().unwrap();
}
