//! Buffered disks whose servers are killed, with copies, other directories and corrupted slots: no completed write is lost silently.

use pm_core::{Medium, Region, RegionOptions};
use pmbd::disk::PendingWrites;
use pmbd::{
    BlockError, BlockOp, BufferError, BufferOptions, Disk, DiskError, DiskOptions, Engine, Geometry,
    SectorSize, Slots, WriteBackError, WriteBackMark, WriteSetup,
};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The offset of the mark of a disk in a pool.
const MARK_OFFSET: u64 = 8192 + 24;

/// The disk and its buffers' directory.
struct Place {
    _dir: tempfile::TempDir,
    disk: PathBuf,
    buffers: PathBuf,
}

impl Place {
    fn new(parent: &str) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let (disk, buffers) = (dir.path().join("disk.pm"), dir.path().join("buffers"));
        fs::create_dir(&buffers).unwrap();
        Self { disk, buffers, _dir: dir }
    }

    /// The files of slots.
    fn slots(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.buffers).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

fn options(buffers: &Path, is_buffered: bool) -> DiskOptions {
    let shape = BufferOptions { buffer_bytes: 64 << 10, ..BufferOptions::default() };
    DiskOptions {
        buffers: is_buffered.then_some(shape),
        buffer_dir: buffers.to_path_buf(),
        ..DiskOptions::default()
    }
}

fn serve(disk: &Path, buffers: &Path, is_buffered: bool) -> Result<Engine, DiskError> {
    Disk::open(disk, &options(buffers, is_buffered))?.into_engine()
}

/// The error of the buffers with which a disk was refused.
fn buffer_error(refused: Result<Engine, DiskError>) -> BufferError {
    match refused {
        Err(DiskError::WriteBack(WriteBackError::Buffer(error))) => error,
        other => panic!("{other:?}"),
    }
}

fn create(place: &Place) {
    drop(Disk::create(&place.disk, 1 << 20, &options(&place.buffers, false)).unwrap());
}

fn write(engine: &Engine, value: u8) {
    engine.execute(4096, BlockOp::Write { data: &[value; 4096], fua: false }).unwrap();
}

fn read(engine: &Engine) -> u8 {
    let mut block = [0; 4096];
    engine.execute(4096, BlockOp::Read { out: &mut block }).unwrap();
    assert_eq!(block, [block[0]; 4096]);
    block[0]
}

/// Ends the engine as `kill -9` would: nothing is dropped. The kernel would close its files; here the next server gets copies of them.
fn kill(engine: Engine, place: &Place) {
    core::mem::forget(engine);
    for path in core::iter::once(place.disk.clone()).chain(place.slots()) {
        let copy = path.with_extension("copy");
        fs::copy(&path, &copy).unwrap();
        fs::rename(copy, path).unwrap();
    }
}

/// The harness itself: without a second disk, the next server has the write.
#[test]
fn control_killed_server_loses_nothing() {
    for is_buffered in [true, false] {
        let place = Place::new("/dev/shm");
        create(&place);
        let engine = serve(&place.disk, &place.buffers, true).unwrap();
        write(&engine, 1);
        kill(engine, &place);
        assert_eq!(read(&serve(&place.disk, &place.buffers, is_buffered).unwrap()), 1);
    }
}

/// A backup of a stopped disk has the same identity. Serving it must not remove the slots of the original, whose server was killed.
#[test]
fn serving_a_backup_keeps_the_slots_of_the_original() {
    let place = Place::new("/dev/shm");
    create(&place);
    let backup = place.disk.with_file_name("backup.pm");
    fs::copy(&place.disk, &backup).unwrap();
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    kill(engine, &place);
    drop(serve(&backup, &place.buffers, true).unwrap());
    assert_eq!(read(&serve(&place.disk, &place.buffers, true).unwrap()), 1, "the completed write is lost");
}

/// The same, with the two served at once: the second unlinks the file of the first.
#[test]
fn disk_and_its_backup_served_at_once_keep_their_slots() {
    let place = Place::new("/dev/shm");
    create(&place);
    let backup = place.disk.with_file_name("backup.pm");
    fs::copy(&place.disk, &backup).unwrap();
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    let other = serve(&backup, &place.buffers, true);
    write(&engine, 1);
    kill(engine, &place);
    drop(other);
    assert_eq!(read(&serve(&place.disk, &place.buffers, true).unwrap()), 1, "the completed write is lost");
}

