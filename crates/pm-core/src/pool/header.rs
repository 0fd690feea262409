//! The two copies of the header, the primary and its backup: reading, checking, writing and restoring them.

use super::format::{
    DATA_START_MIN, HEADER_BYTES, Header, KNOWN_INCOMPAT, KNOWN_RO_COMPAT, MAGIC, POOL_BYTES_MIN, ROOT_COUNT,
    ROOTS_START, VERSION,
};
use super::{HeaderCorruption, PoolError};
use crate::persist::{bytes_of, from_bytes};
use crate::pmem::store_words;
use crate::{FenceError, Pmem};
use core::mem::offset_of;
use core::ops::Range;
use uuid::Uuid;

/// The state of the two copies of the header when the pool was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderState {
    /// Both copies were valid and equal.
    Intact,
    /// The primary was corrupted, and the backup was used. Opening for writing restores the primary.
    PrimaryCorrupted(HeaderCorruption),
    /// The backup was corrupted, or differed from the primary. Opening for writing restores the backup.
    BackupCorrupted(HeaderCorruption),
}

/// The result of reading one copy of the header.
#[expect(clippy::large_enum_variant, reason = "lives for a moment on the stack")]
enum HeaderCopy {
    Good(Header),
    OtherVersion(u32),
    Corrupted(HeaderCorruption),
}

/// The first header of a new pool.
pub(super) fn new_header(
    pool_bytes: u64,
    data_start: u64,
    uuid: Uuid,
    created_s: u64,
) -> Result<Header, PoolError> {
    let refuse = |reason| Err(PoolError::Layout { pool_bytes, data_start, reason });
    if pool_bytes < POOL_BYTES_MIN {
        return refuse("the smallest pool has 16384 bytes");
    }
    if !pool_bytes.is_multiple_of(HEADER_BYTES) || !data_start.is_multiple_of(HEADER_BYTES) {
        return refuse("both must be multiples of 4096");
    }
    if data_start < DATA_START_MIN {
        return refuse("the header and the roots take the first 8192 bytes");
    }
    if data_start >= pool_bytes - HEADER_BYTES {
        return refuse("no room for data is left");
    }
    Ok(Header {
        magic: MAGIC,
        version: VERSION,
        header_bytes: u32::try_from(HEADER_BYTES).expect("4096 fits in 32 bits"),
        features_compat: 0,
        features_ro_compat: 0,
        features_incompat: 0,
        uuid: uuid.into_bytes(),
        generation: 1,
        pool_bytes,
        data_start,
        data_bytes: pool_bytes - HEADER_BYTES - data_start,
        roots_start: ROOTS_START,
        root_count: ROOT_COUNT,
        created_s,
        reserved: [0; 3980],
        crc: 0,
    }
    .sealed())
}

/// The next generation of a header, for a longer pool.
pub(super) fn extended(old: &Header, pool_bytes: u64) -> Result<Header, PoolError> {
    let uuid = Uuid::from_bytes(old.uuid);
    let fresh = new_header(pool_bytes, old.data_start, uuid, old.created_s)?;
    let Header { pool_bytes, data_bytes, .. } = fresh;
    // The generation may wrap: it only serves to compare copies by eye, and no code depends on its order.
    let generation = old.generation.wrapping_add(1);
    Ok(Header { generation, pool_bytes, data_bytes, ..*old }.sealed())
}

