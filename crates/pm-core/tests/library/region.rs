//! Creating, opening, locking and growing regions, and the errors of these operations.

use pm_core::{Domain, GrowError, Medium, OpenError, Pmem, Region, RegionOptions};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::Errno;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.pm");
    (dir, path)
}

fn create(path: &Path, len_bytes: u64) -> Result<Region, OpenError> {
    RegionOptions::new().create(path, len_bytes)
}

#[test]
fn fenced_data_survives_reopening() {
    for dir in ["/tmp", "/dev/shm"] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("data.pm");
        let region = create(&path, MIB).unwrap();
        region.store(100, b"through the cache");
        region.persist(100, 17).unwrap();
        region.store_nt(MIB - 5000, &[7; 5000]);
        region.store_u64(8, 42);
        region.persist(8, 8).unwrap();
        drop(region);

        let region = Region::open(&path).unwrap();
        let mut text = [0; 17];
        region.load(100, &mut text);
        assert_eq!(&text, b"through the cache");
        let mut tail = vec![0; 5000];
        region.load(MIB - 5000, &mut tail);
        assert_eq!(tail, [7; 5000]);
        assert_eq!(region.load_u64(8), 42);
        assert_eq!(region.compare_exchange_u64(8, 41, 1), Err(42));
        assert_eq!(region.compare_exchange_u64(8, 42, 43), Ok(42));
        assert_eq!(region.load_u64(8), 43);
    }
}

#[test]
fn medium_and_domain_are_reported() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = create(&shm.path().join("a"), MIB).unwrap();
    assert_eq!((region.medium(), region.domain()), (Medium::Tmpfs, Domain::Volatile));
    assert!(!region.domain().survives_power_loss());
    let memory = Region::anonymous(MIB).unwrap();
    assert_eq!((memory.medium(), memory.domain()), (Medium::Tmpfs, Domain::Volatile));
}

#[test]
fn scratch_stores_never_reach_file() {
    for dir in ["/tmp", "/dev/shm"] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("data.pm");
        let region = create(&path, MIB).unwrap();
        region.store_u64(4096, 42);
        region.persist(4096, 8).unwrap();
        drop(region);
        let before = fs::read(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();

        let mut scratch = RegionOptions::new().scratch().open(&path).unwrap();
        assert_eq!((scratch.is_writable(), scratch.domain()), (true, Domain::Volatile));
        assert_eq!(scratch.load_u64(4096), 42);
        scratch.store_u64(4096, 43);
        scratch.store_nt(8192, &[7; 4096]);
        scratch.persist(4096, 8192).unwrap();
        assert_eq!((scratch.load_u64(4096), scratch.load_u64(8192)), (43, u64::from_le_bytes([7; 8])));

        let other = RegionOptions::new().scratch().open(&path).unwrap();
        assert_eq!(other.load_u64(4096), 42, "each scratch region has its own copy");
        let busy = |options: RegionOptions| matches!(options.open(&path), Err(OpenError::Busy { .. }));
        assert!(!busy(RegionOptions::new().read_only()), "the file can be opened for reading");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(busy(RegionOptions::new()), "the file cannot be opened for writing");
        assert!(matches!(scratch.grow(2 * MIB), Err(OpenError::ReadOnly { .. })));
        drop((scratch, other));
        assert!(fs::read(&path).unwrap() == before);
    }
}

#[test]
fn region_has_one_writer_or_many_readers() {
    let (_dir, path) = scratch();
    let writer = create(&path, MIB).unwrap();
    assert!(matches!(Region::open(&path), Err(OpenError::Busy { .. })));
    assert!(matches!(RegionOptions::new().read_only().open(&path), Err(OpenError::Busy { .. })));
    drop(writer);
    let reader = RegionOptions::new().read_only().open(&path).unwrap();
    let other = RegionOptions::new().read_only().open(&path).unwrap();
    assert!(matches!(Region::open(&path), Err(OpenError::Busy { .. })));
    drop((reader, other));
    Region::open(&path).unwrap();
}

/// Two descriptors of one open file description share its lock, so the lock would not exclude the second region.
#[test]
fn duplicate_descriptor_is_refused() {
    let (_dir, path) = scratch();
    let region = create(&path, MIB).unwrap();
    for options in [RegionOptions::new(), RegionOptions::new().read_only()] {
        let second = options.open_file(region.file().try_clone_to_owned().unwrap(), &path);
        assert!(matches!(second, Err(OpenError::Busy { .. })), "{second:?}");
        drop(second);
        assert!(matches!(Region::open(&path), Err(OpenError::Busy { .. })), "the region must keep its lock");
    }
    let duplicate = region.file().try_clone_to_owned().unwrap();
    drop(region);
    RegionOptions::new().open_file(duplicate, &path).unwrap();
}

