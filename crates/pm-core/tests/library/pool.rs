//! Pools: the two copies of the header under corruption, growth, and named roots.

use pm_core::pool::format::Header;
use pm_core::{
    Counting, Counts, HeaderCorruption, HeaderState, HugePages, LineCounting, Link, Persist, PlaceError,
    Pmem, Pool, PoolError, PoolOptions, Region, RegionOptions, RootError, Uuid, field,
};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const POOL_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
struct Counter {
    value: u64,
    step: u64,
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct OtherCounter {
    value: u64,
    step: u64,
}

fn pool_file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pm");
    let pool = Pool::create(&path, POOL_BYTES, &RegionOptions::new(), &PoolOptions::new()).unwrap();
    set_counter(&pool, "counter", Counter { value: 7, step: 1 }, 0);
    drop(pool);
    (dir, path)
}

fn set_counter<P: Pmem>(pool: &Pool<P>, name: &str, counter: Counter, at: u64) {
    pool.scope(|pm| {
        let place = pm.claim(pool.data().start + at).unwrap();
        let counter = pm.fence(pm.flush(pm.write(place, &counter))).unwrap();
        pm.set_root(name, &counter).unwrap();
    });
}

fn counter<P: Pmem>(pool: &Pool<P>, name: &str) -> Option<Counter> {
    pool.scope(|pm| pm.root::<Counter>(name).unwrap().map(|link| pm.read(link).unwrap()))
}

fn open(path: &Path) -> Result<Pool, PoolError> {
    Pool::open(path, &RegionOptions::new())
}

fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn set_len(path: &Path, bytes: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn page<P: Pmem>(pmem: &P, offset: u64) -> [u8; 4096] {
    let mut page = [1; 4096];
    pmem.load(offset, &mut page);
    page
}

#[test]
fn corrupted_header_is_restored_from_backup() {
    let (_dir, path) = pool_file();
    // A byte of each field, of the reserved bytes and of the checksum.
    for offset in [0, 8, 12, 16, 24, 32, 40, 56, 64, 72, 80, 88, 96, 104, 112, 2000, 4091, 4092, 4095] {
        flip(&path, offset);
        let pool = open(&path).unwrap();
        match pool.header_state() {
            HeaderState::PrimaryCorrupted(HeaderCorruption::NoMagic) => assert!(offset < 8),
            HeaderState::PrimaryCorrupted(HeaderCorruption::Checksum { found, expected }) => {
                assert_ne!(found, expected)
            }
            other => panic!("byte {offset}: {other:?}"),
        }
        assert_eq!(counter(&pool, "counter"), Some(Counter { value: 7, step: 1 }));
        drop(pool);
        assert_eq!(open(&path).unwrap().header_state(), HeaderState::Intact, "byte {offset} is restored");
    }
}

#[test]
fn corrupted_backup_is_restored() {
    let (_dir, path) = pool_file();
    flip(&path, POOL_BYTES - 4096 + 50);
    let pool = open(&path).unwrap();
    assert!(matches!(pool.header_state(), HeaderState::BackupCorrupted(HeaderCorruption::Checksum { .. })));
    drop(pool);
    assert_eq!(open(&path).unwrap().header_state(), HeaderState::Intact);
}

#[test]
fn read_only_opening_restores_nothing() {
    let (_dir, path) = pool_file();
    flip(&path, 60);
    for _ in 0..2 {
        let pool = Pool::open(&path, &RegionOptions::new().read_only()).unwrap();
        assert!(matches!(pool.header_state(), HeaderState::PrimaryCorrupted(_)));
        assert_eq!(counter(&pool, "counter"), Some(Counter { value: 7, step: 1 }));
    }
}

#[test]
fn two_corrupted_headers_are_refused() {
    let (_dir, path) = pool_file();
    flip(&path, 60);
    flip(&path, POOL_BYTES - 4096 + 60);
    let before = fs::read(&path).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, PoolError::HeadersCorrupted { .. }));
    assert!(error.to_string().starts_with("both headers are corrupted"), "{error}");
    assert!(fs::read(&path).unwrap() == before);
}

