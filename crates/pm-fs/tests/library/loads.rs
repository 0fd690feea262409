//! How much metadata calls on long files look at.

use core::ops::Range;
use pm_core::{Pmem, Region};
use pm_fs::{Fs, FsError, FsOptions, Handle, NewFile};
use pm_testkit::{AnyPmem, Hook, Hooked};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the calls that load, and words of them.
#[derive(Default)]
struct Loads(AtomicU64);

impl<R: Pmem> Hook<R> for Loads {
    fn before_load(&self, _: Range<u64>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn before_load_u64(&self, _: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adjacent words that are loaded at once cost little more than one.
    fn before_load_words(&self, _: u64, index: usize) {
        self.0.fetch_add(u64::from(index == 0), Ordering::Relaxed);
    }
}

/// The pages of a file: four nodes.
const PAGES: u64 = 2000;

/// A file of single pages, as appends make it, and the counter of its file system.
fn long_file() -> (Handle<AnyPmem<'static>>, Arc<Loads>) {
    let loads = Arc::new(Loads::default());
    let pmem = Hooked::new(Region::anonymous(32 << 20).unwrap(), Arc::clone(&loads));
    let fs = Fs::format(AnyPmem::other(pmem), &FsOptions::new()).unwrap();
    let file = fs.root().create("file", NewFile::default()).unwrap();
    for page in 0..PAGES {
        assert_eq!(file.append(&[1; 4096]).unwrap(), 4096, "{page}");
    }
    (file, loads)
}

fn loads_of<R>(loads: &Loads, call: impl FnOnce() -> Result<R, FsError>) -> (R, u64) {
    let before = loads.0.load(Ordering::Relaxed);
    let result = call().unwrap();
    (result, loads.0.load(Ordering::Relaxed) - before)
}

/// A hole of more than 64 pages is made by a look at what is behind the end, and not at all of the file.
#[test]
fn write_behind_a_hole_does_not_walk_through_the_file() {
    let (file, loads) = long_file();
    let at = (PAGES + 1000) * 4096;
    let (_, count) = loads_of(&loads, || file.write_at(at, &[2; 4096]));
    assert!(count < PAGES / 2, "{count} loads");
    let (_, count) = loads_of(&loads, || file.truncate(at + (1 << 30)));
    assert!(count < PAGES / 2, "{count} loads");
}

/// What was allocated behind the end is zero when the file gets longer.
#[test]
fn pages_behind_the_end_are_zeroed_behind_a_hole() {
    let (file, _) = long_file();
    let end = PAGES * 4096;
    file.write_at(end + (90 << 12), &[3; 3 * 4096]).unwrap();
    file.allocate(end, 300 << 12, true).unwrap();
    file.truncate(end).unwrap();
    file.allocate(end + (80 << 12), 20 << 12, true).unwrap();
    file.write_at(end + (200 << 12), &[4; 10]).unwrap();
    let mut bytes = vec![9; 200 << 12];
    file.read_at(end, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn counting_pages_and_finding_a_hole_load_many_slots_at_once() {
    let (file, loads) = long_file();
    let (bytes, count) = loads_of(&loads, || file.allocated_bytes());
    assert_eq!(bytes, PAGES * 4096);
    assert!(count < PAGES / 10, "{count} loads");
    let (hole, count) = loads_of(&loads, || file.seek_hole(5));
    assert_eq!(hole, PAGES * 4096);
    assert!(count < PAGES / 10, "{count} loads");
    file.punch_hole(1500 << 12, 4096).unwrap();
    let (hole, count) = loads_of(&loads, || file.seek_hole(5));
    assert_eq!(hole, 1500 << 12);
    assert!(count < PAGES / 10, "{count} loads");
    assert_eq!(file.seek_hole((1500 << 12) + 7).unwrap(), (1500 << 12) + 7);
    assert_eq!(file.seek_hole((1501 << 12) + 7).unwrap(), PAGES * 4096);
}
