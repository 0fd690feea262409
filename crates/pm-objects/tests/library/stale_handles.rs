//! Handles and moves of objects that were deleted, and power failures of two threads.

use pm_core::Region;
use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions};
use pm_testkit::{AnyPmem, Rng, SampledPmem, any};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

fn region(bytes: u64) -> AnyPmem<'static> {
    any(Arc::new(Region::anonymous(bytes).unwrap()))
}

/// What is stored by a handle to an object that another thread has replaced does not come to other objects.
#[test]
fn stores_to_replaced_objects_change_no_others() {
    let objects = Objects::format(region(64 << 20), &ObjectsOptions::new()).unwrap();
    let mut accepted = 0;
    let mut changed = 0;
    for _ in 0..6 {
        let handles = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16_u64)
                .map(|_| {
                    let objects = &objects;
                    scope.spawn(move || {
                        (0..500)
                            .map(|_| {
                                let handle = objects.replace("one", Contents::Slice(&[1_u8; 4000])).unwrap();
                                // The place is known from now on.
                                drop(handle.get(7));
                                handle
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        objects.delete("one").unwrap();
        let others: Vec<_> = (0..300)
            .map(|number| objects.create(&format!("other {number}"), Contents::Slice(&[2_u8; 4000])).unwrap())
            .collect();
        // All of them were replaced or deleted.
        accepted += handles.iter().filter(|handle| handle.write(0, &[3; 100]).is_ok()).count();
        changed += others.iter().filter(|other| other.get(7).unwrap() != 2).count();
        drop(others);
        for number in 0..300 {
            objects.delete(&format!("other {number}")).unwrap();
        }
    }
    assert_eq!(
        (accepted, changed),
        (0, 0),
        "stores that were accepted, and other objects that they have changed"
    );
}

/// Objects of one thread move down while it deletes them: what others have is not changed.
#[test]
fn moves_of_deleted_objects_change_no_others() {
    let options = ObjectsOptions::new();
    for round in 0..12_u64 {
        let objects = Objects::format_with_file(region(2 << 20), region(256 << 20), &options).unwrap();
        let wrong = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (objects, wrong) = (&objects, &wrong);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(round * 10 + thread);
                    let mut model = BTreeMap::new();
                    for step in 0..1_500_u32 {
                        let name = format!("{thread}/{}", random.u32(..60));
                        let bytes =
                            vec![step.to_le_bytes()[0] ^ step.to_le_bytes()[1]; random.usize(1..20_000)];
                        match random.u32(..4) {
                            0 | 1 => match objects.replace(&name, Contents::Slice(&bytes)) {
                                Ok(_) => drop(model.insert(name, bytes)),
                                Err(ObjectError::Full) => {}
                                Err(error) => {
                                    wrong.lock().unwrap().push(format!("{thread} {step}: replace: {error}"));
                                    return;
                                }
                            },
                            2 if model.remove(&name).is_some() => {
                                if let Err(error) = objects.delete(&name) {
                                    wrong.lock().unwrap().push(format!("{thread} {step}: delete: {error}"));
                                    return;
                                }
                            }
                            _ => {
                                if let Some(expected) = model.get(&name) {
                                    let mut found = vec![0; expected.len()];
                                    let read = objects
                                        .open::<u8>(&name)
                                        .and_then(|object| object.read(0, &mut found));
                                    match read {
                                        Ok(()) if found == *expected => {}
                                        Ok(()) => wrong
                                            .lock()
                                            .unwrap()
                                            .push(format!("{thread} {step}: other contents")),
                                        Err(error) => wrong
                                            .lock()
                                            .unwrap()
                                            .push(format!("{thread} {step}: read: {error}")),
                                    }
                                }
                            }
                        }
                    }
                    for (name, expected) in &model {
                        let mut found = vec![0; expected.len()];
                        let read = objects.open::<u8>(name).and_then(|object| object.read(0, &mut found));
                        match read {
                            Ok(()) if found == *expected => {}
                            other => wrong.lock().unwrap().push(format!("{thread} at the end: {other:?}")),
                        }
                    }
                });
            }
        });
        let problems = objects.check().unwrap().problems;
        let wrong = wrong.into_inner().unwrap();
        assert!(wrong.is_empty() && problems.is_empty(), "round {round}: {wrong:?} {problems:?}");
    }
}

