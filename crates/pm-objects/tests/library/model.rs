//! Random calls, compared with a map of names to contents.

use pm_core::Region;
use pm_objects::{Contents, Object, ObjectError, Objects, ObjectsOptions, Tier};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;

type Memory = AnyPmem<'static>;

/// The names and contents that there should be.
type Model = BTreeMap<String, Vec<u8>>;

fn bytes(random: &mut fastrand::Rng) -> Vec<u8> {
    let len = match random.u32(..20) {
        0 => 0,
        1 => random.usize(1..300_000),
        2..6 => random.usize(1..20_000),
        _ => random.usize(1..1_000),
    };
    vec![random.u8(..); len]
}

fn contents(object: &Object<u8, Memory>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(object.len()).unwrap()];
    object.read(0, &mut bytes).unwrap();
    bytes
}

fn compare(objects: &Objects<Memory>, model: &Model) {
    let names: Vec<String> = objects.list("").map(Result::unwrap).collect();
    assert!(names.iter().eq(model.keys()), "{names:?}");
    for (name, bytes) in model {
        assert!(contents(&objects.open(name).unwrap()) == *bytes, "{name}");
    }
    let report = objects.check().unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(report.objects, model.len() as u64);
}

/// One call on both.
fn call(objects: &Objects<Memory>, model: &mut Model, random: &mut fastrand::Rng) {
    let name = format!("object {}", random.u32(..60));
    match random.u32(..20) {
        0 | 1 => {
            let bytes = bytes(random);
            let created = match random.bool() {
                true => objects.create(&name, Contents::Slice(&bytes)),
                false => objects.create(&name, Contents::Read(bytes.len() as u64, &mut &bytes[..])),
            };
            match created {
                Ok(object) => {
                    assert_eq!(contents(&object), bytes);
                    assert!(model.insert(name, bytes).is_none());
                }
                Err(error) => {
                    assert!(matches!(error, ObjectError::Exists) && model.contains_key(&name), "{error}")
                }
            }
        }
        2 => {
            let bytes = bytes(random);
            let old = objects.open::<u8>(&name).ok();
            objects.replace(&name, Contents::Slice(&bytes)).unwrap();
            if let Some(old) = old {
                assert!(matches!(old.read(0, &mut []), Ok(()) | Err(ObjectError::Deleted)));
                assert!(matches!(old.write(0, &[]), Err(ObjectError::Deleted)));
            }
            model.insert(name, bytes);
        }
        3 => match objects.delete(&name) {
            Ok(()) => assert!(model.remove(&name).is_some()),
            Err(error) => {
                assert!(matches!(error, ObjectError::NotFound) && !model.contains_key(&name), "{error}")
            }
        },
        4 => {
            let to = format!("object {}", random.u32(..60));
            let renamed = objects.rename(&name, &to);
            match (model.contains_key(&name), model.contains_key(&to)) {
                (false, _) => assert!(matches!(renamed, Err(ObjectError::NotFound)), "{renamed:?}"),
                (true, true) => assert!(matches!(renamed, Err(ObjectError::Exists)), "{renamed:?}"),
                (true, false) => {
                    renamed.unwrap();
                    let bytes = model.remove(&name).unwrap();
                    model.insert(to, bytes);
                }
            }
        }
        _ => call_on_contents(objects, model, random, name),
    }
}

/// One call on the contents of an object, if there is one with this name.
fn call_on_contents(objects: &Objects<Memory>, model: &mut Model, random: &mut fastrand::Rng, name: String) {
    match random.u32(..15) {
        0 => {
            let Some(expected) = model.get_mut(&name) else { return };
            let new = bytes(random);
            match objects.open::<u8>(&name).unwrap().append(&new) {
                Ok(()) => expected.extend(new),
                Err(error) => assert!(matches!(error, ObjectError::TooLong { .. }) && new.len() > 250_000),
            }
        }
        1 => {
            let Some(expected) = model.get_mut(&name) else { return };
            let object = objects.open::<u8>(&name).unwrap();
            let len = match random.u32(..4) {
                0 => 0,
                1 => expected.len() / 2,
                2 => expected.len() + random.usize(..4096),
                _ => random.usize(..1_500_000),
            };
            object.resize(len as u64).unwrap();
            assert_eq!(object.len(), len as u64);
            expected.resize(len, 0);
        }
        2 => change_two(objects, model, random, &name),
        3 => {
            let Ok(object) = objects.open::<u8>(&name) else { return };
            let tier = [Tier::Dram, Tier::Pool, Tier::File][random.usize(..3)];
            match (random.bool(), object.pin(tier)) {
                (true, _) => object.unpin().unwrap(),
                (_, Ok(()) | Err(ObjectError::NoTier | ObjectError::Full)) => {}
                (_, Err(error)) => panic!("{error}"),
            }
        }
        4..7 => {
            let Some(expected) = model.get(&name) else { return };
            assert!(contents(&objects.open(&name).unwrap()) == *expected, "{name}");
        }
        _ => {
            let Some(expected) = model.get_mut(&name) else { return };
            let object = objects.open::<u8>(&name).unwrap();
            let start = random.usize(..=expected.len());
            let len_max = [10, 2_000, 100_000][random.usize(..3)];
            let len = random.usize(..=(expected.len() - start).min(len_max));
            let new = vec![random.u8(..); len];
            object.write(start as u64, &new).unwrap();
            expected[start..start + len].copy_from_slice(&new);
            let mut found = vec![0; len];
            object.read(start as u64, &mut found).unwrap();
            assert!(found == new);
        }
    }
}

