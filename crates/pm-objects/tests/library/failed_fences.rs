//! A fence fails: nothing more changes, and what is read is durable.

use crate::crash::options;
use pm_objects::{Contents, ObjectError, Objects, OpenError};
use pm_testkit::{AnyPmem, SampledPmem, any};
use std::sync::Arc;

fn calls(objects: &Objects<AnyPmem<'static>>, done: &mut usize) -> Result<(), ObjectError> {
    let object = objects.open::<u8>("object")?;
    type Call<'c> = &'c dyn Fn() -> Result<(), ObjectError>;
    let calls: [Call<'_>; 7] = [
        &|| object.write(0, &[2; 10]),
        &|| object.write(0, &[3; 200]),
        &|| objects.create("new", Contents::Slice(&[1_u8; 300])).map(drop),
        &|| objects.rename("new", "renamed"),
        &|| objects.replace("renamed", Contents::Slice(&[2_u8; 64 * 40])).map(drop),
        &|| objects.delete("renamed"),
        &|| object.edit(5, |byte| *byte = 9),
    ];
    for call in calls {
        call()?;
        *done += 1;
    }
    Ok(())
}

/// With each fence failing in turn: the call returns the error, later changes are refused, loads return what they did or an error, and the next open
/// finds all calls but the last.
#[test]
fn failed_fences_stop_all_changes() {
    let mut failures = 0;
    let mut event = 0;
    loop {
        let pmem = Arc::new(SampledPmem::new(256 << 10));
        let objects = Objects::format(any(Arc::clone(&pmem)), &options()).unwrap();
        objects.create("object", Contents::Slice(&[1_u8; 200])).unwrap();
        let other = objects.create("other", Contents::Slice(&[7_u8; 100])).unwrap();
        let object = objects.open::<u8>("object").unwrap();
        pmem.fail_at(pmem.events() + event);
        let mut done = 0;
        let result = calls(&objects, &mut done);
        if !pmem.has_failed() {
            result.unwrap();
            break;
        }
        failures += 1;
        let error = result.unwrap_err();
        assert!(matches!(error, ObjectError::Fence(_) | ObjectError::Poisoned), "{error}");
        for refused in [
            other.write(0, &[0; 5]),
            objects.create("more", Contents::Slice(&[0_u8; 5])).map(drop),
            objects.delete("other"),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, ObjectError::Fence(_) | ObjectError::Poisoned), "{error}");
        }
        // Others are read.
        let mut bytes = [0; 100];
        other.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 100]);
        let states: [&[u8]; 4] = [&[1, 1], &[2, 1], &[3, 3], &[3, 9]];
        let mut found = [0; 200];
        match object.read(0, &mut found) {
            Ok(()) => {
                assert!(states.contains(&&[found[0], found[5]][..]) || found[..10] == [2; 10], "{found:?}")
            }
            Err(error) => assert!(matches!(error, ObjectError::Poisoned), "{error}"),
        }
        let closed = {
            drop((object, other));
            objects.close()
        };
        assert!(closed.is_err());
        let after = Objects::attach(any(Arc::new(SampledPmem::of(pmem.power_failure()))), &options());
        let after = after.unwrap_or_else(|error: OpenError| panic!("{error}"));
        assert_eq!(after.check().unwrap().problems, []);
        let mut now = [0; 200];
        after.open::<u8>("object").unwrap().read(0, &mut now).unwrap();
        let expected = |done: usize| match done {
            0 => (1, 1),
            1 => (2, 2),
            2..7 => (3, 3),
            _ => (3, 9),
        };
        assert!([expected(done), expected(done + 1)].contains(&(now[0], now[5])), "{done}: {now:?}");
        let names: Vec<String> = after.list("").map(Result::unwrap).collect();
        let third = |done: usize| match done {
            0..=2 | 6.. => None,
            3 => Some("new"),
            _ => Some("renamed"),
        };
        let found = names.iter().find(|name| *name != "object" && *name != "other").map(String::as_str);
        assert!([third(done), third(done + 1)].contains(&found), "{done}: {names:?}");
        event += 1;
    }
    println!("{failures} fences failed");
    assert!(failures > 15);
}
