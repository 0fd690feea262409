//! A file system behaves like a tree in memory, also after it was closed, and after it was abandoned like a killed process.

use pm_core::{Pmem as _, Region};
use pm_fs::{FileKind, Fs, FsError, FsOptions, Handle, NewFile, SetXattr};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

type Memory = AnyPmem<'static>;

/// A file of the model.
#[derive(Clone, Debug)]
enum Content {
    File(Vec<u8>),
    Dir(BTreeMap<String, usize>),
    Symlink(Vec<u8>),
}

#[derive(Clone, Debug)]
struct File {
    content: Content,
    nlink: u64,
    xattrs: BTreeMap<String, Vec<u8>>,
}

impl File {
    const fn new(content: Content, nlink: u64) -> Self {
        Self { content, nlink, xattrs: BTreeMap::new() }
    }
}

/// A tree in memory; file 0 is the root. Files without a name stay in the list.
#[derive(Clone, Debug)]
struct Model {
    files: Vec<File>,
}

type Path = Vec<&'static str>;

impl Model {
    fn new() -> Self {
        Self { files: vec![File::new(Content::Dir(BTreeMap::new()), 2)] }
    }

    fn dir(&self, id: usize) -> Option<&BTreeMap<String, usize>> {
        if let Content::Dir(entries) = &self.files[id].content { Some(entries) } else { None }
    }

