//! Crashes of every call at small scale: each is whole or undone, and everything is accounted for.

use core::sync::atomic::{AtomicU64, Ordering};
use pm_alloc::HeapOptions;
use pm_core::protection::Protected;
use pm_core::{PoolOptions, Uuid};
use pm_crashsim::{CheckedWindows, Explorer, Model, Oracle, Sequences, SimPmem, Subject, Windowed};
use pm_fs::format::HUGE_PAGE_BYTES;
use pm_fs::{FileKind, Fs, FsError, FsOptions, Handle, NewFile};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

const REGION_BYTES: u64 = 256 << 10;

/// A call. Names are those of the root, or of the directory `d` in it after a slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Create(&'static str),
    Mkdir(&'static str),
    Symlink(&'static str, usize),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    /// While the file is open.
    UnlinkOpen(&'static str),
    Rmdir(&'static str),
    Rename(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    /// Appends so many bytes of this value.
    Append(&'static str, usize, u8),
    /// Stores a word.
    Overwrite(&'static str, u64, u8),
    /// Stores so many bytes of this value.
    Write(&'static str, usize, usize, u8),
    /// Creates a file without a name, appends so many bytes, and gives it this name.
    Publish(&'static str, usize),
    /// Stores a word in a map of the whole file.
    MapStore(&'static str, u64, u8),
    /// Gives a directory a default access control list.
    SetAcl(&'static str),
    /// Makes writes to a file atomic, or not.
    SetStrict(&'static str, bool),
    Truncate(&'static str, usize),
    /// Gives a range pages, and the file its length.
    Allocate(&'static str, u64, u64),
    /// Frees whole pages.
    Punch(&'static str, u64, u64),
    /// Makes a word zero.
    Zero(&'static str, u64),
    Chmod(&'static str, u32),
    /// Sets the attribute `user.a` to so many bytes.
    SetXattr(&'static str, usize),
    RemoveXattr(&'static str),
    /// Closes the file system, and opens it again.
    Reopen,
}
use Op::{
    Allocate, Append, Chmod, Create, Exchange, Link, MapStore, Mkdir, Overwrite, Publish, Punch, RemoveXattr,
    Rename, Reopen, Rmdir, SetAcl, SetStrict, SetXattr, Symlink, Truncate, Unlink, UnlinkOpen, Write, Zero,
};

/// A file system with a file `f` of so many bytes, a file `g`, and a directory `d` with a file `d/x`.
#[derive(Clone, Copy, Debug)]
struct SmallFs {
    len: usize,
    /// Whether the first change prepares it, and not the open, and files are only read before that.
    is_lazy: bool,
    /// Whether writes are atomic in all files.
    is_strict: bool,
    /// Whether a load or store outside a window is a panic.
    is_protected: bool,
    region_bytes: u64,
}

impl SmallFs {
    const fn new(len: usize) -> Self {
        Self { len, is_lazy: false, is_strict: false, is_protected: false, region_bytes: REGION_BYTES }
    }

    fn memory(&self, pmem: &Arc<SimPmem>) -> AnyPmem<'static> {
        match self.is_protected {
            true => any(Protected::with_windows(CheckedWindows::new(Arc::clone(pmem)), Windowed)),
            false => any(pmem),
        }
    }
}

/// An open one. `None` if it could not be opened again.
struct Store {
    pmem: Arc<SimPmem>,
    fs: Option<SimFs>,
}

impl Store {
    fn fs(&self) -> &SimFs {
        self.fs.as_ref().expect("it is open")
    }
}

/// What a path has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    kind: FileKind,
    nlink: u64,
    mode: u32,
    /// The contents, or the target of a link.
    bytes: Vec<u8>,
    /// The length of the attribute `user.a`.
    xattr: Option<usize>,
    /// Whether it has a default access control list, and the permissions of the mask of its access list.
    acl: (bool, Option<u8>),
    /// The first of all paths of this file.
    first: String,
}

type State = BTreeMap<String, File>;

type SimFs = Fs<AnyPmem<'static>>;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("{0:?}")]
    Unsound(Vec<String>),
}

const ACCESS_ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// A list with a user: `u::rwx,u:1:rwx,g::r-x,m::rwx,o::r-x`.
const ACL: &[u8] = b"\x02\0\0\0\
    \x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\x01\0\0\0\x04\0\x05\0\xff\xff\xff\xff\
    \x10\0\x07\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";

/// The offset of the permissions of the mask in [`ACL`].
const MASK_AT: usize = 4 + 3 * 8 + 2;

/// A clock that is the same in each run would need a state of its own; times are not compared.
fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(1);
    NOW.load(Ordering::Relaxed)
}

pub(crate) fn options() -> FsOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let heap = HeapOptions::new().seed(7).pool(pool).lanes(1).lane_entries(126);
    FsOptions::new().heap(heap).metadata_share(2).clock(clock)
}

fn new() -> NewFile {
    NewFile { mode: 0o644, uid: 0, gid: 0, umask: 0 }
}

/// The directory of a path, and its last name.
fn place<'n>(fs: &SimFs, path: &'n str) -> Result<(Handle<AnyPmem<'static>>, &'n str), FsError> {
    match path.rsplit_once('/') {
        Some((dir, name)) => Ok((fs.lookup(dir)?, name)),
        None => Ok((fs.root(), path)),
    }
}

fn apply(fs: &SimFs, op: &Op) -> Result<(), FsError> {
    let at = |path| place(fs, path);
    match *op {
        Create(path) => at(path).and_then(|(dir, name)| dir.create(name, new())).map(drop),
        Mkdir(path) => at(path).and_then(|(dir, name)| dir.mkdir(name, new())).map(drop),
        Symlink(path, len) => {
            at(path).and_then(|(dir, name)| dir.symlink(name, vec![b't'; len], new())).map(drop)
        }
        Link(path, to) => fs.lookup(path).and_then(|file| at(to)?.0.link(&file, at(to)?.1)),
        Unlink(path) => at(path).and_then(|(dir, name)| dir.unlink(name)),
        UnlinkOpen(path) => {
            let file = fs.lookup(path)?;
            at(path).and_then(|(dir, name)| dir.unlink(name))?;
            let mut byte = [0];
            file.read_at(0, &mut byte).map(drop)
        }
        Rmdir(path) => at(path).and_then(|(dir, name)| dir.rmdir(name)),
        Rename(from, to) => {
            let (from, to) = (at(from)?, at(to)?);
            from.0.rename(from.1, &to.0, to.1)
        }
        Exchange(one, other) => {
            let (one, other) = (at(one)?, at(other)?);
            one.0.exchange(one.1, &other.0, other.1)
        }
        Allocate(path, at, len) => fs.lookup(path)?.allocate(at, len, false),
        Punch(path, at, len) => fs.lookup(path)?.punch_hole(at, len),
        Zero(path, at) => fs.lookup(path)?.zero_range(at, 8, true),
        Append(path, len, byte) => fs.lookup(path)?.append(&vec![byte; len]).map(drop),
        Overwrite(path, at, byte) => fs.lookup(path)?.write_at(at, &[byte; 8]).map(drop),
        Write(path, at, len, byte) => fs.lookup(path)?.write_at(at as u64, &vec![byte; len]).map(drop),
        Publish(path, len) => {
            let (dir, name) = at(path)?;
            let file = dir.create_unnamed(new())?;
            file.append(&vec![b'p'; len])?;
            dir.link(&file, name)
        }
        MapStore(path, at, byte) => {
            let file = fs.lookup(path)?;
            let map = file.map(0, file.attributes()?.size)?;
            map.store(at, &[byte; 8])?;
            map.persist(at..at + 8)
        }
        SetAcl(path) => fs.lookup(path)?.set_xattr(DEFAULT_ACL, ACL, pm_fs::SetXattr::Any),
        SetStrict(path, is_strict) => fs.lookup(path)?.set_strict(is_strict),
        Truncate(path, len) => fs.lookup(path)?.truncate(len as u64),
        Chmod(path, mode) => {
            let set = pm_fs::SetAttributes { mode: Some(mode), ..Default::default() };
            fs.lookup(path)?.set_attributes(&set)
        }
        SetXattr(path, len) => fs.lookup(path)?.set_xattr("user.a", vec![b'v'; len], pm_fs::SetXattr::Any),
        RemoveXattr(path) => fs.lookup(path)?.remove_xattr("user.a"),
        Reopen => unreachable!("needs the region"),
    }
}

fn observe(
    dir: &Handle<AnyPmem<'static>>,
    prefix: &str,
    firsts: &mut BTreeMap<u64, String>,
    state: &mut State,
) -> Result<(), FsError> {
    let mut entries = dir.entries(0)?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in entries {
        let path = format!("{prefix}{}", String::from_utf8(entry.name.clone()).unwrap());
        let file = dir.lookup(&entry.name)?;
        let attributes = file.attributes()?;
        let first = firsts.entry(entry.ino).or_insert_with(|| path.clone()).clone();
        let mut bytes = Vec::new();
        match entry.kind {
            FileKind::Directory => observe(&file, &format!("{path}/"), firsts, state)?,
            FileKind::Symlink => bytes = file.read_link()?,
            _ => {
                bytes = vec![1; usize::try_from(attributes.size).unwrap()];
                assert_eq!(file.read_at(0, &mut bytes)?, bytes.len());
            }
        }
        let (nlink, mode) = (attributes.nlink, attributes.mode);
        let xattr = match file.xattr("user.a") {
            Ok(value) => Some(value.len()),
            Err(FsError::NoAttribute) => None,
            Err(error) => return Err(error),
        };
        let acl = (file.xattr(DEFAULT_ACL).is_ok(), file.xattr(ACCESS_ACL).ok().map(|acl| acl[MASK_AT]));
        state.insert(path, File { kind: entry.kind, nlink, mode, bytes, xattr, acl, first });
    }
    Ok(())
}

/// Whether a call changes nothing because of the state that it finds: a sequence is continued after a crash, too.
const fn is_refusal(error: &FsError) -> bool {
    matches!(
        error,
        FsError::NotFound
            | FsError::Exists
            | FsError::NotADirectory
            | FsError::IsADirectory
            | FsError::NotEmpty
            | FsError::Invalid
            | FsError::NotPermitted
            | FsError::NoAttribute
    )
}

impl Subject for SmallFs {
    type Op = Op;
    type State = State;
    type Store = Store;
    type Error = Failure;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<Store, Failure> {
        let fs = Fs::format(self.memory(&pmem), &options().strict(self.is_strict))?;
        for op in [Create("f"), Append("f", self.len, b'f'), Create("g"), Mkdir("d"), Create("d/x")] {
            apply(&fs, &op)?;
        }
        Ok(Store { pmem, fs: Some(fs) })
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Store, Failure> {
        let fs = Fs::attach(self.memory(&pmem), &options().strict(self.is_strict))?;
        if !self.is_lazy {
            fs.prepare()?;
        }
        Ok(Store { pmem, fs: Some(fs) })
    }

    fn apply(&self, store: &mut Store, op: &Op) -> Result<(), Failure> {
        if *op == Reopen {
            store.fs.take().expect("it is open").close()?;
            store.fs = self.open(Arc::clone(&store.pmem))?.fs;
            return Ok(());
        }
        match apply(store.fs(), op) {
            Err(error) if !is_refusal(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn observe(&self, store: &Store) -> Result<State, Failure> {
        let mut state = State::new();
        observe(&store.fs().root(), "", &mut BTreeMap::new(), &mut state)?;
        if self.is_lazy {
            return Ok(state);
        }
        let report = store.fs().check();
        match report.problems.is_empty() {
            true => Ok(state),
            false => Err(Failure::Unsound(report.problems)),
        }
    }
}

impl Oracle for SmallFs {
    fn initial(&self) -> State {
        let mut state = State::new();
        for op in [Create("f"), Append("f", self.len, b'f'), Create("g"), Mkdir("d"), Create("d/x")] {
            self.expect(&mut state, &op);
        }
        state
    }

    fn expect(&self, state: &mut State, op: &Op) {
        let add = |state: &mut State, path: &str, kind, mode, bytes| {
            if has_dir(state, path) && !state.contains_key(path) {
                let first = path.to_owned();
                let dir = path.rsplit_once('/').and_then(|(dir, _)| state.get(dir));
                let mut file = File { kind, nlink: 0, mode, bytes, xattr: None, acl: (false, None), first };
                if dir.is_some_and(|dir| dir.acl.0) {
                    let mask = u8::try_from(mode >> 3 & 7).unwrap();
                    file.acl = (kind == FileKind::Directory, Some(mask));
                }
                state.insert(path.to_owned(), file);
            }
        };
        let edit = |state: &mut State, path: &str, edit: &dyn Fn(&mut File)| {
            let Some(first) = state.get(path).map(|file| file.first.clone()) else { return };
            state.values_mut().filter(|file| file.first == first).for_each(edit);
        };
        let edit_bytes = |state: &mut State, path: &str, change: &dyn Fn(&mut Vec<u8>)| {
            if kind(state, path) == Some(FileKind::File) {
                edit(state, path, &|file| change(&mut file.bytes));
            }
        };
        match *op {
            Create(path) => add(state, path, FileKind::File, 0o644, Vec::new()),
            Mkdir(path) => add(state, path, FileKind::Directory, 0o644, Vec::new()),
            Symlink(path, len) => add(state, path, FileKind::Symlink, 0o777, vec![b't'; len]),
            Link(path, to) => {
                let file = state.get(path).filter(|file| file.kind != FileKind::Directory).cloned();
                if let Some(file) = file
                    && has_dir(state, to)
                    && !state.contains_key(to)
                {
                    state.insert(to.to_owned(), file);
                }
            }
            Unlink(path) | UnlinkOpen(path) => {
                if kind(state, path).is_some_and(|kind| kind != FileKind::Directory) {
                    state.remove(path);
                }
            }
            Rmdir(path) => {
                if kind(state, path) == Some(FileKind::Directory) && is_empty(state, path) {
                    state.remove(path);
                }
            }
            Rename(from, to) => rename(state, from, to),
            Exchange(one, other) => exchange(state, one, other),
            Allocate(path, at, len) => edit_bytes(state, path, &|bytes| {
                bytes.resize(bytes.len().max(usize::try_from(at + len).unwrap()), 0);
            }),
            Punch(path, at, len) => edit_bytes(state, path, &|bytes| {
                let [at, end] = [at, at + len].map(|at| usize::try_from(at).unwrap().min(bytes.len()));
                bytes[at..end].fill(0);
            }),
            Zero(path, at) => edit_bytes(state, path, &|bytes| {
                let at = usize::try_from(at).unwrap();
                bytes[at..at + 8].fill(0);
            }),
            Append(path, len, byte) => {
                edit_bytes(state, path, &|bytes| bytes.resize(bytes.len() + len, byte));
            }
            Overwrite(path, at, byte) => edit_bytes(state, path, &|bytes| {
                let at = usize::try_from(at).unwrap();
                bytes.resize(bytes.len().max(at + 8), 0);
                bytes[at..at + 8].fill(byte);
            }),
            Write(path, at, len, byte) => edit_bytes(state, path, &|bytes| {
                bytes.resize(bytes.len().max(at + len), 0);
                bytes[at..at + len].fill(byte);
            }),
            SetStrict(..) => {}
            Truncate(path, len) => edit_bytes(state, path, &|bytes| bytes.resize(len, 0)),
            Publish(path, len) => add(state, path, FileKind::File, 0o644, vec![b'p'; len]),
            MapStore(path, at, byte) => edit_bytes(state, path, &|bytes| {
                let at = usize::try_from(at).unwrap();
                bytes[at..at + 8].fill(byte);
            }),
            SetAcl(path) => edit(state, path, &|file| file.acl.0 = true),
            Chmod(path, mode) => edit(state, path, &|file| {
                file.mode = mode;
                file.acl.1 = file.acl.1.map(|_| u8::try_from(mode >> 3 & 7).unwrap());
            }),
            SetXattr(path, len) => edit(state, path, &|file| file.xattr = Some(len)),
            RemoveXattr(path) => edit(state, path, &|file| file.xattr = None),
            Reopen => {}
        }
        normalize(state);
    }
}

fn kind(state: &State, path: &str) -> Option<FileKind> {
    state.get(path).map(|file| file.kind)
}

/// Whether the directory of a path exists.
fn has_dir(state: &State, path: &str) -> bool {
    path.rsplit_once('/').is_none_or(|(dir, _)| kind(state, dir) == Some(FileKind::Directory))
}

fn is_below(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'))
}

fn is_empty(state: &State, path: &str) -> bool {
    !state.keys().any(|other| is_below(other, path))
}

fn rename(state: &mut State, from: &str, to: &str) {
    let Some(file) = state.get(from) else { return };
    let is_dir = file.kind == FileKind::Directory;
    let replaces = state.get(to).is_none_or(|old| {
        old.first != file.first && (old.kind == FileKind::Directory) == is_dir && is_empty(state, to)
    });
    if has_dir(state, to) && replaces && !is_below(to, from) {
        let moved: Vec<String> =
            state.keys().filter(|path| *path == from || is_below(path, from)).cloned().collect();
        for path in moved {
            let file = state.remove(&path).unwrap();
            state.insert(format!("{to}{}", &path[from.len()..]), file);
        }
    }
}

fn exchange(state: &mut State, one: &str, other: &str) {
    let exist = state.contains_key(one) && state.contains_key(other);
    if !exist || is_below(one, other) || is_below(other, one) {
        return;
    }
    let exchanged = core::mem::take(state).into_iter().map(|(path, file)| {
        let renamed = [(one, other), (other, one)].into_iter().find_map(|(from, to)| {
            (path == from || is_below(&path, from)).then(|| format!("{to}{}", &path[from.len()..]))
        });
        (renamed.unwrap_or(path), file)
    });
    *state = exchanged.collect();
}

/// Names the files by the first of their paths, and counts links.
fn normalize(state: &mut State) {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, file) in state.iter() {
        groups.entry(file.first.clone()).or_default().push(path.clone());
    }
    for paths in groups.values() {
        for path in paths {
            let file = state.get_mut(path).unwrap();
            (file.first, file.nlink) = (paths[0].clone(), paths.len() as u64);
        }
    }
    let dirs: Vec<String> = state
        .iter()
        .filter(|(_, file)| file.kind == FileKind::Directory)
        .map(|(path, _)| path.clone())
        .collect();
    for dir in &dirs {
        let children =
            dirs.iter().filter(|path| path.rsplit_once('/').is_some_and(|(parent, _)| parent == dir));
        let nlink = 2 + children.count() as u64;
        state.get_mut(dir).unwrap().nlink = nlink;
    }
}

fn choices() -> u64 {
    std::env::var("PM_CRASH_CHOICES").map_or(48, |count| count.parse().expect("a number"))
}

/// Every kind of call, on files of two lengths: a part of a page, and more than eight pages, whose index has a node.
const CALLS: [Op; 27] = [
    Create("new"),
    Mkdir("new"),
    Symlink("new", 20),
    Symlink("new", 200),
    Link("f", "d/f"),
    Unlink("g"),
    Unlink("f"),
    UnlinkOpen("f"),
    Rename("f", "new"),
    Rename("g", "d/new"),
    Rename("f", "g"),
    Append("f", 200, 7),
    Append("f", 5000, 7),
    Overwrite("f", 8, 7),
    Overwrite("f", 9000, 7),
    Truncate("f", 50),
    Chmod("f", 0o600),
    Exchange("f", "g"),
    Exchange("f", "d"),
    Exchange("g", "d/x"),
    Allocate("g", 100, 9000),
    Allocate("f", 0, 40_000),
    Punch("f", 0, 2 * 4096),
    Zero("f", 16),
    SetXattr("f", 100),
    Publish("d/new", 5000),
    MapStore("f", 16, 7),
];

const LENGTHS: [usize; 2] = [100, 8 * 4096 + 5];

fn explore(explorer: Explorer, len: usize, ops: &[Op]) {
    explore_in(SmallFs::new(len), explorer, ops);
}

fn explore_in(fs: SmallFs, explorer: Explorer, ops: &[Op]) {
    let sequences = Sequences::new(fs, fs.region_bytes).unwrap();
    sequences.explorer(explorer).crash_onward(0).check(ops);
}

#[test]
fn calls_are_atomic() {
    for model in [Model::Px86Line, Model::Eadr, Model::Page] {
        for len in LENGTHS {
            for op in CALLS {
                let explorer =
                    Explorer::new(model).crashes(1).choices_per_point(choices()).nested_choices_per_point(1);
                explore(explorer, len, &[op]);
            }
        }
    }
}

/// The process is killed at each point, another one opens the file system, and is crashed. Bytes that were being overwritten are not promised then: they may be
/// read, and taken back by the power failure.
#[test]
fn calls_of_killed_processes_are_atomic() {
    for len in LENGTHS {
        let overwrites = |op: &Op| match op {
            Overwrite(_, at, _) => *at < len as u64,
            Zero(..) | MapStore(..) => true,
            _ => false,
        };
        for op in CALLS.into_iter().filter(|op| !overwrites(op)) {
            let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(4);
            explore(explorer, len, &[op]);
        }
    }
}

/// Each load, store and flush is in a window of its own range, those of the creation, of recovery and of a close too, and crashes leave the same.
#[test]
fn calls_in_windows_are_atomic() {
    for len in LENGTHS {
        let fs = SmallFs { is_protected: true, ..SmallFs::new(len) };
        for op in CALLS {
            let explorer =
                Explorer::new(Model::Px86Line).crashes(1).choices_per_point(4).nested_choices_per_point(1);
            explore_in(fs, explorer, &[op, Reopen]);
        }
        for op in [Create("new"), UnlinkOpen("f"), Rename("f", "g"), Append("f", 5000, 7)] {
            let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(2);
            explore_in(fs, explorer, &[op]);
        }
        let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(2);
        explore_in(SmallFs { is_strict: true, ..fs }, explorer, &[Write("f", 10, 50, 7)]);
    }
}

/// As before, and files are read before the pages in use are found: what was read is not taken back.
#[test]
fn what_is_read_at_first_stays() {
    let fs = SmallFs { is_lazy: true, ..SmallFs::new(100) };
    for ops in
        [&[Append("f", 200, 7)][..], &[Truncate("f", 50)], &[Reopen, Append("f", 20, 7)], &[Unlink("f")]]
    {
        let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(4);
        explore_in(fs, explorer, ops);
    }
}

/// Writes inside a page, across pages, over the end, and over pages of which one is a hole; and what others have left.
#[test]
fn writes_to_strict_files_are_atomic() {
    let writes: [&[Op]; 8] = [
        &[Write("f", 10, 50, 7)],
        &[Write("f", 0, 100, 7)],
        &[Write("f", 50, 200, 7)],
        &[Write("f", 4000, 5000, 7)],
        &[Write("f", 8, 8, 7)],
        &[Write("f", 0, 3 * 4096, 7), Write("f", 4096, 4096, 8)],
        &[Truncate("f", 9000), Punch("f", 4096, 4096), Write("f", 100, 8800, 7)],
        &[Write("f", 1, 9, 7), Append("f", 30, 8), Unlink("f")],
    ];
    for len in LENGTHS {
        let fs = SmallFs { is_strict: true, ..SmallFs::new(len) };
        for ops in writes {
            let explorer =
                Explorer::new(Model::Px86Line).crashes(1).choices_per_point(4).nested_choices_per_point(1);
            explore_in(fs, explorer, ops);
            // A word is stored in place, and not promised to another process before the call has returned.
            if len == LENGTHS[0] && !matches!(ops, [Write(_, _, 8, _)]) {
                let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(2);
                explore_in(fs, explorer, ops);
            }
        }
    }
    // By file.
    let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(4).nested_choices_per_point(1);
    explore(explorer, 100, &[SetStrict("f", true), Write("f", 10, 50, 7), Reopen, Write("f", 30, 60, 8)]);
}

/// What a close saves is not used after a change, nor lost with its block.
#[test]
fn pages_that_were_saved_are_those_in_use() {
    let sequences: [&[Op]; 5] = [
        &[Reopen],
        &[Reopen, Append("g", 200, 7)],
        &[Append("g", 200, 7), Reopen, Unlink("f")],
        &[Reopen, Create("new"), Reopen, Append("new", 5000, 7)],
        &[UnlinkOpen("f"), Reopen, Append("g", 9000, 7), Reopen],
    ];
    for ops in sequences {
        let explorer =
            Explorer::new(Model::Px86Line).crashes(1).choices_per_point(8).nested_choices_per_point(4);
        explore(explorer, LENGTHS[1], ops);
    }
}

/// Calls that give a file a huge page, split one, and free one, whole and in part. Where all of a huge page is written, it is zeroes: those that are there already
/// are no points of a crash.
#[test]
fn changes_of_huge_pages_are_atomic() {
    let huge = usize::try_from(HUGE_PAGE_BYTES).unwrap();
    let region_bytes = 5 * HUGE_PAGE_BYTES;
    // There is one in such a region, and no node.
    let fs = Fs::format(any(pm_core::Region::anonymous(region_bytes).unwrap()), &options()).unwrap();
    let file = fs.root().create("f", new()).unwrap();
    let blocks = fs.heap().blocks().len();
    file.append(&vec![1; huge]).unwrap();
    assert_eq!(fs.heap().blocks().len(), blocks);

    let small: [&[Op]; 2] =
        [&[Allocate("g", 0, HUGE_PAGE_BYTES)], &[Write("g", huge, huge, 0), Append("g", 10, 7)]];
    let whole: [&[Op]; 8] = [
        &[Punch("f", 0, HUGE_PAGE_BYTES)],
        &[Punch("f", 4096, 8192), Append("g", 9000, 7)],
        &[Truncate("f", 8200)],
        &[Truncate("f", 0), Append("f", 10, 7)],
        &[Unlink("f")],
        &[Write("f", 4000, 9000, 7)],
        &[Append("f", 5000, 7), Unlink("f"), Append("g", 5000, 8)],
        &[MapStore("f", 16, 7), Zero("f", 16)],
    ];
    for (len, sequences) in [(100, &small[..]), (huge, &whole)] {
        for ops in sequences {
            let fs = SmallFs { is_strict: true, region_bytes, ..SmallFs::new(len) };
            let explorer =
                Explorer::new(Model::Px86Line).crashes(1).choices_per_point(2).nested_choices_per_point(1);
            explore_in(fs, explorer, ops);
            if matches!(ops, [Punch(..)]) {
                let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(1);
                explore_in(fs, explorer, ops);
            }
        }
    }
}

/// Crashes inside the recovery from a crash.
#[test]
fn recovery_is_atomic() {
    for op in [Create("new"), Unlink("f"), UnlinkOpen("f"), Rename("f", "g"), Truncate("f", 50)] {
        let explorer =
            Explorer::new(Model::Px86Line).crashes(2).choices_per_point(8).nested_choices_per_point(4);
        explore(explorer, LENGTHS[1], &[op]);
    }
}

/// Calls that use what others have left: pages and blocks that were freed, ends of files that were cut off, free entries.
#[test]
fn calls_after_others_are_atomic() {
    let sequences: [&[Op]; 16] = [
        &[SetAcl("d"), Create("d/new"), Chmod("d/new", 0o620), Unlink("d/new")],
        &[SetAcl("d"), Mkdir("d/e"), Mkdir("d/e/below"), Rmdir("d/e/below")],
        &[Truncate("f", 10), Allocate("f", 0, 60)],
        &[SetXattr("f", 10), SetXattr("f", 700), RemoveXattr("f")],
        &[SetXattr("f", 10), Unlink("f"), SetXattr("d", 20), Exchange("d", "g")],
        &[Punch("f", 0, 4096), Append("f", 10, 9), Overwrite("f", 40, 9)],
        &[Allocate("f", 0, 40_000), Punch("f", 4096, 8192), Truncate("f", 50), Truncate("f", 9000)],
        &[Mkdir("d/e"), Exchange("d/e", "g"), Rmdir("g"), Unlink("d/e")],
        &[Unlink("f"), Create("new"), Append("new", 300, 8)],
        &[Truncate("f", 10), Append("f", 100, 9)],
        &[Truncate("f", 10), Truncate("f", 5000), Append("f", 10, 9)],
        &[Truncate("f", 10), Overwrite("f", 40, 9)],
        &[Unlink("g"), Create("h"), Rename("h", "d/h")],
        &[Unlink("d/x"), Rmdir("d"), Mkdir("e")],
        &[Link("f", "d/f"), Unlink("f"), Append("d/f", 10, 9), Unlink("d/f")],
        &[Mkdir("d/e"), Rename("d/e", "e"), Rmdir("e")],
    ];
    for len in LENGTHS {
        for ops in sequences {
            let explorer =
                Explorer::new(Model::Px86Line).crashes(1).choices_per_point(8).nested_choices_per_point(1);
            explore(explorer, len, ops);
        }
    }
}
