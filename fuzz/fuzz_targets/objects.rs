//! Changes bytes of a pool of objects and of its file, opens it and uses it. The result of each call is an error or a value; none panics or hangs.
//!
//! The input is a byte that says how the pool is opened, and then changes of 13 bytes: an offset (4 bytes), a kind and a word (8 bytes). Some kinds
//! correct the checksum of what they change, as few mutations would keep it valid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pm_alloc::HeapOptions;
use pm_core::{Pmem, Region, bytes_of, from_bytes};
use pm_objects::format::{Entry, ObjectBlock, Owner, seal};
use pm_objects::{Contents, Hints, Locality, Object, Objects, ObjectsOptions, Tier};
use std::sync::{Arc, OnceLock};

const POOL_BYTES: u64 = 256 << 10;
const FILE_BYTES: u64 = 64 << 10;
const SEED: u64 = 7;
const CHANGE_BYTES: usize = 13;
/// More changes than a few only cost time.
const CHANGES_MAX: usize = 64;
/// More elements than this are not loaded one by one.
const ELEMENTS_MAX: u64 = 4096;
/// No more names than this are in the pool.
const NAMES_MAX: usize = 4096;

type Memory = Arc<Region>;

fn options(bits: u8) -> ObjectsOptions {
    let heap = HeapOptions::new().seed(SEED).lanes(1).lane_entries(254);
    let options = ObjectsOptions::new().heap(heap).chunk_bytes(64).slab_bytes(512).seed(SEED);
    if bits & 2 == 0 { options } else { options.dram_bytes(4096) }
}

/// The bytes of a pool and its file: with objects of each kind of table, chunks in both tiers and holes.
fn image() -> &'static [Vec<u8>; 2] {
    static IMAGE: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let new = |bytes| Arc::new(Region::anonymous(bytes).expect("memory"));
        let (pool, file) = (new(POOL_BYTES), new(FILE_BYTES));
        let objects =
            Objects::format_with_file(Arc::clone(&pool), Arc::clone(&file), &options(0)).expect("a pool");
        objects.create("empty", Contents::Slice(&[0_u8; 0])).expect("room");
        objects.create("one", Contents::Value(&[1_u64; 4])).expect("room");
        let several = objects.create("several", Contents::Slice(&[2_u8; 700])).expect("room");
        several.pin(Tier::File).expect("room");
        several.set(300, &9).expect("room");
        let long = objects.create("long", Contents::Slice(&[3_u64; 2100])).expect("room");
        long.resize(4000).expect("room");
        let hints = Hints::new().locality(Locality::Hot);
        objects.create_with("hot", Contents::Value(&[4_u8; 64]), &hints).expect("room");
        drop((several, long));
        objects.close().expect("an open pool");
        [&pool, &file].map(|region| {
            let mut bytes = vec![0; region.len_bytes() as usize];
            region.load(0, &mut bytes);
            bytes
        })
    })
}

/// The number of an object, or of another owner of sealed words.
fn number(word: u64) -> u64 {
    match word % 10 {
        small @ 0..=4 => small,
        count => 1 << 32 | (count - 4),
    }
}

fn change(pool: &Region, file: &Region, change: &[u8]) {
    let offset = u64::from(u32::from_le_bytes(change[..4].try_into().expect("four bytes")));
    let word = u64::from_le_bytes(change[5..].try_into().expect("eight bytes"));
    let place = offset % (POOL_BYTES - 128) & !7;
    match change[4] % 7 {
        0 => pool.store_u64(place, pool.load_u64(place) ^ 1 << (word % 64)),
        1 => pool.store_u64(place, word),
        2 => pool.store_u64(place, seal(SEED, number(word >> 60), place, word & ((1 << 48) - 1))),
        3 => {
            let block: ObjectBlock = from_bytes(|bytes| pool.load(place, bytes));
            pool.store(place, bytes_of(&ObjectBlock { crc: block.expected_crc(SEED), ..block }));
        }
        4 => {
            let (tier, slot) = (word >> 46 & 3, word & 0xffff);
            let (number, index) = (number(word >> 60), word >> 16 & 0xff);
            pool.store(place, bytes_of(&Entry::new(SEED, number, index, tier, slot)));
        }
        5 => {
            let owner =
                Owner::new(SEED, place, number(word >> 60), word & 0xffff, (word >> 16 & 0xff) as u32);
            pool.store(place, bytes_of(&owner));
        }
        _ => file.store_u64(offset % (FILE_BYTES - 8) & !7, word),
    }
}

/// Uses an object of any type.
fn use_object(objects: &Objects<Memory>, object: &Object<u8, Memory>) {
    for index in (0..object.len().min(ELEMENTS_MAX)).step_by(37) {
        drop(object.get(index));
        drop(object.get(index));
    }
    drop(object.get(object.len().saturating_sub(1)));
    drop(object.set(0, &5));
    drop(object.write(60, &[6; 70]));
    drop(object.edit(1, |byte| *byte ^= 1));
    drop(object.append(&[7; 100]));
    drop(object.resize(90));
    drop(object.resize(3000));
    for tier in [Tier::File, Tier::Pool, Tier::Dram] {
        drop(object.pin(tier));
    }
    drop(objects.transaction(&[object], |tx| {
        tx.set(object, 2, &8)?;
        tx.write(object, 60, &[9; 70])
    }));
}

fuzz_target!(|input: &[u8]| {
    let Some((first, changes)) = input.split_first() else { return };
    let [pool, file] = image().each_ref().map(|bytes| {
        let region = Arc::new(Region::anonymous(bytes.len() as u64).expect("memory"));
        region.store(0, bytes);
        region
    });
    changes.chunks_exact(CHANGE_BYTES).take(CHANGES_MAX).for_each(|bytes| change(&pool, &file, bytes));
    for _ in 0..2 {
        let options = options(*first);
        let opened = match first & 1 {
            0 => Objects::attach_with_file(Arc::clone(&pool), Arc::clone(&file), &options),
            _ => Objects::attach(Arc::clone(&pool), &options.without_file(true)),
        };
        let Ok(objects) = opened else { return };
        assert!(objects.list("").take(NAMES_MAX).count() < NAMES_MAX, "a list ends");
        for name in ["empty", "one", "several", "long", "hot", "new"] {
            drop(objects.stat(name));
            drop(objects.open::<u64>(name).map(|object| object.load().map(drop)));
            if let Ok(object) = objects.open_bytes(name) {
                use_object(&objects, &object);
            }
        }
        drop(objects.create("new", Contents::Slice(&[1_u8; 3000])));
        drop(objects.replace("one", Contents::Slice(&[1_u8; 300])));
        drop(objects.rename("several", "renamed"));
        drop(objects.delete("long"));
        drop(objects.check());
        drop(objects.stats());
        drop(objects.close());
    }
});
