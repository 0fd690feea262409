//! Corrupting a small file system, and using it: for the tests of corrupted file systems and for the fuzz target `fs`, which includes this file.
//!
//! An input is a list of edits of 13 bytes: a place (4 bytes), a kind and a word (8 bytes). Some kinds flip or store bits, so that a checksum is wrong. The others
//! change a field of a structure and correct its checksum, as random changes would hardly pass it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, reason = "fields take the lower bits of words")]

use core::mem::offset_of;
use pm_alloc::HeapOptions;
use pm_core::{Pmem, PoolOptions, Region, Uuid, bytes_of, crc32c_words, from_bytes};
use pm_fs::format::{
    AttributeBlock, DIR_TAG, DirBlock, DirEntry, INODE_TAG, Identity, Inode, NODE_TAG, Node, ROOT, SlotKind,
    Status, Superblock, XATTR_TAG,
};
use pm_fs::{Attributes, FileKind, Fs, FsError, FsOptions, Handle, NewFile, SetAttributes, SetXattr};
use pm_testkit::{AnyPmem, any};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// The length of an edit.
pub(crate) const EDIT_BYTES: usize = 13;
/// More edits than a few only cost time.
const EDITS_MAX: usize = 48;
const REGION_BYTES: u64 = 512 << 10;
/// The most entries that a walk looks at: directories may be below themselves.
const WALK_MAX: usize = 200;
const MIB: u64 = 1 << 20;

/// The kinds of edits.
pub(crate) mod kind {
    /// Flips a bit.
    pub(crate) const FLIP: u8 = 0;
    /// Stores a word.
    pub(crate) const WORD: u8 = 1;
    /// Stores a sealed word of an inode.
    pub(crate) const INODE_WORD: u8 = 2;
    /// Stores a slot of a node.
    pub(crate) const NODE_SLOT: u8 = 3;
    /// Stores the same contents in all slots of a node.
    pub(crate) const NODE_SLOTS: u8 = 4;
    /// Changes the head of a node.
    pub(crate) const NODE: u8 = 5;
    /// Changes the identity of an inode.
    pub(crate) const IDENTITY: u8 = 6;
    /// Changes an entry of a directory.
    pub(crate) const ENTRY: u8 = 7;
    /// Changes the head of a directory block.
    pub(crate) const DIR_BLOCK: u8 = 8;
    /// Changes the attributes of a file.
    pub(crate) const ATTRIBUTES: u8 = 9;
    /// Changes the superblock.
    pub(crate) const SUPERBLOCK: u8 = 10;
    /// The number of kinds.
    pub(crate) const COUNT: u8 = 11;
}

/// An edit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    /// A structure and a field of it, or an offset.
    pub(crate) place: u32,
    pub(crate) kind: u8,
    pub(crate) word: u64,
}

impl Edit {
    /// An edit of the field with this number of the structure with this number.
    pub(crate) fn of(kind: u8, structure: usize, field: u32, word: u64) -> Self {
        Self { place: u32::try_from(structure).unwrap() << 8 | field, kind, word }
    }

    fn parse(bytes: &[u8]) -> Self {
        let place = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let word = u64::from_le_bytes(bytes[5..].try_into().unwrap());
        Self { place, kind: bytes[4] % kind::COUNT, word }
    }

    /// The edits of an input.
    pub(crate) fn parse_all(bytes: &[u8]) -> Vec<Self> {
        bytes.chunks_exact(EDIT_BYTES).take(EDITS_MAX).map(Self::parse).collect()
    }
}

fn options() -> FsOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes(*b"0123456789abcdef")).created_s(1_000_000_000);
    let heap = HeapOptions::new().pool(pool).seed(7).lanes(1).lane_entries(126);
    FsOptions::new().heap(heap).metadata_share(4).clock(|| 1_000_000_000_000_000_000)
}

fn new() -> NewFile {
    NewFile { mode: 0o644, uid: 1, gid: 2, umask: 0 }
}

/// Opens a file system, and prepares it for changes.
pub(crate) fn open_prepared(pmem: &Arc<Region>) -> Result<Fs<AnyPmem<'static>>, FsError> {
    let fs = open(pmem)?;
    fs.prepare()?;
    Ok(fs)
}

