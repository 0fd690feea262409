//! The explorer: its findings, its coverage, and its replays.

use crate::common::*;
use crate::programs::{BALANCES, LOG, LOG_VALID, transfer, two_accounts};
use pm_crashsim::SiteKind;
use std::cell::Cell;

const FLAG: u64 = 0;
/// Not on the flag's line, nor, for the page domain, in its sector.
const SLOT: u64 = 1024;

/// Fills a slot, then publishes it.
fn publish(run: &Run<u64>) -> Result<(), FenceError> {
    let pmem = run.pmem();
    pmem.put(SLOT, 7)?;
    pmem.put(FLAG, 1)?;
    run.ack(7);
    Ok(())
}

fn published(crash: &Crash<'_, u64>) -> Result<(), String> {
    let found = (crash.pmem().load_u64(FLAG) == 1).then(|| crash.pmem().load_u64(SLOT));
    match (found, crash.acked()) {
        (Some(7), _) | (None, []) => Ok(()),
        (found, acked) => Err(format!("{found:?} after {acked:?} was acknowledged")),
    }
}

#[test]
fn correct_publication_passes_under_every_model() {
    for model in Model::ALL {
        let coverage = Explorer::new(model).check(&Image::zeroed(4096), publish, published);
        assert!(coverage.is_exhaustive());
        // Before either fence 2 images; with both stores, not acknowledged and acknowledged. Recovery does not look at
        // the slot before the flag is there.
        assert_eq!(coverage.levels[0].recoveries, 3, "{model}");
        let every = Explorer::new(model).reduce(false).check(&Image::zeroed(4096), publish, published);
        assert_eq!((every.levels[0].recoveries, every.levels[0].tried), (4, coverage.levels[0].tried));
    }
}

#[test]
fn loss_of_each_flush_and_fence_is_noticed() {
    for model in [Model::Px86Line, Model::Px86Loc, Model::Chunk8, Model::Page] {
        let redundant = Explorer::new(model).redundant_sites(&Image::zeroed(4096), publish, published);
        assert_eq!(redundant.unwrap(), [], "{model}");
    }
    // With caches kept, flushes are redundant, and so is the fence between: stores survive in order. The last fence
    // keeps the acknowledgement from overtaking its store.
    let eadr = Explorer::new(Model::Eadr).redundant_sites(&Image::zeroed(4096), publish, published).unwrap();
    let count = |kind| eadr.iter().filter(|site| site.kind == kind).count();
    assert_eq!((count(SiteKind::Flush), count(SiteKind::Fence)), (2, 1));
}

#[test]
fn redundant_flush_is_named() {
    let redundant_line = Cell::new(0);
    let operation = |run: &Run<u64>| {
        publish(run)?;
        redundant_line.set(line!() + 1);
        run.pmem().persist(SLOT, 8)
    };
    let redundant = Explorer::default().redundant_sites(&Image::zeroed(4096), operation, published).unwrap();
    let lines: BTreeSet<u32> = redundant.iter().map(|site| site.location.line()).collect();
    assert_eq!((redundant.len(), lines), (2, BTreeSet::from([redundant_line.get()])));
}

#[test]
fn failure_names_its_crash_and_replays() {
    let flag_line = Cell::new(0);
    let broken = |run: &Run<u64>| {
        run.pmem().store_u64(SLOT, 7);
        flag_line.set(line!() + 1);
        run.pmem().store_u64(FLAG, 1);
        run.pmem().flush(0, 2048);
        run.pmem().fence()
    };
    let image = Image::zeroed(4096);
    let [failure, again] = fails_and_replays(&Explorer::default(), &image, broken, published);
    assert_eq!(failure.message, "Some(0) after [] was acknowledged");
    assert_eq!(failure.crashes.len(), 1);
    let (lost, kept) = (&failure.crashes[0].lost, &failure.crashes[0].kept);
    assert_eq!((lost.len(), lost[0].line_offset, lost[0].offset, lost[0].len_bytes), (1, SLOT, SLOT, 8));
    assert_eq!((kept.len(), kept[0].line_offset, kept[0].location.line()), (1, FLAG, flag_line.get()));
    let story = failure.to_string();
    assert!(story.contains("crash right before the fence at"), "{story}");
    assert!(story.contains("✗ lost"), "{story}");

    assert_eq!((again.coverage.recoveries(), &again.replay), (1, &failure.replay));
    assert_eq!(again.crashes[0].record.kept(), failure.crashes[0].record.kept());
}

