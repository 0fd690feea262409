//! Objects that become shorter: crashes in the middle, and loads beside.

use pm_core::{InPool, Region};
use pm_objects::{Contents, Hints, Locality, ObjectError, Objects, ObjectsOptions, Tier};
use pm_testkit::{SampledPmem, any};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A crash leaves a length between the old one and the new one, of whole elements. These are longer than a chunk, or lie in two.
#[test]
fn shortened_objects_have_whole_elements_after_crashes() {
    check_crashes(&[[7_u8; 5000]; 90], &ObjectsOptions::new());
    check_crashes(&[[7_u8; 100]; 200], &ObjectsOptions::new().chunk_bytes(64));
}

fn check_crashes<T: for<'p> InPool<'p> + PartialEq + core::fmt::Debug>(
    elements: &[T],
    options: &ObjectsOptions,
) {
    let mut lengths = Vec::new();
    for event in (0..).step_by(20) {
        let sampled = Arc::new(SampledPmem::new(8 << 20));
        let objects = Objects::format(any(Arc::clone(&sampled)), options).unwrap();
        let object = objects.create("o", Contents::Slice(elements)).unwrap();
        sampled.stop_at(sampled.events() + event);
        object.resize(1).unwrap();
        let Some(state) = sampled.stopped() else { break };
        let objects = Objects::attach(any(Arc::new(SampledPmem::of(state))), options).unwrap();
        let object = objects.open::<T>("o").unwrap();
        for index in 0..object.len() {
            assert_eq!(object.get(index).unwrap(), elements[0], "event {event}, element {index}");
        }
        lengths.push(object.len());
        assert_eq!(objects.check().unwrap().problems, []);
    }
    lengths.sort_unstable();
    lengths.dedup();
    println!("lengths after crashes: {lengths:?}");
    assert!(lengths.len() > 2 && lengths[0] == 1, "{lengths:?}");
}

/// The last chunk becomes shorter, and enters the last frame, which has no room for what it was, while threads load all of it.
#[test]
fn loads_beside_a_shortening_are_tried_again() {
    const LAST: u64 = 15;
    let pool = any(Region::anonymous(8 << 20).unwrap());
    let objects = Objects::format(pool, &ObjectsOptions::new().dram_bytes(1)).unwrap();
    // Takes the first of the short frames.
    let first = objects.create("first", Contents::Slice(&[1_u8; 40])).unwrap();
    first.pin(Tier::Dram).unwrap();
    let contents = [5_u8; 16 * 4096];
    let hints = Hints::new().locality(Locality::Hot);
    let object = objects.create_with("o", Contents::Slice(&contents), &hints).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut loaded = contents;
                while !is_over.load(Ordering::Relaxed) {
                    match object.read(0, &mut loaded) {
                        Ok(()) => assert!(loaded[..15 * 4096] == contents[..15 * 4096]),
                        Err(ObjectError::Range { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) {
            object.resize(LAST * 4096 + 60).unwrap();
            (0..40).for_each(|_| assert_eq!(object.get(LAST * 4096).unwrap() % 5, 0));
            object.resize((LAST + 1) * 4096).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
