//! Shared by the tests of the log: a small log, and the exploration of its crashes under every model.

use crate::format::Lsn;
use crate::layout::Layout;
use crate::log::floor::SealedWord;
use crate::log::{LaneGuard, Log, OnCorruption, Recovery, Writes};
use pm_core::Pmem;
use pm_crashsim::{Coverage, Crash, Explorer, Image, Model, Run, SimPmem};

/// The offset of the data.
pub(super) const DATA: u64 = 5 << 12;
const REGION_BYTES: u64 = DATA + 4096;

/// A log of two lanes with `lane_entries` entries each.
pub(super) fn layout(lane_entries: u32) -> Layout {
    lanes(2, lane_entries)
}

/// A log of `lane_count` lanes.
pub(super) fn lanes(lane_count: u32, lane_entries: u32) -> Layout {
    Layout { seed: 7, heap_start: 0, lane_count, lane_entries, chunks_start: DATA, chunk_bytes: 4096 }
}

/// The offset of the first word of a line of data.
pub(super) const fn at(line: u64) -> u64 {
    DATA + 64 * line
}

/// An image of a region after `make`.
pub(super) fn image(make: impl FnOnce(&SimPmem)) -> Image {
    let sim = SimPmem::new(REGION_BYTES);
    make(&sim);
    sim.to_image()
}

/// An image of a region with a new log, after `run`.
pub(super) fn with_log(layout: &Layout, run: impl FnOnce(&SimPmem, Log)) -> Image {
    image(|pmem| {
        crate::log::format(pmem, layout);
        run(pmem, recover(pmem, layout).0);
    })
}

/// Like [`with_log`], but in the last generation before the rings are erased.
pub(super) fn in_last_generation(layout: &Layout, run: impl FnOnce(&SimPmem, Log)) -> Image {
    image(|pmem| {
        crate::log::format(pmem, layout);
        SealedWord::write(pmem, layout.seed, layout.floor_offsets(), Lsn::new(((1 << 14) - 2) << 32));
        run(pmem, recover(pmem, layout).0);
    })
}

/// An image of a new log.
pub(super) fn formatted(layout: &Layout) -> Image {
    image(|pmem| crate::log::format(pmem, layout))
}

pub(super) fn recover<P: Pmem>(pmem: &P, layout: &Layout) -> (Log, Recovery) {
    crate::log::recover(pmem, layout, OnCorruption::Refuse).unwrap()
}

/// [Recovers](recover), and discards corrupted entries.
pub(super) fn recover_discarding<P: Pmem>(pmem: &P, layout: &Layout) -> (Log, Recovery) {
    crate::log::recover(pmem, layout, OnCorruption::Discard).unwrap()
}

pub(super) fn words(pairs: &[(u64, u64)]) -> Writes {
    let mut writes = Writes::default();
    pairs.iter().for_each(|&(offset, value)| writes.word(offset, value));
    writes
}

pub(super) fn load<P: Pmem, const N: usize>(pmem: &P, offsets: [u64; N]) -> [u64; N] {
    offsets.map(|offset| pmem.load_u64(offset))
}

/// Commits words in a lane, and acknowledges the commit.
pub(super) fn commit_in(lane: &mut LaneGuard<'_>, run: &Run<()>, pairs: &[(u64, u64)]) {
    lane.commit(run.pmem(), &words(pairs)).unwrap();
    run.ack(());
}

/// Like [`commit_in`], but in this thread's lane.
pub(super) fn commit(run: &Run<()>, log: &Log, pairs: &[(u64, u64)]) {
    commit_in(&mut LaneGuard::acquire(log), run, pairs);
}

/// Stores a word without a transaction, and acknowledges the store.
pub(super) fn store_u64(run: &Run<()>, log: &Log, offset: u64, value: u64) {
    crate::log::store_u64(log, run.pmem(), offset, value).unwrap();
    run.ack(());
}

/// Stores a pair without a transaction, and acknowledges the store.
pub(super) fn store_pair(run: &Run<()>, log: &Log, offset: u64, pair: [u64; 2]) {
    crate::log::store_u64_pair(log, run.pmem(), offset, pair).unwrap();
    run.ack(());
}

