//! Creating and opening disks.

use super::error::DiskError;
use super::format::{
    ALTERNATE_DESCRIPTOR_OFFSET, DESCRIPTOR_OFFSET, Descriptor, ROOT, largest_in, pool_layout,
};
use super::pending::PendingWrites;
use crate::buffer::{BufferError, BufferOptions, DEFAULT_DIR, DiskFile, Session, Slots};
use crate::engine::{
    Engine, Geometry, GeometryError, SectorSize, WriteBackError, WriteBackMark, WritePolicy, WriteScheme,
    WriteSetup,
};
use pm_core::insn::Insns;
use pm_core::{
    Domain, HeaderState, Medium, Pmem, Pool, PoolError, PoolOptions, Region, RegionOptions, Root, Uuid,
};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Serialises [`write_geometry`], over all pools.
static GEOMETRY_LOCK: Mutex<()> = Mutex::new(());

/// A disk at a path, locked for this process, not yet served.
#[derive(Debug)]
pub struct Disk {
    region: Region,
    geometry: Geometry,
    kind: DiskKind,
    mark: Option<WriteBackMark>,
    writes: WritePolicy,
    buffers: Option<BufferOptions>,
    buffer_dir: PathBuf,
    discard_buffered: bool,
    /// Whether stores to the region do not reach the file.
    is_scratch: bool,
}

/// What the last server has left in its buffers.
enum Leftover {
    /// Nothing.
    None,
    /// These writes, which are stored.
    Stored(Slots),
    /// Writes that are discarded, in these slots if they can be read.
    Discarded(Option<Slots>),
}

/// The contents of a disk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// A pool with a disk in it.
    Pool {
        /// The pool's identity, which is also the disk's.
        uuid: Uuid,
        /// Its time of creation, in seconds since 1970.
        created_s: u64,
        /// The state of the header's two copies.
        header: HeaderState,
        /// The number of corrupted root slots: neither free nor valid.
        corrupted_root_count: usize,
    },
    /// Bytes without a header: all of them belong to the disk.
    Raw,
}

impl DiskKind {
    /// The kind of a disk in this pool.
    #[must_use]
    pub fn of<P: Pmem>(pool: &Pool<P>) -> Self {
        Self::Pool {
            uuid: pool.uuid(),
            created_s: pool.created_s(),
            header: pool.header_state(),
            corrupted_root_count: pool.corrupted_root_count(),
        }
    }

    /// Messages about the corruption that opening found: a bad copy of the header, bad root slots. Empty if there is none.
    #[must_use]
    pub fn corruption(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Self::Pool { header, corrupted_root_count, .. } = *self {
            match header {
                HeaderState::Intact => {}
                HeaderState::PrimaryCorrupted(corruption) => {
                    found.push(format!("the pool's header {corruption}; its backup was used"));
                }
                HeaderState::BackupCorrupted(corruption) => {
                    found.push(format!("the backup of the pool's header {corruption}"));
                }
                other => found.push(format!("the pool's header: {other:?}")),
            }
            if corrupted_root_count != 0 {
                found.push(format!("{corrupted_root_count} root slots are corrupted"));
            }
        }
        found
    }
}

/// How a disk is created or opened.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// How the region is opened: instructions, read-only, huge pages. As [scratch](RegionOptions::scratch), an engine has what a killed server left in its
    /// buffers, leaves it to the next server, and does not buffer.
    pub region: RegionOptions,
    /// The logical sector of a new or raw disk. A pool records its own.
    pub sector: SectorSize,
    /// How its engine writes. A raw disk can neither defer nor buffer writes.
    pub writes: WritePolicy,
    /// Buffers before it.
    pub buffers: Option<BufferOptions>,
    /// The directory of the buffers' file, on a file system in memory. All servers of a disk must use the same: the next one looks there for what a
    /// killed one left, and is refused if it is not there.
    pub buffer_dir: PathBuf,
    /// Whether to do without what a killed server left in its buffers, if that is lost or corrupted.
    pub discard_buffered: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            region: RegionOptions::default(),
            sector: SectorSize::default(),
            writes: WritePolicy::default(),
            buffers: None,
            buffer_dir: DEFAULT_DIR.into(),
            discard_buffered: false,
        }
    }
}