#[test]
fn truncated_pool_and_other_files_are_refused() {
    let (dir, path) = pool_file();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for len in [POOL_BYTES - 4096, 8192, 4096] {
        file.set_len(len).unwrap();
        match open(&path) {
            Err(PoolError::Truncated { expected_bytes, found_bytes }) => {
                assert_eq!((expected_bytes, found_bytes), (POOL_BYTES, len));
            }
            other => panic!("{len} bytes: {other:?}"),
        }
    }
    file.set_len(0).unwrap();
    assert!(matches!(open(&path), Err(PoolError::NotAPool)));
    let other = dir.path().join("zeroes");
    fs::write(&other, vec![0; 1 << 16]).unwrap();
    assert!(matches!(open(&other), Err(PoolError::NotAPool)));
}

#[test]
fn unknown_versions_and_features_are_refused() {
    // A pool whose two copies of the header have another byte at an offset, as another version would have stored it, and the right checksum.
    let pool_with = |at: usize, byte: u8| {
        let region = Region::anonymous(POOL_BYTES).unwrap();
        let mut header = page(Pool::format(&region, &PoolOptions::new()).unwrap().pmem(), 0);
        header[at] = byte;
        let header: Header = pm_core::from_bytes(|out| out.copy_from_slice(&header));
        for offset in [0, POOL_BYTES - 4096] {
            region.store(offset, pm_core::bytes_of(&header.sealed()));
        }
        region
    };
    // docs/format/pool.md has the offsets.
    let (version, compat, ro_compat, incompat) = (8, 16, 24, 32);
    let future = pool_with(version, 3);
    assert!(matches!(Pool::attach(&future), Err(PoolError::FutureVersion { found: 3, supported: 2 })));
    let old = pool_with(version, 1);
    assert!(matches!(Pool::attach(&old), Err(PoolError::OldVersion { found: 1, supported: 2 })));
    assert!(matches!(Pool::format(&old, &PoolOptions::new()), Err(PoolError::AlreadyAPool)));
    let refused = Pool::attach_read_only(pool_with(incompat, 4));
    assert!(matches!(refused, Err(PoolError::UnknownFeatures { unknown: 4, needed_for: "opening" })));
    let read_only = pool_with(ro_compat, 2);
    let refused = Pool::attach(&read_only);
    assert!(matches!(refused, Err(PoolError::UnknownFeatures { unknown: 2, needed_for: "writing" })));
    Pool::attach_read_only(&read_only).unwrap();
    Pool::attach(pool_with(compat, 1)).unwrap();
}

#[test]
fn impossible_layouts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pm");
    let create = |bytes, data_start| {
        let options = PoolOptions::new().data_start(data_start);
        Pool::create(&path, bytes, &RegionOptions::new(), &options).unwrap_err()
    };
    for (bytes, data_start) in
        [(0, 8192), (12_288, 8192), (65_537, 8192), (65_536, 4096), (65_536, 8193), (65_536, 61_440)]
    {
        let error = create(bytes, data_start);
        assert!(matches!(error, PoolError::Layout { .. }), "{bytes} {data_start}: {error}");
        assert!(!path.exists());
    }
}

/// In a header, a half of the identity that is zero counts as erased, so no pool may have such an identity.
#[test]
fn identity_with_zero_half_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pm");
    let halves = |first, second| Uuid::from_bytes([[first; 8], [second; 8]].concat().try_into().unwrap());
    let create = |uuid| {
        let options = PoolOptions::new().uuid(uuid);
        Pool::create(&path, POOL_BYTES, &RegionOptions::new(), &options)
    };
    for uuid in [halves(0, 0), halves(0, 1), halves(1, 0)] {
        let created = create(uuid);
        let is_refused = matches!(created, Err(PoolError::Identity { uuid: refused }) if refused == uuid);
        assert!(is_refused, "{uuid}");
        assert!(!path.exists());
    }
    assert_eq!(create(halves(1, 2)).unwrap().uuid(), halves(1, 2));
    // In a region longer than its pool, either half of the identity suffices to find the backup.
    set_len(&path, 2 * POOL_BYTES);
    for corrupted in [40, 48] {
        flip(&path, corrupted);
        assert!(
            matches!(open(&path).unwrap().header_state(), HeaderState::PrimaryCorrupted(_)),
            "{corrupted}"
        );
    }
}

