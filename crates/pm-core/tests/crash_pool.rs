//! Crashes at every moment of making, changing and opening a pool, and inside the recovery from them, under every model
//! of the caches. After each, the pool opens and is as before the interrupted change, or as after it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod pools;

use pm_core::{HeaderState, Persist, Pmem, Pool, PoolError, Region, RootError, Uuid};
use pm_crashsim::{Crash, Explorer, Faults, Image, Lint, Lints, Model, Run, SimPmem, Site};
use pools::{LONGER_BYTES, POOL_BYTES, SimPool, get, header_of, longer, options, page, set};
use std::sync::Arc;

/// An image that holds what `make` leaves on the medium.
fn image(make: impl FnOnce(Arc<SimPmem>)) -> Image {
    let sim = Arc::new(SimPmem::new(POOL_BYTES));
    make(Arc::clone(&sim));
    sim.to_image()
}

fn pool_image(change: impl FnOnce(&SimPool)) -> Image {
    image(|sim| change(&Pool::format(sim, &options(1)).unwrap()))
}

/// Explores under every model. Then shows that the test has teeth, and that each flush and fence of the pool's code is
/// needed: with any one of them left out, `check` fails.
fn explore(
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) {
    let mut redundant = explore_all(image, operation, check);
    // Needed by a process that relies on what it finds, which these checks do not: see crash_pool_kills.rs.
    redundant.retain(|site| !site.location.file().ends_with(LEFTOVER));
    assert!(redundant.is_empty(), "left out without being missed: {redundant:#?}");
}