#[test]
fn creation_never_overwrites_and_failed_creation_leaves_no_file() {
    let (dir, path) = scratch();
    drop(create(&path, MIB).unwrap());
    assert!(matches!(create(&path, MIB), Err(OpenError::Exists { .. })));
    let failing = dir.path().join("never");
    let error = RegionOptions::new().create_with(&failing, MIB, |_| Err(OpenError::ZeroSize)).unwrap_err();
    assert!(matches!(error, OpenError::ZeroSize));
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["data.pm"]);
}

#[test]
fn impossible_sizes_are_refused() {
    let (_dir, path) = scratch();
    assert!(matches!(create(&path, 0), Err(OpenError::ZeroSize)));
    let error = create(&path, 4097).unwrap_err();
    assert_eq!(error.to_string(), "the size of 4097 bytes is not a multiple of 4096");
    fs::write(&path, b"odd").unwrap();
    assert!(matches!(Region::open(&path), Err(OpenError::SizeNotMultiple { len_bytes: 3, .. })));
    fs::write(&path, b"").unwrap();
    assert!(matches!(Region::open(&path), Err(OpenError::ZeroSize)));
    assert!(!path.with_file_name("other").exists());
}

#[test]
fn full_file_system_is_reported_and_no_file_is_left() {
    // A tmpfs returns the error at once. Other file systems first allocate all free blocks, which other tests need.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    // More than the size of the file system, and less than the maximum length of a file.
    let error = create(&dir.path().join("data.pm"), 1 << 42).unwrap_err();
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A store to a hole of a full file system would raise SIGBUS.
#[test]
fn opening_fills_holes() {
    for dir in ["/tmp", "/dev/shm"] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("data.pm");
        let file = fs::File::create_new(&path).unwrap();
        file.set_len(MIB).unwrap();
        file.write_all_at(b"not a hole", 5 * 4096).unwrap();
        let allocated_bytes = || fs::metadata(&path).unwrap().blocks() * 512;
        assert!(allocated_bytes() < MIB, "no hole: {}", allocated_bytes());
        for _ in 0..2 {
            let region = Region::open(&path).unwrap();
            assert!(allocated_bytes() >= MIB, "a hole is left: {}", allocated_bytes());
            let mut text = [0; 10];
            region.load(5 * 4096, &mut text);
            assert_eq!(&text, b"not a hole");
        }
    }
}

/// Blocks that are allocated after the end of the file must not be counted as blocks of its holes.
#[test]
fn opening_fills_holes_despite_blocks_after_end_of_file() {
    use rustix::fs::{FallocateFlags, fallocate};
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("data.pm");
    let file = fs::File::create(&path).unwrap();
    file.set_len(MIB).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, MIB, 2 * MIB).unwrap();
    Region::open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().blocks() * 512, MIB);
}

#[test]
fn growth_of_sparse_region_keeps_holes() {
    for dir in [".", "/dev/shm"] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("data.pm");
        let mut region = RegionOptions::new().sparse(true).create(&path, MIB).unwrap();
        region.grow(64 * MIB).unwrap();
        assert_eq!((region.len_bytes(), region.load_u64(63 * MIB)), (64 * MIB, 0));
        let allocated_bytes = fs::metadata(&path).unwrap().blocks() * 512;
        assert!(allocated_bytes < 4 * MIB, "{allocated_bytes} bytes in {}", path.display());
    }
}

