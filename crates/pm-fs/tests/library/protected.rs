//! Protected file systems: what cannot be protected is refused before anything is stored, and what is protected is an ordinary file system.

use crate::kill::has;
use pm_core::emulation::{Emulated, EmulationError, Speed};
use pm_core::protection::{Method, Protected, Protection, ProtectionError};
use pm_core::{Pmem, Region, RegionOptions};
use pm_fs::{Fs, FsError, FsOptions, NewFile};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const POOL_BYTES: u64 = 4 << 20;

/// An empty file system.
fn image() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk.pm");
    Fs::create(&path, POOL_BYTES, &FsOptions::new()).unwrap().close().unwrap();
    (dir, path)
}

fn new() -> NewFile {
    NewFile { mode: 0o644, ..NewFile::default() }
}

/// Changes of every kind, with two files that stay.
fn change<P: Pmem>(fs: &Fs<P>) {
    let root = fs.root();
    let file = root.create("file", new()).unwrap();
    file.append(&[7; 100_000]).unwrap();
    file.write_at(5000, &[8; 9000]).unwrap();
    file.punch_hole(40_960, 8192).unwrap();
    file.set_strict(true).unwrap();
    file.write_at(60_000, &[9; 10_000]).unwrap();
    file.set_strict(false).unwrap();
    let map = file.map(0, 100_000).unwrap();
    map.store(4090, &[1; 12]).unwrap();
    map.persist(4090..4102).unwrap();
    let dir = root.mkdir("dir", new()).unwrap();
    for number in 0..100 {
        let small = dir.create(format!("{number}"), new()).unwrap();
        small.append(&[number; 64]).unwrap();
        small.set_xattr("user.a", "value", pm_fs::SetXattr::Any).unwrap();
    }
    for number in 1..100 {
        dir.unlink(format!("{number}")).unwrap();
    }
    dir.rename("0", &root, "small").unwrap();
    root.rmdir("dir").unwrap();
}

/// What [`change`] has left.
fn check<P: Pmem>(fs: &Fs<P>, how: &str) {
    let mut expected = vec![7; 100_000];
    expected[5000..14_000].fill(8);
    expected[40_960..49_152].fill(0);
    expected[60_000..70_000].fill(9);
    expected[4090..4102].fill(1);
    let mut found = vec![0; 100_001];
    assert_eq!(fs.lookup("file").unwrap().read_at(0, &mut found).unwrap(), expected.len(), "{how}");
    assert!(found[..100_000] == expected, "{how}");
    assert_eq!(fs.lookup("small").unwrap().read_at(0, &mut found).unwrap(), 64, "{how}");
    assert_eq!(found[..64], [0; 64], "{how}");
    assert_eq!(fs.root().entries(0).unwrap().len(), 2, "{how}");
    let report = fs.check();
    assert!(report.problems.is_empty(), "{how}: {:#?}", report.problems);
}

#[test]
fn protected_file_system_is_an_ordinary_one() {
    for method in Method::ALL.into_iter().filter(|method| has(*method)) {
        for protection in [Protection::new(method), Protection::new(method).guard_reads(true)] {
            let (_dir, path) = image();
            let how = format!("{protection:?}");
            let fs = Fs::open_protected(&path, &FsOptions::new(), &protection).unwrap();
            change(&fs);
            check(&fs, &how);
            // As a kill leaves it; recovery runs in windows.
            let killed = path.with_extension("killed");
            std::fs::copy(&path, &killed).unwrap();
            fs.close().unwrap();
            check(&Fs::open(&path, &FsOptions::new()).unwrap(), &how);
            check(&Fs::open_protected(&killed, &FsOptions::new(), &protection).unwrap(), &how);
        }
    }
}

/// Every store of a new file system is in a window too.
#[test]
fn file_system_is_created_in_windows() {
    for method in Method::ALL.into_iter().filter(|method| has(*method)) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("disk.pm");
        let region = RegionOptions::new().create(&path, POOL_BYTES).unwrap();
        let region = Protected::new(region, &Protection::new(method)).unwrap();
        let fs = Fs::format(region, &FsOptions::new()).unwrap();
        change(&fs);
        assert_eq!(fs.heap().pool().pmem().windows().stray_count(), 0, "{method}");
        fs.close().unwrap();
        check(&Fs::open(&path, &FsOptions::new()).unwrap(), method.name());
    }
}

/// Nothing is stored, and the file can be opened at once.
#[test]
fn what_cannot_be_protected_is_refused() {
    let (_dir, path) = image();
    let before = std::fs::read(&path).unwrap();
    let refused = |options: &FsOptions, protection: &Protection| {
        let error = Fs::open_protected(&path, options, protection).err().unwrap();
        assert!(std::fs::read(&path).unwrap() == before, "{error}");
        error
    };
    let (writable, read_only) = (FsOptions::new(), FsOptions::new().read_only(true));
    for method in Method::ALL {
        assert!(matches!(refused(&read_only, &Protection::new(method)), FsError::NothingToProtect));
        if !has(method) {
            let error = refused(&writable, &Protection::new(method));
            assert!(matches!(error, FsError::Protection(ProtectionError::NoKey(_))), "{error}");
        }
    }
    let odd = Protection::new(Method::PageTable).window_bytes(5000);
    let error = refused(&writable, &odd);
    assert!(matches!(error, FsError::Protection(ProtectionError::WindowSize(5000))), "{error}");
    assert_eq!(error.errno(), rustix::io::Errno::IO);
    // Without protection, reading only is possible, as always.
    let none = Protection::new(Method::None);
    assert!(Fs::open_protected(&path, &read_only, &none).unwrap().root().entries(0).unwrap().is_empty());
    Fs::open(&path, &writable).unwrap().close().unwrap();
}

#[test]
fn file_system_is_as_slow_as_its_emulated_memory() {
    let (_dir, path) = image();
    let open = |speed: Speed| {
        Fs::open_over(&path, &FsOptions::new(), |region: Region| Ok(Emulated::new(region, &speed)?))
    };
    let refused = open(Speed::new().read_slowdown(0.5)).err().unwrap();
    assert!(
        matches!(refused, FsError::Emulation(EmulationError::TooFast { .. } | EmulationError::Impossible(_))),
        "{refused:?}"
    );
    let fs = open(Speed::new().barrier_latency(Duration::from_millis(2))).unwrap();
    let file = fs.root().create("file", new()).unwrap();
    let begin = Instant::now();
    (0..10).for_each(|_| assert!(file.append(&[1; 64]).is_ok()));
    assert!(begin.elapsed() >= Duration::from_millis(20), "ten appends have ten fences");
}