/// The properties of a disk.
#[derive(Clone, Debug)]
pub struct DiskInfo {
    /// Its path.
    pub path: PathBuf,
    /// Pool or raw.
    pub kind: DiskKind,
    /// Its size in bytes.
    pub capacity_bytes: u64,
    /// Its logical sector in bytes.
    pub sector_bytes: u64,
    /// Its medium.
    pub medium: Medium,
    /// Its persistence domain.
    pub domain: Domain,
    /// The instructions that make its writes durable.
    pub insns: Insns,
    /// Whether it is writable.
    pub is_writable: bool,
}

impl Disk {
    /// Creates a file with a pool and a disk of `capacity_bytes` zero bytes in it.
    ///
    /// # Errors
    /// When the path exists, the capacity is zero or not a multiple of the sector, the options are read-only, or a system call fails. No file
    /// remains.
    ///
    /// # Durability
    /// A crash leaves no file or the complete disk.
    pub fn create(
        path: impl AsRef<Path>,
        capacity_bytes: u64,
        options: &DiskOptions,
    ) -> Result<Self, DiskError> {
        // Refused before a file is created.
        if !options.region.is_writer() {
            return Err(DiskError::ReadOnly);
        }
        let (start_bytes, pool_bytes) = pool_layout(capacity_bytes).ok_or(GeometryError::OutsideRegion {
            start_bytes: 0,
            capacity_bytes,
            region_bytes: u64::MAX,
        })?;
        let geometry = Geometry::new(start_bytes, capacity_bytes, options.sector)?;
        let pool = Pool::create_with(path, pool_bytes, &options.region, &PoolOptions::new(), |pool| {
            write_geometry(pool, geometry)
        })?;
        Self::in_pool(pool, options)
    }

    /// Formats an existing file or device: creates a pool in it, and in the pool the largest disk that fits. Its contents are lost.
    ///
    /// # Errors
    /// When there is a pool already and `overwrite` is false, there is no room for one sector, or the options are read-only.
    ///
    /// # Durability
    /// A crash leaves no pool or the complete one; if a pool is overwritten, it leaves the old one, none, or the new one.
    pub fn format(path: impl AsRef<Path>, overwrite: bool, options: &DiskOptions) -> Result<Self, DiskError> {
        if !options.region.is_writer() {
            return Err(DiskError::ReadOnly);
        }
        let geometry_in = |region: &Region| {
            let (start_bytes, capacity_bytes) = largest_in(region.len_bytes(), options.sector.bytes());
            Geometry::new(start_bytes, capacity_bytes, options.sector)
        };
        // The check runs before holes are filled.
        let region = options.region.open_with(path, |region| {
            geometry_in(region)?;
            match Pool::attach_read_only(region) {
                Err(PoolError::NotAPool) => Ok(()),
                _ if overwrite => Ok(()),
                _ => Err(DiskError::from(PoolError::AlreadyAPool)),
            }
        })?;
        let geometry = geometry_in(&region)?;
        let pool_options = if overwrite { PoolOptions::new().overwrite() } else { PoolOptions::new() };
        let pool = Pool::format_with(region, &pool_options, |pool| write_geometry(pool, geometry))?;
        Self::in_pool(pool, options)
    }

    /// Opens the disk in the pool at `path`. A corrupted copy of the pool's header is restored from the other, unless the region is opened
    /// read-only; [`DiskKind::Pool`] reports it.
    ///
    /// # Errors
    /// When there is no pool, or no disk in it, or when one of them is corrupted and cannot be restored. On error, the file is unchanged.
    pub fn open(path: impl AsRef<Path>, options: &DiskOptions) -> Result<Self, DiskError> {
        let pool = Pool::open_with(path, &options.region, |pool| read_geometry(pool).map(drop))?;
        Self::in_pool(pool, options)
    }

    /// The disk in this pool.
    fn in_pool(pool: Pool, options: &DiskOptions) -> Result<Self, DiskError> {
        let (at, geometry) = find_disk(&pool)?;
        let kind = DiskKind::of(&pool);
        let mark = Some(Descriptor::mark(at));
        Ok(Self::with(pool.into_pmem(), geometry, kind, mark, options))
    }

    /// Opens a file or device as a raw disk: all of its bytes are sectors.
    ///
    /// # Errors
    /// When it cannot be opened, its length is not a multiple of the sector, or writes are to be deferred.
    pub fn open_raw(path: impl AsRef<Path>, options: &DiskOptions) -> Result<Self, DiskError> {
        if options.writes.scheme == WriteScheme::Deferred || options.buffers.is_some() {
            return Err(DiskError::RawDeferred);
        }
        let region = options.region.clone().any_length(true).open(path)?;
        let geometry = Geometry::new(0, region.len_bytes(), options.sector)?;
        Ok(Self::with(region, geometry, DiskKind::Raw, None, options))
    }

