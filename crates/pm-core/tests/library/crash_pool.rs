//! Crashes at every point of formatting, changing and opening a pool, and of the recovery, under every model of the caches. After each crash the pool
//! opens, in the state before or after the interrupted change.

use crate::pools::{LONGER_BYTES, POOL_BYTES, SimPool, get, header_of, longer, options, page, set};
use pm_core::{HeaderState, Persist, Pmem, Pool, PoolError, Region, RootError, Uuid};
use pm_crashsim::{Coverage, Crash, Explorer, Faults, Image, Lint, Lints, Model, Run, SimPmem, Site};
use std::sync::Arc;

/// The contents of a new region after `fill`.
fn image(fill: impl FnOnce(Arc<SimPmem>)) -> Image {
    let sim = Arc::new(SimPmem::new(POOL_BYTES));
    fill(Arc::clone(&sim));
    sim.to_image()
}

fn pool_image(change: impl FnOnce(&SimPool)) -> Image {
    image(|sim| change(&Pool::format(sim, &options(1)).unwrap()))
}

/// Explores under every model. Then asserts that each flush and fence of the pool's code is needed: without it, `check` fails.
fn explore(
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) {
    assert_needed(redundant_sites(explorer, image, operation, check));
}

/// As [`explore`], but under the models that do not order the words of a line, recoveries are not crashed: they erase a header, and the number of
/// choices would multiply.
fn explore_long(
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) {
    let explorer = |model| match model {
        Model::Px86Loc | Model::Chunk8 => explorer(model).crashes(1),
        _ => explorer(model),
    };
    assert_needed(redundant_sites(explorer, image, operation, check));
}

/// Asserts that no site is redundant, except sites in [`LEFTOVER`]: crash_pool_kills.rs tests the processes that need these.
fn assert_needed(mut redundant: Vec<Site>) {
    redundant.retain(|site| !site.location.file().ends_with(LEFTOVER));
    assert!(redundant.is_empty(), "redundant flushes or fences: {redundant:#?}");
}

/// Explores under every model, and with kills: the operation is killed before each of its events, its stores stay in the caches, and the next
/// process is crashed. Returns the redundant flushes and fences of the pool's code: without them `check` passes.
fn redundant_sites(
    explorer: impl Fn(Model) -> Explorer,
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) -> Vec<Site> {
    for model in Model::ALL {
        assert_exhaustive(&explorer(model).lints(lints()).check(image, &operation, &check));
    }
    assert_exhaustive(&killer().check(image, &operation, &check));
    // Under the weakest model, which does not order the words of a line.
    let redundant = explorer(Model::Chunk8).redundant_sites(image, &operation, &check).unwrap();
    let with_kills = killer().redundant_sites(image, &operation, &check).unwrap();
    let is_redundant = |site: &Site| site.location.file().contains("/src/") && with_kills.contains(site);
    redundant.into_iter().filter(is_redundant).collect()
}

/// Kills the operation before each of its events, and crashes the next process at every point.
fn killer() -> Explorer {
    explorer(Model::Px86Line).crashes(1).kills(1)
}

/// The file that makes durable the stores of an earlier process. Without such a process its flushes are redundant.
const LEFTOVER: &str = "pool/leftover.rs";

fn lints() -> Lints {
    let lints = Lints::all_denied();
    lints.allow_in(Lint::RedundantFlush, LEFTOVER).allow_in(Lint::RedundantFence, LEFTOVER)
}

#[track_caller]
fn assert_exhaustive(coverage: &Coverage) {
    assert!(coverage.is_exhaustive(), "{coverage}");
}

fn overwrite(run: &Run<()>, identity: u8) {
    Pool::format(Arc::clone(run.pmem()), &options(identity).overwrite()).unwrap();
    run.ack(());
}

/// Until the operation that formats the pool is acknowledged, a crash may leave no pool or partial headers.
fn check_refusal(crash: &Crash<()>, error: &PoolError) -> Result<(), String> {
    match error {
        PoolError::NotAPool | PoolError::HeadersCorrupted { .. } if crash.acked().is_empty() => Ok(()),
        error => Err(error.to_string()),
    }
}