/// The same, with a server of the backup that does not buffer, after one that deferred was killed.
#[test]
fn taking_over_a_deferred_backup_keeps_the_slots_of_the_original() {
    let place = Place::new("/dev/shm");
    create(&place);
    let backup = place.disk.with_file_name("backup.pm");
    fs::copy(&place.disk, &backup).unwrap();
    // The state after the kill of a deferring server.
    let file = fs::File::options().write(true).open(&backup).unwrap();
    file.write_all_at(b"UNFLUSHD", MARK_OFFSET).unwrap();
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    kill(engine, &place);
    drop(serve(&backup, &place.buffers, false));
    assert_eq!(read(&serve(&place.disk, &place.buffers, true).unwrap()), 1, "the completed write is lost");
}

/// After a power failure, a file of slots on a disk is as old as the kernel's last write-back of each of its pages.
#[test]
fn buffers_that_would_outlive_a_power_failure_are_refused() {
    let place = Place::new(env!("CARGO_TARGET_TMPDIR"));
    create(&place);
    let refused = serve(&place.disk, &place.buffers, true);
    match Disk::open(&place.disk, &options(&place.buffers, false)).unwrap().region().medium() {
        // Build directories in memory are in order.
        Medium::Tmpfs => assert!(refused.is_ok()),
        _ => match refused {
            Err(DiskError::NewBuffers(BufferError::NotInMemory { .. })) => {}
            other => panic!("{other:?}"),
        },
    }
    assert!(place.slots().is_empty());
}

/// The mark may outlive a restart of the system. The slots do not, and what was not flushed may be lost then.
#[test]
fn disk_of_an_earlier_boot_is_served() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    kill(engine, &place);
    let file = fs::File::options().read(true).write(true).open(&place.disk).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, MARK_OFFSET + 7).unwrap();
    file.write_all_at(&[!byte[0]], MARK_OFFSET + 7).unwrap();
    assert_eq!(read(&serve(&place.disk, &place.buffers, true).unwrap()), 0);
}

/// The wrong directory is an error, and the writes are lost only on request.
#[test]
fn other_buffer_dir_is_refused() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    kill(engine, &place);
    let other = place.disk.with_file_name("other");
    fs::create_dir(&other).unwrap();
    for is_buffered in [true, false] {
        assert!(matches!(buffer_error(serve(&place.disk, &other, is_buffered)), BufferError::Missing { .. }));
    }
    let read_only = DiskOptions { region: RegionOptions::new().read_only(), ..options(&other, false) };
    let refused = Disk::open(&place.disk, &read_only).unwrap().into_engine();
    assert!(matches!(buffer_error(refused), BufferError::Missing { .. }));

    let copy = place.disk.with_file_name("copy.pm");
    fs::copy(&place.disk, &copy).unwrap();
    let discarding = DiskOptions { discard_buffered: true, ..options(&other, false) };
    assert_eq!(read(&Disk::open(&copy, &discarding).unwrap().into_engine().unwrap()), 0);
    assert_eq!(read(&serve(&copy, &other, false).unwrap()), 0, "the mark was cleared");
    assert_eq!(read(&serve(&place.disk, &place.buffers, false).unwrap()), 1);
}

/// A copy that was made after the server was killed has the writes too, and leaves them to the original.
#[test]
fn copy_of_a_killed_disk_has_its_buffered_writes() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    let original = fs::metadata(&place.disk).unwrap().ino();
    let copy = place.disk.with_file_name("copy.pm");
    fs::copy(&place.disk, &copy).unwrap();
    // A kill that keeps the inode of the disk: the slots get another name meanwhile, and the lock of the disk ends with the engine's.
    let slots = place.slots().pop().unwrap();
    let kept = slots.with_extension("kept");
    fs::copy(&slots, &kept).unwrap();
    let mark = fs::read(&place.disk).unwrap()[8216..8224].to_vec();
    drop(engine);
    fs::rename(&kept, &slots).unwrap();
    let file = fs::File::options().write(true).open(&place.disk).unwrap();
    file.write_all_at(&mark, MARK_OFFSET).unwrap();
    file.write_all_at(&[0; 4096], 8192 + 4096 + 4096).unwrap();
    drop(file);
    assert_eq!(fs::metadata(&place.disk).unwrap().ino(), original);

    assert_eq!(read(&serve(&copy, &place.buffers, false).unwrap()), 1);
    assert_eq!(place.slots(), vec![slots.clone()]);
    assert_eq!(read(&serve(&place.disk, &place.buffers, false).unwrap()), 1);
    assert!(place.slots().is_empty());
}

