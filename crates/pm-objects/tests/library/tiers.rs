//! Chunks in DRAM, the pool and the file: which moves up by its use, which by a hint, and which by a pin.

use pm_core::Region;
use pm_objects::{Contents, Hints, Locality, Object, ObjectError, Objects, ObjectsOptions, Tier};
use pm_testkit::{AnyPmem, any};
use std::sync::Arc;

type Memory = AnyPmem<'static>;

const POOL_BYTES: u64 = 4 << 20;

struct Pool {
    pool: Memory,
    file: Memory,
    options: ObjectsOptions,
}

impl Pool {
    fn new(dram_bytes: u64) -> (Self, Objects<Memory>) {
        let [pool, file] =
            [POOL_BYTES, 64 << 20].map(|bytes| any(Arc::new(Region::anonymous(bytes).unwrap())));
        let options = ObjectsOptions::new().dram_bytes(dram_bytes);
        let objects = Objects::format_with_file(pool.clone(), file.clone(), &options).unwrap();
        (Self { pool, file, options }, objects)
    }

    fn open(&self) -> Objects<Memory> {
        Objects::attach_with_file(self.pool.clone(), self.file.clone(), &self.options).unwrap()
    }
}

fn moves(objects: &Objects<Memory>) -> u64 {
    objects.stats().unwrap().moves
}

fn in_file(objects: &Objects<Memory>) -> u64 {
    objects.check().unwrap().chunks_in_file
}

/// Loads so often that a load that looks for a frame only now and then has done so.
fn load_often(object: &Object<u64, Memory>) {
    (0..100).for_each(|_| assert_eq!(object.get(0).unwrap(), 7));
}

#[test]
fn chunks_that_are_loaded_often_are_copied_to_dram() {
    let (_pool, objects) = Pool::new(1 << 20);
    let object = objects.create("a", Contents::Slice(&[7_u64; 512])).unwrap();
    object.get(0).unwrap();
    assert_eq!(moves(&objects), 0, "one load is no reason");
    load_often(&object);
    assert_eq!(moves(&objects), 1);
    // Stores change the copy, too, in place and as a whole.
    object.set(1, &8).unwrap();
    assert_eq!((object.get(0).unwrap(), object.get(1).unwrap()), (7, 8));
    object.write(0, &[9; 512]).unwrap();
    assert_eq!(object.get(511).unwrap(), 9);
    assert_eq!(objects.stats().unwrap().dram_used_bytes, 64 << 10);
    drop(object);
    // The copy stays when there is no handle, and goes with the object.
    objects.delete("a").unwrap();
    let other = objects.create("b", Contents::Slice(&[7_u64; 512])).unwrap();
    load_often(&other);
    assert_eq!((moves(&objects), objects.stats().unwrap().dram_used_bytes), (2, 64 << 10));
}

#[test]
fn hints_decide_before_there_are_loads() {
    let (pool, objects) = Pool::new(1 << 20);
    let create = |name: &str, locality| {
        let hints = Hints::new().locality(locality);
        let object = objects.create_with(name, Contents::Slice(&[7_u64; 512]), &hints).unwrap();
        assert_eq!(objects.stat(name).unwrap().hints, hints);
        object
    };
    let cold = create("cold", Locality::Cold);
    load_often(&cold);
    assert_eq!(moves(&objects), 0);
    let hot = create("hot", Locality::Hot);
    load_often(&hot);
    assert_eq!(moves(&objects), 1);
    drop((cold, hot, objects));
    let objects = pool.open();
    assert_eq!(objects.stat("cold").unwrap().hints.expected(), Locality::Cold);
    // When the pool is full, the chunks of the cold one move first.
    let mut number = 0;
    while in_file(&objects) == 0 {
        objects.create(&format!("filler {number}"), Contents::Slice(&[1_u64; 512])).unwrap();
        number += 1;
    }
    let before = in_file(&objects);
    objects.open::<u64>("cold").unwrap().pin(Tier::File).unwrap();
    assert_eq!(in_file(&objects), before, "it was there");
}

