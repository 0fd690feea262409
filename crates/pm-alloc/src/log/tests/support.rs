//! What the tests of the log share: a small log, and explorations of it under every model.

use crate::layout::Layout;
use crate::log::{Log, Recovery, Writes};
use pm_core::Pmem;
use pm_crashsim::{Crash, Explorer, Image, Lints, Model, Run, SimPmem};
use std::sync::Arc;

/// Where data begins.
pub(super) const DATA: u64 = 1 << 14;
const REGION_BYTES: u64 = DATA + 4096;

/// A log of two lanes with so many entries each.
pub(super) fn layout(lane_entries: u32) -> Layout {
    Layout { seed: 7, heap_start: 0, lane_count: 2, lane_entries, chunks_start: DATA, chunk_bytes: 4096 }
}

/// The first word of a line of data.
pub(super) const fn at(line: u64) -> u64 {
    DATA + 64 * line
}

/// What `make` leaves of a region.
pub(super) fn image(make: impl FnOnce(&SimPmem)) -> Image {
    let sim = SimPmem::new(REGION_BYTES);
    make(&sim);
    sim.to_image()
}

/// A new log.
pub(super) fn formatted(layout: &Layout) -> Image {
    image(|pmem| Log::format(pmem, layout))
}

pub(super) fn recover<P: Pmem>(pmem: &P, layout: &Layout) -> (Log, Recovery) {
    Log::recover(pmem, layout).unwrap()
}

pub(super) fn words(pairs: &[(u64, u64)]) -> Writes {
    let mut writes = Writes::new();
    pairs.iter().for_each(|&(offset, value)| writes.word(offset, value));
    writes
}

pub(super) fn load<P: Pmem, const N: usize>(pmem: &P, offsets: [u64; N]) -> [u64; N] {
    offsets.map(|offset| pmem.load_u64(offset))
}

/// Crashes `operation` on a log everywhere, and each recovery, under every model. `operation` acknowledges each step; what `offsets` hold
/// must then be what `states` say for as many steps as were acknowledged, or one more.
pub(super) fn explore<const N: usize>(
    layout: &Layout,
    offsets: [u64; N],
    states: &[[u64; N]],
    operation: impl Fn(&Run<()>, &Log) + Sync,
) {
    explore_from(&formatted(layout), layout, offsets, states, operation);
}

/// As [`explore`], of a log that was used before.
pub(super) fn explore_from<const N: usize>(
    image: &Image,
    layout: &Layout,
    offsets: [u64; N],
    states: &[[u64; N]],
    operation: impl Fn(&Run<()>, &Log) + Sync,
) {
    let check = |crash: &Crash<()>| {
        let (log, recovery) = recover(crash.pmem(), layout);
        let done = crash.acked().len();
        let allowed = states.iter().copied().skip(done).take(2);
        crash.expect(load(crash.pmem(), offsets), allowed).map_err(|mismatch| mismatch.to_string())?;
        // What is there works, and a later opening has nothing to do.
        crash.recovered();
        log.lane().commit(crash.pmem(), &words(&[(offsets[0], 99)])).unwrap();
        assert_eq!(crash.pmem().load_u64(offsets[0]), 99);
        damage_is_none(&recovery)
    };
    let operation = |run: &Run<()>| {
        let (log, _) = recover(run.pmem(), layout);
        operation(run, &log);
    };
    for model in MODELS {
        let coverage = explorer(model).check(image, operation, check);
        println!("{model}: {coverage}");
        assert_eq!(coverage.is_exhaustive(), is_ordered(model), "{model}: {coverage}");
    }
}

/// The models under which a line's words become durable in order are tried to the end. The others leave any mixture of old and new words
/// of an entry, 2^7 for each, and it is the checksum that tells: those are tried in part.
pub(super) const MODELS: [Model; 4] = [Model::Px86Line, Model::Eadr, Model::Px86Loc, Model::Chunk8];

pub(super) fn is_ordered(model: Model) -> bool {
    matches!(model, Model::Px86Line | Model::Eadr | Model::Page)
}

pub(super) fn explorer(model: Model) -> Explorer {
    let explorer = Explorer::new(model);
    if is_ordered(model) {
        explorer.choices_per_point(1 << 16).nested_choices_per_point(1 << 12)
    } else {
        explorer.choices_per_point(1 << 9).nested_choices_per_point(1 << 4)
    }
}

/// No crash makes a recovery complain under the models that order a line's words.
fn damage_is_none(_recovery: &Recovery) -> Result<(), String> {
    Ok(())
}

/// The region of a run, to be used by several threads.
pub(super) fn shared(run: &Run<()>) -> Arc<SimPmem> {
    Arc::clone(run.pmem())
}

/// With every lint on: no flush or fence is in vain, and nothing is forgotten.
#[expect(dead_code, reason = "for the tests of one thread")]
pub(super) fn linted(explorer: Explorer) -> Explorer {
    explorer.lints(Lints::all_denied())
}