/// A transaction of two objects, which may be one.
fn change_two(objects: &Objects<Memory>, model: &mut Model, random: &mut fastrand::Rng, name: &String) {
    let other = format!("object {}", random.u32(..60));
    if !model.contains_key(name) || !model.contains_key(&other) {
        return;
    }
    let (one, two) = (objects.open::<u8>(name).unwrap(), objects.open::<u8>(&other).unwrap());
    let mut stores = Vec::new();
    for _ in 0..random.usize(..6) {
        let name = if random.bool() { name } else { &other };
        let (len, byte) = ([5, 700, 9_000][random.usize(..3)], random.u8(..));
        let start = random.usize(..=model[name].len());
        stores.push((name, start, vec![byte; len.min(model[name].len() - start)]));
    }
    let fails = random.u32(..4) == 0;
    let done = objects.transaction(&[&one, &two], |tx| {
        let mut expected = model.clone();
        for (of, start, bytes) in &stores {
            let object = if *of == name { &one } else { &two };
            tx.write(object, *start as u64, bytes)?;
            expected.get_mut(*of).unwrap()[*start..*start + bytes.len()].copy_from_slice(bytes);
            let mut found = vec![0; expected[*of].len()];
            tx.read(object, 0, &mut found)?;
            assert!(found == expected[*of]);
        }
        if fails { Err(ObjectError::NotFound) } else { Ok(expected) }
    });
    match done {
        Ok(expected) => *model = expected,
        Err(error) => assert!(fails && matches!(error, ObjectError::NotFound), "{error}"),
    }
}

#[test]
fn objects_are_a_map() {
    compare_with_map(&ObjectsOptions::new(), 256 << 20, None);
}

/// Most chunks are in the file, and few fit into DRAM.
#[test]
fn objects_in_three_tiers_are_a_map() {
    compare_with_map(&ObjectsOptions::new().dram_bytes(1 << 20), 4 << 20, Some(256 << 20));
}

/// `PM_OBJECT_CALLS` sets the number of calls.
fn compare_with_map(options: &ObjectsOptions, pool_bytes: u64, file_bytes: Option<u64>) {
    let count = std::env::var("PM_OBJECT_CALLS").map_or(20_000, |count| count.parse().expect("a number"));
    let mut random = fastrand::Rng::with_seed(7);
    let pmem = any(Region::anonymous(pool_bytes).unwrap());
    let file = file_bytes.map(|bytes| any(Region::anonymous(bytes).unwrap()));
    let attach = || match &file {
        Some(file) => Objects::attach_with_file(pmem.clone(), file.clone(), options).unwrap(),
        None => Objects::attach(pmem.clone(), options).unwrap(),
    };
    let mut objects = match &file {
        Some(file) => Objects::format_with_file(pmem.clone(), file.clone(), options).unwrap(),
        None => Objects::format(pmem.clone(), options).unwrap(),
    };
    let mut model = Model::new();
    for number in 0..count {
        call(&objects, &mut model, &mut random);
        if number % (count / 10 + 1) == 0 {
            compare(&objects, &model);
            match random.bool() {
                true => objects.close().unwrap(),
                false => drop(objects),
            }
            objects = attach();
        }
    }
    compare(&objects, &model);
    for name in model.keys() {
        objects.delete(name).unwrap();
    }
    compare(&objects, &Model::new());
    assert_eq!(objects.stats().unwrap().chunk_bytes, 0);
}

/// Each object of a part of its elements, of types of all lengths: whole elements stay in one chunk.
#[test]
fn elements_of_all_lengths_are_stored() {
    fn check<const N: usize>(objects: &Objects<Region>) {
        let name = format!("of {N} bytes");
        let elements: Vec<[u8; N]> = (0..20).map(|index| [index; N]).collect();
        let object = objects.create(&name, Contents::Slice(&elements)).unwrap();
        assert_eq!(object.len(), 20);
        object.set(7, &[99; N]).unwrap();
        object.edit(8, |element| element[N - 1] = 98).unwrap();
        for index in 0..20 {
            let mut expected = if index == 7 { [99; N] } else { [u8::try_from(index).unwrap(); N] };
            if index == 8 {
                expected[N - 1] = 98;
            }
            assert_eq!(object.get(index).unwrap(), expected);
        }
        assert!(matches!(object.get(20), Err(ObjectError::Range { start: 20, end: 21, len: 20 })));
        assert!(matches!(object.load(), Err(ObjectError::Range { .. })));
        let wanted = objects.open::<u16>(&name).map(drop);
        assert!(matches!(wanted, Err(ObjectError::Type { .. })), "{wanted:?}");
    }
    let objects = Objects::format(Region::anonymous(32 << 20).unwrap(), &ObjectsOptions::new()).unwrap();
    check::<1>(&objects);
    check::<48>(&objects);
    check::<1025>(&objects);
    check::<2049>(&objects);
    check::<4096>(&objects);
    check::<4097>(&objects);
    check::<65_536>(&objects);
    assert_eq!(objects.check().unwrap().problems, []);
    let too_long = objects.create("longer", Contents::Value(&[0_u8; 65_537])).map(drop);
    assert!(matches!(too_long, Err(ObjectError::Element { bytes: 65_537 })), "{too_long:?}");
    let empty = objects.create("empty", Contents::Value(&[0_u8; 0])).map(drop);
    assert!(matches!(empty, Err(ObjectError::Element { bytes: 0 })), "{empty:?}");
}
