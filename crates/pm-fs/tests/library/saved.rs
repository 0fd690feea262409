//! What closing a file system saves: it is used by the next open, forgotten at the first change, and not needed.

use pm_core::{Pmem as _, Region, bytes_of, crc32c_bytes, from_bytes};
use pm_fs::format::{ROOT, Saved, Superblock};
use pm_fs::{Fs, FsError, FsOptions, NewFile};
use pm_testkit::{AnyPmem, any};
use std::sync::Arc;

/// A file system that was closed with a file of so many pages, and the offset of what was saved.
fn closed(pages: usize) -> (Arc<Region>, u64) {
    let region = Arc::new(Region::anonymous(1 << 20).unwrap());
    let fs = Fs::format(any(Arc::clone(&region)), &FsOptions::new()).unwrap();
    fs.root().create("file", NewFile::default()).unwrap().append(&vec![7; 4096 * pages]).unwrap();
    let at = superblock(&fs).saved;
    fs.close().unwrap();
    (region, at)
}

fn superblock(fs: &Fs<AnyPmem<'static>>) -> Superblock {
    let load = |view: &pm_alloc::View<'_, _>| view.read(view.root::<Superblock>(ROOT).unwrap().unwrap());
    fs.heap().view(load).unwrap()
}

fn saved(region: &Region, at: u64) -> Saved {
    from_bytes(|bytes| region.load(at, bytes))
}

fn open(region: &Arc<Region>) -> Fs<AnyPmem<'static>> {
    Fs::attach(any(Arc::clone(region)), &FsOptions::new()).unwrap()
}

#[test]
fn pages_are_saved_until_the_first_change() {
    let (region, at) = closed(5);
    let map = saved(&region, at).map;
    assert_ne!(map, 0);
    let fs = open(&region);
    assert_eq!(fs.lookup("file").unwrap().read_at(0, &mut [0; 10]).unwrap(), 10);
    fs.close().unwrap();
    assert_eq!(saved(&region, at).map, map);

    let fs = open(&region);
    fs.root().mkdir("dir", NewFile::default()).unwrap();
    assert_eq!(saved(&region, at).map, 0);
    assert_eq!(fs.check().problems, Vec::<String>::new());
    drop(fs);
    assert_eq!(saved(&region, at).map, 0);
}

fn free_pages(region: &Arc<Region>) -> u64 {
    open(region).stats().unwrap().free_pages
}

/// A page that is said to be in use, and is not, is not free after the open.
#[test]
fn pages_in_use_are_those_that_were_saved() {
    let (region, at) = closed(5);
    let mut found = saved(&region, at);
    let mut map = vec![0; usize::try_from(found.map_bytes).unwrap()];
    region.load(found.map, &mut map);
    let byte = map.iter().position(|byte| *byte == 0).unwrap();
    map[byte] = 1;
    region.store(found.map, &map);
    found.map_crc = crc32c_bytes(0, &map);
    let seed = superblock(&open(&region)).seed;
    region.store(at, bytes_of(&found.sealed(seed, at)));
    assert_eq!(free_pages(&region), free_pages(&closed(5).0) - 1);
}

/// The pages in use are found without what was saved, when that is corrupted.
#[test]
fn corrupted_map_is_not_used() {
    let free = free_pages(&closed(5).0);
    for corrupts_map in [false, true] {
        let (region, at) = closed(5);
        let corrupted = if corrupts_map { saved(&region, at).map } else { at + 8 };
        region.store_u64(corrupted, 1 << 40);
        let fs = open(&region);
        assert_eq!(fs.stats().unwrap().free_pages, free);
        let problems = fs.check().problems;
        // The block of the map is lost, if it is not known any more.
        assert_eq!(problems.len(), usize::from(!corrupts_map), "{problems:?}");
        fs.root().create("new", NewFile::default()).unwrap().append(&[1; 9000]).unwrap();
    }
}

#[test]
fn close_needs_no_room() {
    let (region, at) = closed(5);
    let fs = open(&region);
    let mut number = 0;
    let full = loop {
        number += 1;
        if let Err(error) = fs.root().create(format!("a file with the number {number}"), NewFile::default()) {
            break error;
        }
    };
    assert!(matches!(full, FsError::NoSpace), "{full:?}");
    // Blocks that are shorter than an inode.
    let file = fs.lookup("file").unwrap();
    while file.set_xattr(format!("user.{number}"), [0; 16], pm_fs::SetXattr::Any).is_ok() {
        number += 1;
    }
    drop(file);
    fs.close().unwrap();
    let fs = open(&region);
    fs.root().unlink("file").unwrap();
    assert_eq!(saved(&region, at).map, 0);
    assert_eq!(fs.check().problems, Vec::<String>::new());
}