#[test]
fn format_overwrites_only_on_request() {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    let old = Pool::format(&region, &PoolOptions::new()).unwrap();
    set_counter(&old, "counter", Counter { value: 7, step: 1 }, 0);
    let old_uuid = old.uuid();
    drop(old);
    assert!(matches!(Pool::format(&region, &PoolOptions::new()), Err(PoolError::AlreadyAPool)));
    let new = Pool::format(&region, &PoolOptions::new().overwrite()).unwrap();
    assert_ne!(new.uuid(), old_uuid);
    assert_eq!(new.roots(), []);
}

#[test]
fn growth_keeps_contents_of_pool() {
    let (_dir, path) = pool_file();
    let mut pool = open(&path).unwrap();
    let (uuid, data) = (pool.uuid(), pool.data());
    pool.grow(2 * POOL_BYTES).unwrap();
    assert_eq!(pool.data(), data.start..data.end + POOL_BYTES);
    assert_eq!(page(pool.pmem(), POOL_BYTES - 4096), [0; 4096], "the old backup's page is zero");
    drop(pool);
    let pool = open(&path).unwrap();
    assert_eq!((pool.uuid(), pool.pool_bytes()), (uuid, 2 * POOL_BYTES));
    assert_eq!(pool.header_state(), HeaderState::Intact);
    assert_eq!(counter(&pool, "counter"), Some(Counter { value: 7, step: 1 }));
}

#[test]
fn headers_and_roots_cost_documented_lines_and_fences() {
    let cost_of = |lines, fences| Counts { lines, fences };
    let header = 4096 / 64;
    let pmem = Counting::new(Region::anonymous(POOL_BYTES).unwrap());
    let (made, cost) = pmem.count(|| Pool::format(&pmem, &PoolOptions::new()).map(drop));
    made.unwrap();
    assert_eq!(
        cost,
        cost_of(5 * header, 5),
        "erased headers at both ends, then the roots, the backup and the header"
    );
    let (made, cost) = pmem.count(|| Pool::format(&pmem, &PoolOptions::new().overwrite()).map(drop));
    made.unwrap();
    assert_eq!(cost, cost_of(5 * header, 5), "the same for a region with an old pool");

    let (pool, cost) = pmem.count(|| Pool::attach(&pmem).unwrap());
    assert_eq!(cost, cost_of(3 * header, 1), "both headers and the roots, in case they are not durable");
    let set = |value| set_counter(&pool, "counter", Counter { value, step: 1 }, 0);
    let ((), cost) = pmem.count(|| set(1));
    assert_eq!(cost, cost_of(3, 3), "the value, the slot, the slot's first word");
    let ((), cost) = pmem.count(|| set(2));
    assert_eq!(cost, cost_of(4, 4), "also the first word of the old slot");
    let (removed, cost) = pmem.count(|| pool.remove_root("counter"));
    removed.unwrap();
    assert_eq!(cost, cost_of(1, 1));

    let mut longer = vec![0; usize::try_from(POOL_BYTES).unwrap()];
    pmem.load(0, &mut longer);
    let pmem = Counting::new(Region::anonymous(2 * POOL_BYTES).unwrap());
    pmem.store(0, &longer);
    let mut pool = Pool::attach(&pmem).unwrap();
    let (extended, cost) = pmem.count(|| pool.extend());
    extended.unwrap();
    assert_eq!(cost, cost_of(3 * header, 3), "the new backup, then the old backup's page, then the header");
}