/// Opens a file system.
pub(crate) fn open(pmem: &Arc<Region>) -> Result<Fs<AnyPmem<'static>>, FsError> {
    Fs::attach(any(Arc::clone(pmem)), &options())
}

/// An image of a file system, and the places of its structures.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: Vec<u8>,
    seed: u64,
    superblock: u64,
    /// The numbers of inodes.
    pub(crate) inodes: Vec<u64>,
    /// The offsets of nodes.
    pub(crate) nodes: Vec<u64>,
    /// The offsets of directory blocks.
    pub(crate) dirs: Vec<u64>,
    /// The offsets of entries.
    pub(crate) entries: Vec<u64>,
    /// The offsets of blocks of attributes.
    pub(crate) attributes: Vec<u64>,
    /// All blocks of the heap.
    pub(crate) blocks: Vec<u64>,
    /// What a walk finds.
    pub(crate) view: View,
}

/// What a walk finds: the attributes of a file and its extended ones, by its path.
pub(crate) type View = BTreeMap<Vec<u8>, (Attributes, Vec<Vec<u8>>)>;

impl Image {
    /// A file system with files of all heights up to 2, free entries, links and attributes, and without orphans or with two.
    pub(crate) fn get(has_orphans: bool) -> &'static Self {
        static IMAGES: OnceLock<[Image; 2]> = OnceLock::new();
        &IMAGES.get_or_init(|| [Self::make(false), Self::make(true)])[usize::from(has_orphans)]
    }

    fn make(has_orphans: bool) -> Self {
        let pmem = Arc::new(Region::anonymous(REGION_BYTES).unwrap());
        let fs = Fs::format(any(Arc::clone(&pmem)), &options()).unwrap();
        let (root, orphans) = (fs.root(), fill(&fs));
        if !has_orphans {
            drop(orphans);
        }
        // Recovery replays the last transactions, over what is edited.
        for mode in [0o700, 0o711, 0o750, 0o755] {
            root.set_attributes(&SetAttributes { mode: Some(mode), ..SetAttributes::default() }).unwrap();
        }
        let mut bytes = vec![0; usize::try_from(REGION_BYTES).unwrap()];
        pmem.load(0, &mut bytes);
        let superblock = fs.heap().view(|view| view.root::<Superblock>(ROOT).unwrap().unwrap().offset());
        let head: Superblock = from_bytes(|bytes| pmem.load(superblock, bytes));
        let mut image = Self {
            bytes,
            seed: head.seed,
            superblock,
            inodes: Vec::new(),
            nodes: Vec::new(),
            dirs: Vec::new(),
            entries: Vec::new(),
            attributes: Vec::new(),
            blocks: fs.heap().blocks(),
            view: walk(&root).unwrap(),
        };
        for block in image.blocks.clone() {
            match pmem.load_u64(block) as u32 {
                INODE_TAG => image.inodes.push(block / 64),
                NODE_TAG => image.nodes.push(block),
                XATTR_TAG => image.attributes.push(block),
                DIR_TAG => {
                    image.dirs.push(block);
                    let start = block + offset_of!(DirBlock, entries) as u64;
                    let end = start + (pmem.load_u64(start - 8) & ((1 << 48) - 1));
                    let mut at = start;
                    while at < end {
                        image.entries.push(at);
                        at += pmem.load_u64(at + 8) & 0xffff;
                    }
                }
                _ => {}
            }
        }
        image
    }

    /// The number of the inode with this path.
    pub(crate) fn ino(&self, path: &str) -> u64 {
        self.view[path.as_bytes()].0.ino
    }

    /// The position of an inode in [`inodes`](Self::inodes).
    pub(crate) fn inode(&self, ino: u64) -> usize {
        self.inodes.iter().position(|found| *found == ino).unwrap()
    }

    /// The position of the entry of an inode in [`entries`](Self::entries).
    pub(crate) fn entry(&self, ino: u64) -> usize {
        self.entries.iter().position(|at| self.word(*at) == ino).unwrap()
    }

    /// The word at an offset.
    pub(crate) fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.bytes[usize::try_from(at).unwrap()..][..8].try_into().unwrap())
    }

    /// The number of the directory of orphans.
    pub(crate) fn orphans(&self) -> u64 {
        let pmem = self.edited(&[]);
        let head: Superblock = from_bytes(|bytes| pmem.load(self.superblock, bytes));
        head.orphans
    }

    /// A region with this image and these edits.
    pub(crate) fn edited(&self, edits: &[Edit]) -> Arc<Region> {
        let pmem = Arc::new(Region::anonymous(REGION_BYTES).unwrap());
        pmem.store(0, &self.bytes);
        for edit in edits {
            self.edit(&pmem, edit);
        }
        pmem
    }

    fn edit(&self, pmem: &Region, edit: &Edit) {
        let word = edit.word;
        let offset = (u64::from(edit.place) % REGION_BYTES) & !7;
        match edit.kind {
            kind::FLIP => pmem.store_u64(offset, pmem.load_u64(offset) ^ 1 << (word % 64)),
            kind::WORD => pmem.store_u64(offset, word),
            kind::INODE_WORD => {
                let ino = one_of(&self.inodes, edit);
                let identity: Identity = from_bytes(|bytes| pmem.load(ino * 64, bytes));
                let fields = [
                    offset_of!(Status, size),
                    offset_of!(Status, nlink),
                    offset_of!(Status, height),
                    offset_of!(Status, xattr),
                ];
                let at = match field(edit, 12) {
                    slot @ 0..8 => offset_of!(Inode, slots) + 8 * slot,
                    status => offset_of!(Inode, status) + fields[status - 8],
                };
                self.store_sealed(pmem, (ino, identity.birth), ino * 64 + at as u64, word);
            }
            kind::NODE_SLOT | kind::NODE_SLOTS => {
                let node = one_of(&self.nodes, edit);
                let head: Node = from_bytes(|bytes| pmem.load(node, bytes));
                let slots = node + offset_of!(Node, slots) as u64;
                let first = u64::from(edit.place >> 8) % 512;
                let all = if edit.kind == kind::NODE_SLOTS { 0..512 } else { first..first + 1 };
                for slot in all {
                    self.store_sealed(pmem, (head.owner, head.birth), slots + 8 * slot, word);
                }
            }
            kind::NODE => self.edit_node(pmem, edit),
            kind::IDENTITY => self.edit_identity(pmem, edit),
            kind::ENTRY => self.edit_entry(pmem, edit),
            kind::DIR_BLOCK => {
                let block = one_of(&self.dirs, edit);
                let head: DirBlock = from_bytes(|bytes| pmem.load(block, bytes));
                match field(edit, 4) {
                    0 => pmem.store_u64(block + offset_of!(DirBlock, owner) as u64, self.any(word)),
                    1 => pmem.store_u64(block + offset_of!(DirBlock, birth) as u64, word),
                    _ => {
                        let at = block + offset_of!(DirBlock, end) as u64;
                        self.store_sealed(pmem, (head.owner, head.birth), at, word);
                    }
                }
            }
            kind::ATTRIBUTES => self.edit_attributes(pmem, edit),
            _ => {
                let at = self.superblock;
                let mut head: Superblock = from_bytes(|bytes| pmem.load(at, bytes));
                match field(edit, 6) {
                    0 => head.seed = word,
                    1 => head.created_ns = word,
                    2 => head.version = word as u32,
                    3 => head.features_incompat = word,
                    4 => head.root = self.any(word),
                    _ => head.orphans = self.any(word),
                }
                head.crc = head.expected_crc();
                pmem.store(at, bytes_of(&head));
            }
        }
    }

    /// Stores contents, which a word determines, with their checksum.
    fn store_sealed(&self, pmem: &Region, (ino, birth): (u64, u64), offset: u64, word: u64) {
        let slot = |kind: SlotKind, number: u64| (kind as u64) << 40 | number;
        let (choice, value) = (word % 8, word >> 8);
        let block = self.blocks[usize::try_from(value).unwrap() % self.blocks.len()] / 64;
        let contents = match choice {
            0 => value % (1 << 48),
            1 => value % 256,
            2 => (1 << 48) - 1 - value % 256,
            3 => slot(SlotKind::Page, value % (REGION_BYTES / 4096)),
            4 => slot(SlotKind::Node, block),
            5 => slot(SlotKind::DirBlock, block),
            6 => block,
            _ => return pmem.store_u64(offset, 0),
        };
        pmem.store_u64(offset, sealed(self.seed, (ino, birth), offset, contents));
    }

    /// The number of an inode, or any number.
    fn any(&self, word: u64) -> u64 {
        match word % 4 {
            0 => word >> 8,
            1 => self.blocks[usize::try_from(word >> 8).unwrap() % self.blocks.len()] / 64,
            _ => self.inodes[usize::try_from(word >> 8).unwrap() % self.inodes.len()],
        }
    }

    fn edit_node(&self, pmem: &Region, edit: &Edit) {
        let offset = one_of(&self.nodes, edit);
        let mut head: Node = from_bytes(|bytes| pmem.load(offset, bytes));
        match field(edit, 3) {
            0 => head.owner = self.any(edit.word),
            1 => head.birth = edit.word,
            _ => head.level = edit.word % 8,
        }
        head.crc = head.expected_crc(self.seed, offset);
        pmem.store(offset, &bytes_of(&head)[..offset_of!(Node, slots)]);
    }

    fn edit_identity(&self, pmem: &Region, edit: &Edit) {
        let ino = one_of(&self.inodes, edit);
        let mut identity: Identity = from_bytes(|bytes| pmem.load(ino * 64, bytes));
        match field(edit, 6) {
            0 => identity.mode = edit.word as u32,
            1 => identity.mode = identity.mode & 0o7777 | FileKind::Directory.bits(),
            2 => identity.mode = identity.mode & 0o7777 | FileKind::Symlink.bits(),
            3 => identity.birth = edit.word,
            4 => identity.parent = self.any(edit.word),
            _ => (identity.mtime_set, identity.mtime_set_at) = (edit.word, 1_000_000_000_000_000_000),
        }
        pmem.store(ino * 64, bytes_of(&identity.sealed(self.seed, ino)));
    }

    fn edit_entry(&self, pmem: &Region, edit: &Edit) {
        let offset = one_of(&self.entries, edit);
        let mut entry: DirEntry = from_bytes(|bytes| pmem.load(offset, bytes));
        match field(edit, 8) {
            0 => entry.len_bytes = edit.word as u16,
            1 => entry.name_len = edit.word as u8,
            2 => entry.kind = edit.word as u8,
            3 => pmem.store(offset + 16 + edit.word / 256 % 8, &[edit.word as u8]),
            4 => {
                let ino = self.inodes[usize::try_from(edit.word).unwrap() % self.inodes.len()];
                let identity: Identity = from_bytes(|bytes| pmem.load(ino * 64, bytes));
                (entry.ino, entry.kind) = (ino, (identity.mode >> 12) as u8);
            }
            _ => entry.ino = self.any(edit.word),
        }
        let mut name = vec![0; entry.name_len.into()];
        pmem.load(offset + 16, &mut name);
        let entry = DirEntry { crc: entry.expected_crc(self.seed, offset, &name), ..entry };
        pmem.store(offset, bytes_of(&entry));
    }

    fn edit_attributes(&self, pmem: &Region, edit: &Edit) {
        let offset = one_of(&self.attributes, edit);
        let mut head: AttributeBlock = from_bytes(|bytes| pmem.load(offset, bytes));
        match field(edit, 4) {
            0 => head.len_bytes = edit.word as u32,
            1 => head.owner = self.any(edit.word),
            2 => pmem.store_u64(offset + 32, edit.word),
            _ => pmem.store(offset + 32 + edit.word / 256 % 64, &[edit.word as u8]),
        }
        // With the checksum of a block of this length, if there is room for it.
        let len = u64::from(head.len_bytes).min(REGION_BYTES - offset - 32);
        let mut entries = vec![0; usize::try_from(len).unwrap()];
        pmem.load(offset + 32, &mut entries);
        head.crc = head.expected_crc(self.seed, offset, &entries);
        pmem.store(offset, bytes_of(&head));
    }

    /// Opens an edited file system and uses it twice. Every call succeeds or fails with an error.
    ///
    /// A single flipped bit is reported by the open, the check or the walk, or changes no metadata.
    pub(crate) fn attack(&self, edits: &[Edit]) {
        let pmem = self.edited(edits);
        for round in 0..2 {
            let Ok(fs) = open(&pmem) else { return };
            // Before the preparation, which finds more.
            let found = walk(&fs.root());
            let report = fs.check();
            if let ([Edit { kind: kind::FLIP, .. }], 0, Ok(found)) = (edits, round, &found)
                && report.problems.is_empty()
            {
                assert!(without_times(found) == without_times(&self.view), "{edits:?} is not reported");
            }
            change(&fs);
            drop(fs.close());
        }
    }
}

