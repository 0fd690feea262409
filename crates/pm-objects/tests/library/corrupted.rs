//! Corruption: what is corrupted is an error, and takes nothing else with it.

use crate::crash::options;
use pm_core::{Pmem as _, Region};
use pm_objects::{Contents, ObjectError, Objects, OpenError};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

const REGION_BYTES: u64 = 256 << 10;

type Memory = Objects<AnyPmem<'static>>;

/// The lengths of the objects: without a chunk, of one, of several in a table, and of a table with leaves.
const LENGTHS: [usize; 7] = [0, 10, 50, 64, 300, 1_000, 64 * 270];

fn name(number: usize) -> String {
    format!("object {number}")
}

/// No two bytes of all objects next to each other are the same, so that an exchange is seen.
fn contents(number: usize) -> Vec<u8> {
    (0..LENGTHS[number]).map(|at| u8::try_from((at * 7 + number * 31 + 1) % 256).unwrap()).collect()
}

/// The bytes of a pool with these objects, and holes in them that a deleted one has left.
fn image(is_closed: bool) -> Vec<u8> {
    let region = Arc::new(Region::anonymous(REGION_BYTES).unwrap());
    let objects = Objects::format(any(Arc::clone(&region)), &options()).unwrap();
    objects.create("deleted", Contents::Slice(&[1_u8; 500])).unwrap();
    for number in 0..LENGTHS.len() {
        objects.create(&name(number), Contents::Slice(&contents(number))).unwrap();
    }
    objects.delete("deleted").unwrap();
    if is_closed {
        objects.close().unwrap();
    } else {
        core::mem::forget(objects);
    }
    let mut bytes = vec![0; usize::try_from(REGION_BYTES).unwrap()];
    region.load(0, &mut bytes);
    bytes
}

fn attach(bytes: &[u8]) -> Result<Memory, OpenError> {
    let region = Region::anonymous(REGION_BYTES).unwrap();
    region.store(0, bytes);
    Objects::attach(any(region), &options())
}

/// Whether an error says that something is corrupted, or that it was not found beside something that is.
fn says_so(error: &ObjectError) -> bool {
    matches!(
        error,
        ObjectError::Corrupted(_)
            | ObjectError::NamesRead(_)
            | ObjectError::NamesWrite(_)
            | ObjectError::NamesTable(_)
    )
}

/// What is found of the objects: their contents, or nothing if an error says that something is corrupted. Of a killed pool, entries of names that are zeroed
/// may count as never written, as pm-btree says.
fn read(objects: &Memory, is_closed: bool) -> BTreeMap<usize, Option<Vec<u8>>> {
    let read = |number| -> Result<Vec<u8>, ObjectError> {
        let object = objects.open::<u8>(&name(number))?;
        let mut bytes = vec![0; usize::try_from(object.len()).unwrap()];
        object.read(0, &mut bytes)?;
        Ok(bytes)
    };
    let found = |number| match read(number) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            let is_lost = !is_closed && matches!(error, ObjectError::NotFound);
            assert!(says_so(&error) || is_lost, "object {number}: {error}");
            None
        }
    };
    (0..LENGTHS.len()).map(|number| (number, found(number))).collect()
}

/// The objects are as they were, but for bytes of contents that were changed, and those that are errors. Returns how many are errors.
fn compare(found: &BTreeMap<usize, Option<Vec<u8>>>, changed_bytes: usize) -> usize {
    let mut errors = 0;
    for (number, found) in found {
        let Some(found) = found else {
            errors += 1;
            continue;
        };
        let expected = contents(*number);
        assert_eq!(found.len(), expected.len(), "object {number}");
        let differing = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
        assert!(differing <= changed_bytes, "object {number}: {differing} bytes differ");
    }
    errors
}

