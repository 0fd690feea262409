//! The cost of each call in lines and fences, averaged over many calls, with new blocks of directories in them.

use core::ops::Range;
use pm_core::line::{LINE_BYTES, lines_spanned};
use pm_core::{Counting, Pmem, Region};
use pm_fs::{Fs, FsOptions, Handle, NewFile, SetAttributes, SetXattr};
use pm_testkit::{AnyPmem, Hook, Hooked, any};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type CountedFs = Fs<AnyPmem<'static>>;

const COUNT: u64 = 1000;

fn new() -> NewFile {
    NewFile { mode: 0o644, uid: 0, gid: 0, umask: 0 }
}

/// Calls `call` with the numbers up to [`COUNT`], and checks its average fences.
fn check(fs: &CountedFs, name: &str, most: f64, call: impl FnMut(u64)) {
    let ((), cost) = fs.heap().pool().pmem().counted().count(|| (0..COUNT).for_each(call));
    let [lines, fences] = [cost.lines, cost.fences].map(|total| total as f64 / COUNT as f64);
    println!("{name}: {lines:.2} lines, {fences:.3} fences");
    assert!(fences <= most, "{name}: {fences}");
}

fn name(number: u64) -> String {
    format!("a file with the number {number}")
}

#[test]
fn calls_cost_one_or_two_fences() {
    let region = Counting::new(Region::anonymous(64 << 20).unwrap());
    let fs = Fs::format(any(region), &FsOptions::new()).unwrap();
    let root = fs.root();
    let dir = root.mkdir("dir", new()).unwrap();
    let file = |number: u64| -> Handle<_> { root.lookup(name(number)).unwrap() };
    check(&fs, "create", 1.05, |number| drop(root.create(name(number), new()).unwrap()));
    check(&fs, "link", 1.05, |number| dir.link(&file(number), name(number)).unwrap());
    check(&fs, "set attributes", 1.0, |number| {
        let set = SetAttributes { mode: Some(0o600), mtime_ns: Some(7), ..SetAttributes::default() };
        file(number).set_attributes(&set).unwrap();
    });
    check(&fs, "rename", 1.05, |number| dir.rename(name(number), &dir, format!("new {number}")).unwrap());
    check(&fs, "append to a new page", 2.0, |number| {
        assert_eq!(file(number).append(&[1; 100]).unwrap(), 100)
    });
    check(&fs, "append to a page", 2.0, |number| assert_eq!(file(number).append(&[1; 100]).unwrap(), 100));
    check(&fs, "overwrite", 1.0, |number| assert_eq!(file(number).write_at(50, &[2; 64]).unwrap(), 64));
    check(&fs, "make strict", 1.0, |number| file(number).set_strict(true).unwrap());
    check(&fs, "overwrite, strict", 2.0, |number| {
        assert_eq!(file(number).write_at(50, &[3; 64]).unwrap(), 64);
    });
    check(&fs, "overwrite a word, strict", 1.0, |number| {
        assert_eq!(file(number).write_at(48, &[4; 8]).unwrap(), 8);
    });
    check(&fs, "make relaxed", 1.0, |number| file(number).set_strict(false).unwrap());
    let map = file(0).map(0, 200).unwrap();
    check(&fs, "store in a map and persist", 1.0, |number| {
        map.store(number % 100, &[7; 64]).unwrap();
        map.persist(0..200).unwrap();
    });
    drop(map);
    let mut unnamed = Vec::new();
    check(&fs, "create without a name", 1.05, |_| unnamed.push(root.create_unnamed(new()).unwrap()));
    check(&fs, "link a file without a name", 1.05, |number| {
        root.link(&unnamed[usize::try_from(number).unwrap()], format!("published {number}")).unwrap();
    });
    drop(unnamed);
    check(&fs, "read", 0.0, |number| assert_eq!(file(number).read_at(0, &mut [0; 300]).unwrap(), 200));
    check(&fs, "truncate", 1.0, |number| file(number).truncate(10).unwrap());
    check(&fs, "unlink one of two names", 1.0, |number| dir.unlink(format!("new {number}")).unwrap());
    check(&fs, "unlink", 1.0, |number| root.unlink(name(number)).unwrap());
    check(&fs, "mkdir", 1.05, |number| drop(dir.mkdir(name(number), new()).unwrap()));
    check(&fs, "rmdir", 1.0, |number| dir.rmdir(name(number)).unwrap());
    let report = fs.check();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn access_control_lists_are_inherited_without_a_fence() {
    let region = Counting::new(Region::anonymous(64 << 20).unwrap());
    let fs = Fs::format(any(region), &FsOptions::new()).unwrap();
    let dir = fs.root().mkdir("dir", new()).unwrap();
    let acl = [
        &[2, 0, 0, 0][..],
        &entry(1, 7),
        &[2, 0, 7, 0, 1, 0, 0, 0],
        &entry(4, 5),
        &entry(16, 7),
        &entry(32, 5),
    ];
    dir.set_xattr("system.posix_acl_default", acl.concat(), SetXattr::Any).unwrap();
    check(&fs, "create with an inherited list", 1.05, |number| {
        drop(dir.create(name(number), new()).unwrap())
    });
    check(&fs, "set an attribute", 2.05, |number| {
        dir.lookup(name(number)).unwrap().set_xattr("user.a", b"short", SetXattr::Any).unwrap();
    });
}

/// An entry of an access control list without a user or group.
const fn entry(tag: u8, permissions: u8) -> [u8; 8] {
    [tag, 0, permissions, 0, 0xff, 0xff, 0xff, 0xff]
}

/// A long write costs two fences for each huge page, and else for each 64 pages.
#[test]
fn long_writes_share_fences() {
    let region = Counting::new(Region::anonymous(64 << 20).unwrap());
    let fs = Fs::format(any(region), &FsOptions::new()).unwrap();
    let file = fs.root().create("file", new()).unwrap();
    let bytes = vec![7; 4 << 20];
    let (written, cost) = fs.heap().pool().pmem().counted().count(|| file.write_at(0, &bytes).unwrap());
    assert_eq!((written, cost.fences), (4 << 20, 2 * 2));
    println!("4 MiB: {} lines, {} of them data", cost.lines, (4 << 20) / 64);
    assert!(cost.lines < (4 << 20) / 64 + 100, "{}", cost.lines);
    let other = fs.root().create("other", new()).unwrap();
    let (_, cost) = fs.heap().pool().pmem().counted().count(|| other.write_at(256 << 10, &bytes).unwrap());
    assert_eq!(cost.fences, 2 * (7 + 1 + 1), "a huge page, and 64 pages at once before and behind it");
    assert!(cost.lines < (4 << 20) / 64 * 102 / 100, "{}", cost.lines);
    let (_, cost) =
        fs.heap().pool().pmem().counted().count(|| other.allocate(8 << 20, 4 << 20, true).unwrap());
    assert_eq!(cost.fences, 2 * 2 + 1);
    let (_, cost) = fs.heap().pool().pmem().counted().count(|| file.write_at(0, &bytes).unwrap());
    assert_eq!(cost.fences, 1, "all pages are there");
}

/// Counts the lines that are made durable in a range.
#[derive(Debug, Default)]
struct CountedRange {
    range: [AtomicU64; 2],
    lines: AtomicU64,
}

impl CountedRange {
    fn note(&self, written: &Range<u64>) {
        let [start, end] = [0, 1].map(|end| self.range[end].load(Ordering::Relaxed));
        if (start..end).contains(&written.start) {
            self.lines
                .fetch_add(lines_spanned(written.start, written.end - written.start), Ordering::Relaxed);
        }
    }
}

impl<R: Pmem> Hook<R> for CountedRange {
    fn before_store_nt(&self, range: Range<u64>) {
        self.note(&range);
    }
    fn before_flush(&self, range: Range<u64>) {
        self.note(&range);
    }
}

/// The bytes that calls write to the log, as in Table 3 of the paper about PMFS (EuroSys 2014): 512 for touch, 320 for mkdir, 384 for mv.
#[test]
fn calls_log_few_bytes() {
    let counted = Arc::new(CountedRange::default());
    let pmem = any(Hooked::new(Region::anonymous(64 << 20).unwrap(), Arc::clone(&counted)));
    let fs = Fs::format(pmem, &FsOptions::new()).unwrap();
    let layout = fs.heap().layout();
    counted.range[0].store(layout.lane_offset(0), Ordering::Relaxed);
    counted.range[1].store(layout.lanes_end(), Ordering::Relaxed);
    let root = fs.root();
    let check = |name: &str, most: f64, call: &dyn Fn(u64)| {
        let before = counted.lines.load(Ordering::Relaxed);
        (0..COUNT).for_each(call);
        let lines = counted.lines.load(Ordering::Relaxed) - before;
        let bytes = (lines * LINE_BYTES) as f64 / COUNT as f64;
        println!("{name}: {bytes:.0} bytes");
        assert!(bytes > 0.0 && bytes <= most, "{name}: {bytes}");
    };
    check("touch", 448.0, &|number| drop(root.create(name(number), new()).unwrap()));
    check("mkdir", 448.0, &|number| drop(root.mkdir(format!("directory {number}"), new()).unwrap()));
    check("mv", 384.0, &|number| root.rename(name(number), &root, format!("renamed {number}")).unwrap());
}
