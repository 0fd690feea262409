//! Disks in pools and raw: creation, refusals, and repair of headers.

use pm_core::{OpenError, Persist, Pmem, Pool, PoolError, PoolOptions, Region, RegionOptions, RootError};
use pmbd::disk::{DiskKind, format, read_geometry, write_geometry};
use pmbd::{BlockOp, Disk, DiskError, DiskOptions, Geometry, GeometryError, SectorSize};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Opens a disk with the default options.
fn open(path: &Path) -> Result<Disk, DiskError> {
    Disk::open(path, &DiskOptions::default())
}

/// A new file with a disk of 1 MiB.
fn created() -> (tempfile::TempDir, PathBuf) {
    let (dir, path) = scratch();
    drop(Disk::create(&path, 1 << 20, &DiskOptions::default()).unwrap());
    (dir, path)
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk.pm");
    (dir, path)
}

#[test]
fn disk_keeps_sectors_and_geometry() {
    for (capacity, sector) in
        [(1 << 20, SectorSize::B512), (96 << 20, SectorSize::B4096), (512, SectorSize::B512)]
    {
        let (_dir, path) = scratch();
        let disk = Disk::create(&path, capacity, &DiskOptions { sector, ..DiskOptions::default() }).unwrap();
        let uuid = match disk.info().kind {
            DiskKind::Pool { uuid, .. } => uuid,
            DiskKind::Raw => panic!("a created disk is a pool"),
        };
        let last = capacity - sector.bytes();
        let data = vec![0xA5; usize::try_from(sector.bytes()).unwrap()];
        let engine = disk.into_engine().unwrap();
        engine.execute(last, BlockOp::Write { data: &data, fua: false }).unwrap();
        drop(engine);

        // The default sector is 512; the pool knows its own.
        let disk = open(&path).unwrap();
        let info = disk.info();
        assert_eq!((info.capacity_bytes, info.sector_bytes), (capacity, sector.bytes()));
        assert!(matches!(info.kind, DiskKind::Pool { uuid: same, .. } if same == uuid));
        assert_eq!(info.corruption(), Vec::<String>::new());
        let mut out = vec![0; data.len()];
        disk.into_engine().unwrap().execute(last, BlockOp::Read { out: &mut out }).unwrap();
        assert_eq!(out, data);
    }
}

#[test]
fn large_disk_is_aligned_to_huge_pages() {
    let (_dir, path) = scratch();
    let disk = Disk::create(&path, 64 << 20, &DiskOptions::default()).unwrap();
    let start = disk.into_engine().unwrap().geometry().start_bytes();
    assert_eq!(start % (2 << 20), 0);
    assert_eq!(fs::metadata(&path).unwrap().len() % (2 << 20), 0);
}

#[test]
fn impossible_disks_leave_no_file() {
    let (dir, path) = scratch();
    let create = |capacity| Disk::create(&path, capacity, &DiskOptions::default()).unwrap_err();
    assert!(matches!(create(0), DiskError::Geometry(GeometryError::ZeroCapacity)));
    assert!(matches!(create(1000), DiskError::Geometry(GeometryError::CapacityNotMultiple { .. })));
    assert!(matches!(create(u64::MAX - 511), DiskError::Geometry(GeometryError::OutsideRegion { .. })));
    let error = create(1 << 44);
    assert!(matches!(error, DiskError::Pool(PoolError::Region(OpenError::NoSpace { .. }))), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn corrupted_pool_header_is_restored_and_reported() {
    let (_dir, path) = created();
    fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"oops", 64).unwrap();
    let info = open(&path).unwrap().info();
    assert!(info.corruption()[0].contains("its backup was used"), "{:?}", info.corruption());
    assert_eq!(open(&path).unwrap().info().corruption(), Vec::<String>::new());
}

#[test]
fn corrupted_descriptor_is_refused() {
    let (_dir, path) = created();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[1], format::DESCRIPTOR_OFFSET + 9).unwrap();
    assert!(matches!(open(&path), Err(DiskError::Checksum { .. })));
    // Sound, but impossible: a device that leaves its pool.
    let descriptor = format::Descriptor::new(12_288, 1 << 40, 512);
    file.write_all_at(pm_core::bytes_of(&descriptor), format::DESCRIPTOR_OFFSET).unwrap();
    assert!(matches!(open(&path), Err(DiskError::OutsidePool { .. })));
}