/// Finds the pool in a region. Returns the valid header and the state of its two copies.
pub(super) fn find<P: Pmem>(pmem: &P) -> Result<(Header, HeaderState), PoolError> {
    let region_bytes = whole_bytes(pmem);
    if region_bytes < POOL_BYTES_MIN {
        return Err(not_a_pool_or_truncated(pmem, region_bytes));
    }
    match read_copy(pmem, 0) {
        // The primary is valid. It records the pool's length, which determines the offset of the backup. If a crash interrupted growth, the backup
        // lies before the region's end.
        HeaderCopy::Good(header) if header.pool_bytes > region_bytes => {
            Err(PoolError::Truncated { expected_bytes: header.pool_bytes, found_bytes: region_bytes })
        }
        HeaderCopy::Good(header) => {
            let state = match read_backup(pmem, header.pool_bytes) {
                HeaderCopy::Good(backup) if bytes_of(&backup) == bytes_of(&header) => HeaderState::Intact,
                HeaderCopy::Good(_) | HeaderCopy::OtherVersion(_) => {
                    HeaderState::BackupCorrupted(HeaderCorruption::Mismatch)
                }
                HeaderCopy::Corrupted(corruption) => HeaderState::BackupCorrupted(corruption),
            };
            Ok((header, state))
        }
        HeaderCopy::OtherVersion(found) => Err(other_version(found)),
        HeaderCopy::Corrupted(primary) => match read_backup(pmem, region_bytes) {
            HeaderCopy::Good(header) if header.pool_bytes == region_bytes => {
                Ok((header, HeaderState::PrimaryCorrupted(primary)))
            }
            HeaderCopy::OtherVersion(found) => Err(other_version(found)),
            other => {
                let backup = if let HeaderCopy::Corrupted(corruption) = other {
                    corruption
                } else {
                    HeaderCorruption::Layout
                };
                match find_inner_backup(pmem, primary, backup) {
                    Some(header) => Ok((header, HeaderState::PrimaryCorrupted(primary))),
                    None => Err(headers_corrupted(primary, backup)),
                }
            }
        },
    }
}

/// Finds the backup of a pool that is shorter than its region because a crash interrupted its growth. The backup records its own position.
///
/// If neither end of the region has the magic, the pages between are searched only if the first page is not all zero. A media error seldom leaves
/// zeroes, but in a pool that is being created the first page is all zero until everything else is durable.
fn find_inner_backup<P: Pmem>(
    pmem: &P,
    primary: HeaderCorruption,
    backup: HeaderCorruption,
) -> Option<Header> {
    let no_magic_at_either_end = (primary, backup) == (HeaderCorruption::NoMagic, HeaderCorruption::NoMagic);
    if no_magic_at_either_end && is_zero(pmem, 0..HEADER_BYTES) {
        return None;
    }
    backup_candidate_ends(pmem).into_iter().find_map(|end| match read_backup(pmem, end) {
        HeaderCopy::Good(header) if header.pool_bytes == end && may_be_backup(pmem, &header) => Some(header),
        _ => None,
    })
}

/// Whether `header`, found inside the region, may be the backup of the corrupted primary, and not user data that looks like a header. If the first
/// page has no magic, the line that also holds the identity is corrupted, and any copy is accepted. Otherwise one half of the identity may be
/// corrupted; a copy that differs in both halves belongs to another pool.
fn may_be_backup<P: Pmem>(pmem: &P, header: &Header) -> bool {
    !has_magic(pmem, 0) || has_half_of_identity(pmem, header)
}

/// Whether the first page has either half of this header's identity. A zero half does not count: no identity has one, so formatting or corruption
/// erased it.
fn has_half_of_identity<P: Pmem>(pmem: &P, header: &Header) -> bool {
    let mut uuid = [0; 16];
    pmem.load(offset_of!(Header, uuid) as u64, &mut uuid);
    let mut halves = uuid.chunks(8).zip(header.uuid.chunks(8));
    halves.any(|(corrupted, sound)| corrupted == sound && corrupted != [0; 8])
}

/// Whether a page is a hole of a sparse file. Even a load may allocate a hole, which fails on a full file system, so callers check this first.
pub(super) fn is_hole<P: Pmem>(pmem: &P, page: u64) -> bool {
    pmem.next_data(page).is_none_or(|data| data.start >= page + HEADER_BYTES)
}

/// Whether all words in a range of whole words are zero.
pub(super) fn is_zero<P: Pmem>(pmem: &P, range: Range<u64>) -> bool {
    range.step_by(size_of::<u64>()).all(|at| pmem.load_u64(at) == 0)
}

/// The end of a pool that is shorter than its region, according to `pool_bytes` in the primary. `None` if this value is impossible.
pub(super) fn inner_end_in_header<P: Pmem>(pmem: &P) -> Option<u64> {
    let end = pmem.load_u64(offset_of!(Header, pool_bytes) as u64);
    let is_possible = (POOL_BYTES_MIN..whole_bytes(pmem)).contains(&end) && end.is_multiple_of(HEADER_BYTES);
    is_possible.then_some(end)
}