/// Every bit of the slots' header.
#[test]
fn corrupted_head_of_slots_is_refused() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    kill(engine, &place);
    let file = fs::File::options().read(true).write(true).open(&place.slots()[0]).unwrap();
    for bit in 0..44 * 8 {
        let mut byte = [0];
        file.read_exact_at(&mut byte, bit / 8).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], bit / 8).unwrap();
        assert!(
            matches!(buffer_error(serve(&place.disk, &place.buffers, false)), BufferError::NoSlots),
            "{bit}"
        );
        file.write_all_at(&byte, bit / 8).unwrap();
    }
    assert_eq!(read(&serve(&place.disk, &place.buffers, false).unwrap()), 1);
}

/// Strides that divide a block would put it into two buffers.
#[test]
fn strides_that_divide_a_block_are_refused() {
    let shape =
        BufferOptions { buffer_bytes: 16 << 10, buffer_count: 2, stride_bytes: 512, is_batched: true };
    assert!(shape.check().is_err());
    let slots = Region::anonymous(Slots::len_bytes(shape.slot_count())).unwrap();
    let slots = Slots::create(Box::new(slots), 0, shape.slot_count(), 7).unwrap();
    let geometry = Geometry::new(8192, 1 << 18, SectorSize::B512).unwrap();
    let setup = WriteSetup {
        mark: Some(WriteBackMark::at(4096)),
        buffers: Some((shape, slots)),
        ..WriteSetup::default()
    };
    let engine = Engine::new(Region::anonymous(8192 + (1 << 18) + 8192).unwrap(), geometry).unwrap();
    let refused = engine.with_writes(setup);
    assert!(matches!(refused, Err(WriteBackError::Buffer(BufferError::Shape))));
}

/// Fewer slots than the shape has.
#[test]
fn too_few_slots_are_refused() {
    let slots = Region::anonymous(Slots::len_bytes(2)).unwrap();
    let slots = Slots::create(Box::new(slots), 0, 2, 7).unwrap();
    let shape = BufferOptions { buffer_bytes: 16 << 10, ..BufferOptions::default() };
    let setup = WriteSetup {
        mark: Some(WriteBackMark::at(4096)),
        buffers: Some((shape, slots)),
        ..WriteSetup::default()
    };
    let geometry = Geometry::new(8192, 1 << 18, SectorSize::B512).unwrap();
    let engine = Engine::new(Region::anonymous(8192 + (1 << 18)).unwrap(), geometry).unwrap();
    let refused = engine.with_writes(setup);
    assert!(matches!(refused, Err(WriteBackError::Buffer(BufferError::TooSmall { .. }))));
}

/// A copy that was made while the disk was served is older than the slots that the killed server has left. Put back in place, it has the mark and the inode.
#[test]
fn older_copy_in_place_is_refused() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    // Whatever stores to the disk in between: a drain, or a write that passes the buffer.
    let flush = |engine: &Engine| engine.execute(0, BlockOp::Flush).unwrap();
    let pass = |engine: &Engine| {
        engine.execute(65_536, BlockOp::Write { data: &[3; 65_536], fua: false }).unwrap();
    };
    flush(&engine);
    for change in [flush, pass] {
        let older = fs::read(&place.disk).unwrap();
        write(&engine, 2);
        change(&engine);
        write(&engine, 4);
        let present = fs::read(&place.disk).unwrap();
        let slots = fs::read(&place.slots()[0]).unwrap();
        let elsewhere = Place::new("/dev/shm");
        fs::write(&elsewhere.disk, &older).unwrap();
        fs::write(elsewhere.buffers.join(place.slots()[0].file_name().unwrap()), &slots).unwrap();
        for is_buffered in [true, false] {
            let refused = buffer_error(serve(&elsewhere.disk, &elsewhere.buffers, is_buffered));
            assert!(matches!(refused, BufferError::OlderCopy { .. }), "{refused:?}");
        }
        assert!(fs::read(&elsewhere.disk).unwrap() == older, "a refused copy is unchanged");
        fs::write(&elsewhere.disk, &present).unwrap();
        assert_eq!(read(&serve(&elsewhere.disk, &elsewhere.buffers, false).unwrap()), 4);
    }
}