#[test]
fn chunks_of_the_file_that_are_loaded_twice_move_up() {
    let (_pool, objects) = Pool::new(0);
    let object = objects.create("a", Contents::Slice(&[7_u64; 5000])).unwrap();
    object.pin(Tier::File).unwrap();
    assert_eq!(in_file(&objects), 10);
    load_often(&object);
    assert_eq!(in_file(&objects), 10, "it is pinned");
    object.unpin().unwrap();
    load_often(&object);
    assert_eq!((moves(&objects), in_file(&objects)), (1, 9));
    for index in [600, 1200] {
        (0..3).for_each(|_| assert_eq!(object.get(index).unwrap(), 7));
    }
    assert_eq!(in_file(&objects), 7);
    assert_eq!(objects.check().unwrap().problems, []);
}

#[test]
fn pins_move_all_chunks_and_last() {
    let (pool, objects) = Pool::new(1 << 20);
    let object = objects.create("a", Contents::Slice(&[7_u64; 5000])).unwrap();
    object.pin(Tier::Dram).unwrap();
    assert_eq!(moves(&objects), 10);
    object.pin(Tier::File).unwrap();
    assert_eq!(in_file(&objects), 10);
    assert_eq!(object.get(4999).unwrap(), 7);
    object.pin(Tier::Pool).unwrap();
    assert_eq!(in_file(&objects), 0);
    // What is pinned to the pool stays there when the pool is full.
    let mut number = 0;
    while in_file(&objects) < 1000 {
        objects.create(&format!("filler {number}"), Contents::Slice(&[1_u64; 5120])).unwrap();
        number += 1;
    }
    let before = in_file(&objects);
    drop((object, objects));
    let objects = pool.open();
    let object = objects.open::<u64>("a").unwrap();
    assert_eq!(objects.stat("a").unwrap().hints.pinned(), Some(Tier::Pool));
    object.pin(Tier::File).unwrap();
    assert_eq!(in_file(&objects), before + 10);
    assert_eq!(objects.check().unwrap().problems, []);
}

#[test]
fn tiers_that_are_missing_or_full_are_errors() {
    let objects =
        Objects::format(any(Region::anonymous(POOL_BYTES).unwrap()), &ObjectsOptions::new()).unwrap();
    let object = objects.create("a", Contents::Slice(&[7_u64; 512])).unwrap();
    for tier in [Tier::Dram, Tier::File] {
        assert!(matches!(object.pin(tier), Err(ObjectError::NoTier)), "{tier:?}");
    }
    object.pin(Tier::Pool).unwrap();
    let (_pool, objects) = Pool::new(64 << 10);
    let object = objects.create("a", Contents::Slice(&[7_u64; 512 * 17])).unwrap();
    // There are 16 frames.
    assert!(matches!(object.pin(Tier::Dram), Err(ObjectError::Full)));
    assert_eq!(object.get(512 * 17 - 1).unwrap(), 7);
    // None of them is given to another chunk while the pin lasts.
    let other = objects.create("b", Contents::Slice(&[7_u64; 512])).unwrap();
    load_often(&other);
    assert_eq!(moves(&objects), 16);
    object.unpin().unwrap();
    load_often(&other);
    assert!(moves(&objects) > 16);
}

/// Frames of one length take the pages of another length that is not used any more.
#[test]
fn pages_of_frames_change_their_length() {
    let (_pool, objects) = Pool::new(64 << 10);
    let long: Vec<Object<u64, Memory>> = (0..16)
        .map(|number| objects.create(&format!("long {number}"), Contents::Slice(&[7_u64; 512])).unwrap())
        .collect();
    long.iter().for_each(load_often);
    assert_eq!(moves(&objects), 16);
    let short = objects.create("short", Contents::Slice(&[7_u64; 8])).unwrap();
    // Until it is worth more than all of them.
    for object in &long {
        object.pin(Tier::Pool).unwrap();
        object.unpin().unwrap();
    }
    let mut loads = 0;
    while moves(&objects) == 16 && loads < 3_000_000 {
        load_often(&short);
        loads += 100;
    }
    assert_eq!(moves(&objects), 17, "after {loads} loads");
    long.iter().for_each(|object| assert_eq!(object.get(511).unwrap(), 7));
}