/// The ends, in descending order, of pages that may be the backup of a pool shorter than the region: they begin with the magic. Reads no holes.
pub(super) fn backup_candidate_ends<P: Pmem>(pmem: &P) -> Vec<u64> {
    let inside = POOL_BYTES_MIN - HEADER_BYTES..whole_bytes(pmem) - HEADER_BYTES;
    let pages = data_pages(pmem, inside).filter(|page| has_magic(pmem, *page));
    let mut found: Vec<u64> = pages.map(|page| page + HEADER_BYTES).collect();
    found.reverse();
    found
}

/// The offsets of the pages in a range of whole pages, except holes.
pub(super) fn data_pages<P: Pmem>(pmem: &P, range: Range<u64>) -> impl Iterator<Item = u64> {
    let next = move |at| {
        let data = pmem.next_data(at)?;
        let first = data.start / HEADER_BYTES * HEADER_BYTES;
        let end = data.end.next_multiple_of(HEADER_BYTES).min(range.end);
        (first < end).then_some(first..end)
    };
    let parts = core::iter::successors(next(range.start), move |part| next(part.end));
    parts.flat_map(|part| part.step_by(size_of::<Header>()))
}

/// The length in bytes of the whole pages of a region.
pub(super) fn whole_bytes<P: Pmem>(pmem: &P) -> u64 {
    pmem.len_bytes() / HEADER_BYTES * HEADER_BYTES
}

const fn other_version(found: u32) -> PoolError {
    if found > VERSION {
        PoolError::FutureVersion { found, supported: VERSION }
    } else {
        PoolError::OldVersion { found, supported: VERSION }
    }
}

const fn headers_corrupted(primary: HeaderCorruption, backup: HeaderCorruption) -> PoolError {
    match (primary, backup) {
        (HeaderCorruption::NoMagic, HeaderCorruption::NoMagic) => PoolError::NotAPool,
        (primary, backup) => PoolError::HeadersCorrupted { primary, backup },
    }
}

/// The error for a region too short for any pool: `Truncated` if it has a valid header, which records the full length, otherwise `NotAPool`.
fn not_a_pool_or_truncated<P: Pmem>(pmem: &P, region_bytes: u64) -> PoolError {
    if region_bytes >= HEADER_BYTES
        && let HeaderCopy::Good(header) = read_copy(pmem, 0)
    {
        return PoolError::Truncated { expected_bytes: header.pool_bytes, found_bytes: region_bytes };
    }
    PoolError::NotAPool
}

/// Refuses a pool that requires unknown features for opening, or, if `writable`, for writing.
pub(super) fn check_features(header: &Header, writable: bool) -> Result<(), PoolError> {
    let unknown = header.features_incompat & !KNOWN_INCOMPAT;
    if unknown != 0 {
        return Err(PoolError::UnknownFeatures { unknown, needed_for: "opening" });
    }
    let unknown = header.features_ro_compat & !KNOWN_RO_COMPAT;
    if writable && unknown != 0 {
        return Err(PoolError::UnknownFeatures { unknown, needed_for: "writing" });
    }
    Ok(())
}

/// Whether the page at `offset` begins with the magic.
pub(super) fn has_magic<P: Pmem>(pmem: &P, offset: u64) -> bool {
    pmem.load_u64(offset) == u64::from_le_bytes(MAGIC)
}

/// Reads the copy in the page that ends at `end`. The page may be a hole if no pool ends there.
fn read_backup<P: Pmem>(pmem: &P, end: u64) -> HeaderCopy {
    let at = end - HEADER_BYTES;
    if is_hole(pmem, at) { HeaderCopy::Corrupted(HeaderCorruption::NoMagic) } else { read_copy(pmem, at) }
}

fn read_copy<P: Pmem>(pmem: &P, offset: u64) -> HeaderCopy {
    // The magic is loaded first: if it is missing, the rest of the page need not be read.
    let mut magic = [0; size_of_val(&MAGIC)];
    pmem.load(offset, &mut magic);
    if magic != MAGIC {
        return HeaderCopy::Corrupted(HeaderCorruption::NoMagic);
    }
    let header: Header = from_bytes(|bytes| pmem.load(offset, bytes));
    let (found, expected) = (header.crc, header.expected_crc());
    if found != expected {
        return HeaderCopy::Corrupted(HeaderCorruption::Checksum { found, expected });
    }
    if header.version != VERSION {
        return HeaderCopy::OtherVersion(header.version);
    }
    if !is_possible(&header) {
        return HeaderCopy::Corrupted(HeaderCorruption::Layout);
    }
    HeaderCopy::Good(header)
}