/// Between the three stores of a generation the server may be killed: nothing was stored to the disk since the one before.
#[test]
fn kill_between_the_stores_of_a_generation_loses_nothing() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    kill(engine, &place);
    let (disk, slots) = (fs::read(&place.disk).unwrap(), fs::read(&place.slots()[0]).unwrap());
    let name = place.slots()[0].clone();
    for (of_disk, generation, is_right) in
        [(0, 0, true), (1, 0, true), (1, 1, true), (0, 1, false), (0, 2, false)]
    {
        fs::write(&place.disk, &disk).unwrap();
        fs::write(&name, &slots).unwrap();
        let file = fs::File::options().write(true).open(&name).unwrap();
        file.write_all_at(&u64::to_le_bytes(1), 48).unwrap();
        file.write_all_at(&u64::to_le_bytes(generation), 56).unwrap();
        let file = fs::File::options().write(true).open(&place.disk).unwrap();
        file.write_all_at(&u64::to_le_bytes(of_disk), MARK_OFFSET + 8).unwrap();
        match serve(&place.disk, &place.buffers, false) {
            Ok(engine) => assert!(is_right && read(&engine) == 1),
            refused => assert!(!is_right, "{:?}", buffer_error(refused)),
        }
    }
}

/// What is read as scratch cannot be stored: it stays for the next server.
#[test]
fn scratch_leaves_the_slots_to_the_next_server() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    kill(engine, &place);
    let before = (fs::read(&place.disk).unwrap(), place.slots());
    for is_buffered in [true, false] {
        let scratch =
            DiskOptions { region: RegionOptions::new().scratch(), ..options(&place.buffers, is_buffered) };
        let engine = Disk::open(&place.disk, &scratch).unwrap().into_engine().unwrap();
        assert_eq!(read(&engine), 1, "it has the writes");
        write(&engine, 2);
        engine.execute(0, BlockOp::Flush).unwrap();
        drop(engine);
        assert!((fs::read(&place.disk).unwrap(), place.slots()) == before);
    }
    assert_eq!(read(&serve(&place.disk, &place.buffers, false).unwrap()), 1);
}

/// A client of the killed server must not be told that the discarded writes are durable.
#[test]
fn flushes_fail_for_clients_whose_writes_were_discarded() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    assert!(!engine.has_discarded());
    write(&engine, 1);
    kill(engine, &place);
    for is_buffered in [true, false] {
        let discarding = DiskOptions { discard_buffered: true, ..options(&place.buffers, is_buffered) };
        let disk = fs::read(&place.disk).unwrap();
        let engine = Disk::open(&place.disk, &discarding).unwrap().into_engine().unwrap();
        assert!(engine.has_discarded());
        engine.execute(0, BlockOp::Flush).unwrap();
        engine.fail_flushes();
        let fua = |fua| engine.execute(0, BlockOp::Write { data: &[2; 512], fua });
        let zeroes = |fua| engine.execute(0, BlockOp::WriteZeroes { len_bytes: 512, fua });
        for refused in [engine.execute(0, BlockOp::Flush), fua(true), zeroes(true)] {
            assert!(matches!(refused, Err(BlockError::Discarded)), "{refused:?}");
        }
        assert!(fua(false).is_ok() && zeroes(false).is_ok());
        drop(engine);
        // The next server's clients are new.
        let next = serve(&place.disk, &place.buffers, is_buffered).unwrap();
        assert!(!next.has_discarded() && next.execute(0, BlockOp::Flush).is_ok());
        drop(next);
        fs::write(&place.disk, disk).unwrap();
    }
}

/// Every user may make files in the default directory of slots.
#[test]
fn slots_of_other_users_and_links_are_refused() {
    assert!(rustix::process::getuid().is_root(), "changing owners needs root");
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    kill(engine, &place);
    let slots = place.slots().pop().unwrap();
    let before = fs::read(&place.disk).unwrap();
    let foreign = |told: &str| {
        for is_buffered in [true, false] {
            let refused = buffer_error(serve(&place.disk, &place.buffers, is_buffered));
            assert!(matches!(refused, BufferError::Foreign { .. }), "{told}: {refused:?}");
        }
        assert!(fs::read(&place.disk).unwrap() == before, "{told}");
    };
    std::os::unix::fs::chown(&slots, Some(65_534), None).unwrap();
    foreign("another user's");
    std::os::unix::fs::chown(&slots, Some(0), None).unwrap();
    let kept = slots.with_extension("kept");
    fs::rename(&slots, &kept).unwrap();
    std::os::unix::fs::symlink(&kept, &slots).unwrap();
    foreign("a link");
    fs::rename(&kept, &slots).unwrap();
    // Those of the owner of the disk are right, also for root.
    for path in [&slots, &place.disk] {
        std::os::unix::fs::chown(path, Some(65_534), None).unwrap();
    }
    assert_eq!(read(&serve(&place.disk, &place.buffers, false).unwrap()), 1);
}

