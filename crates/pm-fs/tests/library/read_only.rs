//! File systems that are read only: every change is an error, and nothing is stored in the file.

use crate::edits::walk;
use pm_fs::{FileKind, Fs, FsError, FsOptions, NewFile, SetAttributes, SetXattr};
use rustix::io::Errno;
use std::path::PathBuf;
use tempfile::TempDir;

/// A file system in a file, with a directory, files, a link, an attribute, and an open file without a name; closed, or as a killed process leaves it.
fn image(is_killed: bool) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (path, killed) = (dir.path().join("disk.pm"), dir.path().join("killed.pm"));
    let fs = Fs::create(&path, 4 << 20, &FsOptions::new()).unwrap();
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    let below = fs.root().mkdir("dir", new).unwrap();
    let file = below.create("file", new).unwrap();
    file.append(&[7; 10_000]).unwrap();
    file.truncate(100_000).unwrap();
    file.set_xattr("user.colour", "red", SetXattr::Any).unwrap();
    fs.root().symlink("link", "dir/file", new).unwrap();
    let orphan = fs.root().create("orphan", new).unwrap();
    orphan.append(&[9; 100_000]).unwrap();
    fs.root().unlink("orphan").unwrap();
    below.rename("file", &fs.root(), "renamed").unwrap();
    std::fs::copy(&path, &killed).unwrap();
    drop((below, file, orphan));
    fs.close().unwrap();
    (dir, if is_killed { killed } else { path })
}

#[test]
fn changes_of_read_only_file_system_are_refused_and_nothing_is_stored() {
    for is_killed in [false, true] {
        let (_dir, path) = image(is_killed);
        let before = std::fs::read(&path).unwrap();
        let fs = Fs::open(&path, &FsOptions::new().read_only(true)).unwrap();
        // Other readers may have it open.
        let other = Fs::open(&path, &FsOptions::new().read_only(true)).unwrap();
        let (root, new) = (fs.root(), NewFile::default());
        let (dir, file) = (root.lookup("dir").unwrap(), root.lookup("renamed").unwrap());
        let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let mut bytes = vec![0; 100_000];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), 100_000);
        assert!(
            bytes[..10_000].iter().all(|byte| *byte == 7) && bytes[10_000..].iter().all(|byte| *byte == 0)
        );
        let refused = [
            root.create("new", new).err(),
            root.create_unnamed(new).err(),
            root.mkdir("new", new).err(),
            root.symlink("new", "target", new).err(),
            root.mknod("new", FileKind::Pipe, new, 0).err(),
            root.link(&file, "new").err(),
            root.unlink("renamed").err(),
            root.rmdir("dir").err(),
            root.rename("renamed", &dir, "file").err(),
            root.rename_to_new("renamed", &dir, "file").err(),
            root.exchange("renamed", &root, "link").err(),
            file.set_attributes(&mode).err(),
            file.set_strict(true).err(),
            file.write_at(0, b"bytes").err(),
            file.append(b"bytes").err(),
            file.truncate(0).err(),
            file.truncate(200_000).err(),
            file.allocate(0, 200_000, false).err(),
            file.zero_range(0, 100, false).err(),
            file.punch_hole(0, 4096).err(),
            file.set_xattr("user.size", "large", SetXattr::Any).err(),
            file.remove_xattr("user.colour").err(),
            // Its stores would be lost.
            file.map(0, 4096).err(),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            let refused = refused.unwrap_or_else(|| panic!("change {number} is not refused"));
            assert!(matches!(refused, FsError::ReadOnly), "change {number}: {refused:?}");
            assert_eq!(refused.errno(), Errno::ROFS);
        }
        // Those of the orphan are free.
        let stats = fs.stats().unwrap();
        assert_eq!(stats.pages - stats.free_pages, 3);
        assert_eq!(fs.check().problems, Vec::<String>::new());
        assert!(!fs.frames().unwrap().is_empty());
        fs.check_repairable().unwrap();
        drop((root, dir, file));
        let mut fs = fs;
        assert!(matches!(fs.repair(), Err(FsError::ReadOnly)));
        fs.close().unwrap();
        drop(other);
        assert!(std::fs::read(&path).unwrap() == before, "killed: {is_killed}");
    }
}

#[test]
fn reader_finds_what_a_writer_finds() {
    for is_killed in [false, true] {
        let (_dir, path) = image(is_killed);
        let read_only = Fs::open(&path, &FsOptions::new().read_only(true)).unwrap();
        let found = walk(&read_only.root()).unwrap();
        drop(read_only);
        assert!(found.len() > 3);
        assert!(walk(&Fs::open(&path, &FsOptions::new()).unwrap().root()).unwrap() == found);
    }
}

/// A region that is given is the caller's, which the changes would reach.
#[test]
fn attached_file_system_is_read_only_too() {
    let (_dir, path) = image(false);
    let region = pm_core::RegionOptions::new().scratch().open(&path).unwrap();
    let fs = Fs::attach(region, &FsOptions::new().read_only(true)).unwrap();
    assert!(matches!(fs.root().unlink("renamed"), Err(FsError::ReadOnly)));
}
