//! Huge pages: where files have them, and what becomes of them when a part changes.

use pm_alloc::HeapOptions;
use pm_core::{Pmem as _, Region, crc32c_words};
use pm_fs::format::{HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, Inode, PAGE_BYTES, ROOT, Superblock};
use pm_fs::{ATOMIC_WRITE_BYTES, Fs, FsOptions, Handle, NewFile};
use pm_testkit::{AnyPmem, any};
use std::mem::offset_of;
use std::sync::Arc;

type Memory = AnyPmem<'static>;

const REGION_BYTES: u64 = 16 << 20;

fn new_fs() -> (Memory, Fs<Memory>) {
    let memory = any(Region::anonymous(REGION_BYTES).unwrap());
    let fs = Fs::format(memory.clone(), &FsOptions::new()).unwrap();
    (memory, fs)
}

fn create(fs: &Fs<Memory>, name: &str) -> Handle<Memory> {
    fs.root().create(name, NewFile::default()).unwrap()
}

fn free_pages(fs: &Fs<Memory>) -> u64 {
    fs.stats().unwrap().free_pages
}

fn check(fs: &Fs<Memory>) {
    assert_eq!(fs.check().problems, Vec::<String>::new());
}

fn bytes(file: &Handle<Memory>) -> Vec<u8> {
    let mut bytes = vec![0xff; usize::try_from(file.attributes().unwrap().size).unwrap()];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Bytes that are different in each word.
fn pattern(len: u64) -> Vec<u8> {
    (0..len / 8).flat_map(u64::to_le_bytes).collect()
}

/// Opens it as after a kill: it was not closed.
fn reopened(memory: &Memory, fs: Fs<Memory>, files: impl IntoIterator<Item = Handle<Memory>>) -> Fs<Memory> {
    files.into_iter().for_each(drop);
    drop(fs);
    Fs::attach(memory.clone(), &FsOptions::new()).unwrap()
}

/// Each change of a part splits the huge page, and leaves the other pages where they are.
#[test]
fn parts_of_huge_pages_change_alone() {
    let (memory, fs) = new_fs();
    let before = free_pages(&fs);
    let file = create(&fs, "file");
    let mut expected = pattern(2 * HUGE_PAGE_BYTES);
    file.append(&expected).unwrap();
    assert_eq!(before - free_pages(&fs), 2 * HUGE_PAGE_PAGES, "and no more");
    let blocks = fs.heap().blocks().len();
    file.write_at(5000, &[1; 3000]).unwrap();
    expected[5000..8000].fill(1);
    assert_eq!((bytes(&file) == expected, fs.heap().blocks().len()), (true, blocks), "in place");

    file.set_strict(true).unwrap();
    file.write_at(9000, &[2; 8000]).unwrap();
    expected[9000..17_000].fill(2);
    assert_eq!((bytes(&file) == expected, fs.heap().blocks().len()), (true, blocks + 1), "split");
    assert_eq!(before - free_pages(&fs), 2 * HUGE_PAGE_PAGES);
    check(&fs);

    file.punch_hole(HUGE_PAGE_BYTES + 4096, 3 * PAGE_BYTES).unwrap();
    let at = usize::try_from(HUGE_PAGE_BYTES).unwrap() + 4096;
    expected[at..at + 3 * 4096].fill(0);
    assert_eq!((bytes(&file) == expected, fs.heap().blocks().len()), (true, blocks + 2), "split");
    assert_eq!(before - free_pages(&fs), 2 * HUGE_PAGE_PAGES - 3);
    check(&fs);

    let fs = reopened(&memory, fs, [file]);
    let file = fs.lookup("file").unwrap();
    assert!(bytes(&file) == expected);
    file.truncate(HUGE_PAGE_BYTES + 10).unwrap();
    assert_eq!(before - free_pages(&fs), HUGE_PAGE_PAGES + 1);
    file.truncate(0).unwrap();
    assert_eq!((before, fs.heap().blocks().len()), (free_pages(&fs), blocks));
    check(&fs);
}

#[test]
fn whole_huge_pages_are_freed_at_once() {
    let (memory, fs) = new_fs();
    let before = free_pages(&fs);
    let file = create(&fs, "file");
    file.allocate(0, 3 * HUGE_PAGE_BYTES, false).unwrap();
    let blocks = fs.heap().blocks().len();
    file.punch_hole(HUGE_PAGE_BYTES - 4096, HUGE_PAGE_BYTES + 8192).unwrap();
    // Those before and behind it were split.
    assert_eq!(fs.heap().blocks().len(), blocks + 2);
    assert_eq!(before - free_pages(&fs), 2 * (HUGE_PAGE_PAGES - 1));
    assert_eq!(file.seek_hole(0).unwrap(), HUGE_PAGE_BYTES - 4096);
    assert_eq!(file.seek_data(HUGE_PAGE_BYTES - 4096).unwrap(), 2 * HUGE_PAGE_BYTES + 4096);
    let fs = reopened(&memory, fs, [file]);
    fs.prepare().unwrap();
    assert_eq!(before - free_pages(&fs), 2 * (HUGE_PAGE_PAGES - 1));
    let file = fs.lookup("file").unwrap();
    file.truncate(HUGE_PAGE_BYTES - 4096).unwrap();
    // The node of the second one stayed without pages, and makes place.
    file.truncate(3 * HUGE_PAGE_BYTES).unwrap();
    file.write_at(HUGE_PAGE_BYTES, &vec![7; 2 << 20]).unwrap();
    assert_eq!(before - free_pages(&fs), 2 * HUGE_PAGE_PAGES - 1);
    assert_eq!(
        bytes(&file)[(2 << 20) - 4096..],
        [vec![0; 4096], vec![7; 2 << 20], vec![0; 2 << 20]].concat()
    );
    fs.root().unlink("file").unwrap();
    drop(file);
    assert_eq!(before, free_pages(&fs));
    check(&fs);
}

/// What is behind the end of a file may be anything, and is zero when the file gets longer.
#[test]
fn bytes_behind_the_end_become_zero() {
    let (_memory, fs) = new_fs();
    let file = create(&fs, "file");
    file.append(&vec![7; 2 << 20]).unwrap();
    let map = file.map(0, HUGE_PAGE_BYTES).unwrap();
    // A mapped file keeps its pages.
    file.truncate(100).unwrap();
    file.truncate(HUGE_PAGE_BYTES).unwrap();
    assert_eq!(bytes(&file), [vec![7; 100], vec![0; (2 << 20) - 100]].concat());
    drop(map);
    check(&fs);
}

/// The longest atomic write, which splits a huge page in the same transaction, fits in the shortest lanes.
#[test]
fn longest_atomic_write_splits_a_huge_page() {
    for lane_entries in [62, 126] {
        let options = FsOptions::new().heap(HeapOptions::new().lane_entries(lane_entries));
        let fs = Fs::format(any(Arc::new(Region::anonymous(REGION_BYTES).unwrap())), &options).unwrap();
        let file = create(&fs, "file");
        let mut expected = pattern(HUGE_PAGE_BYTES);
        file.append(&expected).unwrap();
        file.set_strict(true).unwrap();
        let bytes = vec![7; usize::try_from(ATOMIC_WRITE_BYTES).unwrap()];
        assert_eq!(file.write_at(4095, &bytes).unwrap(), bytes.len());
        expected[4095..4095 + bytes.len()].copy_from_slice(&bytes);
        assert!(self::bytes(&file) == expected);
        file.punch_hole(4096, 400 << 10).unwrap();
        check(&fs);
    }
}

/// Where no huge page is left, single pages do.
#[test]
fn single_pages_do_where_no_huge_page_is_left() {
    let (_memory, fs) = new_fs();
    let file = create(&fs, "file");
    let free = free_pages(&fs);
    let expected = pattern(free * PAGE_BYTES);
    assert_eq!(file.append(&expected).unwrap(), expected.len());
    assert_eq!(free_pages(&fs), 0);
    assert!(bytes(&file) == expected);
    // Every other page is free: no huge page, however much room there is.
    for page in (0..free).step_by(2) {
        file.punch_hole(page * PAGE_BYTES, PAGE_BYTES).unwrap();
    }
    let other = create(&fs, "other");
    other.allocate(0, HUGE_PAGE_BYTES, false).unwrap();
    assert_eq!(bytes(&other), vec![0; 2 << 20]);
    check(&fs);
}

#[test]
fn maps_of_huge_pages_are_like_others() {
    let (_memory, fs) = new_fs();
    let file = create(&fs, "file");
    file.truncate(2 * HUGE_PAGE_BYTES).unwrap();
    let map = file.map(0, 2 * HUGE_PAGE_BYTES).unwrap();
    assert_eq!(file.seek_hole(0).unwrap(), 2 * HUGE_PAGE_BYTES);
    let expected = pattern(2 * HUGE_PAGE_BYTES);
    map.store(0, &expected).unwrap();
    map.persist(0..2 * HUGE_PAGE_BYTES).unwrap();
    assert!(bytes(&file) == expected);
    // It may begin inside one, and end in single pages.
    file.append(&[7; 5000]).unwrap();
    let part = file.map(4096, 2 * HUGE_PAGE_BYTES).unwrap();
    let mut found = vec![0; 2 << 20];
    part.load(HUGE_PAGE_BYTES, &mut found).unwrap();
    assert!(found[..(2 << 20) - 4096] == expected[(2 << 20) + 4096..]);
    assert_eq!(found[(2 << 20) - 4096..], [7; 4096]);
    drop((map, part));
    check(&fs);
}

/// Two files with the same huge page: the repair splits one, and copies its pages.
#[test]
fn huge_page_of_two_files_is_repaired() {
    let (memory, fs) = new_fs();
    let content = pattern(HUGE_PAGE_BYTES);
    let [one, other] = ["one", "other"].map(|name| {
        let file = create(&fs, name);
        file.append(&content).unwrap();
        file
    });
    let slot_at = |file: &Handle<Memory>| file.ino() * 64 + offset_of!(Inode, slots) as u64;
    let superblock = fs.heap().view(|view| view.root::<Superblock>(ROOT).unwrap().unwrap().offset());
    let seed = memory.load_u64(superblock + offset_of!(Superblock, seed) as u64);
    let number = memory.load_u64(slot_at(&one)) & ((1 << 48) - 1);
    let at = slot_at(&other);
    let generation = other.attributes().unwrap().generation;
    let crc = crc32c_words(&[seed, other.ino(), generation, at, number]);
    let word = u64::from(((crc ^ (crc >> 16)) & 0xffff).max(1)) << 48 | number;
    assert_eq!(number >> 40, 4, "a huge page");
    memory.store_u64(at, word);
    let mut fs = reopened(&memory, fs, [one, other]);
    assert!(fs.prepare().is_err());
    let report = fs.repair().unwrap();
    assert_eq!(report.left.problems, Vec::<String>::new());
    for name in ["one", "other"] {
        assert!(bytes(&fs.lookup(name).unwrap()) == content, "{name}");
    }
    assert_eq!(fs.repair().unwrap().repaired, Vec::<String>::new());
}