/// Whether a header with a valid checksum describes a possible layout.
fn is_possible(header: &Header) -> bool {
    let data_end = header.data_start.checked_add(header.data_bytes);
    u64::from(header.header_bytes) == HEADER_BYTES
        && header.pool_bytes >= POOL_BYTES_MIN
        && header.pool_bytes.is_multiple_of(HEADER_BYTES)
        && header.roots_start == ROOTS_START
        && header.root_count == ROOT_COUNT
        && header.data_start >= DATA_START_MIN
        && header.data_start.is_multiple_of(HEADER_BYTES)
        && header.data_bytes > 0
        && data_end == Some(header.pool_bytes - HEADER_BYTES)
}

/// Writes the header of a new pool: the backup, then the primary. The caller has erased older headers, and made the rest durable.
///
/// # Durability
/// A crash leaves no pool or the complete one, provided that everything else is durable before this call.
pub(super) fn write<P: Pmem>(pmem: &P, header: &Header) -> Result<(), FenceError> {
    write_over(pmem, header, None)
}

/// Like [`write`], but the header may replace `old`. The old backup is zeroed after the new backup is written.
///
/// The new backup is made durable first: one copy is complete at every moment, and a crash leaves the old header or the new one. The primary is
/// written last: once it is durable, the page of the old backup belongs to the data area, and must be zero by then.
pub(super) fn write_over<P: Pmem>(pmem: &P, header: &Header, old: Option<&Header>) -> Result<(), FenceError> {
    write_copy(pmem, header.pool_bytes - HEADER_BYTES, header)?;
    if let Some(old) = old {
        erase_copy(pmem, old.pool_bytes - HEADER_BYTES)?;
    }
    // DURABILITY POINT
    write_copy(pmem, 0, header)
}

/// Restores the corrupted copy. The valid copy is not written.
///
/// # Durability
/// A crash loses nothing: opening finds the valid copy again, even inside a longer region. There [`find_inner_backup`] accepts it only if the first
/// page is not zero and, if this page has the magic, has half of the identity. A crash could leave the magic without the identity, so the identity is
/// made durable in the first page before the other words are stored. Costs one fence, and one more for the identity.
pub(super) fn restore<P: Pmem>(pmem: &P, header: &Header, state: HeaderState) -> Result<(), FenceError> {
    match state {
        HeaderState::Intact => Ok(()),
        HeaderState::PrimaryCorrupted(_) => {
            restore_identity(pmem, header)?;
            write_copy(pmem, 0, header)
        }
        HeaderState::BackupCorrupted(_) => write_copy(pmem, header.pool_bytes - HEADER_BYTES, header),
    }
}

/// If the backup lies inside the region, makes the identity durable in the first page, unless half of it is there already. That half suffices, and is
/// durable because opening has made the page durable (`leftover::persist`).
fn restore_identity<P: Pmem>(pmem: &P, header: &Header) -> Result<(), FenceError> {
    if header.pool_bytes == whole_bytes(pmem) || has_half_of_identity(pmem, header) {
        return Ok(());
    }
    let at = offset_of!(Header, uuid) as u64;
    store_words(pmem, at, &header.uuid);
    pmem.persist(at, size_of_val(&header.uuid) as u64)
}

fn write_copy<P: Pmem>(pmem: &P, offset: u64, header: &Header) -> Result<(), FenceError> {
    store_words(pmem, offset, bytes_of(header));
    pmem.persist(offset, HEADER_BYTES)
}

/// Zeroes one copy, and makes the zeroes durable.
fn erase_copy<P: Pmem>(pmem: &P, offset: u64) -> Result<(), FenceError> {
    store_words(pmem, offset, &[0; size_of::<Header>()]);
    pmem.persist(offset, HEADER_BYTES)
}
