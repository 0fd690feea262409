//! Opening in the page domain: makes the page cache equal to the medium.
//!
//! The page cache may differ from the medium. Stores of a dead process leave dirty pages, which a write-back makes durable. But after a failed
//! write-back the kernel marks the pages clean: the next process to open the file would read contents that the medium lacks, and no fence would write
//! them. So opening drops the pages, and loads read them again. Pages that another program has mapped cannot be dropped: a writer marks them dirty
//! and writes them back, so that the medium equals them. To take over from a killed process without losing its stores, a writer can keep the pages:
//! then it does this to all of them. Zero pages over holes are left out: the medium has zeroes there, and a store would allocate a block.
//!
//! The kernel reports a failed write-back once. An open that receives the report, for reading or writing, marks the file with an extended attribute,
//! which later opens that keep the pages find. An open that keeps the pages needs the mark because its process may be killed before it uses the
//! report; an open that does not keep them needs it because the report makes it fail, and the lost pages stay in the cache. An open for writing that
//! does not keep the pages removes the mark as its last step. If it fails after it has dropped pages, the mark stays, because a later open can no
//! longer write those pages back. The mark is not synced: it serves the waiting clients of a killed server, and a crash of the machine ends them too.

use super::mapping::Mapping;
use super::page_sync::PageSync;
use super::{OpenError, blocks, file, page_sync};
use crate::fault::MediumFault;
use core::ops::Range;
use rustix::fs::{Advice, XattrFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The mark on a file: an open received the report of a failed write-back.
const LOST_WRITES: &str = "user.pm.lost_writes";
/// The length of the part of the mapping that one mincore(2) covers.
const STEP_BYTES: usize = 1 << 30;

/// Writes back the file's pages, and drops them from the cache. `page_sync` is set for a writer only; without it, pages that are mapped elsewhere
/// stay as they are. If `keep` is set, a writer keeps the pages: all pages in the cache are written back again, including those lost by a failed
/// write-back. A reader that keeps them does not change the cache. The mapping must not have been read before.
///
/// Returns true only for a writer that keeps the pages, if this or an earlier open received the report of a failed write-back.
///
/// # Durability
/// When it returns to a writer, all readable data of the file is durable.
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
        // A read-only file system has no fdatasync(2), and no dirty pages.
        Err(Errno::INVAL | Errno::ROFS) if page_sync.is_none() => Ok(()),
        Err(error) => {
            mark(file, path);
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
        for offset in pages_to_rewrite(file, mapping, start..end).map_err(failed("mincore"))? {
            touch(file, path, mapping, offset)?;
            page_sync.flush(offset as u64, 1);
        }
    }
    let fenced = page_sync.fence(mapping);
    if fenced.is_err() {
        mark(file, path);
    }
    fenced?;
    Ok(lost_writes)
}

/// Removes the mark of lost writes, if there is one, after a successful open that kept no pages.
pub(super) fn unmark(file: &OwnedFd, path: &Path) -> Result<(), OpenError> {
    if is_marked(file) {
        let removed = rustix::fs::fremovexattr(file, LOST_WRITES);
        removed.map_err(OpenError::from_errno(path, "fremovexattr"))?;
    }
    Ok(())
}

/// Makes a page dirty. If the file shares the block with a copy, the store needs a new block.
fn touch(file: &OwnedFd, path: &Path, mapping: &Mapping, offset: usize) -> Result<(), OpenError> {
    let Err(MediumFault) = mapping.touch(offset) else { return Ok(()) };
    // Allocating the block either returns the cause of the fault, or removes it.
    let end = mapping.len().min(offset + page_sync::host_page_bytes());
    blocks::allocate(file, path, offset as u64..end as u64)?;
    mapping.touch(offset).map_err(|MediumFault| OpenError::from_errno(path, "storing to a page")(Errno::IO))
}

/// Marks the file. If that fails, as on a file system without extended attributes, prints a message: no later open detects the lost writes.
fn mark(file: &OwnedFd, path: &Path) {
    if let Err(errno) = rustix::fs::fsetxattr(file, LOST_WRITES, &[], XattrFlags::empty()) {
        eprintln!("pm-core: writes to {} may be lost, and it cannot be marked: {errno}", path.display());
    }
}

/// Whether the file is marked; false if its attributes cannot be read.
fn is_marked(file: &OwnedFd) -> bool {
    rustix::fs::fgetxattr(file, LOST_WRITES, &mut [0_u8; 0][..]).is_ok()
}

