//! CCEH: extendible hashing. The root leads to a directory, whose entries lead to segments.

use crate::harness::*;
use std::thread;

/// A directory is its global depth and, from the next line on, one pointer for each value of so many leading bits. A
/// segment is its local depth and, from the next line on, its pairs of key and value.
const ROOT: u64 = 0;
const DIRECTORIES: [u64; 2] = [256, 512];
const SEGMENTS: [u64; 3] = [1024, 1280, 1536];
const BODY: u64 = 64;
const PAIR_COUNT: u64 = 4;

const EMPTY: u64 = 0;
/// Stands for the key while its owner writes the value.
const SENTINEL: u64 = u64::MAX;

/// Hashes have four bits, and a key is its own hash.
const fn directory_index(key: u64, global_depth: u64) -> u64 {
    key >> (4 - global_depth)
}

fn segment_of(pmem: &SimPmem, key: u64) -> u64 {
    let directory = pmem.load_u64(ROOT);
    pmem.load_u64(directory + BODY + 8 * directory_index(key, pmem.load_u64(directory)))
}

/// Where the pairs of a segment stand, each of a key and a value.
fn pairs_of(segment: u64) -> impl Iterator<Item = u64> {
    (0..PAIR_COUNT).map(move |index| segment + BODY + 16 * index)
}

fn find(pmem: &SimPmem, key: u64) -> Option<u64> {
    let segment = segment_of(pmem, key);
    if segment == 0 {
        return None;
    }
    pairs_of(segment).find(|&pair| pmem.load_u64(pair) == key)
}

fn get(pmem: &SimPmem, key: u64) -> Option<u64> {
    find(pmem, key).map(|pair| pmem.load_u64(pair + 8))
}

const KEYS: [u64; 3] = [2, 9, 14];

/// Two segments of depth 1. The second, with keys 9 and 14, will be split.
fn two_segments(pmem: &SimPmem) {
    pmem.store_u64(ROOT, DIRECTORIES[0]);
    pmem.store_u64(DIRECTORIES[0], 1);
    pmem.store(DIRECTORIES[0] + BODY, &bytes_of(&SEGMENTS[..2]));
    for (segment, keys) in [(SEGMENTS[0], &KEYS[..1]), (SEGMENTS[1], &KEYS[1..])] {
        pmem.store_u64(segment, 1);
        for (pair, &key) in pairs_of(segment).zip(keys) {
            pmem.store(pair, &bytes_of(&[key, 10 * key]));
        }
    }
}

fn deepen(pmem: &SimPmem, segment: u64) -> Done {
    pmem.put(segment, pmem.load_u64(segment) + 1) //~ B08 kept
}

/// Splits the second segment: its upper half, key 14, gets a segment of its own. That needs a directory of depth 2, in
/// which the other segments stand twice. The pair that moved stays where it was, too, until something overwrites it.
fn split(pmem: &SimPmem, deepen_first: bool, flush_directory: bool) -> Done {
    let [other, full, new] = SEGMENTS;
    if deepen_first {
        deepen(pmem, full)?;
    }
    pmem.store_u64(new, 2);
    pmem.store(new + BODY, &bytes_of(&[14, 140]));
    pmem.flush(new, 128);
    let directory = DIRECTORIES[1];
    pmem.store_u64(directory, 2);
    pmem.store(directory + BODY, &bytes_of(&[other, other, full, new])); //~ B10 lost: flush missing
    pmem.flush(directory, if flush_directory { BODY + 32 } else { 8 });
    pmem.fence()?;
    pmem.put(ROOT, directory)?;
    if !deepen_first {
        deepen(pmem, full)?;
    }
    Ok(())
}

/// The segments of the directory have depths that it can distinguish, and every key is found. Returns the depths.
fn checked_depths(pmem: &SimPmem) -> (u64, Vec<u64>) {
    let directory = pmem.load_u64(ROOT);
    let global = pmem.load_u64(directory);
    let segments = (0..1 << global).map(|index| pmem.load_u64(directory + BODY + 8 * index));
    let locals: Vec<u64> = segments.map(|segment| pmem.load_u64(segment)).collect();
    assert!(locals.iter().all(|&local| local <= global), "depths {locals:?} of {global}");
    for key in KEYS {
        assert_eq!(get(pmem, key), Some(10 * key), "of key {key}");
    }
    (global, locals)
}