#[test]
fn populating_allocates_the_pages_inside_the_range() {
    const PAGE: u64 = 4096;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("data.pm");
    let region = RegionOptions::new().sparse(true).create(&path, MIB).unwrap();
    let allocated_bytes = || fs::metadata(&path).unwrap().blocks() * 512;
    assert_eq!(allocated_bytes(), 0);
    // No whole page, or none in the region.
    for range in [1..PAGE, PAGE - 1..2 * PAGE - 1, 5..5, MIB..u64::MAX, MIB + 1..MIB + 2] {
        region.populate_range(range).unwrap();
    }
    assert_eq!(allocated_bytes(), 0);
    region.populate_range(1..3 * PAGE + 1).unwrap();
    assert_eq!(allocated_bytes(), 2 * PAGE);
    assert_eq!(region.next_data(0), Some(PAGE..3 * PAGE));
    // Through the seam, with the end past the end of the region.
    let seam = pm_core::LineCounting::new(pm_core::Counting::new(&region));
    seam.populate(MIB - PAGE, u64::MAX);
    assert_eq!(allocated_bytes(), 3 * PAGE);

    region.store_u64(PAGE, 7);
    region.populate_range(0..MIB).unwrap();
    assert_eq!((allocated_bytes(), region.load_u64(PAGE), region.load_u64(0)), (MIB, 7, 0));
    drop(region);
    let region = RegionOptions::new().read_only().open(&path).unwrap();
    assert!(matches!(region.populate_range(0..MIB), Err(OpenError::ReadOnly { .. })));
    Pmem::populate(&region, 0, MIB);
}

#[test]
fn hints_do_not_need_an_offset_in_the_region() {
    let seam = pm_core::LineCounting::new(pm_core::Counting::new(Region::anonymous(MIB).unwrap()));
    for offset in [0, MIB - 1, MIB, u64::MAX] {
        seam.prefetch(offset);
        seam.prefetch_read(offset);
    }
    assert_eq!(seam.stored().total_writes(), 0);
}

#[test]
fn words_are_loaded_from_their_offsets() {
    let region = Region::anonymous(MIB).unwrap();
    for word in 0..8 {
        region.store_u64(MIB - 64 + 8 * word, 100 + word);
    }
    for first in 0..=8 {
        for end in first..=8 {
            let mut words = vec![0; usize::try_from(end - first).unwrap()];
            region.load_words(MIB - 64 + 8 * first, &mut words);
            assert_eq!(words, (100 + first..100 + end).collect::<Vec<_>>());
            let seam = pm_core::LineCounting::new(pm_core::Counting::new(&region));
            seam.load_words(MIB - 64 + 8 * first, &mut words);
            assert_eq!(words, (100 + first..100 + end).collect::<Vec<_>>());
        }
    }
    let refused: [(u64, usize); 4] = [(MIB - 64 + 4, 1), (MIB - 8, 2), (MIB, 1), (u64::MAX - 7, 1)];
    for (offset, count) in refused {
        let load = || region.load_words(offset, &mut vec![0; count]);
        assert!(std::panic::catch_unwind(load).is_err(), "{count} words at {offset}");
    }
}

#[test]
fn kind_of_unmappable_file_is_reported() {
    let (dir, path) = scratch();
    let kind = |path: &Path| match Region::open(path) {
        Err(OpenError::NotMappable { kind, .. }) => kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(dir.path()), "directory");
    assert_eq!(kind(Path::new("/dev/null")), "character device");
    let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    assert_eq!(kind(&path), "socket");
    drop(socket);
    assert!(matches!(Region::open(dir.path().join("no")), Err(OpenError::NotFound { .. })));
    assert!(matches!(create(&dir.path().join("no/file"), MIB), Err(OpenError::NotFound { .. })));
}

/// Opening a tape may rewind it, opening a watchdog starts it, and opening a pipe is visible at its other end. So the kind is checked first.
#[test]
fn unmappable_files_are_not_opened() {
    let (dir, pipe) = scratch();
    let made =
        |path: &Path, kind, device| mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device).unwrap();
    made(&pipe, FileType::Fifo, 0);
    let mut paths = vec![(pipe, "pipe")];
    // Only root may create device nodes; this node is of the device /dev/null.
    if rustix::process::geteuid().is_root() {
        let device = dir.path().join("null");
        made(&device, FileType::CharacterDevice, rustix::fs::makedev(1, 3));
        paths.push((device, "character device"));
    }
    for (path, expected) in paths {
        let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, &path, WatchFlags::OPEN).unwrap();
        let is_opened = || match rustix::io::read(&watch, &mut [0_u8; 4096]) {
            Ok(_) => true,
            Err(Errno::AGAIN) => false,
            Err(error) => panic!("{error}"),
        };
        let openers =
            [RegionOptions::new(), RegionOptions::new().read_only(), RegionOptions::new().scratch()];
        for options in openers {
            match options.open(&path) {
                Err(OpenError::NotMappable { kind, .. }) => assert_eq!(kind, expected),
                other => panic!("{other:?}"),
            }
            assert!(!is_opened(), "the {expected} was opened");
        }
        rustix::fs::open(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty()).unwrap();
        assert!(is_opened(), "the watch must report an open of a {expected}");
    }
}