/// An explorer whose bounds allow every choice, in the operation and in the recoveries.
///
/// A header has new words in three lines, 5, 5 and 1: 72 choices if the words of a line are ordered, 2^11 if they are not.
fn explorer(model: Model) -> Explorer {
    Explorer::new(model).choices_per_point(1 << 13).nested_choices_per_point(1 << 11)
}

/// Opens the pool, and asserts that the crash left no corrupted slot: such a slot could not be distinguished from a media error.
fn open(crash: &Crash<()>) -> Result<SimPool, PoolError> {
    let pool = Pool::attach(Arc::clone(crash.pmem()))?;
    assert_eq!(pool.corrupted_root_count(), 0);
    Ok(pool)
}

fn reopen(crash: &Crash<()>) -> Result<SimPool, String> {
    open(crash).map_err(|error| error.to_string())
}

fn attach(run: &Run<()>) -> SimPool {
    Pool::attach(Arc::clone(run.pmem())).unwrap()
}

fn two_roots() -> Image {
    pool_image(|pool| {
        set(pool, "counter", 0, 1);
        set(pool, "other", 1, 9);
    })
}

fn replace_counter(run: &Run<()>) {
    let pool = attach(run);
    set(&pool, "counter", 2, 2);
    run.ack(());
}

#[test]
fn formatting_a_pool_is_atomic() {
    let operation = |run: &Run<()>| {
        let formatted = Pool::format_with(Arc::clone(run.pmem()), &options(1), |pool| {
            set(pool, "counter", 0, 7);
            Ok::<_, PoolError>(())
        });
        formatted.unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| match open(crash) {
        Ok(pool) if get(&pool, "counter") == Some(7) && pool.roots().len() == 1 => Ok(()),
        Ok(pool) => Err(format!("the roots {:?} are not those of the initial contents", pool.roots())),
        Err(error) => check_refusal(crash, &error),
    };
    // The region still has the roots of an earlier pool, but not its headers.
    let used = image(|sim| {
        let pool = Pool::format(sim, &options(3)).unwrap();
        set(&pool, "old", 5, 1);
        set(&pool, "older", 6, 1);
        for header in [0, POOL_BYTES - 4096] {
            pool.pmem().store(header, &[0; 4096]);
        }
    });
    let redundant = redundant_sites(explorer, &used, operation, check);
    // The pool does not exist before its header is written, so its roots may become durable in any order: the last fence before the header
    // covers them. The tests below need each fence of the roots.
    let is_explained = |file: &str| file.ends_with("pool/roots.rs") || file.ends_with(LEFTOVER);
    assert!(redundant.iter().all(|site| is_explained(site.location.file())), "{redundant:#?}");
}

/// Checks that the pool is the new one, which has identity 2, or the old one, which has this root.
fn check_overwritten(crash: &Crash<()>, root: (&str, u64)) -> Result<(), String> {
    match open(crash) {
        Ok(pool) if pool.uuid() == Uuid::from_bytes([2; 16]) => match pool.roots().is_empty() {
            true => Ok(()),
            false => Err("the new pool has a root of the old one".to_owned()),
        },
        Ok(_) if !crash.acked().is_empty() => Err("the old pool came back".to_owned()),
        Ok(pool) if get(&pool, root.0) == Some(root.1) && pool.roots().len() == 1 => Ok(()),
        Ok(pool) => Err(format!("the old pool opens with roots {:?}", pool.roots())),
        Err(error) => check_refusal(crash, &error),
    }
}

#[test]
fn overwriting_a_pool_is_atomic() {
    let old = pool_image(|pool| set(pool, "old", 0, 1));
    explore(&old, |run| overwrite(run, 2), |crash| check_overwritten(crash, ("old", 1)));
}

/// After an interrupted growth, the backup of the pool is inside the region, not at its end.
#[test]
fn overwriting_a_shorter_pool_is_atomic() {
    explore_long(&image_to_grow(), |run| overwrite(run, 2), |crash| check_overwritten(crash, ("counter", 7)));
}

/// The data area of the overwritten pool contains the backup of an older, shorter pool.
#[test]
fn older_pool_inside_never_reappears() {
    let shorter = POOL_BYTES - 8192;
    let backup = header_of(shorter, 1);
    let before = image(|sim| {
        let pool = Pool::format(sim, &options(2)).unwrap();
        set(&pool, "counter", 0, 7);
        pool.pmem().store(shorter - 4096, &backup);
    });
    let operation = |run: &Run<()>| overwrite(run, 3);
    let check = |crash: &Crash<()>| match open(crash) {
        Ok(pool) if pool.uuid() == Uuid::from_bytes([3; 16]) && pool.roots().is_empty() => Ok(()),
        Ok(pool) if pool.uuid() == Uuid::from_bytes([2; 16]) && get(&pool, "counter") == Some(7) => Ok(()),
        Ok(pool) => Err(format!("{} with roots {:?}", pool.uuid(), pool.roots())),
        Err(error) => check_refusal(crash, &error),
    };
    explore_long(&before, operation, check);
}

#[test]
fn read_only_pool_has_same_roots_after_crash() {
    let check = |crash: &Crash<()>| {
        let reader = Pool::attach_read_only(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        let (read, listed) = (get(&reader, "counter"), reader.roots());
        let writer = reopen(crash)?;
        match (read == get(&writer, "counter"), listed == writer.roots(), read, crash.acked().len()) {
            (true, true, Some(2), _) | (true, true, Some(1), 0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    for model in Model::ALL {
        assert_exhaustive(&explorer(model).kills(1).check(&two_roots(), replace_counter, check));
    }
}

/// A backup at the new end is newer than the header and the old backup. Opening must erase it, or it would be used once the header is corrupted.
#[test]
fn backup_of_interrupted_growth_never_reappears() {
    let check = |crash: &Crash<()>| {
        let pool = reopen(crash)?;
        let pool_bytes = pool.pool_bytes();
        pool.pmem().store(64, b"corrupted!");
        let pool = Pool::attach(pool.into_pmem()).map_err(|error| error.to_string())?;
        match pool.pool_bytes() == pool_bytes {
            true => Ok(()),
            false => Err(format!("the pool had {pool_bytes} bytes, and now has {}", pool.pool_bytes())),
        }
    };
    for model in Model::ALL {
        assert_exhaustive(&explorer(model).crashes(1).kills(1).check(&image_to_grow(), grow, check));
    }
}

#[test]
fn setting_a_root_is_atomic() {
    let check = |crash: &Crash<()>| {
        let pool = reopen(crash)?;
        match (get(&pool, "counter"), get(&pool, "other"), crash.acked().len()) {
            (Some(2), Some(9), _) | (Some(1), Some(9), 0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    explore(&two_roots(), replace_counter, check);
}

#[test]
fn value_is_durable_before_its_root() {
    let operation = |run: &Run<()>| {
        let pool = attach(run);
        let place = pool.data().start + 128;
        pool.scope(|pm| {
            let counter = pm.stream(pm.claim(place).unwrap(), &7_u64);
            pm.set_root_in_flight("streamed", counter).unwrap();
            run.ack(());
            let counter = pm.write(pm.claim(place + 64).unwrap(), &8_u64);
            // teeth(fence): setting the root fences, too, before the root is valid
            pm.set_root("fenced", &pm.fence(pm.flush(counter)).unwrap()).unwrap();
            run.ack(());
        });
    };
    let check = |crash: &Crash<()>| {
        let pool = reopen(crash)?;
        match (get(&pool, "streamed"), get(&pool, "fenced"), crash.acked().len()) {
            (None, None, 0) | (Some(7), None, 0 | 1) | (Some(7), Some(8), 1 | 2) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    explore(&pool_image(|_| ()), operation, check);
}

#[test]
fn replaced_root_does_not_reappear_after_removal() {
    let before = pool_image(|pool| set(pool, "counter", 0, 1));
    let operation = |run: &Run<()>| {
        let pool = attach(run);
        set(&pool, "counter", 2, 2);
        run.ack(());
        pool.remove_root("counter").unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let pool = reopen(crash)?;
        match (get(&pool, "counter"), crash.acked().len()) {
            (Some(1), 0) | (Some(2), 0 | 1) | (None, 1 | 2) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    explore(&before, operation, check);
}

/// The directory has two slots of one name, and the slot with the higher generation is the first.
#[test]
fn older_slot_does_not_reappear_after_removal() {
    let before = pool_image(|pool| {
        set(pool, "counter", 0, 1);
        set(pool, "counter", 1, 2);
    });
    let operation = |run: &Run<()>| {
        let pool = attach(run);
        // Sets the root in another slot, and does not free the old one.
        pool.logged_roots().restore_missing("counter", (8192 + 128, 8, u64::LAYOUT)).unwrap();
        run.ack(());
        pool.remove_root("counter").unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        match (pool.find_root("counter").map(|root| root.map(|root| root.offset())), crash.acked().len()) {
            (Ok(Some(8256)), 0) | (Ok(Some(8320)), 0 | 1) | (Ok(None), 1 | 2) => Ok(()),
            // The words of the slot are stored in no order, so a crash may leave it torn.
            (Err(RootError::Corrupted { .. }), 0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    assert_exhaustive(&explorer(Model::Px86Line).kills(1).check(&before, operation, check));
}

/// A pool with one root, whose slot is corrupted.
fn image_with_a_corrupted_root() -> Image {
    image(|sim| {
        let pool = Pool::format(sim, &options(1).with_logged_roots()).unwrap();
        pool.logged_roots().restore_missing("first", (8192, 8, u64::LAYOUT)).unwrap();
        pool.pmem().store(4096 + 8, &[0x80]);
    })
}

#[test]
fn discarding_corrupted_roots_is_atomic_per_slot() {
    let operation = |run: &Run<()>| {
        let pool = attach(run);
        assert_eq!(pool.logged_roots().discard_corrupted().unwrap(), 1);
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        match (pool.corrupted_root_count(), crash.acked()) {
            (0, _) if pool.find_root("first") == Ok(None) => Ok(()),
            (1, []) => Ok(()),
            (count, _) => Err(format!("{count} slots are corrupted")),
        }
    };
    explore(&image_with_a_corrupted_root(), operation, check);
}

/// After a crash, a lookup returns the new root, an error because the slot is corrupted, or the old root, but never `None`.
#[test]
fn setting_a_lost_root_is_atomic() {
    let operation = |run: &Run<()>| {
        let pool = attach(run);
        pool.logged_roots().restore_missing("first", (8192 + 64, 8, u64::LAYOUT)).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        match (pool.find_root("first"), crash.acked()) {
            (Ok(Some(root)), _) if root.offset() == 8192 + 64 => Ok(()),
            (Err(RootError::Corrupted { slots: 1 }), []) => Ok(()),
            // Of the new words, only those that overwrite the corruption are durable, so the old root is back.
            (Ok(Some(root)), []) if root.offset() == 8192 => Ok(()),
            (found, _) => Err(format!("found {found:?}")),
        }
    };
    explore(&image_with_a_corrupted_root(), operation, check);
}

#[test]
fn restoring_a_header_loses_nothing() {
    for corrupted_at in [64, POOL_BYTES - 4096 + 64] {
        let before = image(|sim| {
            let pool = Pool::format(sim, &options(1)).unwrap();
            set(&pool, "counter", 0, 7);
            pool.pmem().store(corrupted_at, b"corrupted!");
        });
        let operation = |run: &Run<()>| {
            attach(run);
            run.ack(());
        };
        let check = |crash: &Crash<()>| {
            let pool = reopen(crash)?;
            match (get(&pool, "counter"), pool.header_state(), crash.acked().len()) {
                (Some(7), HeaderState::Intact, _) | (Some(7), _, 0) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        };
        explore(&before, operation, check);
    }
}

/// A pool after an interrupted growth, with a corrupted header at the start. The valid backup is inside the region.
fn image_of_a_shorter_pool(corruption: impl FnOnce(&mut [u8])) -> Image {
    let mut bytes = image_to_grow().to_bytes();
    corruption(&mut bytes[..4096]);
    Image::from_bytes(bytes)
}

fn attach_to_restore(run: &Run<()>) {
    let pool = attach(run);
    assert!(matches!(pool.header_state(), HeaderState::PrimaryCorrupted(_)));
    run.ack(());
}

fn check_restored(crash: &Crash<()>) -> Result<(), String> {
    let pool = reopen(crash)?;
    let is_right = get(&pool, "counter") == Some(7) && pool.uuid() == Uuid::from_bytes([1; 16]);
    match (is_right, pool.pool_bytes(), pool.header_state(), crash.acked().len()) {
        (true, POOL_BYTES, HeaderState::Intact, _) | (true, POOL_BYTES, _, 0) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// The identity and the magic are in the first line. Opening ignores a copy inside the region if the first line has the magic and another identity.
#[test]
fn restoring_first_line_of_shorter_pool_loses_nothing() {
    for filler in [0xFF, 0] {
        let before = image_of_a_shorter_pool(|header| header[..64].fill(filler));
        explore(&before, attach_to_restore, check_restored);
    }
}

/// A region whose first page is zero, and which has no backup at its end, is no pool. So the corrupted word, the only one that is not zero, must not
/// be erased before other words are durable.
#[test]
fn restoring_all_but_one_word_of_header_loses_nothing() {
    let before = image_of_a_shorter_pool(|header| {
        header.fill(0);
        header[2048] = 1;
    });
    for explorer in [explorer(Model::Px86Line).crashes(1), explorer(Model::Chunk8).crashes(1), killer()] {
        assert_exhaustive(&explorer.check(&before, attach_to_restore, check_restored));
    }
}

/// A pool with a root, in a file that has grown already.
fn image_to_grow() -> Image {
    longer(&pool_image(|pool| set(pool, "counter", 0, 7)), LONGER_BYTES)
}

fn grow(run: &Run<()>) {
    attach(run).extend().unwrap();
    run.ack(());
}

fn check_grown(crash: &Crash<()>) -> Result<(), String> {
    let mut pool = reopen(crash)?;
    if get(&pool, "counter") != Some(7) {
        return Err("the root is lost".to_owned());
    }
    let is_grown = pool.pool_bytes() == LONGER_BYTES;
    if !is_grown && (pool.pool_bytes() != POOL_BYTES || !crash.acked().is_empty()) {
        return Err(format!("the pool has {} bytes", pool.pool_bytes()));
    }
    // If the crash corrupted the header, an old backup inside the region cannot be distinguished from data.
    if is_grown && page(pool.pmem(), POOL_BYTES - 4096) != [0; 4096] && crash.faults().is_empty() {
        return Err("new data is not zero".to_owned());
    }
    pool.extend().map_err(|error| error.to_string())
}

#[test]
fn growth_is_atomic() {
    explore_long(&image_to_grow(), grow, check_grown);
}

/// The crash also corrupts the first line of the header. Then only a backup holds the length of the pool, and at least one backup is always complete.
#[test]
fn growth_survives_loss_of_header() {
    let explorer = explorer(Model::Px86Line).kills(1).faults(Faults::none().poison(1).within(0..64));
    assert_exhaustive(&explorer.check(&image_to_grow(), grow, check_grown));
}

/// As [`older_pool_inside_never_reappears`], but the shorter pool has the same identity, or the header at the start is corrupted, so
/// that opening relies on a backup.
#[test]
fn older_pool_inside_never_reappears_with_any_header() {
    let shorter = POOL_BYTES - 8192;
    for (identity, corruption) in [(2, None), (1, Some(0)), (2, Some(0)), (2, Some(100))] {
        let before = image(|sim| {
            let pool = Pool::format(sim, &options(2)).unwrap();
            set(&pool, "counter", 0, 7);
            pool.pmem().store(shorter - 4096, &header_of(shorter, identity));
            if let Some(at) = corruption {
                pool.pmem().store(at, b"corrupted!");
            }
        });
        let operation = |run: &Run<()>| overwrite(run, 3);
        let check = |crash: &Crash<()>| match open(crash) {
            Ok(pool) if pool.pool_bytes() != POOL_BYTES => Err("the shorter pool is back".to_owned()),
            Ok(pool) if pool.uuid() == Uuid::from_bytes([3; 16]) && pool.roots().is_empty() => Ok(()),
            Ok(pool) if get(&pool, "counter") == Some(7) && crash.acked().is_empty() => Ok(()),
            Ok(pool) => Err(format!("{} with roots {:?}", pool.uuid(), pool.roots())),
            Err(error) => check_refusal(crash, &error),
        };
        assert_exhaustive(&killer().check(&before, operation, check));
    }
}

/// Opens the pool after an interrupted growth, grows its region again, and extends the pool: all its new data must be zero.
fn check_new_data_is_zero(crash: &Crash<()>) -> Result<(), String> {
    let pool = reopen(crash)?;
    if pool.pool_bytes() != POOL_BYTES {
        return Ok(());
    }
    let mut bytes = vec![0; usize::try_from(pool.pmem().len_bytes()).unwrap()];
    pool.pmem().load(0, &mut bytes);
    bytes.resize(bytes.len() + 8192, 0);
    let longer = SimPmem::from_image(&Image::from_bytes(bytes), Model::Px86Line);
    let mut longer = Pool::attach(longer).map_err(|error| error.to_string())?;
    longer.extend().map_err(|error| error.to_string())?;
    let mut new = vec![0; usize::try_from(longer.data().end - POOL_BYTES).unwrap()];
    longer.pmem().load(POOL_BYTES, &mut new);
    match new.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} of the new data is not zero")),
    }
}

#[test]
fn remains_of_interrupted_growth_do_not_become_data() {
    assert_exhaustive(&killer().check(&image_to_grow(), grow, check_new_data_is_zero));
}

/// An interrupted growth has left a complete backup at the new end. A crash or a kill interrupts its erasure.
#[test]
fn interrupted_erasure_of_backup_is_completed() {
    let sim = Arc::new(SimPmem::from_image(&image_to_grow(), Model::Px86Line));
    let (header, backup) = (page(&sim, 0), page(&sim, POOL_BYTES - 4096));
    Pool::attach(Arc::clone(&sim)).unwrap().extend().unwrap();
    sim.store(0, &header);
    sim.store(POOL_BYTES - 4096, &backup);
    let open = |run: &Run<()>| drop(attach(run));
    assert_exhaustive(&killer().check(&sim.to_image(), open, check_new_data_is_zero));
}

/// User data contains a page that begins like a header, as on a disk that holds pools. In the second case the page is where the backup of its pool
/// would be. A crash leaves the old pool with all of its data, or no old pool.
#[test]
fn overwriting_keeps_data_until_old_pool_is_erased() {
    let at = POOL_BYTES - 12_288;
    for header in [header_of(1 << 14, 7), header_of(at + 4096, 7)] {
        let before = pool_image(|pool| {
            set(pool, "old", 0, 1);
            pool.pmem().store(at, &header);
        });
        let operation = |run: &Run<()>| overwrite(run, 2);
        let check = |crash: &Crash<()>| match open(crash) {
            Ok(pool) if pool.uuid() == Uuid::from_bytes([1; 16]) => {
                let is_same = page(pool.pmem(), at) == header;
                let is_whole = get(&pool, "old") == Some(1) && is_same && crash.acked().is_empty();
                if is_whole { Ok(()) } else { Err("the old pool has lost its data".to_owned()) }
            }
            Ok(pool) if pool.uuid() == Uuid::from_bytes([2; 16]) && pool.roots().is_empty() => Ok(()),
            Ok(pool) => Err(format!("{} with roots {:?}", pool.uuid(), pool.roots())),
            Err(error) => check_refusal(crash, &error),
        };
        for model in [Model::Px86Line, Model::Chunk8] {
            assert_exhaustive(&explorer(model).crashes(1).kills(1).check(&before, operation, check));
        }
    }
}

#[test]
fn region_and_simulation_hold_same_bytes() {
    let sim = pool_image(|pool| set(pool, "counter", 0, 7));
    let pool = Pool::format(Region::anonymous(POOL_BYTES).unwrap(), &options(1)).unwrap();
    set(&pool, "counter", 0, 7);
    let mut bytes = vec![0; usize::try_from(POOL_BYTES).unwrap()];
    pool.pmem().load(0, &mut bytes);
    assert!(sim.to_bytes() == bytes);
}
