//! Corrupted file systems: every call returns a value or an error, and ends.

use crate::edits::{EDIT_BYTES, Edit, Image, kind, open, open_prepared, walk};
use pm_alloc::{Heap, HeapOptions};
use pm_core::{Pmem as _, Region, RootError};
use pm_fs::format::{ROOT, Superblock};
use pm_fs::{FileKind, FsError};
use pm_testkit::any;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Far longer than an attack takes on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Attacks an image in another thread, whose stack is as long as that of any thread, and limits its time.
fn attack(has_orphans: bool, edits: &[Edit]) {
    let (done, finished) = mpsc::channel();
    let image = Image::get(has_orphans);
    let for_thread = edits.to_vec();
    let thread = std::thread::spawn(move || {
        image.attack(&for_thread);
        done.send(()).unwrap();
    });
    match finished.recv_timeout(TIME_MAX) {
        Ok(()) => thread.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{edits:x?} ({has_orphans}): a call hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{edits:x?} ({has_orphans}): a call panics"),
    }
}

#[test]
fn random_edits_give_values_or_errors() {
    let mut random = fastrand::Rng::with_seed(1);
    let count = std::env::var("PM_EDITS").map_or(1_000, |count| count.parse().expect("a number"));
    for _ in 0..count {
        let mut bytes = vec![0; EDIT_BYTES * random.usize(1..4)];
        random.fill(&mut bytes);
        if random.bool() {
            // A small word.
            bytes.chunks_mut(EDIT_BYTES).for_each(|edit| edit[8..].fill(0));
        }
        attack(random.bool(), &Edit::parse_all(&bytes));
    }
}

/// Word of an edit that stores these contents, of at most 48 bits.
const fn contents(contents: u64) -> u64 {
    contents << 8
}

/// Word of an edit that stores the number of the inode at this position.
const fn inode(position: usize) -> u64 {
    (position as u64) << 8 | 2
}

/// Fields of the words of inodes.
const SIZE: u32 = 8;
const NLINK: u32 = 9;
const HEIGHT: u32 = 10;
/// Fields of identities, and of entries.
const BIRTH: u32 = 3;
const TARGET: u32 = 4;

/// The edit that gives the entry of a file another file.
fn retarget(image: &Image, entry_of: &str, target: u64) -> Edit {
    let position = u64::try_from(image.inode(target)).unwrap();
    Edit::of(kind::ENTRY, image.entry(image.ino(entry_of)), TARGET, position)
}

/// The problems that a check reports.
fn problems(image: &Image, edits: &[Edit]) -> Vec<String> {
    open(&image.edited(edits)).unwrap().check().problems
}

#[test]
fn directory_below_itself_is_reported() {
    let image = Image::get(false);
    let edit = retarget(image, "/dir/below", image.ino("/dir"));
    let found = problems(image, &[edit]);
    assert!(found.iter().any(|problem| problem.contains("has another name")), "{found:#?}");
    attack(false, &[edit]);
}

#[test]
fn names_of_the_root_and_of_the_orphans_are_refused() {
    for has_orphans in [false, true] {
        let image = Image::get(has_orphans);
        for target in [image.ino(""), image.orphans()] {
            let edit = retarget(image, "/empty", target);
            let fs = open(&image.edited(&[edit])).unwrap();
            assert!(matches!(fs.root().rmdir("empty"), Err(FsError::Corrupted(_))));
            attack(has_orphans, &[edit]);
        }
        let root = Edit::of(kind::SUPERBLOCK, 0, 4, inode(image.inode(image.orphans())));
        assert!(matches!(open(&image.edited(&[root])), Err(FsError::Corrupted(_))));
    }
}

#[test]
fn impossible_numbers_of_links_are_errors() {
    let image = Image::get(false);
    let root = image.inode(image.ino(""));
    for (nlink, removes) in [(0, true), ((1 << 48) - 1, false)] {
        let fs = open(&image.edited(&[Edit::of(kind::INODE_WORD, root, NLINK, contents(nlink))])).unwrap();
        let result = match removes {
            true => fs.root().rmdir("empty"),
            false => fs.root().mkdir("new", pm_fs::NewFile::default()).map(drop),
        };
        assert!(matches!(result, Err(FsError::Corrupted(_))), "{nlink}: {result:?}");
    }
}