#[test]
fn replay_of_a_missing_crash_fails() {
    let unseen = |_: &Crash<'_, u64>| Err("every check fails");
    let failure = Explorer::default().explore(&Image::zeroed(4096), publish, unseen).unwrap_err();
    let id = failure.replay.unwrap();
    let (run, _) = id.rsplit_once(':').expect("the model, the run's mark and the crash");
    for id in
        [format!("{run}:99+"), format!("{run}:1+99"), format!("{id}/1+"), "px86-line:00000000:1+".to_owned()]
    {
        let id = id.as_str();
        let explored = Explorer::default().replay(id).explore(&Image::zeroed(4096), publish, published);
        assert_eq!(explored.unwrap_err().message, format!("no crash of this run is {id}"));
    }
}

#[test]
fn site_is_suppressed_while_the_operation_runs() {
    let coverage = Explorer::default().check(&Image::zeroed(4096), publish, published);
    let site = coverage.sites.first().expect("two flushes and two fences");
    let operation = |run: &Run<u64>| {
        run.pmem().suppress(site);
        publish(run)
    };
    let explored = Explorer::default().explore(&Image::zeroed(4096), operation, published);
    assert!(explored.is_err(), "{site} was not missed");
}

/// Replays the log. `truncate_early` forgets the log before what it replayed is durable, which only a crash inside recovery can show.
fn replay_log(pmem: &SimPmem, truncate_early: bool) -> Result<(), FenceError> {
    if pmem.load_u64(LOG_VALID) == 1 {
        for (number, balance) in BALANCES.into_iter().enumerate() {
            pmem.store_u64(balance, pmem.load_u64(LOG + 8 * number as u64));
            if !truncate_early {
                pmem.persist(balance, 8)?;
            }
        }
        // Whenever that becomes durable: replaying once more changes nothing.
        pmem.store_u64(LOG_VALID, 0);
    }
    Ok(())
}

fn balances(truncate_early: bool) -> impl Fn(&Crash<'_, ()>) -> Result<(), String> {
    move |crash| {
        replay_log(crash.pmem(), truncate_early).map_err(|error| error.to_string())?;
        let found = BALANCES.map(|balance| crash.pmem().load_u64(balance));
        match (found, crash.acked()) {
            ([90, 110], _) | ([100, 100], []) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }
}

#[test]
fn crash_inside_recovery_finds_more_than_a_single_crash() {
    let image = two_accounts();
    let once = Explorer::default().crashes(1).check(&image, transfer, balances(true));
    assert_eq!(once.levels.len(), 1);

    let [failure, again] = fails_and_replays(&Explorer::default(), &image, transfer, balances(true));
    assert_eq!((failure.crashes.len(), again.crashes.len()), (2, 2), "{failure}");
    assert!(failure.to_string().contains("crash 2 of 2, of recovery, "), "{failure}");

    let sound = Explorer::default().crashes(3).check(&image, transfer, balances(false));
    assert!(sound.is_exhaustive() && sound.levels.len() >= 2, "{sound}");
}

/// Contents that were met as the last allowed crash, and so not crashed again, are when they are met earlier.
#[test]
fn contents_first_met_deep_are_crashed_again_when_shallow() {
    let operation = |run: &Run<()>| (1..=2).try_for_each(|value| run.pmem().put(0, value));
    let met = Seen::new();
    let step_on = |crash: &Crash<'_, ()>| {
        let found = crash.pmem().load_u64(0);
        met.add((crash.crashes(), found));
        if found == 1 || found == 2 {
            crash.pmem().store_u64(0, found + 1);
        }
    };
    Explorer::default().check(&Image::zeroed(64), operation, step_on);
    assert_eq!(met.take(), BTreeSet::from([(1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]));
}

#[test]
fn stores_of_the_check_after_recovery_are_not_crashed() {
    let deepest = AtomicUsize::new(0);
    let coverage = Explorer::default().check(&two_accounts(), transfer, |crash: &Crash<'_, ()>| {
        deepest.fetch_max(crash.crashes(), Ordering::Relaxed);
        crash.recovered();
        crash.pmem().put(SLOT, 1)
    });
    assert_eq!((deepest.into_inner(), coverage.levels.len()), (1, 1));
}

#[test]
fn panic_is_a_failure() {
    let check = |crash: &Crash<'_, u64>| assert_eq!(crash.pmem().load_u64(FLAG), 0, "published");
    let failure = Explorer::default().explore(&Image::zeroed(4096), publish, check).unwrap_err();
    assert!(failure.message.contains("published"), "{failure}");
    let operation = |run: &Run<u64>| assert!(run.pmem().len_bytes() == 0, "no operation");
    let failure = Explorer::default().explore(&Image::zeroed(64), operation, check).unwrap_err();
    assert_eq!(failure.message, "the operation itself failed: no operation");
    assert_eq!((failure.crashes.len(), failure.replay), (0, None));
}

