//! Crashes while pairs of words are stored without a transaction: no pair is torn.

use super::support::Mixtures::All;
use super::support::{ATOMIC_PAIRS, at, commit, explore, explore_under, formatted, layout, store_pair};
use crate::log::Log;
use pm_crashsim::{Model, Run};

const PAIR: [u64; 2] = [at(0) + 16, at(0) + 24];

#[test]
fn pair_stored_in_place_is_atomic() {
    let layout = layout(8);
    let states = [[0, 0], [1, 2], [3, 4]];
    let whole = |done: usize| states.into_iter().skip(done).take(2).collect::<Vec<_>>();
    // Under a model without 16-byte stores, a crash may leave a mixture of the last two pairs, but of no other pairs.
    let halves = |done: usize| {
        let pairs = whole(done);
        pairs.iter().flat_map(|low| pairs.iter().map(|high| [low[0], high[1]])).collect()
    };
    let store = |run: &Run<()>, log: &Log| {
        [[1, 2], [3, 4]].into_iter().for_each(|pair| store_pair(run, log, PAIR[0], pair));
    };
    explore_under(&ATOMIC_PAIRS, &formatted(&layout), &layout, All, PAIR, whole, store);
    explore_under(&[Model::Chunk8], &formatted(&layout), &layout, All, PAIR, halves, store);
}

/// A live entry stores to the pair's line, so a commit stores the pair, and no model tears a commit.
#[test]
fn live_entry_does_not_overwrite_pair() {
    for index in [0, 1] {
        let mut committed = [0, 0];
        committed[index] = 1;
        explore(&layout(8), All, PAIR, &[[0, 0], committed, [2, 3], [4, 5]], |run, log| {
            commit(run, log, &[(PAIR[index], 1)]);
            [[2, 3], [4, 5]].into_iter().for_each(|pair| store_pair(run, log, PAIR[0], pair));
        });
    }
}

#[test]
fn pair_is_stored_in_place_after_checkpoint() {
    let layout = layout(8);
    let states = [[0, 0], [1, 0], [2, 3], [4, 5]];
    let allowed = |done: usize| states.into_iter().skip(done).take(2).collect();
    explore_under(&ATOMIC_PAIRS, &formatted(&layout), &layout, All, PAIR, allowed, |run, log| {
        commit(run, log, &[(PAIR[0], 1)]);
        store_pair(run, log, PAIR[0], [2, 3]);
        log.raise_checkpoint(run.pmem(), log.live_lsn_bound(PAIR[0], 16)).unwrap();
        store_pair(run, log, PAIR[0], [4, 5]);
    });
}
