//! Long directories, and directories without room.

use pm_core::Region;
use pm_fs::{Fs, FsError, FsOptions, NewFile};

/// Directories that have grown at the same time, and so have no adjacent blocks, can be removed, and the file system opens afterwards.
#[test]
fn long_directories_are_removed() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk.pm");
    let fs = Fs::create(&path, 512 << 20, &FsOptions::new()).unwrap();
    let new = NewFile { mode: 0o755, ..NewFile::default() };
    let dirs = ["one", "two"].map(|name| fs.root().mkdir(name, new).unwrap());
    // Of 250 bytes: fifteen in a block, and so more than a node has slots.
    let names: Vec<String> = (0..8000).map(|number| format!("{number:0250}")).collect();
    for name in &names {
        dirs.iter().for_each(|dir| drop(dir.create(name, new).unwrap()));
    }
    for name in &names {
        dirs.iter().for_each(|dir| dir.unlink(name).unwrap());
    }
    drop(dirs);
    for name in ["one", "two"] {
        fs.root().rmdir(name).unwrap();
    }
    assert_eq!(fs.check().problems, Vec::<String>::new());
    drop(fs);
    let fs = Fs::open(&path, &FsOptions::new()).unwrap();
    assert_eq!(fs.check().problems, Vec::<String>::new());
    assert!(fs.root().entries(0).unwrap().is_empty());
}

/// Files that are open are removed when there is no room for metadata: that needs no block.
#[test]
fn full_file_system_can_be_emptied() {
    let fs = Fs::format(Region::anonymous(2 << 20).unwrap(), &FsOptions::new()).unwrap();
    let root = fs.root();
    let name = |number: u64| format!("{number:0200}");
    let mut count = 0;
    let full = loop {
        match root.create(name(count), NewFile::default()) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, FsError::NoSpace) && count > 100, "{count}: {full}");
    for number in 0..count {
        let open = root.lookup(name(number)).unwrap();
        root.unlink(name(number)).unwrap();
        assert_eq!(open.attributes().unwrap().nlink, 0);
    }
    assert_eq!(fs.check().problems, Vec::<String>::new());
    (0..count).for_each(|number| drop(root.create(name(number), NewFile::default()).unwrap()));
}
