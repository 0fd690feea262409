//! The bytes of a file system: changing the format requires changing this file or those in `golden`.

use pm_alloc::HeapOptions;
use pm_core::{Pmem as _, PoolOptions, Region, Uuid, bytes_of};
use pm_fs::format::{
    AttributeBlock, DIR_TAG, DirBlock, DirEntry, INODE_TAG, Identity, MAGIC, NODE_TAG, Node, SAVED_TAG,
    Saved, Superblock, VERSION, XATTR_TAG,
};
use pm_fs::{Fs, FsOptions, NewFile, SetXattr};
use pm_testkit::any;
use std::fmt::Write as _;
use std::sync::Arc;

fn hex(bytes: &[u8]) -> String {
    let lines =
        bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn heads_have_golden_checksums() {
    let superblock = Superblock {
        magic: MAGIC,
        version: VERSION,
        reserved_0: 0,
        features_incompat: 0,
        seed: 7,
        root: 100,
        orphans: 104,
        created_ns: 1,
        saved: 7000,
        reserved: [0; 21],
        crc: 0,
        reserved_1: 0,
    };
    assert_eq!(hex(&bytes_of(&superblock)[..16]), "504d46530d0a1a0a0300000000000000");
    let saved = Saved {
        tag: SAVED_TAG,
        crc: 0,
        map: 6400,
        map_bytes: 8,
        birth: 3,
        map_crc: 9,
        reserved: 0,
        reserved_1: [0; 3],
    };
    let identity = Identity {
        tag: INODE_TAG,
        crc: 0,
        mode: 0o100_644,
        uid: 1,
        gid: 2,
        flags: 0,
        rdev: 0,
        reserved: 0,
        birth: 3,
        parent: 0,
        mtime_set: 4,
        mtime_set_at: 5,
    };
    let node =
        Node { tag: NODE_TAG, crc: 0, owner: 100, birth: 3, level: 1, reserved: [0; 2], slots: [0; 512] };
    let block = DirBlock { tag: DIR_TAG, reserved: 0, owner: 100, birth: 3, end: 0, entries: [0; 4048] };
    let entry = DirEntry { ino: 101, len_bytes: 24, name_len: 1, kind: 8, crc: 0 };
    let head = AttributeBlock { tag: XATTR_TAG, crc: 0, owner: 100, birth: 3, len_bytes: 8, reserved: 0 };
    assert_eq!(hex(&bytes_of(&block)[..24]), "44495242000000006400000000000000\n0300000000000000");
    let checksums = [
        superblock.expected_crc(),
        saved.expected_crc(7, 7000),
        identity.expected_crc(7, 100),
        node.expected_crc(7, 6400),
        entry.expected_crc(7, 6400, b"a"),
        head.expected_crc(7, 6400, b"12345678"),
    ];
    assert_eq!(
        checksums.map(|crc| format!("{crc:08x}")).join(" "),
        include_str!("golden/checksums.txt").trim_end()
    );
}

/// A file system with each kind of block, in a heap with a fixed seed: the lines of metadata that are not zero.
#[test]
fn file_system_has_golden_bytes() {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes(*b"0123456789abcdef")).created_s(1_000_000_000);
    let heap = HeapOptions::new().pool(pool).seed(7).lanes(1).lane_entries(126);
    let options = FsOptions::new().heap(heap).metadata_share(2).clock(|| 1_000_000_000_000_000_000);
    let region = Arc::new(Region::anonymous(256 << 10).unwrap());
    let fs = Fs::format(any(Arc::clone(&region)), &options).unwrap();
    let new = NewFile { mode: 0o644, uid: 1, gid: 2, umask: 0 };
    let root = fs.root();
    let long = root.create("long", new).unwrap();
    long.write_at(8 * 4096, b"in a node").unwrap();
    root.symlink("link", "long", new).unwrap();
    let dir = root.mkdir("dir", NewFile { mode: 0o755, ..new }).unwrap();
    dir.set_xattr("user.a", b"value", SetXattr::Any).unwrap();
    let space = fs.heap().layout().chunks_start..fs.heap().space_behind().start;
    drop((root, long, dir));
    fs.close().unwrap();

    let mut found = String::new();
    for at in space.clone().step_by(64) {
        let mut line = [0; 64];
        region.load(at, &mut line);
        if line != [0; 64] {
            writeln!(found, "{}", at - space.start).unwrap();
            writeln!(found, "{}", hex(&line)).unwrap();
        }
    }
    if std::env::var_os("PM_WRITE_GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/library/golden/blocks.hex"), &found)
            .unwrap();
    }
    assert_eq!(found, include_str!("golden/blocks.hex"));
}
