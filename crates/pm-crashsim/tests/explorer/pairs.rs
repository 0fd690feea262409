//! Pairs of words stored in one piece, from the run to the report.

use crate::common::*;

const BOTH: u128 = 7 << 64 | 7;

/// Changes the pair that holds 0 and 0 into one that holds 7 and 7, with other words pending around it.
fn change(run: &Run<()>) {
    let pmem = run.pmem();
    pmem.store_u64(64, 1);
    pmem.store_u128(0, BOTH);
    pmem.store_u64(72, 1);
    pmem.store_u64(128, 1);
}

fn is_whole(crash: &Crash<()>) -> Result<(), String> {
    match (crash.pmem().load_u64(0), crash.pmem().load_u64(8)) {
        (0, 0) | (7, 7) => Ok(()),
        found => Err(format!("{found:?} was found")),
    }
}

#[test]
fn torn_pair_is_found_under_the_weakest_model_only() {
    let image = Image::zeroed(4096);
    for model in Model::ALL {
        let explorer = Explorer::new(model);
        if model != Model::Chunk8 {
            assert!(explorer.check(&image, change, is_whole).is_exhaustive());
            continue;
        }
        let [failure, _] = fails_and_replays(&explorer, &image, change, is_whole);
        let crash = &failure.crashes[0];
        assert_eq!((crash.lost.len(), crash.lost[0].len_bytes), (1, 8), "shrunk to the one word");
        assert!(failure.to_string().contains("store_u128"), "{failure}");
        assert!(failure.to_test().unwrap().contains("pmem.store_u128(0x0, 0x70000000000000007)"));

        let file = TraceFile::from_bytes(&TraceFile::from_failure(&failure).unwrap().to_bytes()).unwrap();
        let left = SimPmem::from_image(&file.crashes()[0].image().unwrap(), model);
        assert_ne!(left.load_u64(0), left.load_u64(8));
    }
}

/// The bounds are so low that choices are drawn, the telling ones and random ones: none of them tears the pair.
#[test]
fn no_sampled_choice_tears_a_pair() {
    let operation = |run: &Run<()>| {
        for round in 1..40 {
            run.pmem().store_u64(round % 2 * 8, 100 + round);
            run.pmem().store_u128(0, u128::from(round) << 64 | u128::from(round));
            run.pmem().store_u64(64 * round, round);
        }
    };
    let check = |crash: &Crash<()>| match (crash.pmem().load_u64(0), crash.pmem().load_u64(8)) {
        (low @ 0..100, high @ 0..100) if low != high => Err(format!("{low} and {high}")),
        _ => Ok(()),
    };
    for model in [Model::Eadr, Model::Px86Line, Model::Px86Loc, Model::Page] {
        let explorer = Explorer::new(model).choices_per_point(300).reduce(false).crashes(1);
        explorer.check(&Image::zeroed(4096), operation, check);
    }
    let explorer = Explorer::new(Model::Chunk8).choices_per_point(300).reduce(false).crashes(1);
    assert!(explorer.explore(&Image::zeroed(4096), operation, check).is_err());
}

/// The failure names what must be lost without a pair, or kept with one: to the report, the pair is one store.
#[test]
fn pair_is_lost_whole() {
    let operation = |run: &Run<()>| {
        run.pmem().store_u128(0, BOTH);
        run.ack(());
    };
    let check = |crash: &Crash<()>| match (crash.pmem().load_u64(8), crash.acked()) {
        (0, [()]) => Err("lost"),
        _ => Ok(()),
    };
    for model in [Model::Px86Line, Model::Px86Loc, Model::Page] {
        let (explorer, image) = (Explorer::new(model), Image::zeroed(4096));
        let [failure, _] = fails_and_replays(&explorer, &image, operation, check);
        let crash = &failure.crashes[0];
        assert_eq!((crash.lost.len(), crash.lost[0].len_bytes, crash.kept.len()), (1, 16, 0), "{model}");
        let id = name(&failure);
        // No crash keeps half of it, whatever the name of a crash says.
        assert!(id.ends_with(":2+"), "after two events, nothing is kept: {id}");
        let half = format!("{id}0:0.1");
        let halved = explorer.replay(&half).explore(&image, operation, check);
        assert_eq!(halved.unwrap_err().message, format!("no crash of this run is {half}"));
    }
}

#[test]
fn invalid_pair_panics() {
    let pmem = SimPmem::new(64);
    for (offset, words) in
        [(8, "must be aligned"), (64, "leave the region"), (u64::MAX - 15, "leave the region")]
    {
        let refused = std::panic::catch_unwind(|| pmem.store_u128(offset, 1)).unwrap_err();
        let text = refused.downcast_ref::<String>().unwrap();
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(pmem.load_u64(8), 0, "nothing was stored");
    pmem.store_u128(48, BOTH);
    assert_eq!((pmem.load_u64(48), pmem.load_u64(56)), (7, 7));
}
