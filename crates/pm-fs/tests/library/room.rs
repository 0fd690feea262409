//! File systems without room: what is refused has changed nothing, and what there is room for is done. And the limits of names, modes and lengths.

use pm_core::Region;
use pm_fs::{Fs, FsError, FsOptions, Handle, NewFile, SetAttributes, SetXattr};

fn new() -> NewFile {
    NewFile { mode: 0o755, uid: 0, gid: 0, umask: 0 }
}

fn fs_of(bytes: u64) -> Fs<Region> {
    Fs::format(Region::anonymous(bytes).unwrap(), &FsOptions::new()).unwrap()
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// Creates files until there is no room for metadata.
fn fill_metadata(dir: &Handle<Region>) {
    for len in [255, 200, 100, 50, 20, 10] {
        let mut names = (0..).map(|number| format!("{number:0len$}"));
        while dir.create(names.next().unwrap(), new()).is_ok() {}
    }
}

const ACL: &[u8] = b"\x02\0\0\0\
    \x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\x01\0\0\0\x04\0\x05\0\xff\xff\xff\xff\
    \x10\0\x07\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";

/// write(2): "only as many bytes as there is room for shall be written".
#[test]
fn write_uses_the_room_that_is_left() {
    let fs = fs_of(4 << 20);
    let filler = fs.root().create("filler", new()).unwrap();
    let file = fs.root().create("file", new()).unwrap();
    file.write_at(0, b"x").unwrap();
    let free = fs.stats().unwrap().free_pages;
    filler.allocate(0, (free - 5) * 4096, true).unwrap();
    assert_eq!(fs.stats().unwrap().free_pages, 5);
    let written = file.write_at(0, &[1; 40 * 4096]);
    assert!(
        matches!(written, Ok(n) if n >= 5 * 4096),
        "{written:?} with {} free pages",
        fs.stats().unwrap().free_pages
    );
}

/// Checks that a call for which there is no metadata has changed nothing of a file with eight pages.
fn check_refused(call: impl Fn(&Handle<Region>) -> Result<(), FsError>) {
    let fs = fs_of(2 << 20);
    let root = fs.root();
    let file = root.create("file", new()).unwrap();
    file.write_at(0, &[7; 8 * 4096]).unwrap();
    fill_metadata(&root);
    let before = file.attributes().unwrap();
    let done = call(&file);
    assert!(matches!(done, Err(FsError::NoSpace)), "{done:?}");
    let mut bytes = vec![0; 8 * 4096];
    file.read_at(0, &mut bytes).unwrap();
    assert_eq!(before, file.attributes().unwrap());
    assert!(bytes.iter().all(|byte| *byte == 7), "the call was refused, and has changed bytes");
}

/// The ninth page needs a node.
#[test]
fn refused_write_leaves_the_bytes() {
    check_refused(|file| file.write_at(0, &[8; 9 * 4096]).map(drop));
}

/// As before, FALLOC_FL_ZERO_RANGE.
#[test]
fn refused_zero_range_leaves_the_bytes() {
    check_refused(|file| file.zero_range(0, 9 * 4096, false));
}

/// chmod(2) needs no room.
#[test]
fn chmod_of_a_file_with_a_list_needs_no_room() {
    let fs = fs_of(2 << 20);
    let root = fs.root();
    let file = root.create("file", new()).unwrap();
    file.set_xattr("system.posix_acl_access", ACL, SetXattr::Any).unwrap();
    fill_metadata(&root);
    // Blocks of the length of attributes, too.
    let names = root.entries(0).unwrap().into_iter().map(|entry| entry.name);
    let set = |name| root.lookup(name).unwrap().set_xattr("user.a", [1; 50], SetXattr::Any);
    assert!(names.map(set).any(|set| set.is_err()));
    let done = file.set_attributes(&mode(0o700));
    assert!(done.is_ok(), "{done:?}");
}

/// A file that is written at its end and punched at its start, as a queue: it never has more than a page, and needs no more room than that.
#[test]
fn queue_does_not_use_up_the_metadata() {
    let fs = fs_of(4 << 20);
    let file = fs.root().create("queue", new()).unwrap();
    for n in 0..1000_u64 {
        let written = file.write_at(n * (2 << 20), &[1; 4096]);
        assert!(written.is_ok(), "{n} GiB / 512: {written:?}, and {:?}", fs.stats());
        file.punch_hole(0, (n + 1) * (2 << 20)).unwrap();
    }
    let (free, blocks) = (fs.stats().unwrap().free_pages, fs.heap().blocks().len());
    for n in 1000..1003_u64 {
        // A page at a time.
        for page in 0..512 {
            file.write_at(n * (2 << 20) + page * 4096, &[1; 4096]).unwrap();
        }
        for page in 0..512 {
            file.punch_hole(n * (2 << 20) + page * 4096, 4096).unwrap();
        }
    }
    assert_eq!((free, blocks), (fs.stats().unwrap().free_pages, fs.heap().blocks().len()));
}

/// Creating and removing in a file system whose metadata is full.
#[test]
fn churn_in_a_full_file_system() {
    let fs = fs_of(2 << 20);
    let root = fs.root();
    fill_metadata(&root);
    let entries = root.entries(0).unwrap();
    for round in 0..200 {
        let name = &entries[round % entries.len()].name;
        root.unlink(name).unwrap();
        let made = root.create(name, new());
        assert!(made.is_ok(), "{round}: {:?}", made.err());
    }
    assert_eq!(fs.check().problems, Vec::<String>::new());
}

/// write(2): EFBIG only if "there was no room for any bytes to be written".
#[test]
fn write_up_to_the_greatest_length_is_short() {
    let fs = fs_of(4 << 20);
    let file = fs.root().create("file", new()).unwrap();
    let max = 1_u64 << 42;
    assert_eq!(file.write_at(max - 4096, &[1; 4096]).unwrap(), 4096);
    let written = file.write_at(max - 4096, &[1; 4097]);
    assert!(matches!(written, Ok(4096)), "{written:?}");
}

/// The mode has twelve bits.
#[test]
fn mode_has_twelve_bits() {
    let fs = fs_of(4 << 20);
    let file = fs.root().create("file", new()).unwrap();
    file.set_attributes(&mode(u32::MAX)).unwrap();
    assert_eq!(file.attributes().unwrap().mode, 0o7777);
}

/// Names of attributes have no zero byte: listxattr(2) separates them by it.
#[test]
fn name_of_an_attribute_has_no_zero_byte() {
    let fs = fs_of(4 << 20);
    let done = fs.root().set_xattr(b"user.a\0user.b", b"x", SetXattr::Any);
    assert!(done.is_err(), "{:?}", fs.root().xattrs());
}

/// What a map has kept is freed when the file is cut to nothing after the map is gone.
#[test]
fn pages_that_a_map_kept_are_freed_by_the_next_truncate() {
    let fs = fs_of(4 << 20);
    let file = fs.root().create("file", new()).unwrap();
    file.write_at(0, &[1; 100 * 4096]).unwrap();
    let map = file.map(0, 4096).unwrap();
    file.truncate(0).unwrap();
    drop(map);
    file.truncate(0).unwrap();
    let stats = fs.stats().unwrap();
    assert_eq!(stats.free_pages, stats.pages, "an empty file has pages");
}
