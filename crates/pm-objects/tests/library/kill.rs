//! A process whose two threads change objects is killed, again and again. After each kill everything that the threads have reported is there, and
//! everything in use belongs to an object.

use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions};
use pm_testkit::run_and_kill;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// The environment variable for the child: the file of the pool.
const FILE: &str = "PM_OBJECTS_TEST_FILE";

const THREADS: u8 = 2;

/// The objects that a thread keeps.
const KEPT: u64 = 20;

fn contents(number: u64) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; usize::try_from(number * 977 % 200_000).unwrap()]
}

fn name(thread: u8, what: &str) -> String {
    format!("thread {thread}/{what}")
}

/// Changes of a thread, without end: an object is created under another name, renamed, an old one deleted, and one of 10,000 words replaced by the number.
fn run(objects: &Objects, thread: u8) -> Result<(), ObjectError> {
    let count = objects.open::<u64>(&name(thread, "count"))?;
    for number in count.load()?.. {
        let draft = name(thread, "draft");
        objects.replace(&draft, Contents::Slice(&contents(number)))?;
        let named = name(thread, &number.to_string());
        match objects.rename(&draft, &named) {
            // The process that was killed has done so.
            Err(ObjectError::Exists) => objects.delete(&draft)?,
            renamed => renamed?,
        }
        if number >= KEPT {
            match objects.delete(&name(thread, &(number - KEPT).to_string())) {
                Ok(()) | Err(ObjectError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        objects.open::<u64>(&name(thread, "words"))?.write(0, &[number; 10_000])?;
        count.store(&(number + 1))?;
        // Standard error is not buffered.
        std::io::stderr().write_all(&[thread]).unwrap();
    }
    unreachable!("the numbers do not end");
}

/// `PM_KILLS` sets the number of kills.
#[test]
fn reported_changes_survive_kills() {
    check("kill::reported_changes_survive_kills", 64 << 20, &ObjectsOptions::new());
}

/// The pool has room for a part, and the file for the rest.
#[test]
fn reported_changes_in_two_tiers_survive_kills() {
    let options = ObjectsOptions::new().file_bytes(64 << 20);
    check("kill::reported_changes_in_two_tiers_survive_kills", 3 << 20, &options);
}

fn check(test: &str, pool_bytes: u64, options: &ObjectsOptions) {
    if let Some(path) = std::env::var_os(FILE) {
        let objects = Objects::open_pool(PathBuf::from(path), options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let objects = &objects;
                scope.spawn(move || run(objects, thread).unwrap());
            }
        });
    }
    let kills = std::env::var("PM_KILLS").map_or(20, |count| count.parse().expect("a number"));
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool.pmo");
    {
        let objects = Objects::create_pool(&path, pool_bytes, options).unwrap();
        for thread in 0..THREADS {
            objects.create(&name(thread, "count"), Contents::Value(&0_u64)).unwrap();
            objects.create(&name(thread, "words"), Contents::Slice(&[0_u64; 10_000])).unwrap();
        }
    }
    let mut random = fastrand::Rng::with_seed(1);
    let mut reported = [0; THREADS as usize];
    for kill in 0..kills {
        let time = Duration::from_millis(random.u64(20..150));
        let variables = [(FILE, path.as_os_str())];
        for report in run_and_kill(test, &variables, time) {
            // All else is the message of a panic.
            *reported.get_mut(usize::from(report)).expect("a thread") += 1;
        }
        let objects = Objects::open_pool(&path, options).unwrap();
        let report = objects.check().unwrap();
        assert_eq!(report.problems, [], "kill {kill}");
        for (thread, reported) in (0..).zip(&mut reported) {
            let count: u64 = objects.open(&name(thread, "count")).unwrap().load().unwrap();
            assert!((*reported..=*reported + 1).contains(&count), "kill {kill}: {count} and {reported}");
            *reported = count;
            let mut words = [0_u64; 10_000];
            objects.open(&name(thread, "words")).unwrap().read(0, &mut words).unwrap();
            assert!(words.iter().all(|word| *word == words[0]), "kill {kill}: a store is torn");
            assert!(
                (count.saturating_sub(1)..=count).contains(&words[0]),
                "kill {kill}: {} of {count}",
                words[0]
            );
            for number in count.saturating_sub(KEPT)..count {
                let object = match objects.open::<u8>(&name(thread, &number.to_string())) {
                    // The change in progress may have deleted the oldest.
                    Err(ObjectError::NotFound) if number + KEPT == count => continue,
                    object => object.unwrap(),
                };
                let mut found = vec![0; usize::try_from(object.len()).unwrap()];
                object.read(0, &mut found).unwrap();
                assert!(found == contents(number), "kill {kill}: object {number}");
            }
        }
    }
    let objects = Objects::open_pool(&path, options).unwrap();
    let in_file = objects.check().unwrap().chunks_in_file;
    assert_eq!(in_file > 0, pool_bytes < 64 << 20, "{in_file} chunks in the file");
    assert!(reported.iter().all(|count| *count > 50), "the threads have made {reported:?} changes");
}
