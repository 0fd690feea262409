//! Mapped files: what is stored is in the file, and the pages stay as long as the map.

use pm_core::Region;
use pm_fs::{Fs, FsError, FsOptions, Handle, NewFile};
use pm_testkit::{AnyPmem, any};
use std::sync::Arc;

type Memory = AnyPmem<'static>;

fn new_fs() -> Fs<Memory> {
    Fs::format(any(Arc::new(Region::anonymous(4 << 20).unwrap())), &FsOptions::new()).unwrap()
}

fn file_of(fs: &Fs<Memory>, len: u64) -> Handle<Memory> {
    let file = fs.root().create("file", NewFile::default()).unwrap();
    file.write_at(0, &[1; 100]).unwrap();
    file.truncate(len).unwrap();
    file
}

fn check(fs: &Fs<Memory>) {
    assert_eq!(fs.check().problems, Vec::<String>::new());
}

fn bytes(file: &Handle<Memory>, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; len];
    assert_eq!(file.read_at(at, &mut bytes).unwrap(), len);
    bytes
}

#[test]
fn what_is_stored_is_in_the_file() {
    let fs = new_fs();
    let file = file_of(&fs, 20_000);
    let free = fs.stats().unwrap().free_pages;
    // Across pages of which all but the first are holes.
    let map = file.map(4000, 9000).unwrap();
    assert_eq!((map.len_bytes(), free - fs.stats().unwrap().free_pages), (9000, 3));
    map.store(90, &[7; 5000]).unwrap();
    map.persist(90..5090).unwrap();
    assert_eq!(bytes(&file, 4000, 9000), [vec![0; 90], vec![7; 5000], vec![0; 3910]].concat());
    file.write_at(4096, &[9; 10]).unwrap();
    let mut found = [0; 12];
    map.load(95, &mut found).unwrap();
    assert_eq!(found, [7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7]);
    let before = file.attributes().unwrap().mtime_ns;
    map.persist(0..0).unwrap();
    assert!(file.attributes().unwrap().mtime_ns >= before);
    check(&fs);
}

#[test]
fn ranges_that_are_not_there_are_refused() {
    let fs = new_fs();
    let file = file_of(&fs, 20_000);
    for (at, len) in [(0, 0), (19_999, 2), (20_000, 1), (u64::MAX, 2)] {
        assert!(matches!(file.map(at, len), Err(FsError::Invalid)), "{at} {len}");
    }
    assert!(matches!(fs.root().map(0, 1), Err(FsError::IsADirectory)));
    let map = file.map(0, 100).unwrap();
    for (at, len) in [(100, 1), (99, 2), (u64::MAX, 1)] {
        assert!(matches!(map.store(at, &vec![0; len]), Err(FsError::Invalid)));
        assert!(matches!(map.load(at, &mut vec![0; len]), Err(FsError::Invalid)));
    }
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let reversed = map.persist(2..1);
    assert!(matches!(reversed, Err(FsError::Invalid)));
    assert!(matches!(map.persist(0..101), Err(FsError::Invalid)));
    // No room for all holes: none gets a page.
    let free = fs.stats().unwrap().free_pages;
    file.truncate(1 << 30).unwrap();
    assert!(matches!(file.map(0, 1 << 30), Err(FsError::NoSpace)));
    assert_eq!(fs.stats().unwrap().free_pages, free);
    check(&fs);
}

/// A page that other calls would free is not another file's before the map is dropped.
#[test]
fn pages_stay_as_long_as_the_map() {
    let fs = new_fs();
    let file = file_of(&fs, 20_000);
    let map = file.map(0, 20_000).unwrap();
    map.store(0, &[7; 20_000]).unwrap();
    let free = fs.stats().unwrap().free_pages;
    file.punch_hole(4096, 4096).unwrap();
    assert_eq!(bytes(&file, 4000, 5000), [vec![7; 96], vec![0; 4096], vec![7; 808]].concat());
    file.set_strict(true).unwrap();
    file.write_at(100, &[8; 5000]).unwrap();
    let mut found = vec![0; 5000];
    map.load(100, &mut found).unwrap();
    assert_eq!(found, [8; 5000]);
    file.truncate(10).unwrap();
    assert_eq!(fs.stats().unwrap().free_pages, free);
    fs.root().unlink("file").unwrap();
    let other = fs.root().create("other", NewFile::default()).unwrap();
    other.append(&[3; 20_000]).unwrap();
    map.store(10_000, &[4; 10_000]).unwrap();
    map.persist(0..20_000).unwrap();
    assert_eq!(bytes(&other, 0, 20_000), [3; 20_000]);
    // What is behind the end becomes zero.
    file.truncate(20_000).unwrap();
    assert_eq!(bytes(&file, 10, 19_990), [0; 19_990]);
    drop((file, map));
    assert_eq!(fs.stats().unwrap().free_pages, free);
    check(&fs);
}

#[test]
fn threads_share_a_map() {
    let fs = new_fs();
    let file = file_of(&fs, 64 << 10);
    let map = file.map(0, 64 << 10).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2_u8 {
            let map = &map;
            scope.spawn(move || {
                for at in (u64::from(thread) * 8..64 << 10).step_by(16) {
                    map.store(at, &[thread + 1; 8]).unwrap();
                    if at % 1024 < 16 {
                        map.persist(at..at + 8).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(bytes(&file, 0, 64 << 10), [[1; 8], [2; 8]].concat().repeat(4096));
    drop((map, file));
    check(&fs);
}