#[test]
fn roots_are_found_by_name_and_type() {
    let (_dir, path) = pool_file();
    let pool = open(&path).unwrap();
    set_counter(&pool, "second", Counter { value: 1, step: 2 }, 64);
    set_counter(&pool, "counter", Counter { value: 8, step: 1 }, 128);
    assert_eq!(counter(&pool, "counter"), Some(Counter { value: 8, step: 1 }));
    assert_eq!(counter(&pool, "absent"), None);
    assert_eq!(
        pool.roots().iter().map(|root| root.name().to_owned()).collect::<Vec<_>>(),
        ["counter", "second"]
    );
    pool.scope(|pm| {
        let error = pm.root::<OtherCounter>("counter").unwrap_err();
        assert!(matches!(error, RootError::Type { .. }), "{error}");
        for name in ["", "more than twenty-four bytes long", "a\0b"] {
            assert!(matches!(pm.root::<Counter>(name), Err(RootError::Name { .. })));
        }
    });
    pool.remove_root("counter").unwrap();
    pool.remove_root("counter").unwrap();
    assert_eq!(counter(&pool, "counter"), None);
    assert_eq!(counter(&pool, "second"), Some(Counter { value: 1, step: 2 }));
}

#[test]
fn full_directory_is_error_and_keeps_roots() {
    let pool = Pool::format(Region::anonymous(POOL_BYTES).unwrap(), &PoolOptions::new()).unwrap();
    pool.scope(|pm| {
        let place = pm.claim(pool.data().start).unwrap();
        let counter = pm.fence(pm.flush(pm.write(place, &Counter { value: 0, step: 0 }))).unwrap();
        for index in 0..63 {
            pm.set_root(&format!("root {index}"), &counter).unwrap();
        }
        assert!(matches!(pm.set_root("one more", &counter), Err(RootError::Full { root_count_max: 63 })));
        pm.set_root("root 5", &counter).unwrap();
    });
    assert_eq!(pool.roots().len(), 63);
}

#[test]
fn corrupted_root_is_not_reported_as_absent() {
    let (_dir, path) = pool_file();
    for offset in [4096, 4100, 4096 + 16, 4096 + 40] {
        flip(&path, offset);
        let pool = open(&path).unwrap();
        assert_eq!(pool.corrupted_root_count(), 1);
        pool.scope(|pm| {
            assert!(matches!(pm.root::<Counter>("counter"), Err(RootError::Corrupted { slots: 1 })))
        });
        set_counter(&pool, "other", Counter { value: 1, step: 1 }, 64);
        assert_eq!(pool.corrupted_root_count(), 1, "the slot is still corrupted");
        drop(pool);
        flip(&path, offset);
        assert_eq!(counter(&open(&path).unwrap(), "counter"), Some(Counter { value: 7, step: 1 }));
    }
}

#[test]
fn backup_is_found_after_interrupted_growth() {
    let (_dir, path) = pool_file();
    set_len(&path, 2 * POOL_BYTES);
    flip(&path, 60);
    let mut pool = open(&path).unwrap();
    assert!(matches!(pool.header_state(), HeaderState::PrimaryCorrupted(_)));
    assert_eq!(pool.pool_bytes(), POOL_BYTES);
    pool.grow(3 * POOL_BYTES).unwrap();
    assert_eq!(pool.pool_bytes(), 3 * POOL_BYTES);
    for stale in [POOL_BYTES - 4096, 2 * POOL_BYTES - 4096] {
        assert_eq!(page(pool.pmem(), stale), [0; 4096], "the page at {stale} has no old backup");
    }
}