/// Two threads in a pool of two tiers, a power failure at a random moment, perhaps after a kill and a recovery: what they have acknowledged is there.
#[expect(clippy::too_many_lines, reason = "one run of two threads, and what must be there after it")]
fn power_failures(with_file: bool) {
    const POOL: u64 = 512 << 10;
    let options = crate::crash::options;
    for seed in 0..150_u64 {
        let mut rng = Rng::of(seed);
        let (pool, file) = (Arc::new(SampledPmem::new(POOL)), Arc::new(SampledPmem::new(1 << 20)));
        let open =
            |pool: &Arc<SampledPmem>, file: &Arc<SampledPmem>, is_new: bool| -> Objects<AnyPmem<'static>> {
                let (pool, file) = (any(Arc::clone(pool)), any(Arc::clone(file)));
                match (is_new, with_file) {
                    (true, true) => Objects::format_with_file(pool, file, &options()).unwrap(),
                    (true, false) => Objects::format(pool, &options()).unwrap(),
                    (false, true) => Objects::attach_with_file(pool, file, &options())
                        .unwrap_or_else(|error| panic!("seed {seed}: {error}")),
                    (false, false) => Objects::attach(pool, &options())
                        .unwrap_or_else(|error| panic!("seed {seed}: {error}")),
                }
            };
        let objects = open(&pool, &file, true);
        // What may be found of each name: all states since the last call that had returned at the failure.
        type Possible = BTreeMap<String, Vec<Option<Vec<u8>>>>;
        let possible: [Mutex<Possible>; 2] = [Mutex::default(), Mutex::default()];
        let taken: Mutex<Option<(pm_testkit::State, pm_testkit::State, [Possible; 2])>> = Mutex::new(None);
        let stop_after = rng.below(160);
        let steps = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..2_usize {
                let (objects, possible, taken, steps, pool, file) =
                    (&objects, &possible, &taken, &steps, &pool, &file);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed * 2 + thread as u64);
                    for step in 0..80_u32 {
                        let name = format!("{thread}/{}", random.u32(..4));
                        let old = possible[thread].lock().unwrap().get(&name).and_then(|all| all[0].clone());
                        let byte = step.to_le_bytes()[0];
                        let mut new = old.clone();
                        let kind = random.u32(..4);
                        let len = [10, 64, 300, 2000, 64 * 40][random.usize(..5)];
                        let (at, count) = (random.usize(..60), random.usize(1..200));
                        match (kind, &mut new) {
                            (0 | 1, _) | (_, None) => new = Some(vec![byte; len]),
                            (2, Some(_)) => new = None,
                            (_, Some(bytes)) => {
                                let end = (at + count).min(bytes.len());
                                if at >= end {
                                    continue;
                                }
                                bytes[at..end].fill(byte);
                            }
                        }
                        possible[thread]
                            .lock()
                            .unwrap()
                            .entry(name.clone())
                            .or_insert_with(|| vec![None])
                            .push(new.clone());
                        let done = match (kind, &old) {
                            (0 | 1, _) | (_, None) => {
                                objects.replace(&name, Contents::Slice(new.as_ref().unwrap())).map(drop)
                            }
                            (2, Some(_)) => objects.delete(&name),
                            (_, Some(bytes)) => {
                                let end = (at + count).min(bytes.len());
                                objects
                                    .open::<u8>(&name)
                                    .and_then(|object| object.write(at as u64, &vec![byte; end - at]))
                            }
                        };
                        let now = match done {
                            Ok(()) => new,
                            Err(ObjectError::Full) => old,
                            Err(error) => panic!("seed {seed}: {error}"),
                        };
                        possible[thread].lock().unwrap().insert(name, vec![now]);
                        if steps.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == stop_after {
                            // The acknowledgements are those before the state of the pool; what is possible is that of after it, too.
                            let before =
                                [possible[0].lock().unwrap().clone(), possible[1].lock().unwrap().clone()];
                            let states = (pool.state(), file.state());
                            // The other thread may have gone on between the two: then this sample says nothing.
                            let after =
                                [possible[0].lock().unwrap().clone(), possible[1].lock().unwrap().clone()];
                            if before == after {
                                *taken.lock().unwrap() = Some((states.0, states.1, before));
                            }
                        }
                    }
                });
            }
        });
        drop(objects);
        let Some((mut pool, mut file, possible)) = taken.into_inner().unwrap() else { continue };
        if rng.one_in(2) {
            // A kill: another process opens, and then the power fails.
            let (killed, killed_file) = (Arc::new(SampledPmem::of(pool)), Arc::new(SampledPmem::of(file)));
            let objects = open(&killed, &killed_file, false);
            (pool, file) = (killed.state(), killed_file.state());
            drop(objects);
        }
        for _ in 0..3 {
            let crashed = pool.crash(&mut rng);
            let crashed_file = file.crash(&mut rng);
            let objects =
                open(&Arc::new(SampledPmem::of(crashed)), &Arc::new(SampledPmem::of(crashed_file)), false);
            assert_eq!(objects.check().unwrap().problems, [], "seed {seed}");
            for (name, possible) in possible.iter().flatten() {
                let found = match objects.open::<u8>(name) {
                    Ok(object) => {
                        let mut bytes = vec![0; usize::try_from(object.len()).unwrap()];
                        object
                            .read(0, &mut bytes)
                            .unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}"));
                        Some(bytes)
                    }
                    Err(ObjectError::NotFound) => None,
                    Err(error) => panic!("seed {seed}: {name}: {error}"),
                };
                assert!(possible.contains(&found), "seed {seed}: {name}");
            }
        }
    }
}

#[test]
fn power_failures_of_two_threads_lose_nothing() {
    power_failures(false);
}

#[test]
fn power_failures_of_two_threads_and_tiers_lose_nothing() {
    power_failures(true);
}
