//! Collects the outcomes of a program.

pub(crate) use crate::common::*;

pub(crate) const REGION_BYTES: u64 = 16384;
pub(crate) const X: u64 = 0;
/// On a line (and, for the page domain, a sector) of its own.
pub(crate) const Y: u64 = 4096;
pub(crate) const Z: u64 = 8192;
/// On the line of `X`.
pub(crate) const Y_SAME: u64 = 8;
pub(crate) const Z_OTHER: u64 = 4096;

pub(crate) type Program = fn(&SimPmem);
pub(crate) type Words = &'static [u64];
pub(crate) const XY: Words = &[X, Y];
pub(crate) const XYZ: Words = &[X, Y, Z];
pub(crate) const XY_SAME: Words = &[X, Y_SAME];
pub(crate) const XY_SAME_Z: Words = &[X, Y_SAME, Z_OTHER];

/// Every outcome of `program`, of crashes anywhere.
pub(crate) fn outcomes(explorer: &Explorer, words: Words, program: impl Fn(&SimPmem)) -> String {
    joined(seen(explorer, |run: &Run<()>| program(run.pmem()), |crash| Some(digits(words, crash))))
}

/// Every outcome of crashes after `program` returned.
pub(crate) fn outcomes_at_ack(explorer: &Explorer, words: Words, program: impl Fn(&SimPmem)) -> String {
    let operation = |run: &Run<()>| {
        program(run.pmem());
        run.ack(());
    };
    joined(seen(explorer, operation, |crash| acked_digits(words, crash)))
}

/// Everything that `look` sees after a crash anywhere in the operation.
pub(crate) fn seen<A: Sync, T: Ord + Send>(
    explorer: &Explorer,
    operation: impl Fn(&Run<A>),
    look: impl Fn(&Crash<'_, A>) -> Option<T> + Sync,
) -> BTreeSet<T> {
    let seen = Seen::new();
    let check = |crash: &Crash<'_, A>| look(crash).into_iter().for_each(|found| seen.add(found));
    let coverage = explorer.clone().crashes(1).check(&Image::zeroed(REGION_BYTES), operation, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    seen.take()
}

pub(crate) fn digits<A>(words: Words, crash: &Crash<'_, A>) -> String {
    words.iter().map(|&word| crash.pmem().load_u64(word).to_string()).collect()
}

/// The words after a crash that followed an acknowledgement.
pub(crate) fn acked_digits(words: Words, crash: &Crash<'_, ()>) -> Option<String> {
    (!crash.acked().is_empty()).then(|| digits(words, crash))
}

pub(crate) fn joined(outcomes: BTreeSet<String>) -> String {
    outcomes.into_iter().collect::<Vec<_>>().join(" ")
}

pub(crate) const LOSSY: [Model; 3] = [Model::Px86Line, Model::Px86Loc, Model::Chunk8];

/// Asserts what is allowed with caches lost (under each of these models), and with caches kept.
#[track_caller]
pub(crate) fn allows(name: &str, words: Words, lossy: &str, eadr: &str, program: impl Fn(&SimPmem)) {
    for model in LOSSY {
        assert_eq!(outcomes(&Explorer::new(model), words, &program), lossy, "{name}: {model}");
    }
    assert_eq!(outcomes(&Explorer::new(Model::Eadr), words, &program), eadr, "{name}: eadr");
}

// Each call of these is a site of its own: a litmus test is about each flush and fence that stands in it.

#[track_caller]
pub(crate) fn fence(pmem: &SimPmem) {
    pmem.fence().expect("the simulated fence never fails");
}

#[track_caller]
pub(crate) fn clwb(pmem: &SimPmem, word: u64) {
    pmem.flush(word, 8);
}

pub(crate) fn nt(pmem: &SimPmem, word: u64, value: u64) {
    pmem.store_nt(word, &value.to_le_bytes());
}

pub(crate) const ALL: &str = "00 01 10 11";
pub(crate) const IN_ORDER: &str = "00 10 11";