/// Remains of an interrupted growth are at the end of the region. When the region has grown again, they are inside it.
#[test]
fn remains_of_interrupted_growth_are_erased_after_next_growth() {
    let (dir, path) = pool_file();
    let copy = dir.path().join("copy.pm");
    fs::copy(&path, &copy).unwrap();
    open(&copy).unwrap().grow(2 * POOL_BYTES).unwrap();
    let backup = &fs::read(&copy).unwrap()[usize::try_from(2 * POOL_BYTES - 4096).unwrap()..];
    // The complete backup; the part that a crash may leave; the parts that an interrupted erasure may leave.
    for part in [0..4096, 64..4096, 4032..4096, 40..56] {
        let copy = dir.path().join(format!("{part:?}.pm"));
        fs::copy(&path, &copy).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&copy).unwrap();
        file.set_len(2 * POOL_BYTES).unwrap();
        file.write_all_at(&backup[part.clone()], 2 * POOL_BYTES - 4096 + part.start as u64).unwrap();
        let mut region = Region::open(&copy).unwrap();
        region.grow(4 * POOL_BYTES).unwrap();
        let mut pool = Pool::attach(region).unwrap();
        assert_eq!(pool.pool_bytes(), POOL_BYTES);
        pool.extend().unwrap();
        assert!(page(pool.pmem(), 2 * POOL_BYTES - 4096) == [0; 4096], "{part:?} must be erased");
    }
}

#[test]
fn second_writing_handle_is_refused() {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    let first = Pool::format(&region, &PoolOptions::new()).unwrap();
    let in_use = |pool: Result<Pool<_>, PoolError>| assert!(matches!(pool, Err(PoolError::InUse)));
    in_use(Pool::attach(Counting::new(LineCounting::new(Arc::new(&region)))));
    in_use(Pool::format(
        Counting::new(LineCounting::new(Arc::new(&region))),
        &PoolOptions::new().overwrite(),
    ));
    assert_eq!(Pool::attach_read_only(&region).unwrap().uuid(), first.uuid());
    set_counter(&first, "counter", Counter { value: 7, step: 1 }, 0);
    let second = Pool::attach(first.into_pmem()).unwrap();
    assert_eq!(counter(&second, "counter"), Some(Counter { value: 7, step: 1 }));
    drop(second);
    drop(Pool::attach(&region).unwrap());
    assert!(matches!(Pool::format(&region, &PoolOptions::new()), Err(PoolError::AlreadyAPool)));
    Pool::attach(&region).unwrap();
}

/// The file is longer than the pool, as after an interrupted growth, and has no header at its end.
#[test]
fn refused_growth_changes_nothing() {
    let (_dir, path) = pool_file();
    set_len(&path, 3 * POOL_BYTES);
    let mut pool = open(&path).unwrap();
    for wanted_bytes in [2 * POOL_BYTES, 4 * POOL_BYTES + 1] {
        let grown = pool.grow(wanted_bytes);
        assert!(matches!(grown, Err(PoolError::Region(_))), "{grown:?}");
        assert_eq!((pool.pool_bytes(), pool.data().end), (POOL_BYTES, POOL_BYTES - 4096));
    }
    assert_eq!(pool.pmem().load_u64(3 * POOL_BYTES - 4096), 0, "no header is stored at the end of the file");
}

#[test]
fn following_corrupted_link_is_error() {
    let pool = Pool::format(Region::anonymous(POOL_BYTES).unwrap(), &PoolOptions::new()).unwrap();
    pool.scope(|pm| {
        let slot = pm.write(pm.claim(pool.data().start).unwrap(), &Link::<Counter>::NULL);
        let slot = pm.fence(pm.flush(slot)).unwrap();
        pool.pmem().store_u64(slot.offset(), u64::MAX - 3);
        let corrupted = pm.read(slot.link()).unwrap();
        assert!(pm.read(corrupted.field(field!(Counter, step))).is_err());
    });
}

