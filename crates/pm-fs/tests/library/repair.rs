//! Repairs: afterwards a check finds nothing, and what was not corrupted is there.

use crate::edits::{EDIT_BYTES, Edit, Image, kind, open, walk};
use pm_core::{Pmem as _, Region};
use pm_crashsim::{Explorer, Model, Oracle, Sequences, SimPmem, Subject};
use pm_fs::{Corruption, FileKind, Fs, FsError, FsOptions, Handle, NewFile, RepairReport};
use pm_testkit::{AnyPmem, any};
use std::sync::{Arc, Mutex};

/// Repairs an image with these edits. Checks that nothing is left to repair, and that the file system can be changed and opened again.
fn repair(image: &Image, edits: &[Edit]) -> Option<(Fs<AnyPmem<'static>>, RepairReport)> {
    let pmem = image.edited(edits);
    let mut fs = match open(&pmem) {
        Ok(fs) => fs,
        // The superblock, the root, or the heap.
        Err(_) => return None,
    };
    let report = match fs.repair() {
        Ok(report) => report,
        // The heap's list of blocks is not to be relied on.
        Err(FsError::NoSpace | FsError::NoRepair(_)) => return None,
        Err(FsError::Corrupted(Corruption { what: "a directory of the superblock", .. })) => return None,
        Err(error) => panic!("{edits:x?}: {error}"),
    };
    // The heap repairs its own blocks.
    if fs.heap().check().is_clean() {
        assert_eq!(report.left.problems, Vec::<String>::new(), "{edits:x?}: {:#?}", report.repaired);
    }
    let again = fs.repair().unwrap();
    assert_eq!(again.repaired, Vec::<String>::new(), "{edits:x?}: {:#?}", report.repaired);
    Some((fs, report))
}

#[test]
fn whole_file_system_stays_as_it_is() {
    for has_orphans in [false, true] {
        let image = Image::get(has_orphans);
        let (fs, report) = repair(image, &[]).unwrap();
        assert_eq!((report.repaired, report.found), (Vec::new(), 0));
        assert!(walk(&fs.root()).unwrap() == image.view);
    }
}

#[test]
fn random_edits_are_repaired() {
    let mut random = fastrand::Rng::with_seed(3);
    let count = std::env::var("PM_EDITS").map_or(500, |count| count.parse().expect("a number"));
    let mut repaired = 0;
    for _ in 0..count {
        let mut bytes = vec![0; EDIT_BYTES * random.usize(1..4)];
        random.fill(&mut bytes);
        if random.bool() {
            bytes.chunks_mut(EDIT_BYTES).for_each(|edit| edit[8..].fill(0));
        }
        let found = repair(Image::get(random.bool()), &Edit::parse_all(&bytes));
        repaired += usize::from(found.is_some_and(|(_, report)| !report.repaired.is_empty()));
    }
    println!("{repaired} of {count} needed a repair");
    assert!(repaired > count / 10);
}

/// A directory whose name is lost is in `lost+found`, with all that is below it.
#[test]
fn files_without_names_are_in_lost_and_found() {
    let image = Image::get(false);
    let dir = image.ino("/dir");
    let entry = image.entries[image.entry(dir)];
    let flip = Edit { place: u32::try_from(entry + 16).unwrap(), kind: kind::FLIP, word: 3 };
    let (fs, report) = repair(image, &[flip]).unwrap();
    assert_eq!(report.found, 1, "{:#?}", report.repaired);
    let found = fs.lookup(format!("lost+found/#{dir}")).unwrap();
    assert_eq!(found.kind(), FileKind::Directory);
    let below = |path: &[u8], of: &str| path.strip_prefix(of.as_bytes()).map(<[u8]>::to_vec);
    let names = walk(&found).unwrap().into_keys().filter(|path| !path.is_empty()).collect::<Vec<_>>();
    let expected: Vec<_> = image
        .view
        .keys()
        .filter_map(|path| below(path, "/dir"))
        .filter(|path| path.starts_with(b"/"))
        .collect();
    assert!(!names.is_empty());
    assert_eq!(names, expected);
    // All other names are there.
    let left = walk(&fs.root()).unwrap();
    assert!(image.view.keys().all(|path| path.starts_with(b"/dir") || left.contains_key(path)));
    fs.root().create("new", NewFile::default()).unwrap().append(&[7; 5000]).unwrap();
    assert_eq!(fs.check().problems, Vec::<String>::new());
}