fn split_case(deepen_first: bool, flush_directory: bool) -> Case {
    Case::new(
        image(two_segments),
        move |run| {
            split(run.pmem(), deepen_first, flush_directory)?;
            run.ack(());
            Ok(())
        },
        |crash| {
            let depths = checked_depths(crash.pmem());
            if !crash.acked().is_empty() {
                assert_eq!(depths, (2, vec![1, 1, 2, 2]));
            }
            Ok(())
        },
    )
}

/// B08, reported by Witcher: a split deepens the segment before it doubles the directory. After a crash between, the
/// local depth is larger than the global one, and the next split looks for its buddy outside the directory.
pub(crate) fn local_depth_larger_than_global_depth(form: Form) -> Case {
    split_case(form == Form::Bug, true)
}

/// B10, reported by Mumak: the root leads to the doubled directory while only its depth was flushed. After a crash its
/// entries lead nowhere, and all keys are lost.
pub(crate) fn doubled_directory_visible_before_it_is_durable(form: Form) -> Case {
    split_case(false, form == Form::Fixed)
}

/// Takes an empty pair by a sentinel, fills in the value and then the key. `false` if no pair is empty.
fn insert(pmem: &SimPmem, key: u64, value: u64) -> Result<bool, FenceError> {
    let take = |&pair: &u64| {
        pmem.compare_exchange_u64(pair, EMPTY, SENTINEL).is_ok() //~ B09 kept
    };
    let Some(pair) = pairs_of(segment_of(pmem, key)).find(take) else { return Ok(false) };
    pmem.store_u64(pair + 8, value);
    pmem.store_u64(pair, key);
    pmem.persist(pair, 16)?;
    Ok(true)
}

/// B09, reported by Witcher: a crash can leave the sentinel by which an insertion took a pair. No thread owns it any more
/// and none removes it: the pair is never reused. Corrected, recovery empties it.
pub(crate) fn sentinel_of_an_insertion_is_never_removed(form: Form) -> Case {
    let recover = move |pmem: &SimPmem| {
        let dead = SEGMENTS[..2].iter().flat_map(|&segment| pairs_of(segment));
        for pair in dead.filter(|&pair| form == Form::Fixed && pmem.load_u64(pair) == SENTINEL) {
            // Not flushed: until it is durable, the next recovery finds the sentinel and does the same.
            pmem.store_u64(pair, EMPTY);
        }
    };
    let case = Case::steps(
        image(two_segments),
        [12],
        |pmem, key| {
            assert!(insert(pmem, key, 120)?, "there is room");
            Ok(())
        },
        [None, Some(120)],
        move |pmem| {
            recover(pmem);
            checked_depths(pmem);
            let found = get(pmem, 12);
            let later = copy(pmem);
            for _ in 0..if found.is_some() { 1 } else { 2 } {
                assert!(insert(&later, 13, 130)?, "a pair is never reused");
            }
            Ok(found)
        },
    );
    // The key is stored after its value with nothing between: they share a line.
    case.relying_on_order_in_a_line()
}

/// Changes a value in place. `between` runs while it is visible and not yet flushed.
fn update(pmem: &SimPmem, key: u64, value: u64, between: impl FnOnce()) -> Done {
    let pair = find(pmem, key).expect("is there");
    pmem.store_u64(pair + 8, value); //~ B11 lost: flush and fence missing
    between();
    pmem.persist(pair + 8, 8)
}

/// B11, reported by PMRace: a get takes no lock, and returns a value that its writer has not flushed yet. The caller acts
/// on it, and after a crash the value is lost. Corrected, the reader flushes the value that it read.
///
/// The reader is a thread of its own, started and joined between the writer's store and the writer's flush: this order,
/// of all that are possible, is the one that matters.
pub(crate) fn lock_free_get_of_a_value_not_durable(form: Form) -> Case {
    let durable_get = move |pmem: &SimPmem, key| {
        let pair = find(pmem, key).expect("is there");
        let value = pmem.load_u64(pair + 8);
        if form == Form::Fixed {
            pmem.persist(pair + 8, 8)?;
        }
        Ok::<u64, FenceError>(value)
    };
    Case::new(
        image(two_segments),
        move |run| {
            let pmem = run.pmem();
            update(pmem, 9, 91, || {
                let read = || assert_eq!(durable_get(pmem, 9), Ok(91));
                thread::scope(|scope| scope.spawn(read).join().expect("the reader reads"));
                run.ack(());
            })?;
            update(pmem, 9, 92, || {})?;
            run.ack(());
            Ok(())
        },
        |crash| {
            let found = get(crash.pmem(), 9);
            assert_before_or_after(&[Some(90), Some(91), Some(92)], crash, &found);
            Ok(())
        },
    )
}