#[test]
fn file_without_permission_is_refused() {
    let (_dir, path) = scratch();
    drop(create(&path, MIB).unwrap());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    // Root may open every file, so only an ordinary user gets the error.
    let region = Region::open(&path);
    if rustix::process::geteuid().is_root() {
        assert!(region.is_ok());
    } else {
        assert!(matches!(region, Err(OpenError::Permission { .. })));
    }
}

#[test]
fn read_only_region_refuses_stores() {
    let (_dir, path) = scratch();
    let region = create(&path, MIB).unwrap();
    region.store_u64(0, 5);
    region.persist(0, 8).unwrap();
    drop(region);
    let region = RegionOptions::new().read_only().open(&path).unwrap();
    assert!(!region.is_writable());
    assert_eq!(region.load_u64(0), 5);
    let refused = std::panic::catch_unwind(|| region.store_u64(0, 6)).unwrap_err();
    assert!(refused.downcast_ref::<String>().unwrap().contains("open read-only"));
}

#[test]
fn growth_keeps_contents_and_adds_zeroes() {
    let (_dir, path) = scratch();
    let mut region = create(&path, MIB).unwrap();
    region.store_u64(MIB - 8, 9);
    region.persist(MIB - 8, 8).unwrap();
    region.grow(3 * MIB).unwrap();
    assert_eq!(region.len_bytes(), 3 * MIB);
    assert_eq!(region.load_u64(MIB - 8), 9);
    assert_eq!(region.load_u64(3 * MIB - 8), 0);
    region.store_nt(3 * MIB - 64, &[1; 64]);
    region.fence().unwrap();
    assert!(matches!(region.grow(MIB), Err(OpenError::Shrink { .. })));
    assert!(matches!(region.grow(3 * MIB + 1), Err(OpenError::SizeNotMultiple { .. })));
    drop(region);
    assert_eq!(fs::metadata(&path).unwrap().len(), 3 * MIB);
}

/// Another program, which ignores the lock, has made the file longer.
#[test]
fn growth_never_truncates_file() {
    // A tmpfs returns the error for a lack of space at once.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("data.pm");
    let mut region = create(&path, MIB).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4 * MIB).unwrap();
    let grown = region.grow(2 * MIB);
    let is_refused = matches!(grown, Err(OpenError::Shrink { len_bytes, wanted_bytes }) if (len_bytes, wanted_bytes) == (4 * MIB, 2 * MIB));
    assert!(is_refused, "{grown:?}");
    assert_eq!((region.len_bytes(), fs::metadata(&path).unwrap().len()), (MIB, 4 * MIB));
    let grown = region.grow(1 << 42);
    assert!(matches!(grown, Err(OpenError::NoSpace { .. })), "{grown:?}");
    assert_eq!((region.len_bytes(), fs::metadata(&path).unwrap().len()), (MIB, 4 * MIB));
    region.grow(4 * MIB).unwrap();
    assert_eq!((region.len_bytes(), fs::metadata(&path).unwrap().len()), (4 * MIB, 4 * MIB));
}

/// The process has no address space left for the longer mapping.
#[test]
fn growth_without_address_space_keeps_file() {
    const IN: &str = "PM_CORE_TEST_GROW";
    if let Some(path) = std::env::var_os(IN) {
        let mut region = Region::open(path).unwrap();
        let grown = region.grow(1 << 30);
        assert!(matches!(grown, Err(OpenError::Io { operation: "mmap", .. })), "{grown:?}");
        assert_eq!(region.len_bytes(), MIB);
        return;
    }
    // On a disk, not in memory. Nothing is stored, so its blocks are only reserved.
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("data.pm");
    drop(create(&path, MIB).unwrap());
    let test = "region::growth_without_address_space_keeps_file";
    let mut child = std::process::Command::new("sh");
    child.args(["-c", &format!("ulimit -v 800000; exec \"$0\" {test} --exact")]);
    let output = child.arg(std::env::current_exe().unwrap()).env(IN, &path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB);
}

#[test]
fn access_outside_region_panics() {
    let region = Region::anonymous(4096).unwrap();
    for (offset, len) in [(4096_u64, 1_usize), (4090, 7), (u64::MAX, 2), (u64::MAX - 1, 1)] {
        let refused = std::panic::catch_unwind(|| region.store(offset, &vec![0; len])).unwrap_err();
        let text = refused.downcast_ref::<String>().unwrap();
        assert!(text.contains("do not fit in (anonymous memory), which has 4096 bytes"), "{text}");
    }
    region.store(4096, &[]);
    let refused = std::panic::catch_unwind(|| region.load_u64(4)).unwrap_err();
    assert!(refused.downcast_ref::<String>().unwrap().contains("must be aligned"));
}

