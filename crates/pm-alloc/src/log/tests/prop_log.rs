//! Random transactions in several lanes, crashed at random. The result must equal a prefix of them, applied in order.

use super::support::{DATA, formatted, lanes, recover};
use crate::log::{LaneGuard, Log, Writes};
use pm_core::{Pmem, bytes_of};
use pm_crashsim::{Crash, Explorer, Model, Run};
use proptest::prelude::*;
use std::thread;

const SPAN: usize = 256;

#[derive(Clone, Debug)]
enum Step {
    /// Commits these writes in the lane with this index, or in a new thread if it is `None`.
    Commit(Option<usize>, Vec<(u64, Vec<u8>)>),
    /// Writes bytes at an offset in place, in the lane with this index. Commits if the last field is true, and otherwise rolls back.
    InPlace(usize, u64, Vec<u8>, bool),
    Word(u64, u64),
    Pair(u64, [u64; 2]),
    Raise,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = (0..200_u64, prop::collection::vec(any::<u8>(), 1..56));
    let writes = prop::collection::vec(range.clone(), 1..4);
    let lane = prop::option::weighted(0.8, 0..3_usize);
    let step = prop_oneof![
        6 => (lane, writes).prop_map(|(lane, writes)| Step::Commit(lane, writes)),
        2 => (0..3_usize, range, any::<bool>())
            .prop_map(|(lane, (offset, bytes), commits)| Step::InPlace(lane, offset, bytes, commits)),
        1 => (0..32_u64, any::<u64>()).prop_map(|(word, value)| Step::Word(8 * word, value)),
        1 => (0..16_u64, any::<[u64; 2]>()).prop_map(|(pair, words)| Step::Pair(16 * pair, words)),
        1 => Just(Step::Raise),
    ];
    prop::collection::vec(step, 1..9)
}

impl Step {
    fn run<P: Pmem + Sync>(&self, pmem: &P, log: &Log, lanes: &mut [LaneGuard<'_>]) {
        match self {
            Self::Commit(lane, written) => {
                let mut writes = Writes::default();
                written.iter().for_each(|(offset, bytes)| writes.bytes(DATA + offset, bytes));
                let done = match lane {
                    Some(lane) => lanes[*lane].commit(pmem, &writes),
                    None => thread::scope(|scope| {
                        scope.spawn(|| LaneGuard::acquire(log).commit(pmem, &writes)).join().unwrap()
                    }),
                };
                done.unwrap();
            }
            Self::InPlace(lane, offset, bytes, commits) => {
                let (lane, offset) = (&mut lanes[*lane], DATA + offset);
                lane.undo(pmem, offset, bytes.len() as u64).unwrap();
                pmem.store(offset, bytes);
                pmem.flush(offset, bytes.len() as u64);
                if *commits {
                    lane.commit(pmem, &Writes::default()).unwrap();
                } else {
                    lane.roll_back(pmem).unwrap();
                }
            }
            Self::Word(offset, value) => crate::log::store_u64(log, pmem, DATA + offset, *value).unwrap(),
            Self::Pair(offset, words) => {
                crate::log::store_u64_pair(log, pmem, DATA + offset, *words).unwrap()
            }
            Self::Raise => log.raise_checkpoint(pmem, log.latest()).unwrap(),
        }
    }

    fn apply(&self, state: &mut [u8]) {
        let mut store = |offset: u64, bytes: &[u8]| {
            let offset = usize::try_from(offset).unwrap();
            state[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        match self {
            Self::Commit(_, writes) => writes.iter().for_each(|(offset, bytes)| store(*offset, bytes)),
            Self::InPlace(_, offset, bytes, true) => store(*offset, bytes),
            Self::Word(offset, value) => store(*offset, &value.to_le_bytes()),
            Self::Pair(offset, words) => store(*offset, bytes_of(words)),
            Self::InPlace(..) | Self::Raise => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn crash_leaves_a_prefix_of_the_transactions(steps in steps(), seed in any::<u64>(), entries in 12..20_u32) {
        let layout = lanes(4, entries);
        let mut states = vec![vec![0; SPAN]];
        for step in &steps {
            let mut state = states[states.len() - 1].clone();
            step.apply(&mut state);
            states.push(state);
        }
        let operation = |run: &Run<()>| {
            let (log, _) = recover(run.pmem(), &layout);
            let mut lanes = [LaneGuard::acquire(&log), LaneGuard::acquire(&log), LaneGuard::acquire(&log)];
            for step in &steps {
                step.run(&**run.pmem(), &log, &mut lanes);
                run.ack(());
            }
        };
        let check = |crash: &Crash<()>| {
            recover(crash.pmem(), &layout);
            let mut found = vec![0; SPAN];
            crash.pmem().load(DATA, &mut found);
            let done = crash.acked().len();
            crash.expect(&found, states[done..].iter().take(2))
        };
        let explorer = Explorer::new(Model::Px86Line).choices_per_point(48).nested_choices_per_point(6).kills(1);
        let explored = explorer.seed(seed).explore(&formatted(&layout), operation, check);
        prop_assert!(explored.is_ok(), "{}", explored.unwrap_err());
    }
}
