//! The repair that a report names, for each kind of bug; and none where none helps.

use crate::common::*;
use crate::programs::*;
use pm_crashsim::{InjectionKind, Repair, SourceLocation};

/// The repair that is found; put into the program, it passes.
#[track_caller]
fn repair(
    image: &Image,
    operation: impl Fn(&Run<()>) -> Done,
    check: impl Fn(&Crash<'_, ()>) -> Result<(), String> + Sync,
) -> Repair {
    let failure = Explorer::default().explore(image, &operation, &check).unwrap_err();
    let Some(repair) = failure.repair.clone() else { panic!("no repair: {failure}") };
    assert!(failure.to_string().contains(&repair.injection.location.to_string()), "{failure}");
    assert!(Explorer::default().inject(&repair.injection).explore(image, &operation, &check).is_ok());
    repair
}

/// The line of the programs' source at that location.
fn source(location: &SourceLocation) -> &'static str {
    let line = usize::try_from(location.line()).unwrap();
    include_str!("programs.rs").lines().nth(line - 1).unwrap().trim()
}

#[test]
fn missing_flushes_and_fences_are_named() {
    use InjectionKind::{FenceAfterFlush, FlushAfterStore, PersistAfterStore};
    type Operation = fn(&Run<()>) -> Done;
    type Check = fn(&Crash<'_, ()>) -> Result<(), String>;
    let bugs: [(&str, Image, Operation, Check, InjectionKind, &str); 4] = [
        ("fence", region(), unordered, published, FenceAfterFlush, "pmem.flush(SLOT, 8);"),
        (
            "flush",
            region(),
            one_forgotten,
            all_there,
            FlushAfterStore,
            "pmem.store_u64(SLOT + 64 * line, line + 1);",
        ),
        ("both", region(), unflushed, published, PersistAfterStore, "pmem.store_u64(SLOT, 7);"),
        (
            "both, in recovery",
            two_accounts(),
            transfer,
            recovers_carelessly,
            PersistAfterStore,
            "pmem.store_u64(balance, pmem.load_u64(LOG + 8 * number as u64));",
        ),
    ];
    for (missing, image, operation, check, kind, place) in bugs {
        let injection = repair(&image, operation, check).injection;
        assert_eq!((injection.kind, source(&injection.location)), (kind, place), "{missing}");
    }
}

#[test]
fn missing_fence_before_the_commit_is_named() {
    // The flush is there, but of another place in the source each time; they all wait for one fence.
    let operation = |run: &Run<()>| {
        let pmem = run.pmem();
        for offset in [SLOT, SLOT + 64] {
            pmem.store_u64(offset, 7);
        }
        pmem.flush(SLOT, 8);
        pmem.flush(SLOT + 64, 8);
        pmem.put(FLAG, 1) // teeth: the flag is stored too early in any case
    };
    let check = |crash: &Crash<'_, ()>| {
        let [flag, one, other] = [FLAG, SLOT, SLOT + 64].map(|offset| crash.pmem().load_u64(offset));
        if flag == 1 && (one, other) != (7, 7) { Err(format!("{one} {other}")) } else { Ok(()) }
    };
    let kind = repair(&region(), operation, check).injection.kind;
    assert!(matches!(kind, InjectionKind::FenceAfterFlush | InjectionKind::FenceBeforeStore), "{kind:?}");
}

#[test]
fn short_flush_is_named() {
    let repair = repair(&region(), straddling, whole);
    let (flush, missed) = repair.short_flush.as_ref().unwrap();
    assert_eq!(*missed, SLOT + 64);
    assert_eq!(source(flush), "pmem.flush(SLOT + 60, 4);");
    assert!(repair.to_string().starts_with("the flush at "), "{repair}");
}

#[test]
fn unfenced_non_temporal_store_is_named() {
    let operation = |run: &Run<()>| {
        run.pmem().store_nt(SLOT, &7_u64.to_le_bytes());
        run.pmem().put(FLAG, 1) // teeth: the flag is stored too early in any case
    };
    assert_eq!(repair(&region(), operation, published).injection.kind, InjectionKind::FenceAfterStore);
}

#[test]
fn wrong_value_has_no_repair() {
    let failure = Explorer::default().explore(&region(), wrong_value, published).unwrap_err();
    assert_eq!((failure.repair.clone(), failure.crashes[0].lost.len()), (None, 0), "{failure}");
}

#[test]
fn repair_can_be_turned_off() {
    let failure = Explorer::default().repair(false).explore(&region(), unordered, published).unwrap_err();
    assert_eq!(failure.repair, None);
}