#[test]
fn all_flushed_and_fenced_leaves_one_image() {
    for model in Model::ALL {
        let images = Seen::new();
        let operation = |run: &Run<()>| {
            for number in 0..40_u64 {
                run.pmem().store(number * 100, &[1; 77]);
                run.pmem().store_nt(number * 100 + 33, &number.to_le_bytes());
            }
            run.pmem().persist(0, 4096)?;
            run.ack(());
            DONE
        };
        let check = |crash: &Crash<'_, ()>| {
            if !crash.acked().is_empty() {
                images.add(crash.pmem().to_image().to_bytes());
            }
        };
        let coverage = Explorer::new(model).reduce(false).check(&Image::zeroed(4096), operation, check);
        assert_eq!(images.take().len(), 1, "{model}");
        assert!(!coverage.is_exhaustive(), "{model}: before the fence there are more than the bound");
    }
}

#[test]
fn telling_choices_come_first_beyond_the_bound() {
    let stores = 40;
    let seen = Seen::new();
    let explore = |seed| {
        let operation = |run: &Run<()>| (0..stores).for_each(|line| run.pmem().store_u64(line * 64, 1));
        let check = |crash: &Crash<'_, ()>| {
            let bits = (0..stores).map(|line| crash.pmem().load_u64(line * 64) << line).sum::<u64>();
            seen.add(bits);
        };
        let explorer = Explorer::default().choices_per_point(200).seed(seed);
        (explorer.check(&Image::zeroed(4096), operation, check), seen.take())
    };
    let (coverage, first) = explore(1);
    let level = coverage.levels[0];
    assert_eq!((level.points, level.legal, level.is_exhaustive), (1, 1 << stores, false));
    assert_eq!(level.tried, first.len() as u128);
    assert!(level.tried > 180, "random choices rarely repeat: {level}");
    let all = (1 << stores) - 1;
    for line in 0..stores {
        assert!(first.contains(&(1 << line)) && first.contains(&(all - (1 << line))), "line {line}");
    }
    assert!(first.contains(&0) && first.contains(&all));
    assert_eq!(explore(1).1, first, "the same seed tries the same");
    assert_ne!(explore(2).1, first, "another seed tries others");
}

/// An image shares all but its changed lines. Copying this region for each would move two terabytes.
#[test]
fn cost_of_an_image_is_independent_of_the_region_length() {
    let operation = |run: &Run<()>| (0..15).for_each(|line| run.pmem().store_u64(line * 65_536, 1));
    let check = |crash: &Crash<'_, ()>| {
        crash.pmem().load_u64(0);
    };
    let start = Instant::now();
    let explorer = Explorer::default().reduce(false).choices_per_point(1 << 15);
    let coverage = explorer.check(&Image::zeroed(64 << 20), operation, check);
    assert_eq!((coverage.levels[0].tried, coverage.recoveries()), (1 << 15, 1 << 15));
    assert!(start.elapsed() < Duration::from_secs(30), "took {:?}", start.elapsed());
    println!("{:?} an image", start.elapsed() / (1 << 15));
}

/// A page written at once has more legal choices than there is time, in the operation and in its recovery: both
/// are sampled, the coverage admits it, and recoveries are still crashed.
#[test]
fn long_stores_are_sampled_at_both_depths() {
    let create = |pmem: &SimPmem| {
        pmem.store(4096, &[3; 4096]);
        pmem.persist(4096, 4096)?;
        pmem.store_u64(FLAG, 1);
        DONE
    };
    let operation = |run: &Run<()>| create(run.pmem());
    let check = |crash: &Crash<'_, ()>| {
        if crash.pmem().load_u64(FLAG) == 0 {
            create(crash.pmem())?;
        }
        let mut page = [0; 4096];
        crash.pmem().load(4096, &mut page);
        assert_eq!(page, [3; 4096]);
        DONE
    };
    let explorer = Explorer::default().choices_per_point(512).nested_choices_per_point(64);
    let coverage = explorer.check(&Image::zeroed(65_536), operation, check);
    assert!(!coverage.is_exhaustive());
    let [outer, inner] = coverage.levels[..] else { panic!("{coverage}") };
    assert!(outer.recoveries > 400 && inner.recoveries > 500, "{coverage}");
    assert!(inner.points < 3 * 40, "{coverage}");
}

#[test]
fn empty_coverage_is_not_exhaustive() {
    assert!(!pm_crashsim::Coverage::default().is_exhaustive());
}

#[test]
fn duplicate_allowed_states_are_reported_once() {
    let operation = |run: &Run<()>| run.pmem().store_u64(0, 1);
    let check = |crash: &Crash<'_, ()>| crash.expect(crash.pmem().load_u64(0) + 7, [4, 5, 4]);
    let failure = Explorer::default().explore(&Image::zeroed(64), operation, check).unwrap_err();
    assert_eq!(failure.message, "8 was found, where only 4 or 5 is allowed");
}
