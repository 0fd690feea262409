//! Moves down: objects that are deleted in the middle of one, and cursors.

#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

use core::ops::Range;
use pm_core::{FenceError, Pmem, Region};
use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions};
use pm_testkit::{AnyPmem, Hook, Hooked, any};
use std::sync::{Arc, Mutex, OnceLock};

type Action = Box<dyn FnOnce() + Send>;

/// What is done at a load of an owner, and at a fence of the file: what another thread could do there.
#[derive(Clone, Default)]
struct Moments {
    /// After so many loads of owners.
    at_owner: Arc<Mutex<Option<(u32, Action)>>>,
    at_fence: Arc<Mutex<Option<Action>>>,
}

struct OfPool(Moments);
struct OfFile(Moments);

impl<R: Pmem> Hook<R> for OfPool {
    fn before_load(&self, range: Range<u64>) {
        if range.end - range.start != 24 {
            return;
        }
        let action = {
            let mut at = self.0.at_owner.lock().unwrap();
            match at.take() {
                Some((0, action)) => Some(action),
                Some((left, action)) => {
                    *at = Some((left - 1, action));
                    None
                }
                None => None,
            }
        };
        if let Some(action) = action {
            action();
        }
    }
}

impl<R: Pmem> Hook<R> for OfFile {
    fn fence(&self, region: &R) -> Result<(), FenceError> {
        let action = self.0.at_fence.lock().unwrap().take();
        if let Some(action) = action {
            action();
        }
        region.fence()
    }
}

/// An object is deleted after a move has chosen its chunks, and before it looks for their object. Another object is made in its place.
#[test]
fn a_move_of_a_deleted_object_changes_no_other() {
    let moments: Vec<u32> = (60..130).step_by(10).filter(|after| delete_in_a_move(*after)).collect();
    println!("a move was met after {moments:?} loads");
    assert!(!moments.is_empty());
}

/// Returns whether the object was deleted in a move.
fn delete_in_a_move(after: u32) -> bool {
    let pool: AnyPmem<'static> = any(Arc::new(Region::anonymous(4 << 20).unwrap()));
    let file: AnyPmem<'static> = any(Arc::new(Region::anonymous(64 << 20).unwrap()));
    let options = ObjectsOptions::new();
    Objects::format_with_file(pool.clone(), file.clone(), &options).unwrap().close().unwrap();
    let without = options.clone().without_file(true);
    let objects: Objects<AnyPmem<'static>> = Objects::attach(pool.clone(), &without).unwrap();
    let x = vec![1_u8; 4096 * 40];
    objects.create("x", Contents::Slice(&x)).unwrap();
    let mut count = 0;
    while objects.create(&format!("filler {count}"), Contents::Slice(&[2_u8; 4096 * 12])).is_ok() {
        count += 1;
    }
    objects.close().unwrap();
    let moments = Moments::default();
    let hooked: AnyPmem<'static> = any(Hooked::new(pool, OfPool(moments.clone())));
    let hooked_file: AnyPmem<'static> = any(Hooked::new(file, OfFile(moments.clone())));
    let objects: Arc<OnceLock<Objects<AnyPmem<'static>>>> = Arc::default();
    objects.set(Objects::attach_with_file(hooked, hooked_file, &options).unwrap()).unwrap();
    let pool = objects.get().unwrap();
    let filler = pool.open::<u8>(&format!("filler {}", count - 1)).unwrap();
    filler.get(0).unwrap();
    let done: Arc<Mutex<Vec<&str>>> = Arc::default();
    {
        let (objects, done) = (Arc::clone(&objects), Arc::clone(&done));
        *moments.at_owner.lock().unwrap() = Some((
            after,
            Box::new(move || {
                std::thread::spawn(move || objects.get().unwrap().delete("x").unwrap()).join().unwrap();
                done.lock().unwrap().push("deleted");
            }),
        ));
    }
    // Others whose chunks do not move now, and which get the slots of the deleted object.
    let others: Vec<_> =
        (count - 32..count - 2).map(|number| pool.open::<u8>(&format!("filler {number}")).unwrap()).collect();
    {
        let (others, done) = (others.clone(), Arc::clone(&done));
        *moments.at_fence.lock().unwrap() = Some(Box::new(move || {
            let write = move || others.iter().for_each(|other| other.write(0, &[10; 4096]).unwrap());
            std::thread::spawn(write).join().unwrap();
            done.lock().unwrap().push("written");
        }));
    }
    // There are fewer free slots than this needs.
    filler.write(0, &[3; 4096 * 12]).unwrap();
    println!("{after}: {:?} {:?}", done.lock().unwrap(), pool.stats().unwrap());
    if *done.lock().unwrap() != ["deleted", "written"] {
        return false;
    }
    let problems = pool.check().unwrap().problems;
    for number in 0..count - 40 {
        pool.open::<u8>(&format!("filler {number}")).unwrap().write(0, &[9; 4096 * 12]).unwrap();
    }
    let mut wrong = Vec::new();
    for (number, other) in others.iter().enumerate() {
        let mut found = vec![0; 4096];
        match other.read(0, &mut found) {
            Ok(()) if found == [10; 4096] => {}
            Ok(()) => wrong.push(format!("other {number} has bytes of another: {}", found[0])),
            Err(error) => wrong.push(format!("other {number}: {error}")),
        }
    }
    drop(moments);
    assert!(
        wrong.is_empty() && problems.is_empty(),
        "after {after}: {} others: {:?}, and a check finds {} problems: {:?}",
        wrong.len(),
        &wrong[..wrong.len().min(3)],
        problems.len(),
        &problems[..problems.len().min(5)]
    );
    true
}