/// Changes bytes, and then uses the pool: nothing panics, what is read is right, and what changes takes nothing else with it.
fn try_with(image: &[u8], is_closed: bool, corrupt: impl Fn(&mut [u8]) -> usize) -> Result<usize, String> {
    let mut bytes = image.to_vec();
    let changed_bytes = corrupt(&mut bytes);
    let Ok(objects) = attach(&bytes) else { return Ok(LENGTHS.len()) };
    let found = read(&objects, is_closed);
    let errors = compare(&found, changed_bytes);
    let report = objects.check().map_err(|error| error.to_string())?;
    if errors > 0 && report.problems.is_empty() {
        return Err(format!("{errors} objects are errors, and a check finds nothing"));
    }
    // Changes of others: each is made, or says why not.
    for number in [1, 4] {
        match objects.delete(&name(number)) {
            Ok(()) => {}
            Err(ObjectError::NotFound) if found[&number].is_none() => {}
            Err(error) if says_so(&error) => {}
            Err(error) => return Err(format!("delete: {error}")),
        }
    }
    for len in [20, 400, 64 * 40] {
        match objects.create(&format!("new {len}"), Contents::Slice(&vec![255_u8; len])) {
            Ok(object) => {
                let mut new = vec![0; len];
                object.read(0, &mut new).map_err(|error| format!("new object: {error}"))?;
                if new.iter().any(|byte| *byte != 255) {
                    return Err("a new object has other contents".to_owned());
                }
            }
            Err(error) if says_so(&error) || matches!(error, ObjectError::Full) => {}
            Err(error) => return Err(format!("create: {error}")),
        }
    }
    let mut after = read_after(&objects, &found);
    after.retain(|number, _| ![1, 4].contains(number));
    compare(&after, changed_bytes);
    Ok(errors)
}

/// Those that were read before.
fn read_after(
    objects: &Memory,
    before: &BTreeMap<usize, Option<Vec<u8>>>,
) -> BTreeMap<usize, Option<Vec<u8>>> {
    let mut kept = BTreeMap::new();
    for (number, found) in
        before.iter().filter(|(number, found)| found.is_some() && ![1, 4].contains(*number))
    {
        let object =
            objects.open::<u8>(&name(*number)).unwrap_or_else(|error| panic!("object {number}: {error}"));
        let mut bytes = vec![0; usize::try_from(object.len()).unwrap()];
        object.read(0, &mut bytes).unwrap();
        assert!(Some(&bytes) == found.as_ref(), "object {number} has changed");
        kept.insert(*number, Some(bytes));
    }
    kept
}

fn check(what: &str, corrupt: impl Fn(&mut fastrand::Rng, &mut [u8]) -> usize) {
    let count: u64 = std::env::var("PM_FLIPS").map_or(300, |count| count.parse().expect("a number"));
    for is_closed in [true, false] {
        let image = image(is_closed);
        assert_eq!(try_with(&image, is_closed, |_| 0), Ok(0));
        let mut errors = 0;
        for seed in 0..count {
            let tried =
                try_with(&image, is_closed, |bytes| corrupt(&mut fastrand::Rng::with_seed(seed), bytes));
            errors +=
                tried.unwrap_or_else(|error| panic!("{what}, closed: {is_closed}, seed {seed}: {error}"));
        }
        println!("{what}, closed: {is_closed}: {errors} errors of {count} pools");
    }
}

/// Most bytes are zero: only lines that are not are chosen.
fn line(random: &mut fastrand::Rng, bytes: &[u8]) -> usize {
    loop {
        let at = random.usize(..bytes.len() / 64) * 64;
        if bytes[at..at + 64].iter().any(|byte| *byte != 0) {
            return at;
        }
    }
}

#[test]
fn flipped_bits_are_errors() {
    check("bits", |random, bytes| {
        let at = line(random, bytes) + random.usize(..64);
        bytes[at] ^= 1 << random.u32(..8);
        1
    });
}

#[test]
fn zeroed_lines_are_errors() {
    check("zeroed lines", |random, bytes| {
        let at = line(random, bytes);
        bytes[at..at + 64].fill(0);
        64
    });
}

#[test]
fn exchanged_lines_are_errors() {
    check("exchanged lines", |random, bytes| {
        let (one, other) = (line(random, bytes), line(random, bytes));
        for at in 0..64 {
            bytes.swap(one + at, other + at);
        }
        // Both may be of one object.
        128
    });
}