#[test]
fn last_birth_is_refused() {
    let image = Image::get(false);
    let pipe = image.inode(image.ino("/dir/pipe"));
    // The checksum of the height covers the birth.
    let height = Edit::of(kind::INODE_WORD, pipe, HEIGHT, contents(15));
    let edits = [Edit::of(kind::IDENTITY, pipe, BIRTH, u64::MAX), height];
    assert!(matches!(open_prepared(&image.edited(&edits)), Err(FsError::Corrupted(_))));
}

#[test]
fn longest_sizes_are_errors_or_values() {
    let image = Image::get(false);
    for path in ["/short", "/high", "/dir", "/dir/near", "/dir/far"] {
        for size in [1 << 42, (1 << 42) + 1, (1 << 48) - 1] {
            let edit = Edit::of(kind::INODE_WORD, image.inode(image.ino(path)), SIZE, contents(size));
            attack(false, &[edit]);
        }
    }
}

/// What needs the pages in use is refused, and what does not is there.
#[test]
fn files_are_read_when_the_pages_in_use_cannot_be_found() {
    let image = Image::get(false);
    let pipe = image.inode(image.ino("/dir/pipe"));
    let height = Edit::of(kind::INODE_WORD, pipe, HEIGHT, contents(15));
    let edits = [Edit::of(kind::IDENTITY, pipe, BIRTH, u64::MAX), height];
    let fs = open(&image.edited(&edits)).unwrap();
    assert!(fs.lookup("short").unwrap().read_at(0, &mut [0; 10]).unwrap() > 0);
    for _ in 0..2 {
        let created = fs.root().create("new", pm_fs::NewFile::default());
        let created = created.unwrap_err();
        assert!(matches!(created, FsError::NoChanges(_)), "{created:?}");
        assert_eq!(created.errno(), Errno::ROFS);
    }
    assert!(!fs.check().problems.is_empty());
}

/// The contents of a region.
fn bytes(pmem: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    bytes
}

/// Opens a file system whose chains of headers or roots are corrupted: all files are read, and nothing is stored by changes or by a repair.
fn check_refused(image: &Image, pmem: &Arc<Region>, told: &str) {
    let mut fs = open(pmem).unwrap();
    let opened = bytes(pmem);
    assert!(walk(&fs.root()).unwrap() == image.view, "{told}");
    let created = fs.root().create("new", pm_fs::NewFile::default()).map(drop);
    assert!(matches!(created, Err(FsError::NoChanges(_))), "{told}: {created:?}");
    let written = fs.lookup("short").unwrap().write_at(0, &[0xee; 9 * 4096]);
    assert!(matches!(written, Err(FsError::NoChanges(_))), "{told}: {written:?}");
    assert!(matches!(fs.check_repairable(), Err(FsError::NoRepair(_))), "{told}");
    let repaired = fs.repair();
    assert!(matches!(repaired, Err(FsError::NoRepair(_))), "{told}: {repaired:?}");
    assert!(walk(&fs.root()).unwrap() == image.view, "{told}");
    assert!(bytes(pmem) == opened, "{told}: stored");
}

/// A flipped bit in the header of any block of an image that was not closed: the pages of the inode or node behind it would be given to other files, and
/// a repair would remove it.
#[test]
fn broken_chain_keeps_unclosed_file_system_unchanged() {
    for has_orphans in [false, true] {
        let image = Image::get(has_orphans);
        for block in &image.blocks {
            let place = u32::try_from(block - 8).unwrap();
            let pmem = image.edited(&[Edit { place, kind: kind::FLIP, word: 2 }]);
            check_refused(image, &pmem, &format!("the header before {block:#x}"));
        }
    }
}

/// As above, after a repair of the heap, which marks what follows the corrupted header as lost: its blocks may still be in use.
#[test]
fn lost_extent_keeps_unclosed_file_system_unchanged() {
    let image = Image::get(false);
    for block in &image.blocks {
        let place = u32::try_from(block - 8).unwrap();
        let pmem = image.edited(&[Edit { place, kind: kind::FLIP, word: 2 }]);
        let mut heap = Heap::attach(any(Arc::clone(&pmem)), &HeapOptions::new()).unwrap();
        let found = heap.check().corruptions;
        assert!(found.iter().all(|corruption| heap.repair(corruption).unwrap()));
        assert!(heap.check().is_clean());
        drop(heap);
        check_refused(image, &pmem, &format!("the header before {block:#x}"));
    }
}