/// A pool with a file is full only if nothing can move.
#[test]
fn a_pool_is_not_full_while_chunks_can_move() {
    let mut found = Vec::new();
    for slab_kib in [64, 128, 256, 512, 1020] {
        for pool_kib in (slab_kib + 200..slab_kib * 2 + 800).step_by(slab_kib as usize / 4) {
            for len in [4096 * 3, 80_000] {
                let options = ObjectsOptions::new()
                    .heap(pm_alloc::HeapOptions::new().lanes(1).lane_entries(510))
                    .slab_bytes(slab_kib << 10);
                let region = |bytes| -> AnyPmem<'static> { any(Arc::new(Region::anonymous(bytes).unwrap())) };
                let Ok(objects) =
                    Objects::format_with_file(region((pool_kib & !3) << 10), region(64 << 20), &options)
                else {
                    continue;
                };
                let mut stored = 0_u64;
                for number in 0..100 {
                    match objects.create(&format!("{number}"), Contents::Slice(&vec![1_u8; len])) {
                        Ok(_) => stored += 1,
                        Err(ObjectError::Full) => {
                            let stats = objects.stats().unwrap();
                            if stats.chunk_bytes > 4096 {
                                found.push(format!("pool {pool_kib} KiB, slab {slab_kib} KiB, objects of {len}: full after {stored}: {} in {} of slabs, {} in the file",
                                    stats.chunk_bytes, stats.slab_bytes, stats.file_used_bytes));
                            }
                            break;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
    }
    assert!(found.is_empty(), "{} pools: {}", found.len(), found[..found.len().min(8)].join("\n"));
}

/// Flips in a pool with chunks in a file: what is read is right or an error, and changes take nothing else with them.
#[test]
#[expect(clippy::too_many_lines, reason = "one image, and what is done with it")]
fn corrupted_pools_with_files_lose_only_what_is_corrupted() {
    const POOL: u64 = 512 << 10;
    const FILE: u64 = 1 << 20;
    let options = || crate::crash::options();
    let (pool, file) =
        (Arc::new(Region::anonymous(POOL).unwrap()), Arc::new(Region::anonymous(FILE).unwrap()));
    let bytes_of = |number: usize| -> Vec<u8> {
        (0..[10, 64, 300, 64 * 40, 64 * 270, 64 * 1200][number % 6] + number)
            .map(|at| (at * 7 + number * 31 + 1) as u8)
            .collect()
    };
    let mut count = 0;
    {
        let objects: Objects<AnyPmem<'static>> =
            Objects::format_with_file(any(Arc::clone(&pool)), any(Arc::clone(&file)), &options()).unwrap();
        while count < 24 && objects.create(&format!("{count}"), Contents::Slice(&bytes_of(count))).is_ok() {
            count += 1;
        }
        println!("{count} {:?}", objects.stats().unwrap());
        objects.close().unwrap();
    }
    let mut image = vec![0; POOL as usize];
    pool.load(0, &mut image);
    let mut file_image = vec![0; FILE as usize];
    file.load(0, &mut file_image);
    for seed in 0..400_u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = image.clone();
        let mut line = |bytes: &[u8], unit: usize| loop {
            let at = random.usize(..bytes.len() / unit) * unit;
            if bytes[at..at + unit].iter().any(|byte| *byte != 0) {
                return at;
            }
        };
        let mut lost = 0;
        match seed % 5 {
            0 => {
                let at = line(&bytes, 64);
                bytes[at + 8] ^= 1;
            }
            1 => {
                let at = line(&bytes, 64);
                bytes[at..at + 64].fill(0);
                lost = 64;
            }
            2 => {
                let (a, b) = (line(&bytes, 64), line(&bytes, 64));
                for at in 0..64 {
                    bytes.swap(a + at, b + at);
                }
                lost = 64;
            }
            3 => {
                let at = line(&bytes, 4096);
                bytes[at..at + 4096].fill(0);
                lost = 4096;
            }
            _ => {
                let (a, b) = (line(&bytes, 4096), line(&bytes, 4096));
                for at in 0..4096 {
                    bytes.swap(a + at, b + at);
                }
                lost = 4096;
            }
        }
        let _ = lost;
        let (pool, file) =
            (Arc::new(Region::anonymous(POOL).unwrap()), Arc::new(Region::anonymous(FILE).unwrap()));
        pool.store(0, &bytes);
        file.store(0, &file_image);
        let Ok(objects): Result<Objects<AnyPmem<'static>>, _> =
            Objects::attach_with_file(any(pool), any(file), &options())
        else {
            continue;
        };
        let read = |name: &str| -> Result<Vec<u8>, ObjectError> {
            let object = objects.open::<u8>(name)?;
            let mut bytes = vec![0; object.len() as usize];
            object.read(0, &mut bytes)?;
            Ok(bytes)
        };
        let before: Vec<Option<Vec<u8>>> = (0..count).map(|number| read(&number.to_string()).ok()).collect();
        for (number, found) in before.iter().enumerate() {
            if let Some(found) = found {
                let differing =
                    found.iter().zip(bytes_of(number)).filter(|(one, other)| **one != *other).count();
                assert!(
                    found.len() == bytes_of(number).len() && differing <= 2 * 4096,
                    "seed {seed}: {number}: {differing}"
                );
            }
        }
        let _report = objects.check().unwrap();
        for number in [1, 4, 5, 9] {
            if number < count {
                drop(objects.delete(&number.to_string()));
            }
        }
        for number in 0..6 {
            drop(objects.create(&format!("new {number}"), Contents::Slice(&vec![number as u8; 64 * 60])));
        }
        for (number, found) in before
            .iter()
            .enumerate()
            .filter(|(number, found)| found.is_some() && ![1, 4, 5, 9].contains(number))
        {
            match read(&number.to_string()) {
                Ok(after) => assert!(Some(&after) == found.as_ref(), "seed {seed}: {number} has changed"),
                Err(error) => panic!("seed {seed}: {number}: {error}"),
            }
        }
        for number in 0..6 {
            if let Ok(found) = read(&format!("new {number}")) {
                assert!(found.iter().all(|byte| *byte == number as u8), "seed {seed}: new {number}");
            }
        }
    }
}
