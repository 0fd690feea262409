//! The cost of each call in flushed lines and fences.

use pm_core::{Counting, Pmem as _, Region};
use pm_objects::{Contents, Objects, ObjectsOptions};
use pm_testkit::{AnyPmem, any};

const COUNT: u64 = 500;

/// Calls `call` with the numbers up to [`COUNT`], and checks its average lines and fences.
fn check(
    objects: &Objects<AnyPmem<'static>>,
    name: &str,
    (lines_max, fences_max): (f64, f64),
    call: impl FnMut(u64),
) {
    let ((), cost) = objects.heap().pool().pmem().counted().count(|| (0..COUNT).for_each(call));
    let [lines, fences] = [cost.lines, cost.fences].map(|total| total as f64 / COUNT as f64);
    println!("{name}: {lines:.2} lines, {fences:.3} fences");
    assert!(fences <= fences_max, "{name}: {fences} fences");
    assert!(lines <= lines_max, "{name}: {lines} lines");
}

#[test]
fn calls_cost_few_fences() {
    let region = Counting::new(Region::anonymous(64 << 20).unwrap());
    assert_eq!(region.len_bytes(), 64 << 20);
    let objects = Objects::format(any(region), &ObjectsOptions::new()).unwrap();
    let name = |number: u64| format!("object {number}");
    check(&objects, "create 256 bytes", (20.0, 3.1), |number| {
        objects.create(&name(number), Contents::Value(&[7_u8; 256])).map(drop).unwrap();
    });
    check(&objects, "create 8 KiB", (150.0, 3.2), |number| {
        objects.create(&format!("long {number}"), Contents::Slice(&[7_u64; 1024])).map(drop).unwrap();
    });
    check(&objects, "open and load", (0.0, 0.0), |number| {
        assert_eq!(objects.open::<[u8; 256]>(&name(number)).unwrap().load().unwrap(), [7; 256]);
    });
    let words = objects.create("words", Contents::Value(&[0_u64; 6])).unwrap();
    check(&objects, "store 48 bytes", (2.02, 1.0), |number| words.store(&[number; 6]).unwrap());
    // Half of them lie in two lines.
    let many = objects.create("many words", Contents::Slice(&[[0_u64; 6]; 500])).unwrap();
    check(&objects, "store 48 of 24,000 bytes", (2.52, 1.0), |number| {
        many.set(number, &[number; 6]).unwrap()
    });
    let page = objects.create("page", Contents::Value(&[0_u64; 512])).unwrap();
    // A checkpoint, of two fences, for each 47 stores.
    check(&objects, "store 4 KiB", (72.0, 2.05), |number| page.store(&[number; 512]).unwrap());
    let other = objects.create("other words", Contents::Value(&[0_u64; 6])).unwrap();
    check(&objects, "transaction of two with 48 bytes", (5.02, 1.0), |number| {
        let changed = objects.transaction(&[&words, &other], |tx| {
            tx.set(&words, 0, &[number; 6])?;
            tx.set(&other, 0, &[number + 1; 6])
        });
        changed.unwrap();
    });
    // Every fifth gives the last chunk a longer slot.
    let log = objects.create("log", Contents::Slice(&[[0_u64; 6]; 0])).unwrap();
    check(&objects, "append 48 bytes", (8.5, 1.3), |number| log.append(&[[number; 6]]).unwrap());
    check(&objects, "rename", (6.0, 2.1), |number| {
        objects.rename(&name(number), &format!("renamed {number}")).unwrap();
    });
    check(&objects, "delete", (20.0, 3.05), |number| objects.delete(&format!("renamed {number}")).unwrap());
    assert_eq!(objects.check().unwrap().problems, []);
}