#[test]
fn racing_copies_see_only_stored_bytes() {
    let region = Region::anonymous(4096).unwrap();
    std::thread::scope(|threads| {
        for value in [1, 2_u8] {
            let region = &region;
            threads.spawn(move || {
                for _ in 0..1000 {
                    region.store(3, &[value; 700]);
                    region.store_nt(3, &[value; 700]);
                    region.fence().unwrap();
                    let mut seen = [0; 700];
                    region.load(3, &mut seen);
                    assert!(seen.iter().all(|byte| matches!(byte, 1 | 2)));
                }
            });
        }
    });
}

/// An aligned store of two or four bytes by one thread is never partly visible to another thread.
#[test]
fn short_aligned_stores_are_not_torn() {
    // The reader continues until it has observed this number of changes: on a busy machine, a fixed number of loads might observe none.
    const CHANGES: u64 = 20_000;
    let region = RegionOptions::new().anonymous(4096).unwrap();
    let is_over = AtomicBool::new(false);
    let torn = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut ones = false;
            while !is_over.load(Ordering::Relaxed) {
                ones = !ones;
                let byte = if ones { 0xFF } else { 0 };
                region.store(2, &[byte; 2]);
                region.store(4, &[byte; 4]);
            }
        });
        let (mut change_count, mut before, mut torn) = (0, 0, None);
        while change_count < CHANGES && torn.is_none() {
            let word = region.load_u64(0);
            let (two, four) = (word >> 16 & 0xFFFF, word >> 32);
            let is_whole = [0, 0xFFFF].contains(&two) && [0, 0xFFFF_FFFF].contains(&four);
            torn = (!is_whole).then_some(word);
            change_count += u64::from(word != before);
            before = word;
        }
        // No assertion here: if it failed, the other thread would run forever.
        is_over.store(true, Ordering::Relaxed);
        torn
    });
    assert_eq!(torn, None);
}

/// The kernel's flags of the region's mapping (proc(5), `smaps`): `hg` if huge pages are advised, `dc` if `fork` does not copy it to a child.
fn mapping_flags(region: &Region) -> String {
    let address = region.base_ptr().as_ptr().addr();
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_inside = false;
    for line in smaps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let number = |digits| usize::from_str_radix(digits, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (number(start), number(end))) {
            is_inside = (start..end).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && is_inside
        {
            return format!("{flags} ");
        }
    }
    panic!("no mapping at {address:#x}");
}

#[test]
fn growth_keeps_madvise_flags() {
    let mut region = Region::anonymous(4 * MIB).unwrap();
    let huge_pages = mapping_flags(&region).contains(" hg ");
    region.grow(8 * MIB).unwrap();
    assert_eq!(mapping_flags(&region).contains(" hg "), huge_pages);
    assert!(mapping_flags(&region).contains(" dc "));
}

#[test]
fn children_inherit_mapping_only_on_request() {
    let (_dir, path) = scratch();
    let region = create(&path, MIB).unwrap();
    assert!(mapping_flags(&region).contains(" dc "));
    drop(region);
    let region = RegionOptions::new().keep_on_fork().open(&path).unwrap();
    assert!(!mapping_flags(&region).contains(" dc "));
}

/// An unlinked file does not survive a crash of the machine, even if it was synced. `/proc/self/fd` has a path to it while it is open.
#[test]
fn unlinked_file_is_volatile() {
    // On a disk, not in memory, where the domain is always volatile.
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("data.pm");
    drop(create(&path, MIB).unwrap());
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    assert_eq!(Region::open(&link).unwrap().domain(), Domain::Page);
    fs::remove_file(&path).unwrap();
    assert_eq!(Region::open(&link).unwrap().domain(), Domain::Volatile);
    assert_eq!(RegionOptions::new().open_file(file.into(), &path).unwrap().domain(), Domain::Volatile);
}

#[test]
fn symbolic_link_is_followed() {
    let (dir, path) = scratch();
    drop(create(&path, MIB).unwrap());
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let region = Region::open(&link).unwrap();
    assert!(matches!(Region::open(&path), Err(OpenError::Busy { .. })));
    drop(region);
}

