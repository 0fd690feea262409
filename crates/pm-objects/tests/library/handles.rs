//! Handles: threads that load and store at once, deleted objects, closures, names.

use crate::crash::options;
use pm_core::Region;
use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions, OpenError};
use pm_testkit::{AnyPmem, SampledPmem, any};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn objects() -> Objects {
    Objects::format(Region::anonymous(32 << 20).unwrap(), &ObjectsOptions::new()).unwrap()
}

/// Loads see a store of one chunk or of several whole, whether it is made in place or by other slots.
#[test]
fn loads_see_stores_whole() {
    let objects = objects();
    for len in [8, 100, 300, 5_000] {
        let object = objects.create(&format!("{len}"), Contents::Slice(&vec![0_u64; len])).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let (object, is_done) = (object.clone(), &is_done);
                    scope.spawn(move || {
                        let (mut last, mut seen) = (0, 0_u64);
                        let mut all = vec![0; len];
                        while !is_done.load(Ordering::Relaxed) {
                            object.read(0, &mut all).unwrap();
                            assert!(all.iter().all(|word| *word == all[0]), "torn: {} and others", all[0]);
                            assert!(all[0] >= last);
                            seen += u64::from(all[0] > last);
                            last = all[0];
                        }
                        seen
                    })
                })
                .collect();
            for value in 1..=1_000_u64 {
                object.write(0, &vec![value; len]).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
            let seen: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
            println!("{len} words: {seen} changes were seen");
        });
        assert_eq!(object.get(len as u64 - 1).unwrap(), 1_000);
    }
}

/// Edits of several threads are made one after the other.
#[test]
fn edits_are_not_lost() {
    let objects = objects();
    let counters = objects.create("counters", Contents::Slice(&[0_u64; 4])).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let counters = counters.clone();
            scope.spawn(move || {
                for index in 0..2_000 {
                    counters.edit(index % 4, |counter| *counter += 1).unwrap();
                }
            });
        }
    });
    let mut found = [0; 4];
    counters.read(0, &mut found).unwrap();
    assert_eq!(found, [2_000; 4]);
}