/// `get` checks the index against the length of the array's type. A link from `element` is checked against the data area when it is followed.
#[test]
fn array_links_are_bounded() {
    let pool = Pool::format(Region::anonymous(POOL_BYTES).unwrap(), &PoolOptions::new()).unwrap();
    let at = pool.data().end - 32;
    pool.scope(|pm| {
        let array = pm.write(pm.claim(at).unwrap(), &[5_u64, 6, 7]);
        let array = pm.fence(pm.flush(array)).unwrap().link();
        let values = [0, 1, 2].map(|index| pm.read(array.get(index).unwrap()).unwrap());
        assert_eq!(values, [5, 6, 7]);
        for index in [3, 4, u64::MAX] {
            assert_eq!(array.get(index), None, "{index}");
        }
        assert_eq!(Link::<[u64; 3]>::NULL.get(2), Some(Link::NULL));
        let empty = pm.fence(pm.flush(pm.write(pm.claim(at).unwrap(), &[0_u64; 0]))).unwrap().link();
        assert_eq!(empty.get(0), None);
        let first = array.get(0).unwrap();
        assert_eq!(pm.read(first.element(3)).unwrap(), 0, "a word after the array");
        for index in [4, u64::MAX / 8, u64::MAX] {
            let found = pm.read(first.element(index));
            assert!(matches!(found, Err(PlaceError::OutOfRange { .. })), "{index}: {found:?}");
        }
        assert!(Link::<u64>::NULL.element(u64::MAX).is_null());
    });
}

#[test]
fn following_links_checks_bounds_and_alignment() {
    #[derive(Clone, Copy, Persist)]
    #[repr(C)]
    struct Node<'p> {
        next: Link<'p, Node<'p>>,
        value: u64,
    }
    let pool = Pool::format(Region::anonymous(POOL_BYTES).unwrap(), &PoolOptions::new()).unwrap();
    let data = pool.data();
    pool.scope(|pm| {
        let first = pm.write(pm.claim(data.start).unwrap(), &Node { next: Link::NULL, value: 1 });
        let second = pm.stream(pm.claim(data.end - 16).unwrap(), &Node { next: Link::NULL, value: 2 });
        let (first, second) = pm.fence((pm.flush(first), second)).unwrap();
        let next = first.link().field(field!(Node<'_>, next));
        pm.fence(pm.flush(pm.store_link(next, second.link()).unwrap())).unwrap();
        let node = pm.read(first.link()).unwrap();
        assert_eq!(pm.read(node.next).unwrap().value, 2);
        assert!(pm.read(pm.read(node.next).unwrap().next).is_err(), "a null link cannot be read");
        // On a corrupted medium, the link field may hold any word.
        for word in [1, 4, data.start - 16, data.end - 8, u64::MAX, data.start + 3] {
            pool.pmem().store_u64(first.offset(), word);
            assert!(pm.read(pm.read(first.link()).unwrap().next).is_err(), "{word:#x}");
        }
        assert!(pm.claim::<Node<'_>>(data.end - 8).is_err());
        assert!(pm.claim::<Node<'_>>(data.start - 16).is_err());
    });
}

#[test]
fn opening_sparse_file_without_pool_keeps_holes() {
    use std::os::unix::fs::MetadataExt;
    for dir in [".", "/dev/shm"] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("sparse");
        fs::File::create(&path).unwrap().set_len(1 << 28).unwrap();
        for region in
            [RegionOptions::new(), RegionOptions::new().read_only(), RegionOptions::new().populate(true)]
        {
            assert!(matches!(Pool::open(&path, &region), Err(PoolError::NotAPool)));
            let allocated_bytes = fs::metadata(&path).unwrap().blocks() * 512;
            assert!(allocated_bytes < 1 << 20, "{allocated_bytes} bytes for {region:?}");
        }
    }
}

#[test]
fn read_only_region_refuses_writing_pool() {
    let (_dir, path) = pool_file();
    let read_only = RegionOptions::new().read_only();
    let region = read_only.open(&path).unwrap();
    let refused = |error: PoolError| assert!(error.to_string().contains("read-only"), "{error}");
    refused(Pool::attach(&region).unwrap_err());
    refused(Pool::format(&region, &PoolOptions::new().overwrite()).unwrap_err());
    drop(region);
    set_len(&path, 2 * POOL_BYTES);
    let region = Counting::new(read_only.open(&path).unwrap());
    refused(Pool::attach_read_only(&region).unwrap().extend().unwrap_err());
    assert!(matches!(
        Pool::attach_read_only(&region).unwrap().remove_root("counter"),
        Err(RootError::ReadOnly)
    ));
    drop(region);
    refused(Pool::open(&path, &read_only).unwrap().grow(3 * POOL_BYTES).unwrap_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 * POOL_BYTES);
}

/// The file ends in the middle of a page, and the region with it.
#[test]
fn partial_page_after_pool_is_ignored() {
    for (tail_bytes, flipped) in [(12, None), (4096 + 4, None), (12, Some(60)), (8192 + 1, Some(60))] {
        let (_dir, path) = pool_file();
        set_len(&path, POOL_BYTES + tail_bytes);
        if let Some(offset) = flipped {
            flip(&path, offset);
        }
        let region = RegionOptions::new().any_length(true).open(&path).unwrap();
        let mut pool = Pool::attach(region).unwrap();
        assert_eq!(pool.header_state() == HeaderState::Intact, flipped.is_none());
        assert_eq!(counter(&pool, "counter"), Some(Counter { value: 7, step: 1 }));
        assert!(matches!(pool.extend(), Err(PoolError::Layout { .. })));
        let formatted = Pool::format(pool.into_pmem(), &PoolOptions::new().overwrite());
        assert!(matches!(formatted, Err(PoolError::Layout { .. })));
    }
}

#[test]
fn formatting_sparse_file_keeps_holes() {
    use std::os::unix::fs::MetadataExt;
    for dir in [".", "/dev/shm"] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("sparse");
        fs::File::create(&path).unwrap().set_len(1 << 26).unwrap();
        let region = RegionOptions::new().sparse(true).huge_pages(HugePages::Never).open(&path).unwrap();
        Pool::format(region, &PoolOptions::new()).unwrap();
        let allocated_bytes = fs::metadata(&path).unwrap().blocks() * 512;
        assert!(allocated_bytes < 1 << 20, "{allocated_bytes} bytes");
    }
}

#[test]
fn growth_and_backup_search_keep_holes() {
    use std::os::unix::fs::MetadataExt;
    for dir in [".", "/dev/shm"] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("sparse");
        let allocated_bytes = || fs::metadata(&path).unwrap().blocks() * 512;
        let sparse = RegionOptions::new().sparse(true).huge_pages(HugePages::Never);
        let mut pool = Pool::create(&path, POOL_BYTES, &sparse, &PoolOptions::new()).unwrap();
        pool.grow(1 << 26).unwrap();
        drop(pool);
        assert!(allocated_bytes() < 1 << 20, "{} bytes", allocated_bytes());
        // A later growth was interrupted, and the header is corrupted.
        set_len(&path, 1 << 27);
        flip(&path, 60);
        for options in [sparse.clone().read_only(), sparse.clone().scratch(), sparse] {
            let pool = Pool::open(&path, &options).unwrap();
            assert_eq!(pool.pool_bytes(), 1 << 26);
            assert!(allocated_bytes() < 1 << 20, "{} bytes for {options:?}", allocated_bytes());
        }
    }
}