#[test]
fn geometry_outside_data_area_is_refused() {
    let region_bytes = 1 << 16;
    let pool = Pool::format(Region::anonymous(region_bytes).unwrap(), &PoolOptions::new()).unwrap();
    let geometry = |start, capacity| Geometry::new(start, capacity, SectorSize::B512).unwrap();
    let (start, end) = (format::SMALL_START, region_bytes - 4096);
    write_geometry(&pool, geometry(start, end - start)).unwrap();
    let header = (0, 512);
    let directory = (4096, 4096);
    let descriptor = (format::DESCRIPTOR_OFFSET, 4096);
    let backup = (start, end - start + 4096);
    let misaligned = (start + 512, 512);
    for (start_bytes, capacity) in [header, directory, descriptor, backup, misaligned] {
        let refused = write_geometry(&pool, geometry(start_bytes, capacity));
        assert!(matches!(refused, Err(DiskError::OutsidePool { .. })), "{start_bytes}: {refused:?}");
        assert_eq!(read_geometry(&pool).unwrap(), geometry(start, end - start));
    }
}

/// Another program has a value where the descriptor would be.
fn refused(pool: &Pool, is_right: impl Fn(&DiskError) -> bool) {
    let (at, sectors) = (format::DESCRIPTOR_OFFSET, format::SMALL_START);
    pool.pmem().store(at, &[7; 64]);
    let error = write_geometry(pool, Geometry::new(sectors, 4096, SectorSize::B512).unwrap()).unwrap_err();
    let mut found = [0; 64];
    pool.pmem().load(at, &mut found);
    assert!(found == [7; 64] && is_right(&error), "{error:?}");
}

#[test]
fn refused_disk_is_not_stored() {
    let pool = || Pool::format(Region::anonymous(1 << 16).unwrap(), &PoolOptions::new()).unwrap();
    let set = |pool: &Pool, at, names: &[String]| {
        pool.scope(|pm| {
            let value = pm.fence(pm.flush(pm.write(pm.claim(at).unwrap(), &7_u64))).unwrap();
            names.iter().for_each(|name| pm.set_root(name, &value).unwrap());
        });
    };
    let full = pool();
    set(&full, 1 << 15, &(0..63).map(|index| format!("root {index}")).collect::<Vec<_>>());
    refused(&full, |error| matches!(error, DiskError::Root(RootError::Full { .. })));
    // The descriptor's place, and the last bytes of the disk.
    for at in [format::DESCRIPTOR_OFFSET, format::SMALL_START + 4096 - 8] {
        let others = pool();
        set(&others, at, &["other".to_owned()]);
        refused(&others, |error| matches!(error, DiskError::Taken { offset, .. } if *offset == at));
    }
    let heap = PoolOptions::new().with_logged_roots();
    let heap = Pool::format(Region::anonymous(1 << 16).unwrap(), &heap).unwrap();
    refused(&heap, |error| matches!(error, DiskError::Root(RootError::Logged)));
    let read_only = Pool::attach_read_only(pool().into_pmem()).unwrap();
    refused(&read_only, |error| matches!(error, DiskError::Root(RootError::ReadOnly)));
}

#[test]
fn pool_without_disk_and_file_without_pool_are_refused() {
    let (_dir, path) = scratch();
    let region = RegionOptions::new();
    drop(Pool::create(&path, 1 << 20, &region, &PoolOptions::new()).unwrap());
    assert!(matches!(open(&path), Err(DiskError::NoDisk)));
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, DiskError::Pool(PoolError::NotAPool)));
}

#[test]
fn raw_file_is_served_and_can_be_formatted() {
    let (_dir, path) = scratch();
    fs::write(&path, vec![0x11; 1 << 20]).unwrap();
    let engine = Disk::open_raw(&path, &DiskOptions::default()).unwrap().into_engine().unwrap();
    assert_eq!((engine.geometry().start_bytes(), engine.geometry().capacity_bytes()), (0, 1 << 20));
    let mut out = [0; 512];
    engine.execute((1 << 20) - 512, BlockOp::Read { out: &mut out }).unwrap();
    assert_eq!(out, [0x11; 512]);
    drop(engine);

    let formatted = Disk::format(&path, false, &DiskOptions::default()).unwrap().info();
    assert_eq!(formatted.capacity_bytes, (1 << 20) - 4096 - format::SMALL_START);
    assert!(matches!(
        Disk::format(&path, false, &DiskOptions::default()),
        Err(DiskError::Pool(PoolError::AlreadyAPool))
    ));
    let again = Disk::format(&path, true, &DiskOptions::default()).unwrap().info();
    assert_eq!(again.capacity_bytes, formatted.capacity_bytes);
}

#[test]
fn read_only_disk_refuses_writes() {
    let (_dir, path) = created();
    let options = DiskOptions { region: RegionOptions::new().read_only(), ..DiskOptions::default() };
    let engine = Disk::open(&path, &options).unwrap().into_engine().unwrap();
    assert!(engine.is_read_only());
    assert!(engine.execute(0, BlockOp::Write { data: &[0; 512], fua: false }).is_err());
}