/// Threads create, replace, store to, rename and delete objects of which some have the same names.
#[test]
fn names_change_in_many_threads() {
    let objects = objects();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let objects = &objects;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread.into());
                for _ in 0..500 {
                    let (name, other) = (format!("{}", random.u32(..8)), format!("{}", random.u32(..8)));
                    let bytes = vec![thread; random.usize(..40_000)];
                    let done = match random.u32(..6) {
                        0 => objects.create(&name, Contents::Slice(&bytes)).map(drop),
                        1 => objects.replace(&name, Contents::Slice(&bytes)).map(drop),
                        2 => objects.delete(&name),
                        3 => objects.rename(&name, &other),
                        _ => objects.open::<u8>(&name).and_then(|object| {
                            let len = object.len();
                            let bytes = &bytes[..bytes.len().min(usize::try_from(len).unwrap())];
                            object.write(0, bytes)?;
                            object.read(0, &mut vec![0; bytes.len()])
                        }),
                    };
                    match done {
                        Ok(()) | Err(ObjectError::NotFound | ObjectError::Exists | ObjectError::Deleted) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(objects.check().unwrap().problems, []);
}

#[test]
fn deleted_and_replaced_objects_are_errors() {
    let objects = objects();
    let one = objects.create("one", Contents::Value(&1_u64)).unwrap();
    let again = objects.open::<u64>("one").unwrap();
    let new = objects.replace("one", Contents::Value(&2_u64)).unwrap();
    for old in [&one, &again] {
        assert!(matches!(old.load(), Err(ObjectError::Deleted)));
        assert!(matches!(old.store(&3), Err(ObjectError::Deleted)));
        assert!(matches!(old.edit(0, |_| ()), Err(ObjectError::Deleted)));
    }
    assert_eq!(new.load().unwrap(), 2);
    objects.rename("one", "two").unwrap();
    assert_eq!(new.load().unwrap(), 2);
    objects.delete("two").unwrap();
    assert!(matches!(new.load(), Err(ObjectError::Deleted)));
    assert!(matches!(objects.delete("two"), Err(ObjectError::NotFound)));
}

/// A closure may load, and all that would wait for a lock is an error.
#[test]
fn closures_load_and_change_nothing() {
    let objects = objects();
    let one = objects.create("one", Contents::Value(&1_u64)).unwrap();
    let two = objects.create("two", Contents::Value(&2_u64)).unwrap();
    let sum = one
        .edit(0, |value| {
            assert!(matches!(one.store(&7), Err(ObjectError::Nested)));
            assert!(matches!(two.edit(0, |_| ()), Err(ObjectError::Nested)));
            assert!(matches!(objects.delete("two"), Err(ObjectError::Nested)));
            assert!(matches!(objects.create("three", Contents::Value(&3_u64)), Err(ObjectError::Nested)));
            assert!(matches!(objects.rename("two", "three"), Err(ObjectError::Nested)));
            *value += 10;
            *value + one.load().unwrap() + objects.open::<u64>("two").unwrap().load().unwrap()
        })
        .unwrap();
    assert_eq!((sum, one.load().unwrap()), (14, 11));
    let panicked = catch_unwind(AssertUnwindSafe(|| one.edit(0, |_| panic!("in the closure"))));
    assert!(panicked.is_err());
    assert_eq!(one.load().unwrap(), 11);
    one.store(&12).unwrap();
    // Another pool is another matter.
    let other = self::objects();
    one.edit(0, |_| other.create("one", Contents::Value(&1_u64)).map(drop)).unwrap().unwrap();
}

#[test]
fn wrong_names_and_lengths_are_refused() {
    let objects = objects();
    let long = "n".repeat(256);
    for name in ["", "a\0b", "\0", &long] {
        assert!(matches!(objects.create(name, Contents::Value(&1_u8)), Err(ObjectError::Name)), "{name:?}");
        assert!(matches!(objects.open::<u8>(name), Err(ObjectError::Name)), "{name:?}");
        assert!(matches!(objects.delete(name), Err(ObjectError::Name)), "{name:?}");
        assert!(matches!(objects.rename("a", name), Err(ObjectError::Name)), "{name:?}");
    }
    let longest = &long[1..];
    let object = objects.create(longest, Contents::Slice(&[1_u8, 2])).unwrap();
    objects.rename(longest, "short").unwrap();
    objects.rename("short", longest).unwrap();
    assert!(matches!(object.get(u64::MAX), Err(ObjectError::Range { .. })));
    assert!(matches!(object.get(2), Err(ObjectError::Range { .. })));
    assert!(matches!(object.read(1, &mut [0; 2]), Err(ObjectError::Range { .. })));
    object.read(2, &mut []).unwrap();
    let endless = objects.create::<u64>("endless", Contents::Read(u64::MAX / 8 + 2, &mut std::io::empty()));
    assert!(matches!(endless, Err(ObjectError::TooLong { .. })), "{endless:?}");
    let short = objects.create::<u64>("short", Contents::Read(1 << 20, &mut std::io::empty()));
    assert!(matches!(short, Err(ObjectError::Input(_))), "{short:?}");
    let many = objects.create::<u8>("many", Contents::Read(1 << 20, &mut std::io::repeat(7))).unwrap();
    assert!(matches!(many.write(0, &vec![0; 1 << 20]), Err(ObjectError::TooLong { .. })));
    assert_eq!(many.get(1 << 19).unwrap(), 7);
    assert_eq!(objects.check().unwrap().problems, []);
    assert!(matches!(objects.close(), Err(OpenError::InUse { handles: 2 })));
}

#[test]
fn lists_have_prefixes_and_no_incomplete_objects() {
    let objects = objects();
    for name in ["a/1", "a/2", "b", "\u{1}"] {
        objects.create(name, Contents::Value(&1_u8)).unwrap();
    }
    let list = |prefix| objects.list(prefix).map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(list("a/"), ["a/1", "a/2"]);
    assert_eq!(list(""), ["\u{1}", "a/1", "a/2", "b"]);
    assert!(list("\0").is_empty());
    // While it is read, an object is listed nowhere.
    let mut source = Watched { objects: &objects };
    objects.create::<u8>("c", Contents::Read(1 << 20, &mut source)).unwrap();
    assert_eq!(list("c"), ["c"]);
}

/// A source panics: the object that was being made is freed, and the pool works on.
#[test]
fn panic_of_a_source_leaves_nothing() {
    struct Panics(usize);
    impl std::io::Read for Panics {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.0 -= 1;
            assert!(self.0 > 0, "the source panics");
            out.fill(1);
            Ok(out.len())
        }
    }
    let objects = objects();
    for (len, reads) in [(1_000, 1), (1 << 20, 4)] {
        let created = catch_unwind(AssertUnwindSafe(|| {
            objects.create::<u8>("object", Contents::Read(len, &mut Panics(reads))).map(drop)
        }));
        assert!(created.is_err());
        assert_eq!(objects.stats().unwrap().chunk_bytes, 0);
        assert_eq!(objects.check().unwrap().problems, []);
    }
    objects.create("object", Contents::Value(&1_u8)).unwrap();
}

/// A source that looks at the pool while it is read.
struct Watched<'a> {
    objects: &'a Objects,
}