/// A media error destroys a part of the header's page, or all of it. The file is longer than its pool, as after an interrupted growth.
#[test]
fn inner_backup_is_found_without_magic_in_primary() {
    for lost_bytes in [8, 64, 128, 512, 4096] {
        // A first page of zeroes means that a pool is being created.
        let fillers = if lost_bytes < 4096 { &[0, 0xDE][..] } else { &[0xDE] };
        for &filler in fillers {
            let (_dir, path) = pool_file();
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(2 * POOL_BYTES).unwrap();
            file.write_all_at(&vec![filler; lost_bytes], 0).unwrap();
            let region = Region::open(&path).unwrap();
            let formatted = Pool::format(&region, &PoolOptions::new());
            assert!(matches!(formatted, Err(PoolError::AlreadyAPool)), "{lost_bytes} bytes: {formatted:?}");
            drop(region);
            let pool = open(&path).unwrap();
            assert!(matches!(pool.header_state(), HeaderState::PrimaryCorrupted(HeaderCorruption::NoMagic)));
            assert_eq!(counter(&pool, "counter"), Some(Counter { value: 7, step: 1 }), "{lost_bytes} bytes");
        }
    }
}

/// A page of user data may be a complete header of a pool that would end with this page.
#[test]
fn header_of_other_pool_inside_data_is_ignored() {
    let (_dir, path) = pool_file();
    let shorter = Pool::format(Region::anonymous(POOL_BYTES / 2).unwrap(), &PoolOptions::new()).unwrap();
    let region = Region::open(&path).unwrap();
    region.store(POOL_BYTES / 2 - 4096, &page(shorter.pmem(), 0));
    drop(region);
    flip(&path, 60);
    flip(&path, POOL_BYTES - 4096 + 60);
    assert!(matches!(open(&path), Err(PoolError::HeadersCorrupted { .. })));
}