#[test]
fn corrupted_root_line_keeps_file_system_unchanged() {
    let image = Image::get(false);
    let sound = image.edited(&[]);
    // The directory of roots is in the second page, a line each, with the name at its end.
    let is_in_use = |at: &u64| sound.load_u64(*at + 40) != 0;
    let lines: Vec<u64> = (4096..8192).step_by(64).filter(is_in_use).collect();
    assert_eq!(lines.len(), 2);
    let flip =
        |at: u64| image.edited(&[Edit { place: u32::try_from(at).unwrap(), kind: kind::FLIP, word: 3 }]);
    let error = lines.iter().filter_map(|line| open(&flip(line + 16)).err());
    let errors: Vec<_> = error.collect();
    // The heap is found by its header, and an open restores its root.
    assert!(matches!(errors[..], [FsError::Root(RootError::Corrupted { .. })]), "{errors:?}");
    check_refused(image, &flip(lines[1] + 64), "a line behind the roots");
}

/// After a close the pages in use are known, so files can be changed, and never lose what they have. A repair is refused all the same.
#[test]
fn broken_chain_of_closed_file_system_takes_no_page_twice() {
    let image = Image::get(false);
    let closed = image.edited(&[]);
    open_prepared(&closed).unwrap().close().unwrap();
    let closed = bytes(&closed);
    for block in &image.blocks {
        let pmem = Arc::new(Region::anonymous(closed.len() as u64).unwrap());
        pmem.store(0, &closed);
        pmem.store_u64(block - 8, pmem.load_u64(block - 8) ^ 4);
        let mut fs = open(&pmem).unwrap();
        let before = contents_of(&fs);
        assert!(matches!(fs.repair(), Err(FsError::NoRepair(_))), "{block:#x}");
        match fs.root().create("new", pm_fs::NewFile::default()) {
            Ok(new) => drop(new.append(&[0xee; 30 * 4096])),
            Err(error) => assert!(matches!(error, FsError::NoSpace), "{block:#x}: {error:?}"),
        }
        let after = contents_of(&fs);
        assert!(before.iter().all(|(path, bytes)| after.get(path) == Some(bytes)), "{block:#x}");
    }
}

/// The contents of all regular files.
fn contents_of(fs: &pm_fs::Fs<pm_testkit::AnyPmem<'static>>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for (path, (attributes, _)) in walk(&fs.root()).unwrap() {
        if attributes.kind == FileKind::File {
            let mut bytes = vec![0; usize::try_from(attributes.size.min(1 << 20)).unwrap()];
            fs.lookup(&path).unwrap().read_at(0, &mut bytes).unwrap();
            contents.insert(path, bytes);
        }
    }
    contents
}

/// All slots of a node refer to one node: with three levels a walk would have 512 * 512 * 512 steps.
#[test]
fn nodes_with_several_slots_are_refused() {
    let image = Image::get(false);
    for node in 0..image.nodes.len() {
        for child in &image.nodes {
            let block = image.blocks.iter().position(|block| block == child).unwrap();
            let word = u64::try_from(block).unwrap() << 8 | 4;
            let edits = [Edit::of(kind::NODE_SLOTS, node, 0, word), Edit::of(kind::NODE, node, 2, 2)];
            assert!(open_prepared(&image.edited(&edits)).is_err());
        }
    }
}

/// Each bit of the words that have a checksum, flipped alone, is reported or changes no metadata.
#[test]
fn flipped_bits_are_reported() {
    let image = Image::get(true);
    let mut random = fastrand::Rng::with_seed(2);
    let identities = image.inodes.iter().map(|ino| (ino * 64, 64 + 56));
    let heads = image.dirs.iter().map(|dir| (*dir, 32 + 64));
    let others =
        image.nodes.iter().map(|node| (*node, 200)).chain(image.attributes.iter().map(|at| (*at, 60)));
    for (start, len) in identities.chain(heads).chain(others) {
        for offset in (start..start + len).step_by(8) {
            let place = u32::try_from(offset).unwrap();
            image.attack(&[Edit { place, kind: kind::FLIP, word: random.u64(..64) }]);
        }
    }
}

#[test]
fn slot_of_another_kind_is_no_page() {
    let image = Image::get(false);
    let slot = contents(3 << 40 | 100);
    let fs = open(&image.edited(&[Edit::of(kind::INODE_WORD, image.inode(image.ino("/short")), 0, slot)]));
    let read = fs.unwrap().lookup("short").unwrap().read_at(0, &mut [0; 10]);
    assert!(matches!(read, Err(FsError::Corrupted(_))), "{read:?}");
}

