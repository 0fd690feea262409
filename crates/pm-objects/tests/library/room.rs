//! Pools that are full: each call succeeds or changes nothing, and what is deleted can be used again.

use pm_core::Region;
use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions};

fn fill(objects: &Objects, len: usize, prefix: &str) -> u64 {
    for number in 0.. {
        match objects.create(&format!("{prefix}{number}"), Contents::Slice(&vec![prefix.as_bytes()[0]; len]))
        {
            Ok(_) => {}
            Err(ObjectError::Full) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the pool has an end");
}

#[test]
fn full_pools_work_on() {
    let objects = Objects::format(Region::anonymous(4 << 20).unwrap(), &ObjectsOptions::new()).unwrap();
    let mut counts = Vec::new();
    for round in 0..3 {
        for (len, prefix) in [(100, "a"), (3_000, "b"), (200_000, "c"), (700, "d")] {
            let count = fill(&objects, len, prefix);
            assert!(count > 5, "round {round}: {count} of {len} bytes");
            counts.push(count);
            assert_eq!(objects.check().unwrap().problems, []);
            // A store beside the old contents may find no room; one in place does.
            let first = objects.open::<u8>(&format!("{prefix}0")).unwrap();
            first.write(1, &[9; 20]).unwrap();
            match first.write(0, &vec![8; len]) {
                Ok(()) | Err(ObjectError::Full) => {}
                Err(error) => panic!("{error}"),
            }
            objects
                .rename(&format!("{prefix}1"), "renamed")
                .or_else(|error| match error {
                    ObjectError::Full => Ok(()),
                    error => Err(error),
                })
                .unwrap();
            let names: Vec<String> = objects.list("").map(Result::unwrap).collect();
            names.iter().for_each(|name| objects.delete(name).unwrap());
            assert_eq!(objects.check().unwrap().problems, []);
        }
    }
    println!("{counts:?}");
    // Space of one length serves the others, again and again. The names' table keeps some of the room, and its extents come to lie between slabs: with the
    // shortest objects, which have the most names, four tenths are lost at the third time, and no more after it.
    for at in 4..12 {
        assert!(counts[at] * 10 >= counts[at % 4] * 5, "{counts:?}");
    }
}

#[test]
fn pools_grow() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool.pmo");
    let options = ObjectsOptions::new();
    let mut objects = Objects::create_pool(&path, 4 << 20, &options).unwrap();
    let count = fill(&objects, 3_000, "a");
    let object = objects.open::<u8>("a0").unwrap();
    assert!(objects.grow(16 << 20).is_err());
    drop(object);
    objects.grow(16 << 20).unwrap();
    assert_eq!(objects.stats().unwrap().pool_bytes, 16 << 20);
    let more = fill(&objects, 3_000, "b");
    assert!(more > 2 * count, "{count} and {more}");
    assert_eq!(objects.check().unwrap().problems, []);
    drop(objects);
    let objects = Objects::open_pool(&path, &options).unwrap();
    assert_eq!(objects.stats().unwrap().objects, count + more);
    assert_eq!(objects.open::<u8>("a0").unwrap().get(0).unwrap(), b'a');
}