/// The offsets of the pages in `part` that are in memory, and that may differ from the medium.
fn pages_to_rewrite(file: &OwnedFd, mapping: &Mapping, part: Range<usize>) -> Result<Vec<usize>, Errno> {
    let page = page_sync::host_page_bytes();
    let resident = mapping.are_resident(part.start, part.end, page)?;
    let mut pages = Vec::new();
    // The first data range that ends after the start of the page.
    let mut data = 0..0;
    for offset in part.clone().step_by(page).zip(resident).filter(|page| page.1).map(|page| page.0) {
        if data.end <= offset as u64 {
            data = file::next_data(file, offset as u64..part.end as u64).unwrap_or(u64::MAX..u64::MAX);
        }
        // A page over a hole is left out only if it is zero: the store of a lost page may have been to a hole.
        let is_hole = data.start >= (offset + page) as u64;
        // A page that cannot be read is included: the store to it returns the error.
        if !is_hole || mapping.is_zero(offset, page.min(mapping.len() - offset)) != Ok(true) {
            pages.push(offset);
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use crate::region::mapping::Sharing;
    use crate::{Domain, FenceError, OpenError, Pmem, Region, RegionOptions};
    use rustix::io::Errno;
    use rustix::mm::Advice;
    use std::os::fd::AsFd;

    const LEN: usize = 1 << 20;

    /// A file outside the directory for temporary files, which may be in memory.
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

    /// Simulates the state after a failed write-back: the pages are clean, and the medium does not have them.
    #[test]
    fn kept_pages_are_written_again() {
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
        // Simulates the report of a failed write-back.
        region.assume_lost_writes();
        assert!(region.poison_if_writes_were_lost());
        assert_eq!(region.fence(), Err(FenceError::Poisoned));
    }

    #[test]
    fn mark_stays_until_writer_drops_pages() {
        let (_dir, path) = file();
        let lost_writes = |options: RegionOptions| options.open(&path).unwrap().poison_if_writes_were_lost();
        let keep = || RegionOptions::new().keep_pages(true);
        assert!(!lost_writes(keep()));
        super::mark(&std::fs::File::open(&path).unwrap().into(), &path);
        // A reader cannot write the pages back.
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
    fn failed_fence_of_opening_leaves_mark() {
        let (_dir, path) = file();
        let failing = super::PageSync::new();
        failing.poison();
        for keep in [false, true] {
            // This open removes the mark.
            let region = RegionOptions::new().open(&path).unwrap();
            let file = std::fs::File::open(&path).unwrap().into();
            assert!(!super::is_marked(&file));
            assert!(super::reread(&file, &path, region.mapping(), Some(&failing), keep).is_err());
            drop(region);
            let next = RegionOptions::new().keep_pages(true).open(&path).unwrap();
            assert!(next.poison_if_writes_were_lost(), "with keep: {keep}");
        }
    }

    #[test]
    fn keeping_pages_leaves_holes() {
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

    /// A mapping of one file and a descriptor of another file with holes simulate the state after a failed write-back.
    #[test]
    fn lost_page_over_hole_is_rewritten() {
        let (dir, path) = file();
        let page = rustix::param::page_size();
        let bytes = [vec![0; page], vec![7; page], vec![0; LEN - 2 * page]].concat();
        std::fs::write(&path, bytes).unwrap();
        let holes = std::fs::File::create(dir.path().join("holes")).unwrap();
        holes.set_len(LEN as u64).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&holes, &[0], 3 * page as u64).unwrap();
        let region = RegionOptions::new().keep_pages(true).open(&path).unwrap();
        assert_eq!(resident_count(&region), LEN / page);
        let pages = super::pages_to_rewrite(&holes.into(), region.mapping(), 0..LEN).unwrap();
        assert_eq!(pages, [page, 3 * page], "the page with contents, and the page in a data range");
    }

    #[test]
    fn store_to_truncated_page_is_error() {
        let (_dir, path) = file();
        let region = RegionOptions::new().open(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(region.mapping().is_zero(0, 1), Err(crate::fault::MediumFault));
        let touched = super::touch(&file.into(), &path, region.mapping(), 0);
        assert!(matches!(touched, Err(OpenError::Io { errno: Errno::IO, .. })), "{touched:?}");
    }

    /// A file in /proc stands for a file on squashfs or ISO 9660: it can be read, but not synced.
    #[test]
    fn file_that_cannot_be_synced_is_readable_only() {
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
    fn opened_file_is_read_from_medium() {
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
    fn pages_mapped_elsewhere_are_written_again() {
        let (_dir, path) = file();
        let other = std::fs::File::open(&path).unwrap();
        other.sync_all().unwrap();
        let mapping = super::Mapping::new(other.as_fd(), LEN, false, Sharing::Shared).unwrap();
        mapping.advise_once(Advice::LinuxPopulateRead).unwrap();
        let before = written_bytes();
        let region = Region::open(&path).unwrap();
        assert_eq!(resident_count(&region), LEN / rustix::param::page_size());
        assert!(written_bytes() - before >= LEN, "each page became dirty again");
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; LEN]);
    }
}