#[test]
fn two_entries_with_one_name_are_reported() {
    const NAME_BYTE: u32 = 3;
    let image = Image::get(false);
    let entry = image.entry(image.ino("/dir/near"));
    let rename = |(at, byte): (u64, u8)| Edit::of(kind::ENTRY, entry, NAME_BYTE, at << 8 | u64::from(byte));
    let edits: Vec<_> = (0..).zip(*b"pipe").map(rename).collect();
    assert!(problems(image, &edits).iter().any(|problem| problem.contains("there twice")));
}

#[test]
fn orphan_with_a_link_is_not_freed() {
    let image = Image::get(true);
    let has_name = |ino: u64| image.view.values().any(|(attributes, _)| attributes.ino == ino);
    let mut refused = 0;
    for (position, ino) in image.inodes.iter().enumerate() {
        if has_name(*ino) || *ino == image.orphans() {
            continue;
        }
        let edit = Edit::of(kind::INODE_WORD, position, NLINK, contents(1));
        match open_prepared(&image.edited(&[edit])) {
            Err(FsError::Corrupted(_)) => refused += 1,
            // Recovery has replayed the removal of its name, and so the number of its links.
            opened => assert_eq!(opened.unwrap().check().problems, Vec::<String>::new(), "{ino}"),
        }
    }
    assert!(refused > 0);
}

/// A file with two names and one link, which is open: both names are removed, or an error.
#[test]
fn removing_two_names_of_one_link_ends() {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        let image = Image::get(false);
        let short = image.inode(image.ino("/short"));
        let fs = open(&image.edited(&[Edit::of(kind::INODE_WORD, short, 9, 1 << 8)])).unwrap();
        let file = fs.lookup("short").unwrap();
        let long = fs.lookup("long").unwrap();
        let first = fs.root().unlink("short").map_err(|error| error.to_string());
        let second = long.unlink(&long.entries(0).unwrap()[0].name).map_err(|error| error.to_string());
        drop(file);
        done.send((first, second)).unwrap();
    });
    let ended = finished.recv_timeout(TIME_MAX);
    assert!(ended.is_ok(), "unlink hangs: {ended:?}");
}

/// A symbolic link with an impossible length.
#[test]
fn impossible_length_of_a_link_is_reported() {
    let image = Image::get(false);
    let near = image.inode(image.ino("/dir/near"));
    for size in [300, 5000] {
        let fs = open(&image.edited(&[Edit::of(kind::INODE_WORD, near, 8, size << 8)])).unwrap();
        let target = fs.lookup("dir/near").unwrap().read_link();
        let problems = fs.check().problems;
        assert!(target.is_ok() || !problems.is_empty(), "{size}: {target:?}, and the check finds nothing");
    }
}

/// A slot of a file that refers to the block of the superblock, as a directory block, or to that of what a close saves: the check
/// finds it, and removing the file does not free the superblock.
#[test]
fn slot_with_the_superblock_is_reported() {
    let image = Image::get(false);
    let fs = open(&image.edited(&[])).unwrap();
    let superblock = fs.heap().view(|view| view.root::<Superblock>(ROOT).unwrap().unwrap().offset());
    drop(fs);
    let position = image.blocks.iter().position(|block| *block == superblock).unwrap() as u64;
    let file = image.inode(image.ino("/dir/below/file"));
    let pmem = image.edited(&[Edit::of(kind::INODE_WORD, file, 0, position << 8 | 5)]);
    let fs = open(&pmem).unwrap();
    let problems = fs.check().problems;
    let removed = fs.lookup("dir/below").unwrap().unlink("file");
    assert!(matches!(removed, Err(FsError::Corrupted(_))), "{removed:?}");
    assert!(!problems.is_empty());
}

/// A flipped bit in the length of a file, which cannot be looked at any more: the check finds it, as the repair does.
#[test]
fn flipped_bit_in_the_length_of_a_file_is_reported_by_the_check() {
    let image = Image::get(false);
    let at = image.ino("/dir/below/file") * 64 + 64;
    let pmem = image.edited(&[Edit { place: u32::try_from(at).unwrap(), kind: kind::FLIP, word: 13 }]);
    let mut fs = open(&pmem).unwrap();
    let found = fs.lookup("dir/below/file").unwrap().attributes();
    let problems = fs.check().problems;
    let repaired = fs.repair().unwrap().repaired;
    assert!(!problems.is_empty(), "stat: {found:?}, the check finds nothing, and a repair: {repaired:?}");
}