/// What a close has saved is nothing to repair.
#[test]
fn closed_file_system_needs_no_repair() {
    let pmem = Image::get(false).edited(&[]);
    open(&pmem).unwrap().repair().unwrap();
    let fs = open(&pmem).unwrap();
    fs.prepare().unwrap();
    fs.close().unwrap();
    let report = open(&pmem).unwrap().repair().unwrap();
    assert_eq!((report.repaired, report.left.problems), (Vec::new(), Vec::new()));
}

/// Another file in `lost+found` has the name that a lost one would get: both are there.
#[test]
fn names_in_lost_and_found_are_kept() {
    let image = Image::get(false);
    let dir = image.ino("/dir");
    let entry = image.entries[image.entry(dir)];
    let pmem = image.edited(&[]);
    let fs = open(&pmem).unwrap();
    let found = fs.root().mkdir("lost+found", NewFile::default()).unwrap();
    found.create(format!("#{dir}"), NewFile::default()).unwrap().append(b"other").unwrap();
    // Recovery replays the last transactions, over what is edited.
    for mode in 0..4 {
        let set = pm_fs::SetAttributes { mode: Some(0o700 + mode), ..Default::default() };
        found.set_attributes(&set).unwrap();
    }
    drop(found);
    drop(fs);
    pmem.store_u64(entry + 16, 0xbad);
    let mut fs = open(&pmem).unwrap();
    let report = fs.repair().unwrap();
    assert_eq!((report.found, report.left.problems), (1, Vec::new()));
    let mut text = [0; 5];
    fs.lookup(format!("lost+found/#{dir}")).unwrap().read_at(0, &mut text).unwrap();
    assert_eq!(&text, b"other");
    assert_eq!(fs.lookup("lost+found").unwrap().entries(0).unwrap().len(), 2);
}

/// A page that two files have is copied: neither sees the other's changes.
#[test]
fn pages_of_two_files_are_copied() {
    let image = Image::get(false);
    // The first slot of each.
    let page = image.word(image.ino("/short") * 64 + 128) & ((1 << 48) - 1);
    let edit = Edit::of(kind::INODE_WORD, image.inode(image.ino("/dir/below/file")), 0, page << 8);
    let (fs, report) = repair(image, &[edit]).unwrap();
    assert!(report.repaired.iter().any(|line| line.contains("was copied")), "{:#?}", report.repaired);
    let short = fs.lookup("short").unwrap();
    let mut before = [0; 8];
    short.read_at(0, &mut before).unwrap();
    fs.lookup("dir/below/file").unwrap().write_at(0, &[0xee; 4096]).unwrap();
    let mut after = [0; 8];
    short.read_at(0, &mut after).unwrap();
    assert_eq!(before, after);
}

#[test]
fn repair_needs_the_file_system_alone() {
    let mut fs = open(&Image::get(false).edited(&[])).unwrap();
    let root = fs.root();
    assert!(matches!(fs.repair(), Err(FsError::InUse)));
    drop(root);
    fs.repair().unwrap();
}

/// A file system in which a directory with a file has lost its name, another one a block, and a file its number of links.
#[derive(Clone, Copy, Debug)]
struct DamagedFs;

type SimFs = Fs<AnyPmem<'static>>;

/// The sorted paths, and the lengths of files.
type Paths = Vec<(String, u64)>;

fn paths(dir: &Handle<AnyPmem<'static>>, prefix: &str, paths: &mut Paths) -> Result<(), FsError> {
    for entry in dir.entries(0)? {
        let file = dir.lookup(&entry.name)?;
        let path = format!("{prefix}/{}", String::from_utf8(entry.name).unwrap());
        let is_dir = file.kind() == FileKind::Directory;
        if is_dir {
            self::paths(&file, &path, paths)?;
        }
        paths.push((path, if is_dir { 0 } else { file.attributes()?.size }));
    }
    paths.sort();
    Ok(())
}