/// Explores under every model, and with kills: the operation is killed before each of its events with its stores kept in the
/// caches, and what the next process makes of them is crashed. Returns the flushes and fences of the pool's code that `check`
/// misses neither way.
fn explore_all(
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) -> Vec<Site> {
    for model in Model::ALL {
        let coverage = explorer(model).lints(lints()).check(image, &operation, &check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
    redundant_sites(explorer(Model::Chunk8), image, operation, check)
}

/// As [`explore`], but where the words of a line have no order, recoveries are not crashed: they erase a header, too, and the
/// choices of both would be multiplied.
fn explore_long(
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) {
    let explorer = |model| match model {
        Model::Px86Loc | Model::Chunk8 => explorer(model).crashes(1),
        _ => explorer(model),
    };
    for model in Model::ALL {
        let coverage = explorer(model).lints(lints()).check(image, &operation, &check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
    let mut redundant = redundant_sites(explorer(Model::Chunk8), image, operation, check);
    redundant.retain(|site| !site.location.file().ends_with(LEFTOVER));
    assert!(redundant.is_empty(), "left out without being missed: {redundant:#?}");
}

/// Kills the operation, and returns the flushes and fences of the pool's code that `check` misses neither then nor in `explorer`.
fn redundant_sites(
    explorer: Explorer,
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) -> Vec<Site> {
    let coverage = killer().check(image, &operation, &check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    // Under the model that forgives least: the order inside a line, on which the others rely, is not there.
    let redundant = explorer.redundant_sites(image, &operation, &check).unwrap();
    let with_kills = killer().redundant_sites(image, &operation, &check).unwrap();
    let is_redundant = |site: &Site| site.location.file().contains("/src/") && with_kills.contains(site);
    redundant.into_iter().filter(is_redundant).collect()
}

/// Kills the operation everywhere, and crashes the next process everywhere.
fn killer() -> Explorer {
    explorer(Model::Px86Line).crashes(1).kills(1)
}

/// The file that makes durable what an earlier process may have left in the caches. Where there was none, in vain.
const LEFTOVER: &str = "pool/leftover.rs";

fn lints() -> Lints {
    let lints = Lints::all_denied();
    lints.allow_in(Lint::RedundantFlush, LEFTOVER).allow_in(Lint::RedundantFence, LEFTOVER)
}

/// With bounds that suffice for every choice, in the operation and in the recoveries.
///
/// A header has new words in three lines, 5, 5 and 1. Where the words of a line survive in order that is 72 choices; where they
/// do not, any mixture of them, 2^11.
fn explorer(model: Model) -> Explorer {
    Explorer::new(model).choices_per_point(1 << 13).nested_choices_per_point(1 << 11)
}

/// What a crash leaves of a directory is never corruption: an opener could not tell it from a medium that fails.
fn open(crash: &Crash<()>) -> Result<SimPool, PoolError> {
    let pool = Pool::attach(Arc::clone(crash.pmem()))?;
    assert_eq!(pool.corrupted_root_count(), 0);
    Ok(pool)
}

#[test]
fn a_crash_while_a_pool_is_made_leaves_none_or_a_whole_one() {
    let operation = |run: &Run<()>| {
        let made = Pool::format_with(Arc::clone(run.pmem()), &options(1), |pool| {
            set(pool, "counter", 0, 7);
            Ok::<_, PoolError>(())
        });
        made.unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| match open(crash) {
        Ok(pool) if get(&pool, "counter") == Some(7) && pool.roots().len() == 1 => Ok(()),
        Ok(pool) => Err(format!("{:?} is not what was put into the pool before it was one", pool.roots())),
        // Half a header at either end is no pool either, as long as nobody was told that there is one.
        Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().is_empty() => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    // The memory is not new: it held a pool once, whose roots are still there.
    let used = image(|sim| {
        let pool = Pool::format(sim, &options(3)).unwrap();
        set(&pool, "old", 5, 1);
        set(&pool, "older", 6, 1);
        for header in [0, POOL_BYTES - 4096] {
            pool.pmem().store(header, &[0; 4096]);
        }
    });
    let redundant = explore_all(&used, operation, check);
    // Nobody can see the pool before its header is there, so the order in which its roots were written does not matter
    // here: the last fence before the header covers them. The tests below need each.
    let is_explained = |file: &str| file.ends_with("pool/root.rs") || file.ends_with(LEFTOVER);
    assert!(redundant.iter().all(|site| is_explained(site.location.file())), "{redundant:#?}");
}

#[test]
fn a_crash_while_a_pool_is_overwritten_never_mixes_the_two() {
    let old = pool_image(|pool| set(pool, "old", 0, 1));
    let operation = |run: &Run<()>| {
        Pool::format(Arc::clone(run.pmem()), &options(2).overwrite()).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| match open(crash) {
        Ok(pool) if pool.uuid() == Uuid::from_bytes([2; 16]) => match pool.roots().is_empty() {
            true => Ok(()),
            false => Err("the new pool has a root of the old one".to_owned()),
        },
        Ok(_) if !crash.acked().is_empty() => Err("the old pool came back".to_owned()),
        Ok(pool) if get(&pool, "old") == Some(1) => Ok(()),
        Ok(_) => Err("the old pool is corrupted".to_owned()),
        Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().is_empty() => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    explore(&old, operation, check);
}

/// A pool whose growing was interrupted has its backup inside the region, not at its end.
#[test]
fn a_pool_whose_growth_was_interrupted_is_overwritten_without_a_mixture() {
    let operation = |run: &Run<()>| {
        Pool::format(Arc::clone(run.pmem()), &options(2).overwrite()).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| match open(crash) {
        Ok(pool) if pool.uuid() == Uuid::from_bytes([2; 16]) => match pool.roots().is_empty() {
            true => Ok(()),
            false => Err("the new pool has a root of the old one".to_owned()),
        },
        Ok(_) if !crash.acked().is_empty() => Err("the old pool came back".to_owned()),
        Ok(pool) if get(&pool, "counter") == Some(7) && pool.roots().len() == 1 => Ok(()),
        Ok(pool) => Err(format!("the old pool opens with roots {:?}", pool.roots())),
        Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().is_empty() => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    explore_long(&image_to_grow(), operation, check);
}

/// A shorter pool was here before the one that is overwritten, and its backup lies in that one's data.
#[test]
fn a_pool_that_was_overwritten_before_never_comes_back() {
    let shorter = POOL_BYTES - 8192;
    let backup = header_of(shorter, 1);
    let before = image(|sim| {
        let pool = Pool::format(sim, &options(2)).unwrap();
        set(&pool, "counter", 0, 7);
        pool.pmem().store(shorter - 4096, &backup);
    });
    let operation = |run: &Run<()>| {
        Pool::format(Arc::clone(run.pmem()), &options(3).overwrite()).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| match open(crash) {
        Ok(pool) if pool.uuid() == Uuid::from_bytes([3; 16]) && pool.roots().is_empty() => Ok(()),
        Ok(pool) if pool.uuid() == Uuid::from_bytes([2; 16]) && get(&pool, "counter") == Some(7) => Ok(()),
        Ok(pool) => Err(format!("{} with roots {:?}", pool.uuid(), pool.roots())),
        Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().is_empty() => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    explore_long(&before, operation, check);
}

#[test]
fn a_read_only_pool_shows_the_same_roots_after_a_crash_as_a_writable_one() {
    let before = pool_image(|pool| {
        set(pool, "counter", 0, 1);
        set(pool, "other", 1, 9);
    });
    let operation = |run: &Run<()>| {
        let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
        set(&pool, "counter", 2, 2);
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let reader = Pool::attach_read_only(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        let (read, listed) = (get(&reader, "counter"), reader.roots());
        let writer = open(crash).map_err(|error| error.to_string())?;
        match (read == get(&writer, "counter"), listed == writer.roots(), read, crash.acked().len()) {
            (true, true, Some(2), _) | (true, true, Some(1), 0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    for model in Model::ALL {
        let coverage = explorer(model).kills(1).check(&before, operation, check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
}

/// The backup at the new end is sound and newer than the two copies that count: when the first one is corrupted later, it must
/// not be there any more.
#[test]
fn the_backup_of_an_interrupted_growth_never_comes_back() {
    let check = |crash: &Crash<()>| {
        let pool = open(crash).map_err(|error| error.to_string())?;
        let pool_bytes = pool.pool_bytes();
        pool.pmem().store(64, b"corrupted!");
        let pool = Pool::attach(pool.into_pmem()).map_err(|error| error.to_string())?;
        match pool.pool_bytes() == pool_bytes {
            true => Ok(()),
            false => Err(format!("the pool had {pool_bytes} bytes, and now has {}", pool.pool_bytes())),
        }
    };
    for model in Model::ALL {
        let coverage = explorer(model).crashes(1).kills(1).check(&image_to_grow(), grow, check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
}

#[test]
fn a_crash_while_a_root_is_set_leaves_the_old_one_or_the_new_one() {
    let before = pool_image(|pool| {
        set(pool, "counter", 0, 1);
        set(pool, "other", 1, 9);
    });
    let operation = |run: &Run<()>| {
        let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
        set(&pool, "counter", 2, 2);
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let pool = open(crash).map_err(|error| error.to_string())?;
        match (get(&pool, "counter"), get(&pool, "other"), crash.acked().len()) {
            (Some(2), Some(9), _) | (Some(1), Some(9), 0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    explore(&before, operation, check);
}

#[test]
fn a_value_is_durable_before_the_root_that_names_it_however_it_was_stored() {
    let operation = |run: &Run<()>| {
        let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
        let place = pool.data().start + 128;
        pool.scope(|pm| {
            let counter = pm.stream(pm.claim(place).unwrap(), &7_u64);
            pm.set_root_in_flight("streamed", counter).unwrap();
            run.ack(());
            let counter = pm.write(pm.claim(place + 64).unwrap(), &8_u64);
            // teeth(fence): setting the root fences too, before it counts
            pm.set_root("fenced", &pm.fence(pm.flush(counter)).unwrap()).unwrap();
            run.ack(());
        });
    };
    let check = |crash: &Crash<()>| {
        let pool = open(crash).map_err(|error| error.to_string())?;
        match (get(&pool, "streamed"), get(&pool, "fenced"), crash.acked().len()) {
            (None, None, 0) | (Some(7), None, 0 | 1) | (Some(7), Some(8), 1 | 2) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    explore(&pool_image(|_| ()), operation, check);
}

#[test]
fn a_root_that_was_replaced_does_not_come_back_when_it_is_removed() {
    let before = pool_image(|pool| set(pool, "counter", 0, 1));
    let operation = |run: &Run<()>| {
        let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
        set(&pool, "counter", 2, 2);
        run.ack(());
        pool.remove_root("counter").unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let pool = open(crash).map_err(|error| error.to_string())?;
        match (get(&pool, "counter"), crash.acked().len()) {
            (Some(1), 0) | (Some(2), 0 | 1) | (None, 1 | 2) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    explore(&before, operation, check);
}

/// A directory with two slots of one name, of which the younger one is the first.
#[test]
fn an_older_slot_of_a_root_does_not_come_back_when_it_is_removed() {
    let before = pool_image(|pool| {
        set(pool, "counter", 0, 1);
        set(pool, "counter", 1, 2);
    });
    let operation = |run: &Run<()>| {
        let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
        // Sets it beside the slot that it has.
        pool.logged_roots().set_lost("counter", (8192 + 128, 8, u64::LAYOUT)).unwrap();
        run.ack(());
        pool.remove_root("counter").unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        match (pool.find_root("counter").map(|root| root.map(|root| root.offset())), crash.acked().len()) {
            (Ok(Some(8256)), 0) | (Ok(Some(8320)), 0 | 1) | (Ok(None), 1 | 2) => Ok(()),
            // The slot of the lost root is stored in no order.
            (Err(RootError::Corrupted { .. }), 0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    let coverage = explorer(Model::Px86Line).kills(1).check(&before, operation, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
}

/// A pool with one root, whose slot is corrupted.
fn image_with_a_corrupted_root() -> Image {
    image(|sim| {
        let pool = Pool::format(sim, &options(1).with_logged_roots()).unwrap();
        pool.logged_roots().set_lost("first", (8192, 8, u64::LAYOUT)).unwrap();
        pool.pmem().store(4096 + 8, &[0x80]);
    })
}

#[test]
fn a_crash_while_corrupted_roots_are_given_up_leaves_each_corrupted_or_free() {
    let operation = |run: &Run<()>| {
        let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
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

/// A lookup of the lost root never says that there is none.
#[test]
fn a_crash_while_a_lost_root_is_set_leaves_it_lost_or_set() {
    let operation = |run: &Run<()>| {
        let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
        pool.logged_roots().set_lost("first", (8192 + 64, 8, u64::LAYOUT)).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        match (pool.find_root("first"), crash.acked()) {
            (Ok(Some(root)), _) if root.offset() == 8192 + 64 => Ok(()),
            (Err(RootError::Corrupted { slots: 1 }), []) => Ok(()),
            // What was corrupted is stored over first.
            (Ok(Some(root)), []) if root.offset() == 8192 => Ok(()),
            (found, _) => Err(format!("found {found:?}")),
        }
    };
    explore(&image_with_a_corrupted_root(), operation, check);
}

#[test]
fn a_crash_while_a_corrupted_header_is_restored_loses_nothing() {
    for corrupted_at in [64, POOL_BYTES - 4096 + 64] {
        let before = image(|sim| {
            let pool = Pool::format(sim, &options(1)).unwrap();
            set(&pool, "counter", 0, 7);
            pool.pmem().store(corrupted_at, b"corrupted!");
        });
        let operation = |run: &Run<()>| {
            Pool::attach(Arc::clone(run.pmem())).unwrap();
            run.ack(());
        };
        let check = |crash: &Crash<()>| {
            let pool = open(crash).map_err(|error| error.to_string())?;
            match (get(&pool, "counter"), pool.header_state(), crash.acked().len()) {
                (Some(7), HeaderState::Intact, _) | (Some(7), _, 0) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        };
        explore(&before, operation, check);
    }
}

/// A pool whose growing was interrupted, and whose header at the start was corrupted later. The header that is left lies inside the region.
fn image_of_a_shorter_pool(corruption: impl FnOnce(&mut [u8])) -> Image {
    let mut bytes = image_to_grow().to_bytes();
    corruption(&mut bytes[..4096]);
    Image::from_bytes(bytes)
}

fn attach_to_restore(run: &Run<()>) {
    let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
    assert!(matches!(pool.header_state(), HeaderState::PrimaryCorrupted(_)));
    run.ack(());
}

fn check_restored(crash: &Crash<()>) -> Result<(), String> {
    let pool = open(crash).map_err(|error| error.to_string())?;
    let is_right = get(&pool, "counter") == Some(7) && pool.uuid() == Uuid::from_bytes([1; 16]);
    match (is_right, pool.pool_bytes(), pool.header_state(), crash.acked().len()) {
        (true, POOL_BYTES, HeaderState::Intact, _) | (true, POOL_BYTES, _, 0) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// The identity is in the same line as the magic: a copy inside is not believed where the header at the start has the magic and another one.
#[test]
fn crash_while_the_first_line_of_a_shorter_pool_is_restored_loses_nothing() {
    for filler in [0xFF, 0] {
        let before = image_of_a_shorter_pool(|header| header[..64].fill(filler));
        explore(&before, attach_to_restore, check_restored);
    }
}

/// A region whose first page is all zero and which does not end like a pool is none: the corruption must not be gone before anything else is there.
#[test]
fn crash_while_a_header_that_was_lost_but_for_a_word_is_restored_loses_nothing() {
    let before = image_of_a_shorter_pool(|header| {
        header.fill(0);
        header[2048] = 1;
    });
    for explorer in [explorer(Model::Px86Line).crashes(1), explorer(Model::Chunk8).crashes(1), killer()] {
        let coverage = explorer.check(&before, attach_to_restore, check_restored);
        assert!(coverage.is_exhaustive(), "{coverage}");
    }
}

/// A pool with a root, in a file that has grown already; the pool in it has not.
fn image_to_grow() -> Image {
    longer(&pool_image(|pool| set(pool, "counter", 0, 7)), LONGER_BYTES)
}

fn grow(run: &Run<()>) {
    Pool::attach(Arc::clone(run.pmem())).unwrap().extend().unwrap();
    run.ack(());
}

fn check_grown(crash: &Crash<()>) -> Result<(), String> {
    let mut pool = open(crash).map_err(|error| error.to_string())?;
    if get(&pool, "counter") != Some(7) {
        return Err("the root is gone".to_owned());
    }
    let grown = pool.pool_bytes() == LONGER_BYTES;
    if !grown && (pool.pool_bytes() != POOL_BYTES || !crash.acked().is_empty()) {
        return Err(format!("the pool has {} bytes", pool.pool_bytes()));
    }
    // Without the header, an old backup cannot be distinguished from data.
    if grown && page(pool.pmem(), POOL_BYTES - 4096) != [0; 4096] && crash.faults().is_empty() {
        return Err("new data is not zero".to_owned());
    }
    pool.extend().map_err(|error| error.to_string())
}

#[test]
fn a_crash_while_a_pool_grows_leaves_the_old_size_or_the_new_one() {
    explore_long(&image_to_grow(), grow, check_grown);
}

/// The crash takes the header's first line with it: then a backup alone says how long the pool is, and one is always whole.
#[test]
fn a_crash_while_a_pool_grows_may_cost_the_header_too() {
    let explorer = explorer(Model::Px86Line).kills(1).faults(Faults::none().poison(1).within(0..64));
    let coverage = explorer.check(&image_to_grow(), grow, check_grown);
    assert!(coverage.is_exhaustive(), "{coverage}");
}

/// As [`a_pool_that_was_overwritten_before_never_comes_back`], where the shorter pool had the same identity, or the header at the start
/// has lost its magic, so that opening relies on the backup.
#[test]
fn a_shorter_pool_never_comes_back_whatever_the_header_is() {
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
        let operation = |run: &Run<()>| {
            Pool::format(Arc::clone(run.pmem()), &options(3).overwrite()).unwrap();
            run.ack(());
        };
        let check = |crash: &Crash<()>| match open(crash) {
            Ok(pool) if pool.pool_bytes() != POOL_BYTES => Err("the shorter pool".to_owned()),
            Ok(pool) if pool.uuid() == Uuid::from_bytes([3; 16]) && pool.roots().is_empty() => Ok(()),
            Ok(pool) if get(&pool, "counter") == Some(7) && crash.acked().is_empty() => Ok(()),
            Ok(pool) => Err(format!("{} with roots {:?}", pool.uuid(), pool.roots())),
            Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().is_empty() => {
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        };
        let coverage = killer().check(&before, operation, check);
        assert!(coverage.is_exhaustive(), "{coverage}");
    }
}

/// A growing is interrupted, the pool opened, its region grown again, and the pool extended over it: all its new data is zero.
fn check_new_data_is_zero(crash: &Crash<()>) -> Result<(), String> {
    let pool = open(crash).map_err(|error| error.to_string())?;
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
fn what_an_interrupted_growth_left_at_the_end_does_not_become_data() {
    let coverage = killer().check(&image_to_grow(), grow, check_new_data_is_zero);
    assert!(coverage.is_exhaustive(), "{coverage}");
}

/// The backup at the new end is whole, and what interrupts its erasing is a crash or a kill.
#[test]
fn interrupted_erasing_of_the_backup_of_an_interrupted_growth_is_finished() {
    let sim = Arc::new(SimPmem::from_image(&image_to_grow(), Model::Px86Line));
    let (header, backup) = (page(&sim, 0), page(&sim, POOL_BYTES - 4096));
    Pool::attach(Arc::clone(&sim)).unwrap().extend().unwrap();
    sim.store(0, &header);
    sim.store(POOL_BYTES - 4096, &backup);
    let attach = |run: &Run<()>| drop(Pool::attach(Arc::clone(run.pmem())).unwrap());
    let coverage = killer().check(&sim.to_image(), attach, check_new_data_is_zero);
    assert!(coverage.is_exhaustive(), "{coverage}");
}

/// A user's pages begin like headers: another pool's file is in the data, as on a disk. One is even at the place where its pool
/// would end. The old pool is there with all of its data, or it is not there.
#[test]
fn a_crash_while_a_pool_is_overwritten_never_leaves_it_without_its_data() {
    let at = POOL_BYTES - 12_288;
    for header in [header_of(1 << 14, 7), header_of(at + 4096, 7)] {
        let before = pool_image(|pool| {
            set(pool, "old", 0, 1);
            pool.pmem().store(at, &header);
        });
        let operation = |run: &Run<()>| {
            Pool::format(Arc::clone(run.pmem()), &options(2).overwrite()).unwrap();
            run.ack(());
        };
        let check = |crash: &Crash<()>| match open(crash) {
            Ok(pool) if pool.uuid() == Uuid::from_bytes([1; 16]) => {
                let is_same = page(pool.pmem(), at) == header;
                let is_whole = get(&pool, "old") == Some(1) && is_same && crash.acked().is_empty();
                if is_whole { Ok(()) } else { Err("the old pool has lost its data".to_owned()) }
            }
            Ok(pool) if pool.uuid() == Uuid::from_bytes([2; 16]) && pool.roots().is_empty() => Ok(()),
            Ok(pool) => Err(format!("{} with roots {:?}", pool.uuid(), pool.roots())),
            Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().is_empty() => {
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        };
        for model in [Model::Px86Line, Model::Chunk8] {
            let coverage = explorer(model).crashes(1).kills(1).check(&before, operation, check);
            assert!(coverage.is_exhaustive(), "{model}: {coverage}");
        }
    }
}

#[test]
fn a_region_and_its_simulation_hold_the_same_bytes() {
    let sim = pool_image(|pool| set(pool, "counter", 0, 7));
    let pool = Pool::format(Region::anonymous(POOL_BYTES).unwrap(), &options(1)).unwrap();
    set(&pool, "counter", 0, 7);
    let mut bytes = vec![0; usize::try_from(POOL_BYTES).unwrap()];
    pool.pmem().load(0, &mut bytes);
    assert!(sim.to_bytes() == bytes);
}
