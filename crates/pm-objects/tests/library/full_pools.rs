//! Pools that are full, with and without a file.

use pm_alloc::HeapOptions;
use pm_core::{Pmem as _, Region};
use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions, OpenError};
use pm_testkit::{AnyPmem, any};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn region(bytes: u64) -> AnyPmem<'static> {
    any(Arc::new(Region::anonymous(bytes).unwrap()))
}

/// An object whose block is corrupted: its chunks do not move, and those of others do.
#[test]
fn a_corrupted_object_does_not_keep_others_from_moving() {
    let [pool, file] =
        [Arc::new(Region::anonymous(16 << 20).unwrap()), Arc::new(Region::anonymous(64 << 20).unwrap())];
    let options = ObjectsOptions::new();
    let offset = {
        let objects: Objects<AnyPmem<'static>> =
            Objects::format_with_file(any(Arc::clone(&pool)), any(Arc::clone(&file)), &options).unwrap();
        objects.create::<u8>("long", Contents::Read(8 << 20, &mut std::io::repeat(1))).unwrap();
        let number = objects.stat("long").unwrap().number;
        objects.close().unwrap();
        let mut bytes = vec![0; 16 << 20];
        pool.load(0, &mut bytes);
        let found = (0..bytes.len() / 64)
            .map(|at| at * 64)
            .filter(|at| bytes[*at..*at + 4] == *b"OBJT" && bytes[*at + 8..*at + 16] == number.to_le_bytes());
        let found: Vec<usize> = found.collect();
        assert_eq!(found.len(), 1);
        found[0] as u64
    };
    let word = pool.load_u64(offset + 16);
    pool.store_u64(offset + 16, word ^ 1);
    let objects: Objects<AnyPmem<'static>> =
        Objects::attach_with_file(any(Arc::clone(&pool)), any(Arc::clone(&file)), &options).unwrap();
    for number in 0..300 {
        if let Err(error) = objects.create(&format!("{number}"), Contents::Slice(&vec![1_u8; 100_000])) {
            panic!("{error} after {number} objects: {:?}", objects.stats().unwrap());
        }
    }
}

/// Each of two threads has always room for the one slot that it needs.
#[test]
fn two_threads_with_room_for_both_are_never_full() {
    let run = |threads: u8| {
        let objects = Objects::format(region(4 << 20), &ObjectsOptions::new()).unwrap();
        let mut count = 0;
        while objects.create(&format!("{count}"), Contents::Slice(&[1_u8; 4096])).is_ok() {
            count += 1;
        }
        for number in 0..8 {
            objects.delete(&format!("{number}")).unwrap();
        }
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads)
                .map(|thread| {
                    let objects = &objects;
                    scope.spawn(move || {
                        let object = objects.open::<u8>(&format!("{}", 20 + thread)).unwrap();
                        (0..20_000_u32)
                            .filter(|round| match object.write(0, &[round.to_le_bytes()[0]; 4096]) {
                                Ok(()) => false,
                                Err(ObjectError::Full) => true,
                                Err(error) => panic!("{error}"),
                            })
                            .count()
                    })
                })
                .collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    };
    assert_eq!(run(1), [0]);
    assert_eq!(run(2), [0, 0]);
}

/// The same with two lengths: the one thread makes slabs of the one empty, which serve the other.
#[test]
fn two_threads_of_two_lengths_with_room_for_both_are_never_full() {
    let run = |threads: u8| {
        let objects = Objects::format(region(4 << 20), &ObjectsOptions::new()).unwrap();
        let mut count = 0;
        while objects.create(&format!("{count}"), Contents::Slice(&[1_u8; 4096])).is_ok() {
            count += 1;
        }
        // Room for several slabs.
        for number in 0..100 {
            objects.delete(&format!("{number}")).unwrap();
        }
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads)
                .map(|thread| {
                    let objects = &objects;
                    scope.spawn(move || {
                        let lens = [[4000, 1000], [3000, 2000]][usize::from(thread)];
                        (0..3_000_usize)
                            .filter(|round| {
                                let name = format!("thread {thread}");
                                match objects.replace(&name, Contents::Slice(&vec![1_u8; lens[round % 2]])) {
                                    Ok(_) => false,
                                    Err(ObjectError::Full) => true,
                                    Err(error) => panic!("{error}"),
                                }
                            })
                            .count()
                    })
                })
                .collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    };
    assert_eq!(run(1), [0]);
    assert_eq!(run(2), [0, 0]);
}

struct Panics(u32);

impl std::io::Read for Panics {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.0 -= 1;
        assert!(self.0 > 0, "the source panics");
        out.fill(1);
        Ok(out.len())
    }
}

/// A source that panics leaves no space in use.
#[test]
fn panicking_sources_lose_no_space() {
    let objects = Objects::format(region(8 << 20), &ObjectsOptions::new()).unwrap();
    for _ in 0..4 {
        let created = catch_unwind(AssertUnwindSafe(|| {
            objects.create::<u8>("object", Contents::Read(4 << 20, &mut Panics(16))).map(drop)
        }));
        assert!(created.is_err(), "{created:?}");
    }
    assert_eq!(objects.check().unwrap().problems, []);
    assert_eq!(objects.stats().unwrap().chunk_bytes, 0);
}

