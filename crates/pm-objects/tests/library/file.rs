//! The file with the lower tier: chunks move to it when the pool is full, and are read from it.

use pm_core::Region;
use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions, OpenError, Problem};
use pm_testkit::{AnyPmem, any};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

type Memory = Objects<AnyPmem<'static>>;

const POOL_BYTES: u64 = 4 << 20;

fn contents(number: usize) -> Vec<u8> {
    (0..number * 7_919 % 60_000).map(|at| u8::try_from((at / 100 + number) % 251).unwrap()).collect()
}

fn name(number: usize) -> String {
    format!("object {number}")
}

fn regions() -> [AnyPmem<'static>; 2] {
    [POOL_BYTES, 64 << 20].map(|bytes| any(Arc::new(Region::anonymous(bytes).unwrap())))
}

fn verify(objects: &Memory, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let object = objects.open::<u8>(&name(number)).unwrap();
        let mut found = vec![0; usize::try_from(object.len()).unwrap()];
        object.read(0, &mut found).unwrap();
        assert!(found == contents(number), "object {number}");
    }
}

/// Several times as much as the pool holds is stored, read, changed and deleted, by handles and without.
#[test]
fn pools_hold_more_than_their_memory() {
    let [pool, file] = regions();
    let options = ObjectsOptions::new();
    let objects = Objects::format_with_file(pool.clone(), file.clone(), &options).unwrap();
    let mut handles = Vec::new();
    for number in 0..600 {
        let object = objects.create(&name(number), Contents::Slice(&contents(number))).unwrap();
        if number % 3 == 0 {
            handles.push((number, object));
        }
    }
    let report = objects.check().unwrap();
    assert_eq!(report.problems, []);
    assert!(report.chunks_in_file > 1_000, "{report:?}");
    verify(&objects, 0..600);
    for (number, object) in &handles {
        assert_eq!(object.len(), contents(*number).len() as u64);
    }
    // Changed in place, and by another slot, in each tier.
    for number in 0..600 {
        let (object, mut expected) = (objects.open::<u8>(&name(number)).unwrap(), contents(number));
        for (start, len) in [(0, 10), (1_000, 3_000)] {
            if expected.len() >= start + len {
                object.write(start as u64, &vec![7; len]).unwrap();
                expected[start..start + len].fill(7);
            }
        }
        let mut found = vec![0; expected.len()];
        object.read(0, &mut found).unwrap();
        assert!(found == expected, "object {number}");
        object.write(0, &contents(number)[..expected.len().min(200_000)]).unwrap();
    }
    drop(handles);
    objects.close().unwrap();
    let objects = Memory::attach_with_file(pool, file, &options).unwrap();
    assert_eq!(objects.check().unwrap().problems, []);
    verify(&objects, 0..600);
    for number in 0..600 {
        objects.delete(&name(number)).unwrap();
    }
    assert_eq!(objects.check().unwrap().problems, []);
    let stats = objects.stats().unwrap();
    assert_eq!((stats.chunk_bytes, stats.file_used_bytes), (0, 0));
}

/// One object has nearly all of the memory, and its own chunks make room for its changes.
#[test]
fn long_objects_make_room_for_themselves() {
    let [pool, file] = regions();
    let objects = Objects::format_with_file(pool, file, &ObjectsOptions::new()).unwrap();
    let object = objects.create::<u8>("long", Contents::Read(16 << 20, &mut std::io::repeat(1))).unwrap();
    for step in 0..64_u8 {
        object.write(u64::from(step) << 18, &[step; 1 << 18]).unwrap();
    }
    for step in 0..64_u8 {
        assert_eq!(object.get((u64::from(step) << 18) + 7).unwrap(), step);
    }
    assert_eq!(objects.check().unwrap().problems, []);
}

/// Threads load and store objects while others move.
#[test]
fn loads_and_stores_go_on_while_chunks_move() {
    let [pool, file] = regions();
    let objects = Objects::format_with_file(pool, file, &ObjectsOptions::new()).unwrap();
    let words: Vec<_> = (0..50)
        .map(|number| objects.create(&name(number), Contents::Slice(&[0_u64; 2_000])).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let words = &words;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut all = [0; 2_000];
                for round in 1..400 {
                    let object = &words[random.usize(..words.len())];
                    object.read(0, &mut all).unwrap();
                    assert!(all.iter().all(|word| *word == all[0]), "torn");
                    object.write(0, &[round * 2 + thread; 2_000]).unwrap();
                }
            });
        }
        for number in 100..500 {
            objects.create(&name(number), Contents::Slice(&contents(number))).unwrap();
        }
    });
    assert_eq!(objects.check().unwrap().problems, []);
    verify(&objects, 100..500);
}