    fn with(
        region: Region,
        geometry: Geometry,
        kind: DiskKind,
        mark: Option<WriteBackMark>,
        options: &DiskOptions,
    ) -> Self {
        let DiskOptions { writes, buffers, buffer_dir, discard_buffered, .. } = options.clone();
        let is_scratch = region.is_writable() && !options.region.is_writer();
        Self { region, geometry, kind, mark, writes, buffers, buffer_dir, discard_buffered, is_scratch }
    }

    /// Its properties.
    #[must_use]
    pub fn info(&self) -> DiskInfo {
        DiskInfo {
            path: self.region.path().to_path_buf(),
            kind: self.kind,
            capacity_bytes: self.geometry.capacity_bytes(),
            sector_bytes: self.geometry.sector().bytes(),
            medium: self.region.medium(),
            domain: self.region.domain(),
            insns: self.region.insns(),
            is_writable: self.region.is_writable(),
        }
    }

    /// The completed writes of the last server that the file may not have, after checks that they are there.
    ///
    /// # Errors
    /// [`DiskError::WriteBack`], if they are missing or corrupted, or belong to other contents of the disk: then a server is refused.
    pub fn pending_writes(&self) -> Result<PendingWrites, DiskError> {
        let Some(mark) = self.mark else { return Ok(PendingWrites::None) };
        let session = match mark.load(&self.region) {
            0 => return Ok(PendingWrites::None),
            WriteBackMark::SET => return Ok(PendingWrites::Deferred),
            found => Session::of_mark(found),
        };
        let look = || {
            if !session.is_of_this_boot()? {
                return Ok(PendingWrites::Lost);
            }
            let slots = Slots::open_file(&self.buffer_dir, session, self.identity()?, true)?;
            slots.check_generation(mark.generation(&self.region))?;
            let path = self.buffer_dir.join(session.file_name());
            Ok(PendingWrites::Buffered { path, block_count: slots.block_count()? })
        };
        look().map_err(|error: BufferError| WriteBackError::from(error).into())
    }

    /// The region that it lies in.
    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// The engine that serves it; read-only if the region is. Drop the engine when it has served its last request ([`Engine::with_policy`]). If it was opened with [`RegionOptions::keep_pages`], and the write-back of an
    /// earlier server's data had failed, each Flush and FUA fails: that data may be lost.
    ///
    /// # Errors
    /// [`GeometryError`], if the geometry does not fit in the region. Opening has checked this already. [`DiskError::NewBuffers`], if the buffers cannot
    /// be made. [`DiskError::WriteBack`], if an earlier engine
    /// deferred writes and was killed, and the disk cannot be written back now.
    pub fn into_engine(self) -> Result<Engine, DiskError> {
        self.into_engine_over(Ok)
    }

    /// The engine that serves it over a wrapper of its region, such as [`Emulated`](pm_core::emulation::Emulated) or
    /// [`Protected`](pm_core::protection::Protected).
    ///
    /// # Errors
    /// As [`into_engine`](Self::into_engine), and those of `wrap`.
    pub fn into_engine_over<P: Pmem>(
        self,
        wrap: impl FnOnce(Region) -> Result<P, DiskError>,
    ) -> Result<Engine<P>, DiskError> {
        let writable = self.region.is_writable();
        let leftover = self.leftover()?;
        if !writable && matches!(leftover, Leftover::Stored(_)) {
            return Err(DiskError::Buffered);
        }
        if self.region.poison_if_writes_were_lost() {
            tracing::error!(
                path = %self.region.path().display(),
                "writes of an earlier server may be lost, as the system could not write them back; flushes will fail"
            );
        }
        // What is stored to scratch is lost anyway, and must not be left to a later server.
        let buffers = match self.buffers.filter(|_| writable && !self.is_scratch) {
            Some(options) => {
                options.check().map_err(DiskError::NewBuffers)?;
                Some((options, self.new_slots(options.slot_count()).map_err(DiskError::NewBuffers)?))
            }
            None => None,
        };
        let engine = Engine::new(wrap(self.region)?, self.geometry)?;
        if !writable {
            return Ok(engine.read_only());
        }
        let (leftover, discarded) = match leftover {
            Leftover::None => (None, None),
            Leftover::Stored(slots) => (Some(slots), None),
            Leftover::Discarded(slots) => (None, Some(slots)),
        };
        let setup = WriteSetup { policy: self.writes, mark: self.mark, buffers, leftover };
        let engine = engine.with_writes(setup)?;
        let Some(slots) = discarded else { return Ok(engine) };
        // The mark names them no more, so no other server would remove their file.
        if let Some(Err(error)) = slots.map(|mut slots| slots.discard()) {
            tracing::warn!(%error, "the file of the discarded writes stays");
        }
        Ok(engine.note_discarded())
    }