/// Two threads access the region while it grows, in memory and on a disk: its bytes keep their addresses, and each new one is zero and has its block.
#[test]
fn region_grows_in_place_while_it_is_used() {
    for dir in [".", "/dev/shm"] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("data.pm");
        let region = RegionOptions::new().reserve(8 * MIB).create(&path, MIB).unwrap();
        let (base, ended) = (region.base_ptr(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (region, ended) = (&region, &ended);
                scope.spawn(move || {
                    let mut count = 0;
                    while !ended.load(Ordering::Acquire) || count == 0 {
                        count += 1;
                        region.store_u64(thread * 8, count);
                        region.persist(thread * 8, 8).unwrap();
                        assert_eq!(region.load_u64(thread * 8), count);
                        // The last word that there is now is accessible.
                        let last = region.len_bytes() - 8 * (thread + 1);
                        region.store_u64(last, 0);
                    }
                });
            }
            for len_bytes in [MIB + 4096, 2 * MIB, 3 * MIB, 8 * MIB] {
                let old = region.len_bytes();
                region.grow_in_place(len_bytes).unwrap();
                assert_eq!((region.len_bytes(), fs::metadata(&path).unwrap().len()), (len_bytes, len_bytes));
                assert!((old..len_bytes).step_by(4096).all(|at| region.load_u64(at) == 0));
                region.store_nt(len_bytes - 4096, &[7; 64]);
                region.fence().unwrap();
            }
            ended.store(true, Ordering::Release);
        });
        assert_eq!(region.base_ptr(), base);
        assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 8 * MIB);
        region.grow_in_place(8 * MIB).unwrap();
        assert!(matches!(region.grow_in_place(8 * MIB + 4096), Err(GrowError::Fixed { .. })));
        assert!(matches!(region.grow_in_place(MIB), Err(GrowError::Shrink { .. })));
        assert_eq!(fs::metadata(&path).unwrap().len(), 8 * MIB);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.load_u64(8 * MIB)));
        panics.unwrap_err();
        // Alone, it can grow beyond the reserved addresses: the mapping moves.
        let mut region = region;
        region.grow(9 * MIB).unwrap();
        assert_eq!(
            (region.load_u64(8 * MIB - 4096), region.load_u64(9 * MIB - 8)),
            (0x0707_0707_0707_0707, 0)
        );
        drop(region);
        let region = Region::open(&path).unwrap();
        assert_eq!(region.load_u64(MIB), 0x0707_0707_0707_0707, "in the first page that was added");
        assert!(
            matches!(region.grow_in_place(10 * MIB), Err(GrowError::Fixed { .. })),
            "nothing is reserved"
        );
        assert_eq!(fs::metadata(&path).unwrap().len(), 9 * MIB);
    }
}

/// Where there is no space for more, the region and the file are as before, and it can grow by less.
#[test]
fn region_that_cannot_grow_in_place_is_unchanged() {
    for dir in [".", "/dev/shm"] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("data.pm");
        let region = RegionOptions::new().reserve(1 << 45).create(&path, MIB).unwrap();
        region.store_u64(MIB - 8, 5);
        region.persist(MIB - 8, 8).unwrap();
        let grown = region.grow_in_place(1 << 45);
        assert!(grown.is_err(), "no file system here has 32 TiB free");
        assert!(matches!(region.grow_in_place(MIB + 1), Err(GrowError::Other(_))));
        assert_eq!((region.len_bytes(), fs::metadata(&path).unwrap().len()), (MIB, MIB));
        region.grow_in_place(2 * MIB).unwrap();
        assert_eq!((region.load_u64(MIB - 8), region.load_u64(2 * MIB - 8)), (5, 0));
    }
    let region = RegionOptions::new().reserve(2 * MIB).anonymous(MIB).unwrap();
    region.grow_in_place(2 * MIB).unwrap();
    region.store_u64(2 * MIB - 8, 1);
}

/// A region that ends inside a page grows in place, or is unchanged, and so is its file.
#[test]
fn region_of_any_length_with_reserve_grows_or_is_unchanged() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x.pm");
    std::fs::write(&path, vec![7; 4096 + 100]).unwrap();
    let region = RegionOptions::new().any_length(true).reserve(1 << 20).open(&path).unwrap();
    let grown = region.grow_in_place(1 << 16);
    let found = (region.len_bytes(), std::fs::metadata(&path).unwrap().len());
    let expected = if grown.is_ok() { 1 << 16 } else { 4096 + 100 };
    assert_eq!(found, (expected, expected), "{grown:?}");
}