/// What `pmbd info` and `pmbd check` tell of a disk whose server was killed.
#[test]
fn pending_writes_are_found() {
    let place = Place::new("/dev/shm");
    create(&place);
    let pending = |buffers: &Path| {
        let read_only = DiskOptions {
            region: RegionOptions::new().read_only().keep_pages(true),
            ..options(buffers, false)
        };
        Disk::open(&place.disk, &read_only).unwrap().pending_writes()
    };
    assert_eq!(pending(&place.buffers).unwrap(), PendingWrites::None);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    write(&engine, 2);
    engine.execute(65_536, BlockOp::Write { data: &[3; 512], fua: false }).unwrap();
    kill(engine, &place);
    let path = place.slots().pop().unwrap();
    assert_eq!(
        pending(&place.buffers).unwrap(),
        PendingWrites::Buffered { path: path.clone(), block_count: 2 }
    );
    let elsewhere = pending(place.disk.parent().unwrap());
    assert!(matches!(elsewhere, Err(DiskError::WriteBack(_))), "{elsewhere:?}");
    assert_eq!(place.slots(), [path]);
    drop(serve(&place.disk, &place.buffers, false).unwrap());
    assert_eq!(pending(&place.buffers).unwrap(), PendingWrites::None);
    let file = fs::File::options().write(true).open(&place.disk).unwrap();
    file.write_all_at(b"UNFLUSHD", MARK_OFFSET).unwrap();
    assert_eq!(pending(&place.buffers).unwrap(), PendingWrites::Deferred);
    // A session of another boot.
    file.write_all_at(&[1; 8], MARK_OFFSET).unwrap();
    assert_eq!(pending(&place.buffers).unwrap(), PendingWrites::Lost);
}

/// If the file of the slots is removed while the disk is served, a kill would lose what is in it: from the next drain on nothing stays there.
#[test]
fn writes_are_not_buffered_when_the_slots_have_vanished() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    let on_disk = || fs::read(&place.disk).unwrap()[8192 + 4096 + 4096];
    write(&engine, 1);
    engine.execute(0, BlockOp::Flush).unwrap();
    write(&engine, 2);
    assert_eq!(on_disk(), 1, "buffered");
    let name = place.slots().pop().unwrap();
    fs::remove_file(&name).unwrap();
    engine.execute(0, BlockOp::Flush).unwrap();
    for value in 3..5 {
        write(&engine, value);
        assert_eq!((on_disk(), read(&engine)), (value, value));
    }
    // Another file with the name is not this server's to remove.
    fs::write(&name, "other").unwrap();
    drop(engine);
    assert_eq!(fs::read(&name).unwrap(), b"other");
    assert_eq!(read(&serve(&place.disk, &place.buffers, false).unwrap()), 4);
}

/// Slots that are discarded are removed with their writes, unless they are those of another disk, of which this one is a copy.
#[test]
fn discarded_slots_are_removed() {
    let place = Place::new("/dev/shm");
    create(&place);
    let engine = serve(&place.disk, &place.buffers, true).unwrap();
    write(&engine, 1);
    let copy = place.disk.with_file_name("copy.pm");
    fs::copy(&place.disk, &copy).unwrap();
    // A kill that keeps the inode of the disk, as in `copy_of_a_killed_disk_has_its_buffered_writes`.
    let slots = place.slots().pop().unwrap();
    let kept = slots.with_extension("kept");
    fs::copy(&slots, &kept).unwrap();
    let mark = fs::read(&place.disk).unwrap()[8216..8232].to_vec();
    drop(engine);
    fs::rename(&kept, &slots).unwrap();
    fs::File::options().write(true).open(&place.disk).unwrap().write_all_at(&mark, MARK_OFFSET).unwrap();
    let discarding = DiskOptions { discard_buffered: true, ..options(&place.buffers, false) };
    for (disk, left) in [(&copy, 1), (&place.disk, 0)] {
        drop(Disk::open(disk, &discarding).unwrap().into_engine().unwrap());
        assert_eq!(place.slots().len(), left, "{}", disk.display());
    }
}
