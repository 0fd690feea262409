//! Threads that create, replace, change and delete objects in one pool or in two tiers.

#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

use pm_core::Region;
use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions, Tier};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

fn region(bytes: u64) -> AnyPmem<'static> {
    any(Arc::new(Region::anonymous(bytes).unwrap()))
}

/// Threads replace one object: of all handles that they get, only the last one's object lives.
#[test]
fn handles_of_replaced_objects_are_deleted() {
    let objects = Objects::format(region(16 << 20), &ObjectsOptions::new()).unwrap();
    let mut bad = Vec::new();
    for _ in 0..8 {
        let handles = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16_u64)
                .map(|thread| {
                    let objects = &objects;
                    scope.spawn(move || {
                        let replace = |round: u64| {
                            objects.replace("one", Contents::Value(&(thread << 32 | round))).unwrap()
                        };
                        (0..1_500).map(replace).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let value = objects.open::<u64>("one").unwrap().load().unwrap();
        for handle in &handles {
            match handle.load() {
                Err(ObjectError::Deleted) => {}
                Ok(found) if found == value => {}
                other => bad.push(format!("{other:?}")),
            }
        }
    }
    // What such a handle stores must not come to another object: it is an error, too.
    assert!(
        bad.is_empty(),
        "{} handles of replaced objects are not Deleted: {:?}",
        bad.len(),
        &bad[..bad.len().min(5)]
    );
}

/// Threads that open or create an object at once get the same one, of a few chunks or of many: none replaces that of another.
#[test]
fn open_or_create_replaces_nothing() {
    let objects = Objects::format(region(16 << 20), &ObjectsOptions::new()).unwrap();
    for round in 0..200_u64 {
        let len = if round % 10 == 0 { 20_000 } else { 3 };
        let name = round.to_string();
        let barrier = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (objects, name, barrier) = (&objects, &name, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let object = objects.open_or_create(name, Contents::Slice(&vec![0_u64; len])).unwrap();
                    object.set(thread, &(thread + 1)).unwrap();
                });
            }
        });
        let mut found = [0; 3];
        objects.open::<u64>(&name).unwrap().read(0, &mut found).unwrap();
        assert_eq!(found, [1, 2, 3], "round {round}");
        objects.delete(&name).unwrap();
    }
    assert_eq!(objects.check().unwrap().problems, []);
}

/// It returns an object, whatever other threads do.
#[test]
fn open_or_create_finds_or_makes_an_object() {
    let objects = Objects::format(region(16 << 20), &ObjectsOptions::new()).unwrap();
    let missing = std::thread::scope(|scope| {
        for _ in 0..2 {
            let objects = &objects;
            scope.spawn(move || {
                for _ in 0..20_000 {
                    drop(objects.create("one", Contents::Value(&1_u64)));
                    drop(objects.delete("one"));
                }
            });
        }
        let call = |_: &u32| {
            matches!(objects.open_or_create("one", Contents::Value(&1_u64)), Err(ObjectError::NotFound))
        };
        (0..20_000).filter(call).count()
    });
    assert_eq!(missing, 0);
}

