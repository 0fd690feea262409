//! The page domain at opening: what is read is what the medium holds.
//!
//! The page cache may hold what the medium does not. Stores of a process that died are dirty pages there, which a write-back
//! makes durable. But after a write-back that failed the kernel takes the pages for clean, so that the next process to open the file
//! reads the new contents, relies on them, and no fence ever writes them. So the pages are dropped and read again. Those that
//! cannot be dropped, because another program has mapped them, are made dirty again and written back: then the medium has what
//! is read. So are all pages where the opener continues for a process that was killed, whose stores are not to be lost. Pages of
//! zeroes over holes are left: the medium has zeroes there, and a store would allocate a block.
//!
//! The kernel reports a failed write-back once. An opener that gets the report, for reading or writing, leaves a mark on the file, an
//! extended attribute: if it continues for a killed process, it may itself fail or be killed before it can tell anyone; any other opener fails,
//! having dropped nothing. Later openers that continue for a process find the mark, until an opening that continues for none succeeds, and
//! removes it as its last step. A refused opening leaves the mark: it has dropped pages that the next opening would have written back. The
//! mark is not made durable: clients that wait do not survive a crash of the machine.

use super::mapping::Mapping;
use super::page_sync::PageSync;
use super::{OpenError, blocks, file, page_sync};
use crate::fault::MediumFault;
use core::ops::Range;
use rustix::fs::{Advice, XattrFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The mark on a file: an opening was told of a failed write-back.
const LOST_WRITES: &str = "user.pm.lost_writes";
/// How much of the mapping is asked for at once.
const STEP_BYTES: usize = 1 << 30;

/// Drops the file's pages from the cache, after a write-back. `page_sync` is there for a writer only, and without one pages that
/// are mapped elsewhere stay as they are. A writer may `keep` the pages: then all that the cache has is written back again, with
/// what a failed write-back has lost. A reader that keeps them leaves the cache as it is. Nothing of the mapping may have been
/// read before.
///
/// Returns whether a writer that keeps the pages, or an earlier opener, was told of a failed write-back: lost pages may have left the cache.
///
/// # Durability
/// When it returns to a writer, all that can be read of the file is durable.
pub(super) fn reread(
    file: &OwnedFd,
    path: &Path,
    mapping: &Mapping,
    page_sync: Option<&PageSync>,
    keep: bool,
) -> Result<bool, OpenError> {
    let failed = |operation| OpenError::from_errno(path, operation);
    if keep && page_sync.is_none() {
        return Ok(false);
    }
    let written_back = match rustix::fs::fdatasync(file) {
        // A file system that is always read-only has no fdatasync(2), and nothing to write back.
        Err(Errno::INVAL | Errno::ROFS) if page_sync.is_none() => Ok(()),
        Err(error) => {
            mark(file);
            Err(error)
        }
        Ok(()) => Ok(()),
    };
    let mut lost_writes = false;
    if keep {
        lost_writes = written_back.is_err() || is_marked(file);
    } else {
        written_back.map_err(failed("fdatasync"))?;
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed).map_err(failed("fadvise"))?;
    }
    let Some(page_sync) = page_sync else { return Ok(false) };
    for start in (0..mapping.len()).step_by(STEP_BYTES) {
        let end = mapping.len().min(start + STEP_BYTES);
        for offset in kept_pages(file, mapping, start..end).map_err(failed("mincore"))? {
            touch(file, path, mapping, offset)?;
            page_sync.flush(offset as u64, 1);
        }
    }
    let fenced = page_sync.fence(mapping);
    if fenced.is_err() {
        mark(file);
    }
    fenced?;
    Ok(lost_writes)
}

/// Removes the mark of lost writes, if there is one: for an opening that has succeeded and kept no pages.
pub(super) fn unmark(file: &OwnedFd, path: &Path) -> Result<(), OpenError> {
    if is_marked(file) {
        let removed = rustix::fs::fremovexattr(file, LOST_WRITES);
        removed.map_err(OpenError::from_errno(path, "fremovexattr"))?;
    }
    Ok(())
}

/// Makes a page dirty, which takes a block of its own for a page whose block the file shares with a copy.
fn touch(file: &OwnedFd, path: &Path, mapping: &Mapping, offset: usize) -> Result<(), OpenError> {
    let Err(MediumFault) = mapping.touch(offset) else { return Ok(()) };
    // The system says why there is no block, or finds one.
    let end = mapping.len().min(offset + page_sync::host_page_bytes());
    blocks::allocate(file, path, offset as u64..end as u64)?;
    mapping.touch(offset).map_err(|MediumFault| OpenError::from_errno(path, "storing to a page")(Errno::IO))
}