    /// The buffered writes of its last server, if that was killed, and not by a power failure.
    fn leftover(&self) -> Result<Leftover, DiskError> {
        let found = self.mark.map_or(0, |mark| mark.load(&self.region));
        if matches!(found, 0 | WriteBackMark::SET) {
            return Ok(Leftover::None);
        }
        let path = self.region.path().display();
        if self.discard_buffered {
            tracing::warn!(%path, "discarding the buffered writes of the last server, which was killed");
            let disk = self.identity().map_err(|error| WriteBackError::from(BufferError::from(error)))?;
            // They may be lost, or corrupted.
            let slots = Slots::open_file(&self.buffer_dir, Session::of_mark(found), disk, self.is_scratch);
            return Ok(Leftover::Discarded(slots.ok()));
        }
        let open = || {
            let session = Session::of_mark(found);
            if !session.is_of_this_boot()? {
                tracing::info!(%path, "the system has restarted since the last server; writes that were not flushed are lost");
                return Ok(Leftover::None);
            }
            Slots::open_file(&self.buffer_dir, session, self.identity()?, self.is_scratch)
                .map(Leftover::Stored)
        };
        open().map_err(|error: BufferError| WriteBackError::from(error).into())
    }

    fn new_slots(&self, slot_count: u64) -> Result<Slots, BufferError> {
        Slots::create_file(&self.buffer_dir, slot_count, self.identity()?)
    }

    fn identity(&self) -> std::io::Result<DiskFile> {
        let found = rustix::fs::fstat(self.region.file())?;
        Ok(DiskFile { device: found.st_dev, inode: found.st_ino, owner: found.st_uid })
    }
}

/// Puts a disk into a pool, or replaces its present disk: writes a new descriptor next to the old one, and sets the root to it.
///
/// # Errors
/// * The disk would not lie in the pool's data area, at a multiple of 4,096, and not over its descriptor.
/// * The disk or the descriptor would overlap the value of another root.
/// * The pool has no room for the descriptor or its root, is read-only, or has logged roots.
/// * A corrupted slot of its root directory may hold an older disk.
/// * A killed server left buffered writes for the present disk.
/// * A fence fails.
///
/// The pool is changed only if a fence fails, or if another thread sets roots of the pool at the same time and takes the last slot.
///
/// # Durability
/// When it returns, the disk is in the pool; a crash before that leaves the old one, if there was one, or the new one. Costs two fences, and a
/// third if a disk is replaced.
pub fn write_geometry<P: Pmem>(pool: &Pool<P>, geometry: Geometry) -> Result<(), DiskError> {
    let sector_bytes = geometry.sector().bytes_u32();
    let mut descriptor = Descriptor::new(geometry.start_bytes(), geometry.capacity_bytes(), sector_bytes);
    // Without the lock, two threads could choose the same offset, and the second could store to it after the first has set the root.
    let _one_at_a_time = GEOMETRY_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    // The present descriptor is never overwritten.
    let at = match pool.find_root(ROOT)? {
        Some(root) if root.offset() == DESCRIPTOR_OFFSET => ALTERNATE_DESCRIPTOR_OFFSET,
        _ => DESCRIPTOR_OFFSET,
    };
    // The sectors may be those of the present disk, with writes in the caches, or in buffers, which know the present sectors only.
    match read_descriptor(pool) {
        Ok((_, Descriptor { unflushed: unflushed @ (0 | Descriptor::UNFLUSHED), .. })) => {
            descriptor.unflushed = unflushed;
        }
        Ok(_) => return Err(DiskError::Buffered),
        Err(_) => {}
    }
    check_range(geometry, at, &pool.data())?;
    check_unused(pool, geometry, at)?;
    // Checked before the descriptor is stored: it needs a root.
    pool.check_root(ROOT)?;
    pool.scope(|pm| {
        let written = pm.write(pm.claim(at)?, &descriptor);
        pm.set_root_in_flight(ROOT, pm.flush(written))?;
        Ok(())
    })
}