/// Types of two versions of a program, which differ only in the targets of links.
mod versions {
    use super::*;
    macro_rules! version {
        ($name:ident, $value:ty) => {
            pub(super) mod $name {
                use super::*;
                #[derive(Clone, Copy, Debug, Persist)]
                #[repr(C)]
                pub(crate) struct Item {
                    pub(crate) value: $value,
                }
                #[derive(Clone, Copy, Debug, Persist)]
                #[repr(C)]
                pub(crate) struct Order<'p> {
                    pub(crate) items: [Link<'p, Item>; 2],
                    pub(crate) previous: Link<'p, Order<'p>>,
                }
                #[derive(Clone, Copy, Debug, Persist)]
                #[repr(C)]
                pub(crate) struct Shop<'p> {
                    pub(crate) newest: Link<'p, Order<'p>>,
                }
            }
        };
    }
    version!(first, u64);
    version!(second, f64);
}

#[test]
fn layout_depends_on_targets_of_links() {
    use versions::{first, second};
    assert_ne!(first::Item::LAYOUT, second::Item::LAYOUT);
    assert_ne!(first::Order::LAYOUT, second::Order::LAYOUT, "the layout includes the target of one link");
    assert_ne!(first::Shop::LAYOUT, second::Shop::LAYOUT, "of two links in a row");
    assert_ne!(<Link<'_, first::Shop<'_>>>::LAYOUT, <Link<'_, second::Shop<'_>>>::LAYOUT, "of three");
    assert_ne!(<Link<'_, u64>>::LAYOUT, <Link<'_, i64>>::LAYOUT);
    assert_eq!(<Link<'_, u64>>::LAYOUT_THROUGH_0, <Link<'_, i64>>::LAYOUT_THROUGH_0);
}

/// The pool has a feature of a later version, or the caller refuses it. Its file has holes.
#[test]
fn refused_sparse_pool_keeps_holes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool.pm");
    drop(Pool::create(&path, POOL_BYTES, &RegionOptions::new().sparse(true), &PoolOptions::new()).unwrap());
    let block_count = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).unwrap());
    let before = block_count();
    assert!(before * 512 < POOL_BYTES);
    let refused = Pool::open_with(&path, &RegionOptions::new(), |_| Err(PoolError::NotAPool));
    assert!(matches!(refused, Err(PoolError::NotAPool)), "{refused:?}");
    assert_eq!(block_count(), before);

    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let found: Header = pm_core::from_bytes(|out| out.copy_from_slice(&bytes));
    for (later, needed_for) in [
        (Header { features_incompat: 1 << 40, ..found }, "opening"),
        (Header { features_ro_compat: 1 << 40, ..found }, "writing"),
    ] {
        for at in [0, POOL_BYTES - 4096] {
            file.write_all_at(pm_core::bytes_of(&later.sealed()), at).unwrap();
        }
        let refused = Pool::open(&path, &RegionOptions::new());
        assert!(
            matches!(refused, Err(PoolError::UnknownFeatures { needed_for: found, .. }) if found == needed_for),
            "{refused:?}"
        );
        assert_eq!(block_count(), before);
    }
}