/// Objects without contents fill the pool with names: each can be deleted.
#[test]
fn names_of_full_pools_are_deleted_and_renamed() {
    for (pool, len) in [(1 << 20, 0), (1 << 20, 1), (2 << 20, 5000)] {
        for seed in 0..6 {
            let mut random = fastrand::Rng::with_seed(seed);
            let objects = Objects::format(region(pool), &ObjectsOptions::new()).unwrap();
            let mut names = Vec::new();
            loop {
                let name = format!("{:0>width$}", random.u64(..), width = random.usize(20..250));
                match objects.create(&name, Contents::Slice(&vec![1_u8; len])) {
                    Ok(_) => names.push(name),
                    Err(ObjectError::Full) => break,
                    Err(error) => panic!("create: {error}"),
                }
            }
            assert_eq!(objects.check().unwrap().problems, []);
            random.shuffle(&mut names);
            for (at, name) in names.iter().enumerate() {
                match objects.rename(name, &format!("{:0>240}", random.u64(..))) {
                    Ok(()) | Err(ObjectError::Full) => {}
                    Err(error) => panic!("rename {at} of {}: {error}", names.len()),
                }
                if at > 20 {
                    break;
                }
            }
            let names: Vec<String> = objects.list("").map(Result::unwrap).collect();
            for (at, name) in names.iter().enumerate() {
                if let Err(error) = objects.delete(name) {
                    panic!("{pool} {len} {seed}: delete {at} of {}: {error}", names.len());
                }
            }
            assert_eq!(objects.check().unwrap().problems, []);
            assert_eq!(objects.stats().unwrap().chunk_bytes, 0);
        }
    }
}

/// A creation whose file is too long for the pool is refused, and can be repeated with another length.
#[test]
fn a_file_too_long_for_the_pool_leaves_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool.pmo");
    let long = ObjectsOptions::new().chunk_bytes(64).file_bytes(2 << 30);
    let error = Objects::create_pool(&path, 4 << 20, &long).unwrap_err();
    println!("{error}");
    let again = Objects::create_pool(&path, 4 << 20, &ObjectsOptions::new().file_bytes(32 << 20));
    let opened = again.or_else(|error| {
        println!("again: {error}");
        Objects::open_pool(&path, &long)
    });
    let opened = opened.or_else(|error: OpenError| {
        println!("open: {error}");
        Objects::open_pool(&path, &ObjectsOptions::new().without_file(true))
    });
    opened.unwrap();
}

/// Options of the heap that say nothing of the log.
#[test]
fn calls_fit_the_log_of_a_heap_with_default_options() {
    for pool in [1 << 20, 2 << 20, 4 << 20, 16 << 20] {
        let options = ObjectsOptions::new().heap(HeapOptions::new());
        let objects = match Objects::format(region(pool), &options) {
            Ok(objects) => objects,
            Err(error) => panic!("{pool}: format: {error}"),
        };
        let object = objects.create("a", Contents::Slice(&vec![1_u8; 120_000]));
        let object = object.unwrap_or_else(|error| panic!("{pool}: create: {error}"));
        object.write(0, &[2; 1024]).unwrap_or_else(|error| panic!("{pool}: write: {error}"));
        object.write(1000, &[2; 90_000]).unwrap_or_else(|error| panic!("{pool}: write: {error}"));
        objects
            .create(&"n".repeat(255), Contents::Value(&1_u8))
            .unwrap_or_else(|error| panic!("{pool}: name: {error}"));
        objects
            .rename(&"n".repeat(255), &"m".repeat(255))
            .unwrap_or_else(|error| panic!("{pool}: rename: {error}"));
    }
}

/// The file is truncated while the pool is open.
#[test]
fn a_file_truncated_while_open_is_an_error() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool.pmo");
    let options = ObjectsOptions::new().file_bytes(32 << 20);
    let objects = Objects::create_pool(&path, 4 << 20, &options).unwrap();
    for number in 0..80 {
        objects.create(&format!("{number}"), Contents::Slice(&vec![1_u8; 100_000])).unwrap();
    }
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("pool.pmo.file")).unwrap();
    file.set_len(8192 + 4096 * 10).unwrap();
    let mut errors = 0;
    for number in 0..80 {
        let object = objects.open::<u8>(&format!("{number}")).unwrap();
        match object.read(0, &mut vec![0; 100_000]) {
            Ok(()) => {}
            Err(ObjectError::Tier | ObjectError::Corrupted(_)) => errors += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(errors > 0);
    for number in 80..100 {
        match objects.create(&format!("{number}"), Contents::Slice(&vec![1_u8; 100_000])) {
            Ok(_) | Err(ObjectError::Full | ObjectError::Tier) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let names: Vec<String> = objects.list("").map(Result::unwrap).collect();
    names.iter().for_each(|name| objects.delete(name).unwrap());
}

/// A source that copies the files while it is read: what a kill leaves in the middle of a creation.
struct Copies<'p>(&'p std::path::Path, &'p std::path::Path, u32);

impl std::io::Read for Copies<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.2 += 1;
        if self.2 == 3 {
            std::fs::copy(self.0, self.1)?;
        }
        out.fill(1);
        Ok(out.len())
    }
}

/// An object that was not complete at a kill is none in a pool that is only read.
#[test]
fn incomplete_objects_of_killed_pools_are_not_read() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (path, copy) = (dir.path().join("pool.pmo"), dir.path().join("copy.pmo"));
    let options = ObjectsOptions::new();
    let objects = Objects::create_pool(&path, 8 << 20, &options).unwrap();
    objects.create("old", Contents::Value(&1_u64)).unwrap();
    objects.replace::<u8>("old", Contents::Read(2 << 20, &mut Copies(&path, &copy, 0))).unwrap();
    let read = Objects::open_pool_read_only(&copy, &options).unwrap();
    assert_eq!(read.open::<u64>("old").unwrap().load().unwrap(), 1);
    let report = read.check().unwrap();
    assert_eq!((report.objects, report.problems), (1, vec![]));
    drop(read);
    let again = Objects::open_pool(&copy, &options).unwrap();
    let report = again.check().unwrap();
    assert_eq!((report.objects, report.problems), (1, vec![]));
    assert_eq!(again.stats().unwrap().chunk_bytes, 64);
}