/// Finds the disk in a pool.
///
/// # Errors
/// When there is none, or its descriptor is corrupted or impossible.
pub fn read_geometry<P: Pmem>(pool: &Pool<P>) -> Result<Geometry, DiskError> {
    find_disk(pool).map(|(_, geometry)| geometry)
}

/// The offset of the disk's descriptor, and its geometry.
fn find_disk<P: Pmem>(pool: &Pool<P>) -> Result<(u64, Geometry), DiskError> {
    let (at, descriptor) = read_descriptor(pool)?;
    let (found, expected) = (descriptor.crc, descriptor.expected_crc());
    if found != expected {
        return Err(DiskError::Checksum { found, expected });
    }
    let sector = SectorSize::from_bytes(u64::from(descriptor.sector_bytes))?;
    let (start_bytes, capacity_bytes) = (descriptor.start_bytes, descriptor.capacity_bytes);
    let geometry = Geometry::new(start_bytes, capacity_bytes, sector)?;
    check_range(geometry, at, &pool.data())?;
    Ok((at, geometry))
}

/// The descriptor that the root links to, and its offset. Its checksum has not been checked.
fn read_descriptor<P: Pmem>(pool: &Pool<P>) -> Result<(u64, Descriptor), DiskError> {
    pool.scope(|pm| {
        let root = pm.root::<Descriptor>(ROOT)?.ok_or(DiskError::NoDisk)?;
        Ok((root.offset(), pm.read(root)?))
    })
}

/// Checks that the disk lies in the pool's data area, at whole pages, and not over its descriptor.
fn check_range(geometry: Geometry, descriptor: u64, data: &Range<u64>) -> Result<(), DiskError> {
    let (start_bytes, capacity_bytes) = (geometry.start_bytes(), geometry.capacity_bytes());
    let end = start_bytes.checked_add(capacity_bytes).filter(|&end| end <= data.end);
    let overlaps = |end: u64| start_bytes < descriptor + size_of::<Descriptor>() as u64 && descriptor < end;
    let aligned = start_bytes.is_multiple_of(SectorSize::B4096.bytes());
    if start_bytes < data.start || !aligned || end.is_none_or(overlaps) {
        return Err(DiskError::OutsidePool {
            start_bytes,
            capacity_bytes,
            data_start: data.start,
            data_end: data.end,
        });
    }
    Ok(())
}

/// Checks that no value of another root overlaps the disk or its descriptor.
fn check_unused<P: Pmem>(pool: &Pool<P>, geometry: Geometry, descriptor: u64) -> Result<(), DiskError> {
    let sectors = geometry.start_bytes()..geometry.start_bytes() + geometry.capacity_bytes();
    let ranges = [sectors, descriptor..descriptor + size_of::<Descriptor>() as u64];
    let is_on = |root: &Root| {
        let end = root.offset().saturating_add(root.len_bytes());
        ranges.iter().any(|range| root.offset() < range.end && range.start < end)
    };
    match pool.roots().into_iter().find(|root| root.name() != ROOT && is_on(root)) {
        None => Ok(()),
        Some(root) => Err(DiskError::Taken {
            name: root.name().to_owned(),
            offset: root.offset(),
            len_bytes: root.len_bytes(),
        }),
    }
}

impl DiskInfo {
    /// The corruption that opening found, as [`DiskKind::corruption`].
    #[must_use]
    pub fn corruption(&self) -> Vec<String> {
        self.kind.corruption()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    #[test]
    fn concurrent_changes_are_serialized() {
        let pool = Pool::format(Region::anonymous(1 << 16).unwrap(), &PoolOptions::new()).unwrap();
        let geometry = Geometry::new(super::super::format::SMALL_START, 4096, SectorSize::B512).unwrap();
        let first = GEOMETRY_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::scope(|threads| {
            let (done, second) = channel();
            let pool = &pool;
            threads.spawn(move || done.send(write_geometry(pool, geometry).is_ok()).unwrap());
            let waits = second.recv_timeout(Duration::from_millis(50));
            assert_eq!(waits, Err(RecvTimeoutError::Timeout));
            drop(first);
            assert_eq!(second.recv(), Ok(true));
        });
        assert_eq!(read_geometry(&pool).unwrap(), geometry);
    }
}
