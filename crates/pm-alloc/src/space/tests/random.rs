//! Compares random transactions with the oracle.

use super::fixture::Heap;
use crate::format::{LINE_BYTES, Lsn};
use crate::space::{SpaceError, SpaceOptions};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Allocates blocks with these numbers of lines and alignments in one transaction, which commits or does not.
    Allocate {
        wanted: Vec<(u64, u32)>,
        commits: bool,
    },
    /// Frees the block with this index, in a transaction that commits or does not.
    Free {
        index: prop::sample::Index,
        commits: bool,
    },
    /// Raises the checkpoint LSN to this distance below the last LSN.
    RaiseCheckpoint {
        distance: u64,
    },
    Reopen,
    /// Scans this many chunks.
    Scan(usize),
    AllocateUnlogged {
        lines: u64,
    },
}

fn step(chunk_lines: u64) -> impl Strategy<Value = Step> {
    let lines = prop_oneof![
        6 => 1..20_u64,
        2 => 1..chunk_lines,
        1 => chunk_lines - 3..chunk_lines + 3,
        1 => 1..4 * chunk_lines,
    ];
    let wanted = prop::collection::vec((lines.clone(), prop_oneof![4 => Just(0_u32), 1 => 0..6_u32]), 1..5);
    prop_oneof![
        6 => (wanted, prop::bool::weighted(0.8)).prop_map(|(wanted, commits)| Step::Allocate { wanted, commits }),
        6 => (any::<prop::sample::Index>(), prop::bool::weighted(0.9))
            .prop_map(|(index, commits)| Step::Free { index, commits }),
        1 => (0..3_u64).prop_map(|distance| Step::RaiseCheckpoint { distance }),
        1 => Just(Step::Reopen),
        1 => (0..4_usize).prop_map(Step::Scan),
        1 => lines.prop_map(|lines| Step::AllocateUnlogged { lines }),
    ]
}

fn allocate(heap: &mut Heap, wanted: &[(u64, u32)], commits: bool) {
    let mut open = Vec::new();
    for &(lines, log_align) in wanted {
        let align = LINE_BYTES << log_align;
        let carved =
            open.last_mut().and_then(|(reservation, blocks): &mut (crate::space::Reservation, Vec<_>)| {
                let payload = reservation.carve(lines, align)?.start;
                blocks.push((payload, lines));
                Some(payload)
            });
        let payload = carved.or_else(|| match heap.reserve(lines, align) {
            Ok(mut reservation) => {
                let payload =
                    reservation.carve(lines, align).expect("there is room for what was reserved").start;
                open.push((reservation, vec![(payload, lines)]));
                Some(payload)
            }
            Err(SpaceError::Full { .. } | SpaceError::TooLong { .. } | SpaceError::Alignment { .. }) => None,
            Err(error) => panic!("{error}"),
        });
        if let Some(payload) = payload {
            assert_eq!(payload % align, 0);
            heap.fill(payload, lines);
        }
    }
    for (reservation, blocks) in open {
        if commits {
            heap.commit(reservation, &blocks);
        } else {
            heap.space.return_unused(reservation);
        }
    }
}

fn take(heap: &mut Heap, step: &Step) {
    match step {
        Step::Allocate { wanted, commits } => allocate(heap, wanted, *commits),
        Step::Free { index, commits } => {
            let Some(payload) = heap.blocks.keys().nth(index.index(heap.blocks.len().max(1))).copied() else {
                return;
            };
            if *commits {
                heap.free(payload);
            } else {
                let freeing = heap.space.begin_free(&heap.region, payload).unwrap();
                heap.space.cancel_free(freeing);
            }
        }
        Step::RaiseCheckpoint { distance } => {
            let lsn = Lsn::new(heap.lsn.saturating_sub(*distance));
            heap.checkpoint_lsn =
                if heap.checkpoint_lsn == Lsn::MAX { lsn } else { heap.checkpoint_lsn.max(lsn) };
        }
        Step::Reopen => heap.reopen(),
        Step::Scan(chunks) => {
            heap.space.scan_some(&heap.region, *chunks).unwrap();
        }
        Step::AllocateUnlogged { lines } => {
            heap.try_add_unlogged(*lines);
        }
    }
}

/// Takes the steps. Asserts that blocks do not overlap, that the chain leads to exactly these blocks, and that their contents are not overwritten.
fn run(heap: &mut Heap, steps: &[Step]) {
    for step in steps {
        take(heap, step);
        // Transactions that were rolled back have overwritten lines inside free huge blocks that are not split into chunks yet. The chain skips
        // these lines.
        heap.check_lengths();
    }
    heap.check_contents();
    heap.refill();
    assert!(matches!(heap.reserve(1, 64), Err(SpaceError::Full { quarantined: false, held: false, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_in_short_chunks(steps in prop::collection::vec(step(64), 1..60), arenas in 1..3_u32) {
        let options = SpaceOptions { arena_count: Some(arenas), ..SpaceOptions::default() };
        run(&mut Heap::with(12, 4096, options), &steps);
    }

    #[test]
    fn random_steps_in_one_chunk(steps in prop::collection::vec(step(64), 1..60)) {
        run(&mut Heap::new(1, 4096), &steps);
    }

    #[test]
    fn random_steps_in_long_chunks(steps in prop::collection::vec(step(1024), 1..60)) {
        run(&mut Heap::new(5, 65536), &steps);
    }
}