impl Subject for DamagedFs {
    type Op = ();
    type State = Paths;
    type Store = Mutex<SimFs>;
    type Error = FsError;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<Mutex<SimFs>, FsError> {
        let fs = Fs::format(any(Arc::clone(&pmem)), &crate::crash::options())?;
        let (root, new) = (fs.root(), NewFile::default());
        let (dir, other) = (root.mkdir("lost", new)?, root.mkdir("other", new)?);
        dir.create("file", new)?.append(&[7; 100])?;
        let linked = other.create("linked", new)?;
        other.link(&linked, "again")?;
        for number in 0..4 {
            root.set_attributes(&pm_fs::SetAttributes { mode: Some(0o700 + number), ..Default::default() })?;
        }
        let heap = fs.heap().layout().chunks_start..fs.heap().space_behind().start;
        for at in heap.step_by(8) {
            // The names `lost` and `again`.
            if [0x7473_6f6c, 0x6e_6961_6761].contains(&pmem.load_u64(at)) {
                pmem.store_u64(at, 0xbad);
            }
        }
        drop((root, dir, other, linked));
        drop(fs);
        Ok(Mutex::new(Fs::attach(any(pmem), &crate::crash::options())?))
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Mutex<SimFs>, FsError> {
        Fs::attach(any(pmem), &crate::crash::options()).map(Mutex::new)
    }

    fn apply(&self, fs: &mut Mutex<SimFs>, (): &()) -> Result<(), FsError> {
        fs.get_mut().unwrap().repair().map(drop)
    }

    /// What another repair leaves.
    fn observe(&self, fs: &Mutex<SimFs>) -> Result<Paths, FsError> {
        let mut fs = fs.lock().unwrap();
        assert_eq!(fs.repair()?.left.problems, Vec::<String>::new());
        let mut found = Paths::new();
        paths(&fs.root(), "", &mut found)?;
        Ok(found)
    }
}

impl Oracle for DamagedFs {
    fn initial(&self) -> Paths {
        let pmem = Arc::new(SimPmem::new(CRASH_BYTES));
        let fs = self.create(pmem).unwrap();
        self.observe(&fs).unwrap()
    }

    fn expect(&self, _: &mut Paths, (): &()) {}
}

const CRASH_BYTES: u64 = 256 << 10;

#[test]
fn repair_is_repeatable_after_a_crash() {
    let found = DamagedFs.initial();
    let found: Vec<_> = found.iter().map(|(path, len)| (path.rsplit('/').next().unwrap(), *len)).collect();
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(found.contains(&("file", 100)) && found.contains(&("linked", 0)), "{found:?}");
    let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(8).nested_choices_per_point(1);
    Sequences::new(DamagedFs, CRASH_BYTES).unwrap().explorer(explorer).crash_onward(0).check(&[()]);
}

/// A file system with a file `file` of 401 pages, whose last one is lost with the only slot of its inner node. The repair empties that node.
fn with_emptied_node() -> Fs<AnyPmem<'static>> {
    let pmem = Arc::new(Region::anonymous(8 << 20).unwrap());
    let fs = Fs::format(any(Arc::clone(&pmem)), &FsOptions::new()).unwrap();
    let file = fs.root().create("file", NewFile::default()).unwrap();
    file.write_at(0, &[7; 400 * 4096]).unwrap();
    // The second slot of a root of height 2.
    file.write_at(1 << 30, &[7; 4096]).unwrap();
    let node = (pmem.load_u64(file.ino() * 64 + 128 + 8) & ((1 << 40) - 1)) * 64;
    drop(file);
    fs.close().unwrap();
    assert_ne!(pmem.load_u64(node + 48), 0, "its only slot");
    pmem.store_u64(node + 48, 0xdead);
    let mut fs = Fs::attach(any(Arc::clone(&pmem)), &FsOptions::new()).unwrap();
    let report = fs.repair().unwrap();
    assert_eq!(report.left.problems, Vec::<String>::new());
    assert_eq!(report.repaired.len(), 2, "{:?}", report.repaired);
    fs
}

#[test]
fn file_with_an_emptied_node_is_removed_wholly() {
    let fs = with_emptied_node();
    fs.root().unlink("file").unwrap();
    assert_eq!(fs.check().problems, Vec::<String>::new());
    let stats = fs.stats().unwrap();
    assert_eq!(stats.pages, stats.free_pages);
}

#[test]
fn file_with_an_emptied_node_is_truncated_wholly() {
    let fs = with_emptied_node();
    fs.lookup("file").unwrap().truncate(0).unwrap();
    let stats = fs.stats().unwrap();
    assert_eq!(stats.pages, stats.free_pages);
}

/// A symbolic link whose page was lost is not reported, and stays unreadable after a repair.
#[test]
fn repaired_symbolic_link_is_readable_or_gone() {
    let image = Image::get(false);
    let far = image.inode(image.ino("/dir/far"));
    // Its only slot refers to no page.
    let edit = Edit::of(kind::INODE_WORD, far, 0, (0xff_ffff << 8) | 3);
    let pmem = image.edited(&[edit]);
    // A wrong checksum.
    let mut fs = open(&pmem).unwrap();
    let report = fs.repair().unwrap();
    let target = fs.lookup("dir/far").and_then(|file| file.read_link());
    assert!(
        !report.left.problems.is_empty() || !matches!(target, Err(FsError::Corrupted(_))),
        "repaired: {:?}, left: {:?}, but readlink: {target:?}",
        report.repaired,
        report.left.problems
    );
}