/// If the file cannot be marked, as on a file system without extended attributes, says so on standard error. Then this process alone knows
/// of the failure.
fn mark(file: &OwnedFd) {
    if let Err(errno) = rustix::fs::fsetxattr(file, LOST_WRITES, &[], XattrFlags::empty()) {
        eprintln!("pm-core: cannot mark the file, of which writes may be lost: {errno}");
    }
}

/// A file system that has no attributes, or cannot read them, has no mark.
fn is_marked(file: &OwnedFd) -> bool {
    rustix::fs::fgetxattr(file, LOST_WRITES, &mut [0_u8; 0][..]).is_ok()
}

/// The offsets of the pages in `part` that are in memory, and that the medium may have otherwise.
fn kept_pages(file: &OwnedFd, mapping: &Mapping, part: Range<usize>) -> Result<Vec<usize>, Errno> {
    let page = page_sync::host_page_bytes();
    let resident = mapping.are_resident(part.start, part.end, page)?;
    let mut kept = Vec::new();
    // The first data at or behind the page, or the last there are.
    let mut data = 0..0;
    for offset in part.clone().step_by(page).zip(resident).filter(|page| page.1).map(|page| page.0) {
        if data.end <= offset as u64 {
            data = file::next_data(file, offset as u64..part.end as u64).unwrap_or(u64::MAX..u64::MAX);
        }
        // What a failed write-back has lost may lie over a hole.
        let is_hole = data.start >= (offset + page) as u64;
        // A page that cannot be read is left to the store, which says why.
        if !is_hole || mapping.is_zero(offset, page.min(mapping.len() - offset)) != Ok(true) {
            kept.push(offset);
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use crate::{Domain, FenceError, OpenError, Pmem, Region, RegionOptions};
    use rustix::io::Errno;
    use rustix::mm::{Advice, MapFlags};
    use std::os::fd::AsFd;

    const LEN: usize = 1 << 20;

    /// In a directory that is not in memory, as the one for temporary files may be.
    fn file() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file.pm");
        std::fs::write(&path, vec![7; LEN]).unwrap();
        (dir, path)
    }

    fn resident_count(region: &Region) -> usize {
        let pages = region.mapping().are_resident(0, LEN, rustix::param::page_size()).unwrap();
        pages.into_iter().filter(|is_resident| *is_resident).count()
    }

    fn written_bytes() -> usize {
        let io = std::fs::read_to_string("/proc/self/io").unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap();
        line.parse::<usize>().unwrap()
    }

    /// A failed write-back leaves such pages: clean, though the medium does not have them.
    #[test]
    fn pages_that_are_kept_are_written_again() {
        let (_dir, path) = file();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        std::fs::read(&path).unwrap();
        let all = LEN / rustix::param::page_size();
        let reader = RegionOptions::new().read_only().keep_pages(true).open(&path).unwrap();
        assert_eq!(resident_count(&reader), all, "a reader drops nothing");
        drop(reader);
        let before = written_bytes();
        let mut region = RegionOptions::new().keep_pages(true).open(&path).unwrap();
        assert_eq!(resident_count(&region), all);
        assert!(written_bytes() - before >= LEN, "each page became dirty again");
        assert!(!region.poison_if_writes_were_lost());
        region.fence().unwrap();
        // As if the system had told of a failed write-back, which it cannot be made to do here.
        region.assume_lost_writes();
        assert!(region.poison_if_writes_were_lost());
        assert_eq!(region.fence(), Err(FenceError::Poisoned));
    }

    #[test]
    fn mark_of_lost_writes_stays_until_a_writer_drops_the_pages() {
        let (_dir, path) = file();
        let lost_writes = |options: RegionOptions| options.open(&path).unwrap().poison_if_writes_were_lost();
        let keep = || RegionOptions::new().keep_pages(true);
        assert!(!lost_writes(keep()));
        super::mark(&std::fs::File::open(&path).unwrap().into());
        // A reader can do nothing about it.
        assert!(!lost_writes(keep().read_only()));
        assert!(!lost_writes(RegionOptions::new().read_only()));
        for _ in 0..2 {
            let region = keep().open(&path).unwrap();
            region.fence().unwrap();
            assert!(region.poison_if_writes_were_lost());
            assert_eq!(region.fence(), Err(FenceError::Poisoned));
        }
        assert!(!lost_writes(RegionOptions::new()));
        assert!(!lost_writes(keep()));
    }

    #[test]
    fn opening_whose_fence_fails_leaves_the_mark_of_lost_writes() {
        let (_dir, path) = file();
        let failing = super::PageSync::new();
        failing.poison();
        for keep in [false, true] {
            // It removes the mark.
            let region = RegionOptions::new().open(&path).unwrap();
            let file = std::fs::File::open(&path).unwrap().into();
            assert!(!super::is_marked(&file));
            assert!(super::reread(&file, &path, region.mapping(), Some(&failing), keep).is_err());
            drop(region);
            let next = RegionOptions::new().keep_pages(true).open(&path).unwrap();
            assert!(next.poison_if_writes_were_lost(), "it keeps the pages: {keep}");
        }
    }

    #[test]
    fn sparse_file_whose_pages_are_kept_stays_sparse() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file.pm");
        let sparse = RegionOptions::new().sparse(true).keep_pages(true);
        drop(sparse.create(&path, LEN as u64).unwrap());
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
        let before = blocks();
        std::fs::read(&path).unwrap();
        let region = sparse.open(&path).unwrap();
        assert_eq!(resident_count(&region), LEN / rustix::param::page_size());
        assert_eq!(blocks(), before);
    }

    /// A mapping of one file and a descriptor of another, which has holes there: the state that a failed write-back leaves.
    #[test]
    fn page_with_contents_over_a_hole_is_kept() {
        let (dir, path) = file();
        let page = rustix::param::page_size();
        let bytes = [vec![0; page], vec![7; page], vec![0; LEN - 2 * page]].concat();
        std::fs::write(&path, bytes).unwrap();
        let holes = std::fs::File::create(dir.path().join("holes")).unwrap();
        holes.set_len(LEN as u64).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&holes, &[0], 3 * page as u64).unwrap();
        let region = RegionOptions::new().keep_pages(true).open(&path).unwrap();
        assert_eq!(resident_count(&region), LEN / page);
        let kept = super::kept_pages(&holes.into(), region.mapping(), 0..LEN).unwrap();
        assert_eq!(kept, [page, 3 * page], "the one with contents, and the one that is no hole");
    }

    /// The file is cut behind the opener's back.
    #[test]
    fn page_that_cannot_be_stored_to_is_an_error() {
        let (_dir, path) = file();
        let region = RegionOptions::new().open(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(region.mapping().is_zero(0, 1), Err(crate::fault::MediumFault));
        let touched = super::touch(&file.into(), &path, region.mapping(), 0);
        assert!(matches!(touched, Err(OpenError::Io { errno: Errno::IO, .. })), "{touched:?}");
    }

    /// As on squashfs or ISO 9660. A file of /proc cannot be synced, and is read at that.
    #[test]
    fn file_that_cannot_be_synced_is_read_and_not_written() {
        let path = std::path::Path::new("/proc/self/comm");
        let (_dir, mapped) = file();
        let region = RegionOptions::new().open(&mapped).unwrap();
        let file = std::fs::File::open(path).unwrap().into();
        assert_eq!(rustix::fs::fdatasync(&file), Err(rustix::io::Errno::INVAL));
        assert!(!super::reread(&file, path, region.mapping(), None, false).unwrap());
        let refused = super::reread(&file, path, region.mapping(), Some(&super::PageSync::new()), false);
        assert!(refused.is_err());
    }

    #[test]
    fn opened_file_is_read_from_the_medium() {
        let (_dir, path) = file();
        for options in
            [RegionOptions::new(), RegionOptions::new().read_only(), RegionOptions::new().scratch()]
        {
            std::fs::read(&path).unwrap();
            let region = options.open(&path).unwrap();
            assert!(
                matches!(region.domain(), Domain::Page | Domain::Volatile),
                "a disk: {}",
                region.domain()
            );
            assert_eq!(resident_count(&region), 0, "{options:?}");
            assert_eq!(region.load_u64(8), u64::from_le_bytes([7; 8]));
        }
    }

    #[test]
    fn pages_that_another_program_has_mapped_are_written_again() {
        let (_dir, path) = file();
        let other = std::fs::File::open(&path).unwrap();
        other.sync_all().unwrap();
        let mapping = super::Mapping::new(other.as_fd(), LEN, false, MapFlags::SHARED).unwrap();
        mapping.advise_once(Advice::LinuxPopulateRead).unwrap();
        let before = written_bytes();
        let region = Region::open(&path).unwrap();
        assert_eq!(resident_count(&region), LEN / rustix::param::page_size());
        assert!(written_bytes() - before >= LEN, "each page became dirty again");
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; LEN]);
    }
}