/// Threads with objects of their own in a full pool with a file, by handles and without. What they read is what they have stored.
#[test]
#[expect(clippy::too_many_lines, reason = "one run, and what must be there after it")]
fn threads_keep_their_objects_in_two_tiers() {
    for (round, (pool, chunk, slab)) in
        (0..).zip([(4 << 20, 4096, None), (1 << 20, 256, Some(4096)), (512 << 10, 64, Some(1024))])
    {
        let mut options = ObjectsOptions::new().chunk_bytes(chunk).dram_bytes(u64::from(chunk) * 64);
        if let Some(slab) = slab {
            options = options.slab_bytes(slab);
        }
        let (pool, file) = (region(pool), region(32 << 20));
        let objects = Objects::format_with_file(pool.clone(), file.clone(), &options).unwrap();
        let scale = chunk as usize * 60;
        let models: Vec<BTreeMap<String, Vec<u8>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4_u64)
                .map(|thread| {
                    let objects = &objects;
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(thread + 100 * round);
                        let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
                        let mut handles = BTreeMap::new();
                        let mut full = 0;
                        for step in 0..1_500_u64 {
                            let name = format!("{thread}/{}", random.u32(..25));
                            let byte = step.to_le_bytes()[0];
                            let len = random.usize(..scale);
                            let bytes: Vec<u8> =
                                (0..len).map(|at| byte.wrapping_add((at / 37) as u8)).collect();
                            let done = match random.u32(..16) {
                                0..=2 => objects.replace(&name, Contents::Slice(&bytes)).map(|handle| {
                                    model.insert(name.clone(), bytes);
                                    if random.bool() {
                                        handles.insert(name, handle);
                                    } else {
                                        handles.remove(&name);
                                    }
                                }),
                                3 if model.contains_key(&name) => objects.delete(&name).map(|()| {
                                    model.remove(&name);
                                    handles.remove(&name);
                                }),
                                4..=6 if model.contains_key(&name) => {
                                    let old = model.get_mut(&name).unwrap();
                                    let handle = handles
                                        .get(&name)
                                        .cloned()
                                        .map_or_else(|| objects.open::<u8>(&name), Ok)
                                        .unwrap();
                                    if old.is_empty() {
                                        continue;
                                    }
                                    let start = random.usize(..old.len());
                                    let end = (start + random.usize(..chunk as usize * 5))
                                        .min(old.len())
                                        .min(start + bytes.len());
                                    handle
                                        .write(start as u64, &bytes[..end - start])
                                        .map(|()| old[start..end].copy_from_slice(&bytes[..end - start]))
                                }
                                7 | 8 if model.contains_key(&name) => {
                                    let handle = objects.open::<u8>(&name).unwrap();
                                    let old = model.get_mut(&name).unwrap();
                                    let bytes = &bytes[..bytes.len().min(chunk as usize * 7)];
                                    handle.append(bytes).map(|()| old.extend(bytes))
                                }
                                9 if model.contains_key(&name) => {
                                    let handle = objects.open::<u8>(&name).unwrap();
                                    let resized = handle.resize(len as u64);
                                    let old = model.get_mut(&name).unwrap();
                                    // A longer object may have lost some of its chunks before there was no room.
                                    old.resize(handle.len() as usize, 0);
                                    resized
                                }
                                10 if model.contains_key(&name) => {
                                    let tier = [Tier::Dram, Tier::Pool, Tier::File][random.usize(..3)];
                                    let handle = objects.open::<u8>(&name).unwrap();
                                    handle.pin(tier).and_then(|()| handle.unpin())
                                }
                                _ => {
                                    if let Some(expected) = model.get(&name) {
                                        let handle = handles
                                            .get(&name)
                                            .cloned()
                                            .map_or_else(|| objects.open::<u8>(&name), Ok)
                                            .unwrap();
                                        let mut found = vec![0; expected.len()];
                                        handle.read(0, &mut found).unwrap();
                                        assert!(
                                            found == *expected,
                                            "round {round} thread {thread} step {step}: {name}"
                                        );
                                    }
                                    Ok(())
                                }
                            };
                            match done {
                                Ok(()) => {}
                                Err(ObjectError::Full) => full += 1,
                                Err(error) => panic!("round {round} thread {thread} step {step}: {error}"),
                            }
                        }
                        println!("round {round} thread {thread}: {full} full");
                        model
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let verify = |objects: &Objects<AnyPmem<'static>>| {
            assert_eq!(objects.check().unwrap().problems, []);
            for (name, expected) in models.iter().flatten() {
                let mut found = vec![0; expected.len()];
                objects.open::<u8>(name).unwrap().read(0, &mut found).unwrap();
                assert!(found == *expected, "round {round}: {name}");
            }
        };
        verify(&objects);
        println!("{:?}", objects.stats().unwrap());
        drop(objects);
        let objects = Objects::attach_with_file(pool, file, &options).unwrap();
        verify(&objects);
        let names: Vec<String> = objects.list("").map(Result::unwrap).collect();
        names.iter().for_each(|name| objects.delete(name).unwrap());
        assert_eq!(objects.check().unwrap().problems, []);
        let stats = objects.stats().unwrap();
        assert_eq!((stats.chunk_bytes, stats.file_used_bytes), (0, 0));
    }
}