impl std::io::Read for Watched<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let names: Vec<String> = self.objects.list("").map(Result::unwrap).collect();
        assert_eq!(names, ["\u{1}", "a/1", "a/2", "b"]);
        out.fill(3);
        Ok(out.len())
    }
}

/// A pool that is open for reading only returns all objects, also after a kill, and its file is unchanged.
#[test]
fn pools_are_read_without_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pmo");
    let options = ObjectsOptions::new();
    let objects = Objects::create_pool(&path, 8 << 20, &options).unwrap();
    let object = objects.create("object", Contents::Slice(&[7_u64; 1000])).unwrap();
    // As a kill leaves it.
    core::mem::forget((objects, object));
    let copy = dir.path().join("copy.pmo");
    std::fs::copy(&path, &copy).unwrap();
    let before = std::fs::read(&copy).unwrap();
    let objects = Objects::open_pool_read_only(&copy, &options).unwrap();
    let object = objects.open::<u64>("object").unwrap();
    assert_eq!(object.get(999).unwrap(), 7);
    assert!(matches!(object.set(0, &1), Err(ObjectError::ReadOnly)));
    assert!(matches!(object.edit(0, |_| ()), Err(ObjectError::ReadOnly)));
    assert!(matches!(objects.delete("object"), Err(ObjectError::ReadOnly)));
    assert!(matches!(objects.rename("object", "other"), Err(ObjectError::ReadOnly)));
    assert!(matches!(objects.create("new", Contents::Value(&1_u8)), Err(ObjectError::ReadOnly)));
    assert_eq!(objects.check().unwrap().problems, []);
    drop((objects, object));
    assert!(std::fs::read(&copy).unwrap() == before);
    let objects = Objects::open_pool(&copy, &options).unwrap();
    assert_eq!(objects.open::<u64>("object").unwrap().get(0).unwrap(), 7);
}

/// A pool is killed at each store, flush and fence of some calls. Without recovery, a reader finds each object that was complete, and nothing that a check reports.
#[test]
fn killed_pools_are_read_at_each_step() {
    type Call = fn(&Objects<AnyPmem<'static>>) -> Result<(), ObjectError>;
    let calls: [Call; 4] = [
        |objects| objects.create("new", Contents::Slice(&[7_u8; 200])).map(drop),
        |objects| objects.create("new", Contents::Slice(&[7_u8; 64 * 40])).map(drop),
        |objects| objects.replace("object", Contents::Slice(&[7_u8; 100])).map(drop),
        |objects| objects.delete("object"),
    ];
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool.pmo");
    let mut kills = 0;
    for call in calls {
        for event in 0.. {
            let pmem = Arc::new(SampledPmem::new(256 << 10));
            let objects = Objects::format(any(Arc::clone(&pmem)), &options()).unwrap();
            objects.create("object", Contents::Slice(&[1_u8; 64 * 40])).unwrap();
            objects.create("other", Contents::Slice(&[2_u8; 100])).unwrap();
            pmem.stop_at(pmem.events() + event);
            call(&objects).unwrap();
            let Some(state) = pmem.stopped() else { break };
            kills += 1;
            std::fs::write(&path, &state.visible).unwrap();
            let objects = Objects::open_pool_read_only(&path, &options()).unwrap();
            assert_eq!(objects.check().unwrap().problems, [], "event {event}");
            let mut found = [0; 100];
            objects.open::<u8>("other").unwrap().read(0, &mut found).unwrap();
            assert_eq!(found, [2; 100]);
            for name in objects.list("").map(Result::unwrap) {
                let object = objects.open::<u8>(&name).unwrap();
                let mut found = vec![0; usize::try_from(object.len()).unwrap()];
                object.read(0, &mut found).unwrap();
                assert!(found.iter().all(|byte| *byte == found[0] && *byte != 0), "{name}");
            }
        }
    }
    println!("{kills} kills");
    assert!(kills > 100);
}

/// What a crash between the steps of a creation leaves is created by the next call.
#[test]
fn creation_goes_on_where_it_was_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pmo");
    let (bytes, options) = (8 << 20, ObjectsOptions::new());
    pm_btree::Store::create(&path, bytes, &pm_btree::StoreOptions::new()).unwrap().close().unwrap();
    assert!(matches!(Objects::open_pool(&path, &options), Err(OpenError::NoObjects)));
    let objects = Objects::create_pool(&path, bytes, &options).unwrap();
    objects.create("object", Contents::Value(&1_u8)).unwrap();
    objects.close().unwrap();
    assert!(matches!(Objects::create_pool(&path, bytes, &options), Err(OpenError::Store(_))));
    assert_eq!(Objects::open_pool(&path, &options).unwrap().open::<u8>("object").unwrap().load().unwrap(), 1);
}