/// The choices that are explored under models that do not order the words of a line. Under these models a crash may leave any mixture of the old and
/// the new words of an entry, which the checksum detects.
#[derive(Clone, Copy)]
pub(super) enum Mixtures {
    All,
    /// A sample: two full entries in flight have 2^20 choices.
    Sampled,
}

/// Crashes `operation` on a new log at every point, and each recovery, in all models but `Page`. `operation` acknowledges each step. After recovery,
/// `offsets` must hold the state after the acknowledged steps, or after one more step.
pub(super) fn explore<const N: usize>(
    layout: &Layout,
    mixtures: Mixtures,
    offsets: [u64; N],
    states: &[[u64; N]],
    operation: impl Fn(&Run<()>, &Log) + Sync,
) {
    explore_from(
        &formatted(layout),
        layout,
        mixtures,
        offsets,
        |done| states.iter().copied().skip(done).take(2).collect(),
        operation,
    );
}

/// [Explores](explore) from an image with a log, with a set of allowed states for each number of steps.
pub(super) fn explore_from<const N: usize>(
    image: &Image,
    layout: &Layout,
    mixtures: Mixtures,
    offsets: [u64; N],
    allowed: impl Fn(usize) -> Vec<[u64; N]> + Sync,
    operation: impl Fn(&Run<()>, &Log) + Sync,
) {
    let models = [ATOMIC_PAIRS.as_slice(), &[Model::Chunk8]].concat();
    explore_under(&models, image, layout, mixtures, offsets, allowed, operation);
}

/// Explores under each model that orders the stores to a line. Asserts that every choice was explored.
pub(super) fn exhaustive(explore: impl Fn(Explorer) -> Coverage) {
    for model in [Model::Eadr, Model::Px86Line, Model::Page] {
        let coverage = explore(Explorer::new(model));
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
}

/// The models with atomic stores of pairs.
pub(super) const ATOMIC_PAIRS: [Model; 3] = [Model::Eadr, Model::Px86Line, Model::Px86Loc];

/// [Explores](explore_from) under these models.
pub(super) fn explore_under<const N: usize>(
    models: &[Model],
    image: &Image,
    layout: &Layout,
    mixtures: Mixtures,
    offsets: [u64; N],
    allowed: impl Fn(usize) -> Vec<[u64; N]> + Sync,
    operation: impl Fn(&Run<()>, &Log) + Sync,
) {
    let operation = |run: &Run<()>| {
        let (log, _) = recover(run.pmem(), layout);
        operation(run, &log);
    };
    for &model in models {
        let is_ordered = matches!(model, Model::Eadr | Model::Px86Line);
        let check = |crash: &Crash<()>| {
            // Without an order of stores to a line, an entry in flight may look corrupted.
            let on_corruption = if is_ordered { OnCorruption::Refuse } else { OnCorruption::Discard };
            let (log, recovery) = crate::log::recover(crash.pmem(), layout, on_corruption)
                .map_err(|error| error.to_string())?;
            let allowed = allowed(crash.acked().len());
            crash.expect(load(crash.pmem(), offsets), allowed).map_err(|mismatch| mismatch.to_string())?;
            if is_ordered && recovery.corrupted_entries > 0 {
                return Err(format!("a crash looks like corruption: {recovery:?}"));
            }
            // The log works, and another recovery has nothing to do.
            crash.recovered();
            assert_eq!(recover(crash.pmem(), layout).1, Recovery::default());
            LaneGuard::acquire(&log).commit(crash.pmem(), &words(&[(offsets[0], 99)])).unwrap();
            assert_eq!(crash.pmem().load_u64(offsets[0]), 99);
            Ok(())
        };
        let explorer = Explorer::new(model).kills(1);
        let (explorer, checks_all) = match mixtures {
            Mixtures::Sampled if !is_ordered => {
                (explorer.choices_per_point(1 << 10).nested_choices_per_point(1 << 4), false)
            }
            _ => (explorer.choices_per_point(1 << 16).nested_choices_per_point(1 << 12), true),
        };
        let coverage = explorer.check(image, operation, check);
        println!("{model}: {coverage}");
        assert!(coverage.is_exhaustive() || !checks_all, "{model}: {coverage}");
    }
}