/// Times are not covered by checksums.
fn without_times(view: &View) -> View {
    let timeless = |(attributes, xattrs): &(Attributes, Vec<Vec<u8>>)| {
        (Attributes { atime_ns: 0, mtime_ns: 0, ctime_ns: 0, ..*attributes }, xattrs.clone())
    };
    view.iter().map(|(path, found)| (path.clone(), timeless(found))).collect()
}

/// A sealed word, as `docs/format/fs.md` describes it.
fn sealed(seed: u64, (ino, birth): (u64, u64), offset: u64, contents: u64) -> u64 {
    let crc = crc32c_words(&[seed, ino, birth, offset, contents]);
    u64::from(((crc ^ crc >> 16) & 0xffff).max(1)) << 48 | contents
}

/// The structure that an edit is for.
fn one_of(offsets: &[u64], edit: &Edit) -> u64 {
    offsets[(edit.place >> 8) as usize % offsets.len()]
}

/// The field that an edit is for.
fn field(edit: &Edit, count: usize) -> usize {
    edit.place as usize % 256 % count
}

/// Fills the file system, and returns handles to files without a name.
fn fill(fs: &Fs<AnyPmem<'static>>) -> Vec<Handle<AnyPmem<'static>>> {
    let root = fs.root();
    let short = root.create("short", new()).unwrap();
    short.append(&[1; 100]).unwrap();
    let tall = root.create("tall", new()).unwrap();
    let high = root.create("high", new()).unwrap();
    for index in [0, 9, 11] {
        tall.write_at(index * 4096, &[2; 5000]).unwrap();
        high.write_at(index * 4 * MIB, &[3; 100]).unwrap();
    }
    let dir = root.mkdir("dir", new()).unwrap();
    let below = dir.mkdir("below", new()).unwrap();
    below.create("file", new()).unwrap().append(&[4; 4096]).unwrap();
    let long = root.mkdir("long", new()).unwrap();
    for number in 0..24 {
        long.link(&short, format!("{number:0200}")).unwrap();
    }
    for number in (0..24).step_by(3) {
        long.unlink(format!("{number:0200}")).unwrap();
    }
    dir.symlink("near", "../short", new()).unwrap();
    dir.symlink("far", [b'x'; 300], new()).unwrap();
    dir.mknod("pipe", FileKind::Pipe, new(), 0).unwrap();
    for (file, len) in [(&short, 20), (&dir, 300)] {
        file.set_xattr("user.one", vec![5; len], SetXattr::Any).unwrap();
        file.set_xattr("user.two", [6; 3], SetXattr::Any).unwrap();
    }
    root.mkdir("empty", new()).unwrap();
    let orphan = root.create("orphan", new()).unwrap();
    orphan.write_at(10 * 4096, &[7; 5000]).unwrap();
    let orphans = vec![orphan, root.mkdir("orphans", new()).unwrap()];
    root.unlink("orphan").unwrap();
    root.rmdir("orphans").unwrap();
    orphans
}

/// Looks at all files, and reads them. The result is the first error, but the walk goes on.
pub(crate) fn walk<P: Pmem>(root: &Handle<P>) -> Result<View, FsError> {
    let mut view = View::new();
    let mut failed = None;
    let mut left = vec![(Vec::new(), root.clone())];
    let mut buffer = vec![0; 20_000];
    while let Some((path, file)) = left.pop().filter(|_| view.len() < WALK_MAX) {
        match look(&file, &mut buffer) {
            Ok(found) => drop(view.insert(path.clone(), found)),
            Err(error) => failed = Some(error),
        }
        if file.kind() != FileKind::Directory {
            continue;
        }
        match file.entries(0) {
            Ok(entries) => {
                for entry in entries.into_iter().take(WALK_MAX) {
                    match file.lookup(&entry.name) {
                        Ok(found) => left.push(([&path, &b"/"[..], &entry.name].concat(), found)),
                        Err(error) => failed = Some(error),
                    }
                }
            }
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(view), Err)
}

/// Reads all of a file that is short.
fn look<P: Pmem>(file: &Handle<P>, buffer: &mut [u8]) -> Result<(Attributes, Vec<Vec<u8>>), FsError> {
    let attributes = file.attributes()?;
    let mut xattrs = Vec::new();
    for name in file.xattrs()? {
        xattrs.push(file.xattr(&name)?);
        xattrs.push(name);
    }
    match file.kind() {
        FileKind::File => {
            for offset in [0, 4 * 9 * MIB - 10, attributes.size.saturating_sub(100)] {
                assert!(file.read_at(offset, buffer)? <= buffer.len());
            }
            drop((file.seek_data(0), file.seek_hole(0), file.seek_data(5000), file.seek_hole(MIB)));
        }
        FileKind::Symlink => drop(file.read_link()?),
        _ => {}
    }
    Ok((attributes, xattrs))
}

/// Some changes of each file and directory.
fn change(fs: &Fs<AnyPmem<'static>>) {
    let root = fs.root();
    let mut left = vec![(root.clone(), 0)];
    let (mut seen, mut changed) = (0, BTreeSet::new());
    while let Some((dir, depth)) = left.pop().filter(|_| seen < WALK_MAX) {
        drop(dir.create("new", new()));
        drop(dir.mkdir("new directory", new()));
        drop(dir.symlink("new link", [b'y'; 200], new()));
        drop(dir.set_xattr("user.new", [1; 40], SetXattr::Any));
        let Ok(entries) = dir.entries(0) else { continue };
        for (number, entry) in entries.iter().take(WALK_MAX).enumerate() {
            seen += 1;
            let Ok(file) = dir.lookup(&entry.name) else { continue };
            match file.kind() {
                FileKind::Directory if depth < 4 => left.push((file.clone(), depth + 1)),
                FileKind::File if changed.insert(file.ino()) => change_file(&file, number),
                _ => {}
            }
            drop(file.set_attributes(&SetAttributes { mode: Some(0o600), ..SetAttributes::default() }));
            let name = &entry.name;
            match (number + depth) % 7 {
                0 => drop(dir.rename(name, &root, name)),
                1 => drop(dir.unlink(name)),
                2 => drop(dir.rename(name, &dir, "new")),
                3 => drop(root.link(&file, format!("link {number} {depth}"))),
                4 => drop(dir.rmdir(name)),
                5 => drop(dir.exchange(name, &root, "dir")),
                _ => drop(dir.rename(name, &root, "new directory")),
            }
            drop(file);
        }
    }
    for path in ["tall", "high", "dir/far", "long", "dir/below", "dir", "short"] {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if let Ok(parent) = fs.lookup(parent) {
            drop((parent.unlink(name), parent.rmdir(name)));
        }
    }
}

fn change_file(file: &Handle<AnyPmem<'static>>, number: usize) {
    match number % 4 {
        0 => drop((file.truncate(6000), file.truncate(100_000))),
        1 => drop(file.punch_hole(1000, u64::MAX)),
        2 => drop(file.allocate(30_000, 20_000, false)),
        _ => drop(file.zero_range(100, 40_000, true)),
    }
    drop((file.append(&[8; 5000]), file.write_at(0, &[9; 100])));
    if number < 2 {
        drop(file.write_at(40 * MIB, &[9; 100]));
    }
    drop((file.set_xattr("user.one", [1; 90], SetXattr::Any), file.remove_xattr("user.two")));
    drop(file.truncate(300));
}