#[test]
fn read_only_options_create_no_disk() {
    let (_dir, path) = scratch();
    for region in [RegionOptions::new().read_only(), RegionOptions::new().scratch()] {
        let options = DiskOptions { region, ..DiskOptions::default() };
        assert!(matches!(Disk::create(&path, 1 << 20, &options), Err(DiskError::ReadOnly)));
        assert!(!path.exists());
    }
}

#[test]
fn files_of_impossible_lengths_are_refused() {
    let (_dir, path) = scratch();
    let read_only = DiskOptions { region: RegionOptions::new().read_only(), ..DiskOptions::default() };
    for len in [0, 1, 511, 513, 4095, 4097, 8192, 12_288, 16_384, 16_385] {
        fs::write(&path, vec![0x33; len]).unwrap();
        for options in
            [DiskOptions::default(), DiskOptions { sector: SectorSize::B4096, ..read_only.clone() }]
        {
            let sector_bytes = usize::try_from(options.sector.bytes()).unwrap();
            let raw = Disk::open_raw(&path, &options);
            assert_eq!(raw.is_ok(), len > 0 && len.is_multiple_of(sector_bytes), "{len}: {raw:?}");
            assert!(Disk::open(&path, &options).is_err());
            drop(raw);
            assert!(Disk::format(&path, false, &options).is_err(), "{len}: no room for a sector");
            assert_eq!(fs::read(&path).unwrap(), vec![0x33; len], "a refusal changes nothing");
        }
    }
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    for overwrite in [false, true] {
        assert!(matches!(Disk::format(&path, overwrite, &read_only), Err(DiskError::ReadOnly)));
    }
}

#[test]
fn descriptor_matches_golden_bytes() {
    let bytes = pm_core::bytes_of(&format::Descriptor::new(2 << 20, 1 << 30, 4096)).to_vec();
    let mut expected = vec![0; 60];
    expected[2] = 0x20; // 2 MiB
    expected[11] = 0x40; // 1 GiB
    expected[17] = 0x10; // 4096
    expected.extend(crc32c::crc32c(&expected).to_le_bytes());
    assert_eq!(bytes, expected);
    let fields: Vec<_> =
        format::Descriptor::FIELDS.iter().map(|f| (f.name, f.offset_bytes, f.size_bytes)).collect();
    let expected = [
        ("start_bytes", 0, 8),
        ("capacity_bytes", 8, 8),
        ("sector_bytes", 16, 4),
        ("reserved_0", 20, 4),
        ("unflushed", 24, 8),
        ("generation", 32, 8),
        ("reserved", 40, 20),
        ("crc", 60, 4),
    ];
    assert_eq!(fields, expected);
}

#[test]
fn refused_sparse_pool_keeps_holes() {
    let (_dir, path) = scratch();
    let options = PoolOptions::new().with_logged_roots();
    drop(Pool::create(&path, 8 << 20, &RegionOptions::new().sparse(true), &options).unwrap());
    let block_count = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).unwrap());
    let before = block_count();
    let refused = open(&path);
    assert!(matches!(refused, Err(DiskError::NoDisk)), "{refused:?}");
    assert_eq!(block_count(), before);
    let refused = Disk::format(&path, false, &DiskOptions::default());
    assert!(matches!(refused, Err(DiskError::Pool(PoolError::AlreadyAPool))), "{refused:?}");
    assert_eq!(block_count(), before);
}

/// Deferred writes of a killed server are those of the next disk too, if it has the same sectors; buffered writes would come to other places.
#[test]
fn unflushed_word_is_kept_by_a_change_of_the_disk() {
    let pool = Pool::format(Region::anonymous(1 << 20).unwrap(), &PoolOptions::new()).unwrap();
    let geometry =
        |sectors: u64| Geometry::new(format::SMALL_START, sectors * 512, SectorSize::B512).unwrap();
    write_geometry(&pool, geometry(8)).unwrap();
    let word = |descriptor: u64| descriptor + 24;
    pool.pmem().store_u64(word(format::DESCRIPTOR_OFFSET), format::Descriptor::UNFLUSHED);
    write_geometry(&pool, geometry(9)).unwrap();
    let carried = pool.pmem().load_u64(word(format::ALTERNATE_DESCRIPTOR_OFFSET));
    assert_eq!(carried, format::Descriptor::UNFLUSHED);
    pool.pmem().store_u64(word(format::ALTERNATE_DESCRIPTOR_OFFSET), 7);
    assert!(matches!(write_geometry(&pool, geometry(10)), Err(DiskError::Buffered)));
    assert_eq!(read_geometry(&pool).unwrap(), geometry(9));
}