/// Objects without handles are created, replaced, deleted and renamed by threads while chunks move.
#[test]
fn names_change_while_chunks_move() {
    for round in 0..if crate::is_deep() { 100 } else { 10 } {
        let pool: AnyPmem<'static> = any(Arc::new(Region::anonymous(1 << 20).unwrap()));
        let file: AnyPmem<'static> = any(Arc::new(Region::anonymous(16 << 20).unwrap()));
        let options = ObjectsOptions::new();
        let objects = Objects::format_with_file(pool.clone(), file.clone(), &options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3_u8 {
                let objects = &objects;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(round * 3 + u64::from(thread));
                    for _ in 0..600 {
                        let (name, other) = (random.u32(..30).to_string(), random.u32(..30).to_string());
                        let bytes = vec![thread + 1; random.usize(..250_000)];
                        let done = match random.u32(..8) {
                            0..=2 => objects.create(&name, Contents::Slice(&bytes)).map(drop),
                            3 => objects.replace(&name, Contents::Slice(&bytes)).map(drop),
                            4 | 5 => objects.delete(&name),
                            6 => objects.rename(&name, &other),
                            _ => objects.open::<u8>(&name).and_then(|object| {
                                let mut found = vec![0; usize::try_from(object.len()).unwrap()];
                                object.read(0, &mut found)?;
                                assert!(found.iter().all(|byte| *byte == found[0] && *byte != 0));
                                object.write(0, &found[..found.len().min(5_000)])
                            }),
                        };
                        match done {
                            Ok(())
                            | Err(ObjectError::NotFound | ObjectError::Exists | ObjectError::Deleted) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        assert_eq!(objects.check().unwrap().problems, [], "round {round}");
        drop(objects);
        let objects = Memory::attach_with_file(pool, file, &options).unwrap();
        assert_eq!(objects.check().unwrap().problems, [], "round {round}, opened");
    }
}

#[test]
fn missing_foreign_and_corrupted_files_are_errors() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| dir.path().join(name);
    let options = ObjectsOptions::new().file_bytes(32 << 20);
    for pool in ["a.pmo", "b.pmo"] {
        let objects = Objects::create_pool(path(pool), POOL_BYTES, &options).unwrap();
        for number in 0..300 {
            objects.create(&name(number), Contents::Slice(&contents(number))).unwrap();
        }
    }
    let numbers = |objects: &Objects| {
        let mut counts = [0; 3];
        for number in 0..300 {
            let object = objects.open::<u8>(&name(number)).unwrap();
            let mut found = vec![0; usize::try_from(object.len()).unwrap()];
            match object.read(0, &mut found) {
                Ok(()) => {
                    assert!(found == contents(number), "object {number}");
                    counts[0] += 1;
                }
                Err(ObjectError::Tier) => counts[1] += 1,
                Err(ObjectError::Corrupted(_)) => counts[2] += 1,
                Err(error) => panic!("{error}"),
            }
        }
        counts
    };
    // A flipped bit of the contents.
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path("a.pmo.file")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 8192 + 100).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 8192 + 100).unwrap();
    let objects = Objects::open_pool(path("a.pmo"), &options).unwrap();
    assert_eq!(numbers(&objects), [299, 0, 1]);
    let problems = objects.check().unwrap().problems;
    assert!(matches!(problems[..], [Problem::File { .. }]), "{problems:?}");
    // A read-only open reads the file, too.
    drop(objects);
    let objects = Objects::open_pool_read_only(path("a.pmo"), &options).unwrap();
    assert_eq!(numbers(&objects), [299, 0, 1]);
    drop(objects);
    // Truncated while it is closed.
    file.set_len(8192).unwrap();
    let objects = Objects::open_pool(path("a.pmo"), &options).unwrap();
    let [whole, tier, corrupted] = numbers(&objects);
    assert!(whole > 10 && tier > 10 && corrupted == 0, "{whole} {tier} {corrupted}");
    drop(objects);
    // Missing, and that of another pool.
    std::fs::rename(path("a.pmo.file"), path("old")).unwrap();
    assert!(matches!(Objects::open_pool(path("a.pmo"), &options), Err(OpenError::File { .. })));
    std::fs::copy(path("b.pmo.file"), path("a.pmo.file")).unwrap();
    assert!(matches!(Objects::open_pool(path("a.pmo"), &options), Err(OpenError::ForeignFile)));
    let objects = Objects::open_pool(path("a.pmo"), &options.clone().without_file(true)).unwrap();
    assert_eq!(numbers(&objects), [whole, tier, 0]);
    // What is not read can be deleted, and what is in memory changed.
    for number in 0..300 {
        objects.delete(&name(number)).unwrap();
    }
    objects.create("new", Contents::Slice(&contents(7))).unwrap();
    drop(objects);
    std::fs::rename(path("old"), path("a.pmo.file")).unwrap();
    let objects = Objects::open_pool(path("a.pmo"), &options).unwrap();
    assert_eq!(objects.check().unwrap().problems, []);
    assert_eq!(objects.stats().unwrap().file_used_bytes, 0);
}

/// A file that cannot be written: the pool is full, and nothing is lost.
#[test]
fn failing_files_leave_the_pool_full() {
    use pm_testkit::{Hook, Hooked};
    struct Fails;
    impl<R: pm_core::Pmem> Hook<R> for Fails {
        fn fence(&self, region: &R) -> Result<(), pm_core::FenceError> {
            region.fence()?;
            Err(pm_core::FenceError::Poisoned)
        }
    }
    let pool: AnyPmem<'static> = any(Arc::new(Region::anonymous(POOL_BYTES).unwrap()));
    let plain: AnyPmem<'static> = any(Arc::new(Region::anonymous(16 << 20).unwrap()));
    let options = ObjectsOptions::new();
    Objects::format_with_file(pool.clone(), plain.clone(), &options).unwrap().close().unwrap();
    let failing: AnyPmem<'static> = any(Hooked::new(plain.clone(), Fails));
    let objects = Objects::attach_with_file(pool.clone(), failing, &options).unwrap();
    let mut count = 0;
    let error = loop {
        match objects.create(&name(count), Contents::Slice(&contents(count))) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ObjectError::Full), "{error}");
    verify(&objects, 0..count);
    drop(objects);
    let objects = Memory::attach_with_file(pool, plain, &options).unwrap();
    verify(&objects, 0..count);
    objects.create(&name(count), Contents::Slice(&contents(count))).unwrap();
    verify(&objects, 0..=count);
    assert_eq!(objects.check().unwrap().problems, []);
}