    fn dir_mut(&mut self, id: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.files[id].content {
            Content::Dir(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    fn is_dir(&self, id: usize) -> bool {
        self.dir(id).is_some()
    }

    fn find(&self, path: &[&str]) -> Option<usize> {
        path.iter().try_fold(0, |id, name| self.dir(id)?.get(*name).copied())
    }

    /// The directory of a path.
    fn parent(&self, path: &[&str]) -> Option<usize> {
        self.find(&path[..path.len() - 1]).filter(|id| self.is_dir(*id))
    }

    fn create(&mut self, path: &Path, content: Content) -> bool {
        let Some(parent) = self.parent(path) else { return false };
        let name = (*path.last().unwrap()).to_owned();
        if self.dir(parent).unwrap().contains_key(&name) {
            return false;
        }
        let is_dir = matches!(content, Content::Dir(_));
        let id = self.files.len();
        self.files.push(File::new(content, if is_dir { 2 } else { 1 }));
        self.dir_mut(parent).insert(name, id);
        self.files[parent].nlink += u64::from(is_dir);
        true
    }

    fn link(&mut self, from: &Path, to: &Path) -> bool {
        let (Some(id), Some(parent)) = (self.find(from), self.parent(to)) else { return false };
        let name = (*to.last().unwrap()).to_owned();
        if self.is_dir(id) || self.dir(parent).unwrap().contains_key(&name) {
            return false;
        }
        self.dir_mut(parent).insert(name, id);
        self.files[id].nlink += 1;
        true
    }

    fn unlink(&mut self, path: &Path, of_dir: bool) -> bool {
        let Some(parent) = self.parent(path) else { return false };
        let Some(id) = self.find(path) else { return false };
        if self.is_dir(id) != of_dir || self.dir(id).is_some_and(|entries| !entries.is_empty()) {
            return false;
        }
        self.dir_mut(parent).remove(*path.last().unwrap());
        self.files[parent].nlink -= u64::from(of_dir);
        self.files[id].nlink -= if of_dir { 2 } else { 1 };
        true
    }

    fn rename(&mut self, from: &Path, to: &Path, keeps: bool) -> bool {
        let (Some(from_dir), Some(to_dir)) = (self.parent(from), self.parent(to)) else { return false };
        let Some(id) = self.find(from) else { return false };
        let is_dir = self.is_dir(id);
        // Not below itself.
        if is_dir && to.len() > from.len() && to[..from.len()] == from[..] {
            return false;
        }
        if let Some(old) = self.find(to) {
            if keeps {
                return false;
            }
            if old == id {
                return true;
            }
            if is_dir != self.is_dir(old) || self.dir(old).is_some_and(|entries| !entries.is_empty()) {
                return false;
            }
            self.files[old].nlink -= if is_dir { 2 } else { 1 };
            self.files[to_dir].nlink -= u64::from(is_dir);
        }
        self.dir_mut(from_dir).remove(*from.last().unwrap());
        self.dir_mut(to_dir).insert((*to.last().unwrap()).to_owned(), id);
        self.files[from_dir].nlink -= u64::from(is_dir);
        self.files[to_dir].nlink += u64::from(is_dir);
        true
    }

    fn exchange(&mut self, one: &Path, other: &Path) -> bool {
        let (Some(one_dir), Some(other_dir)) = (self.parent(one), self.parent(other)) else { return false };
        let (Some(id), Some(other_id)) = (self.find(one), self.find(other)) else { return false };
        let is_below = |path: &Path, of: &Path| path.len() > of.len() && path[..of.len()] == of[..];
        if is_below(one, other) || is_below(other, one) {
            return false;
        }
        self.dir_mut(one_dir).insert((*one.last().unwrap()).to_owned(), other_id);
        self.dir_mut(other_dir).insert((*other.last().unwrap()).to_owned(), id);
        let [is_dir, other_is_dir] = [id, other_id].map(|id| u64::from(self.is_dir(id)));
        self.files[one_dir].nlink = self.files[one_dir].nlink + other_is_dir - is_dir;
        self.files[other_dir].nlink = self.files[other_dir].nlink + is_dir - other_is_dir;
        true
    }

    fn file_mut(&mut self, path: &Path) -> Option<&mut Vec<u8>> {
        let id = self.find(path)?;
        if let Content::File(bytes) = &mut self.files[id].content { Some(bytes) } else { None }
    }
}

fn new() -> NewFile {
    NewFile { mode: 0o644, uid: 1, gid: 2, umask: 0 }
}

fn find(fs: &Fs<Memory>, path: &[&str]) -> Result<Handle<Memory>, FsError> {
    fs.lookup(path.join("/"))
}

fn parent(fs: &Fs<Memory>, path: &[&str]) -> Result<Handle<Memory>, FsError> {
    find(fs, &path[..path.len() - 1])
}

/// Compares a directory with the model's.
fn compare(dir: &Handle<Memory>, model: &Model, id: usize) {
    let entries = dir.entries(0).unwrap();
    let names: Vec<String> =
        entries.iter().map(|entry| String::from_utf8(entry.name.clone()).unwrap()).collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(sorted, model.dir(id).unwrap().keys().cloned().collect::<Vec<_>>());
    assert_eq!(dir.attributes().unwrap().nlink, model.files[id].nlink);
    for entry in entries {
        let child = dir.lookup(&entry.name).unwrap();
        let id = model.dir(id).unwrap()[std::str::from_utf8(&entry.name).unwrap()];
        let attributes = child.attributes().unwrap();
        assert_eq!((attributes.ino, attributes.kind), (entry.ino, entry.kind));
        assert_eq!(attributes.nlink, model.files[id].nlink);
        let names = child.xattrs().unwrap();
        assert!(names.iter().map(Vec::as_slice).eq(model.files[id].xattrs.keys().map(String::as_bytes)));
        for (name, value) in &model.files[id].xattrs {
            assert_eq!(child.xattr(name).unwrap(), *value);
        }
        match &model.files[id].content {
            Content::Dir(_) => compare(&child, model, id),
            Content::Symlink(target) => {
                assert_eq!(child.kind(), FileKind::Symlink);
                assert_eq!(child.read_link().unwrap(), *target);
            }
            Content::File(bytes) => {
                assert_eq!(attributes.size, bytes.len() as u64);
                let mut found = vec![1; bytes.len() + 10];
                assert_eq!(child.read_at(0, &mut found).unwrap(), bytes.len());
                assert!(found[..bytes.len()] == **bytes, "the contents of {:?}", entry.name);
            }
        }
    }
}

/// Opens the file system again: after a close, or as after a kill. Writes are atomic then, or not.
fn reopen(fs: Fs<Memory>, pmem: &Memory, is_clean: bool, is_strict: bool) -> Fs<Memory> {
    if is_clean {
        fs.close().unwrap();
    } else {
        // The lock of the pool is given back with the file system, which closes the heap. So the bytes from before that are put back.
        let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
        pmem.load(0, &mut bytes);
        drop(fs);
        for (offset, chunk) in (0..).step_by(1 << 20).zip(bytes.chunks(1 << 20)) {
            pmem.store(offset, chunk);
        }
    }
    Fs::attach(pmem.clone(), &FsOptions::new().strict(is_strict)).unwrap()
}

fn path(random: &mut fastrand::Rng) -> Path {
    let long = "a name that is so long that a block of a directory has room for few entries like it, and needs others soon";
    let names = ["a", "b", "c", "dir", "another", long];
    (0..random.usize(1..4)).map(|_| *random.choice(&names).unwrap()).collect()
}

/// What a call has returned, and whether the model's has succeeded.
type Outcome = (Result<(), FsError>, bool);

/// A length or an offset.
fn size(random: &mut fastrand::Rng) -> usize {
    match random.u32(..10) {
        0..6 => random.usize(..9_000),
        6..9 => random.usize(..70_000),
        _ => random.usize(..600_000),
    }
}

/// A random change of names, of both.
fn change_names(
    fs: &Fs<Memory>,
    model: &mut Model,
    random: &mut fastrand::Rng,
    [first, second]: [&Path; 2],
) -> Outcome {
    let name = *first.last().unwrap();
    match random.u32(..14) {
        0..3 => (
            parent(fs, first).and_then(|dir| dir.create(name, new())).map(drop),
            model.create(first, Content::File(Vec::new())),
        ),
        3..5 => (
            parent(fs, first).and_then(|dir| dir.mkdir(name, new())).map(drop),
            model.create(first, Content::Dir(BTreeMap::new())),
        ),
        5 => {
            let target = vec![b't'; random.usize(1..300)];
            (
                parent(fs, first).and_then(|dir| dir.symlink(name, &target, new())).map(drop),
                model.create(first, Content::Symlink(target)),
            )
        }
        6 => (
            find(fs, second).and_then(|file| parent(fs, first)?.link(&file, name)),
            model.link(second, first),
        ),
        7..9 => (parent(fs, first).and_then(|dir| dir.unlink(name)), model.unlink(first, false)),
        9 => (parent(fs, first).and_then(|dir| dir.rmdir(name)), model.unlink(first, true)),
        10..13 => {
            let (to, keeps) = (*second.last().unwrap(), random.bool());
            let rename = |from: Handle<Memory>, dir: Handle<Memory>| match keeps {
                true => from.rename_to_new(name, &dir, to),
                false => from.rename(name, &dir, to),
            };
            let found = parent(fs, first).and_then(|from| rename(from, parent(fs, second)?));
            (found, model.rename(first, second, keeps))
        }
        _ => {
            let exchange =
                |one: Handle<Memory>| one.exchange(name, &parent(fs, second)?, second.last().unwrap());
            (parent(fs, first).and_then(exchange), model.exchange(first, second))
        }
    }
}

/// A random change of a file's contents or attributes, of both.
fn change_file(fs: &Fs<Memory>, model: &mut Model, random: &mut fastrand::Rng, first: &Path) -> Outcome {
    match random.u32(..10) {
        0..3 => {
            let (offset, len, byte) = (size(random), size(random), random.u8(1..));
            let bytes = vec![byte; len];
            let written = find(fs, first).and_then(|file| file.write_at(offset as u64, &bytes));
            if let Ok(written) = &written {
                assert_eq!(*written, len);
            }
            let expected = model.file_mut(first).map(|file| {
                if len > 0 {
                    let end = file.len().max(offset + len);
                    file.resize(end, 0);
                    file[offset..offset + len].fill(byte);
                }
            });
            (written.map(drop), expected.is_some())
        }
        3 => {
            let bytes = vec![random.u8(1..); random.usize(..5000)];
            let expected = model.file_mut(first).map(|file| file.extend_from_slice(&bytes));
            (find(fs, first).and_then(|file| file.append(&bytes)).map(drop), expected.is_some())
        }
        4 => {
            let (mut at, mut len, keeps) = (size(random), size(random) + 1, random.bool());
            if random.u32(..16) == 0 {
                // A huge page.
                (at, len) = (random.usize(..2) << 21, len + (1 << 21));
            }
            let zeroes = random.bool();
            let expected = model.file_mut(first).map(|file| {
                if zeroes {
                    let end = file.len().min(at + len);
                    file[at.min(end)..end].fill(0);
                }
                if !keeps {
                    file.resize(file.len().max(at + len), 0);
                }
            });
            let found = find(fs, first).and_then(|file| match zeroes {
                true => file.zero_range(at as u64, len as u64, keeps),
                false => file.allocate(at as u64, len as u64, keeps),
            });
            (found, expected.is_some())
        }
        5 => {
            let (at, len) = (size(random), size(random) + 1);
            let expected = model.file_mut(first).map(|file| {
                let end = file.len().min(at + len);
                file[at.min(end)..end].fill(0);
            });
            let found = find(fs, first).and_then(|file| {
                file.punch_hole(at as u64, len as u64)?;
                check_holes(&file, at as u64, (at + len) as u64)
            });
            (found, expected.is_some())
        }
        6 => {
            let (name, value) = (format!("user.{}", random.u32(..4)), vec![7; random.usize(..3000)]);
            let how = random.choice([SetXattr::Any, SetXattr::Create, SetXattr::Replace]).unwrap();
            let expected = model.find(first).is_some_and(|id| {
                let xattrs = &mut model.files[id].xattrs;
                let is_refused = match how {
                    SetXattr::Any => false,
                    SetXattr::Create => xattrs.contains_key(&name),
                    SetXattr::Replace => !xattrs.contains_key(&name),
                };
                if !is_refused {
                    xattrs.insert(name.clone(), value.clone());
                }
                !is_refused
            });
            (find(fs, first).and_then(|file| file.set_xattr(&name, &value, how)), expected)
        }
        7 => {
            let name = format!("user.{}", random.u32(..4));
            let expected = model.find(first).is_some_and(|id| model.files[id].xattrs.remove(&name).is_some());
            (find(fs, first).and_then(|file| file.remove_xattr(&name)), expected)
        }
        _ => {
            let len = size(random);
            let expected = model.file_mut(first).map(|file| file.resize(len, 0));
            (find(fs, first).and_then(|file| file.truncate(len as u64)), expected.is_some())
        }
    }
}

/// `PM_FS_OPS` sets the number of calls.
#[test]
fn file_system_is_a_tree() {
    let count = std::env::var("PM_FS_OPS").map_or(20_000, |count| count.parse().expect("a number"));
    let mut random = fastrand::Rng::with_seed(7);
    let pmem = any(Region::anonymous(256 << 20).unwrap());
    let mut fs = Fs::format(pmem.clone(), &FsOptions::new()).unwrap();
    let mut model = Model::new();
    for number in 0..count {
        let (first, second) = (path(&mut random), path(&mut random));
        let (found, expected) = match random.u32(..24) {
            0..14 => change_names(&fs, &mut model, &mut random, [&first, &second]),
            _ => change_file(&fs, &mut model, &mut random, &first),
        };
        assert_eq!(found.is_ok(), expected, "call {number}, of {first:?} and {second:?}: {found:?}");
        if number % (count / 20 + 1) == 0 {
            compare(&fs.root(), &model, 0);
            let report = fs.check();
            assert!(report.problems.is_empty(), "call {number}: {:#?}", report.problems);
            fs = reopen(fs, &pmem, random.bool(), random.bool());
            let report = fs.check();
            assert!(report.problems.is_empty(), "call {number}, opened: {:#?}", report.problems);
        }
    }
    compare(&fs.root(), &model, 0);
    // Everything can be removed, and is free then.
    remove_all(&fs.root());
    let report = fs.check();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    assert_eq!((report.inodes, report.pages), (1, 0));
}

/// The whole pages of a range that was punched are a hole, as far as the file goes, and what seeks find is data or not.
fn check_holes(file: &Handle<Memory>, start: u64, end: u64) -> Result<(), FsError> {
    let size = file.attributes()?.size;
    let (start, end) = (start.next_multiple_of(4096), (end / 4096 * 4096).min(size));
    if start < end {
        assert_eq!(file.seek_hole(start)?, start);
        let data = file.seek_data(start).unwrap_or(size);
        assert!(data >= end, "{data} is in the hole before {end}");
    }
    let mut at = 0;
    while let Ok(data) = file.seek_data(at) {
        assert!(at <= data && data < size);
        let mut hole = vec![1; usize::try_from(data - at).unwrap()];
        file.read_at(at, &mut hole)?;
        assert!(hole.iter().all(|byte| *byte == 0), "a hole has data");
        at = file.seek_hole(data)?;
        assert!(data < at && at <= size);
    }
    Ok(())
}

/// A range without room is refused before it takes pages, or zeroes bytes.
#[test]
fn ranges_without_room_change_nothing() {
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let fs = Fs::format(any(pmem), &FsOptions::new()).unwrap();
    let file = fs.root().create("file", new()).unwrap();
    file.write_at(0, &[7; 5000]).unwrap();
    let free = fs.stats().unwrap().free_pages;
    for len in [(free + 3) * 4096, 1 << 40] {
        assert!(matches!(file.zero_range(0, len, false), Err(FsError::NoSpace)));
        assert!(matches!(file.allocate(0, len, true), Err(FsError::NoSpace)));
    }
    let mut found = [0; 6000];
    assert_eq!((file.read_at(0, &mut found).unwrap(), fs.stats().unwrap().free_pages), (5000, free));
    assert!(found[..5000].iter().all(|byte| *byte == 7));
    // Exactly the rest: the two pages of the file are there.
    file.allocate(0, (free + 2) * 4096, true).unwrap();
    assert_eq!(fs.stats().unwrap().free_pages, 0);
}

fn remove_all(dir: &Handle<Memory>) {
    for entry in dir.entries(0).unwrap() {
        if entry.kind == FileKind::Directory {
            remove_all(&dir.lookup(&entry.name).unwrap());
            dir.rmdir(&entry.name).unwrap();
        } else {
            dir.unlink(&entry.name).unwrap();
        }
    }
}

#[test]
fn long_names_are_refused() {
    let fs = Fs::format(Region::anonymous(16 << 20).unwrap(), &FsOptions::new()).unwrap();
    let root = &fs.root();
    let new = NewFile { mode: 0o755, uid: 0, gid: 0, umask: 0 };
    let [longest, longer] = [255, 256].map(|len| "n".repeat(len));
    root.create(&longest, new).unwrap();
    root.lookup(&longest).unwrap();
    let file = root.create("f", new).unwrap();
    for refused in [
        root.lookup(&longer).map(drop),
        root.create(&longer, new).map(drop),
        root.unlink(&longer),
        root.rmdir(&longer),
        root.link(&file, &longer),
        root.rename("f", root, &longer),
        root.rename(&longer, root, "f"),
        root.exchange("f", root, &longer),
    ] {
        assert!(matches!(refused, Err(FsError::NameTooLong)), "{refused:?}");
    }
    root.unlink(&longest).unwrap();
}
