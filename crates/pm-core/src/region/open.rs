//! Creating and opening regions.

use super::blocks;
use super::file::{self, UnbornFile};
use super::lock::LockedFile;
use super::mapping::Mapping;
use super::medium::{self, Medium};
use super::options::Access;
use super::reread;
use super::{HugePages, OpenError, Region, RegionOptions};
use crate::insn::FlushInsn;
use crate::{Domain, Pmem};
use rustix::fs::{MemfdFlags, Stat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

impl RegionOptions {
    /// Creates a file of `len_bytes` zero bytes at `path`.
    ///
    /// # Errors
    /// As [`create_with`](Self::create_with).
    ///
    /// # Durability
    /// As [`create_with`](Self::create_with).
    pub fn create(&self, path: impl AsRef<Path>, len_bytes: u64) -> Result<Region, OpenError> {
        self.create_with(path, len_bytes, |_| Ok(()))
    }

    /// Creates a file of `len_bytes` zero bytes at `path`, lets `prepare` write to it, and gives it its name.
    ///
    /// # Errors
    /// When the path exists, the size is zero or no multiple of the page, a fence of `prepare` has failed, or the system says no.
    /// Nothing is left behind then.
    ///
    /// # Durability
    /// A crash leaves either no file at `path` or the whole of it, with everything that `prepare` made durable: the file
    /// is nameless until then.
    pub fn create_with<E: From<OpenError>>(
        &self,
        path: impl AsRef<Path>,
        len_bytes: u64,
        prepare: impl FnOnce(&Region) -> Result<(), E>,
    ) -> Result<Region, E> {
        let path = path.as_ref();
        check_size(len_bytes, 4096)?;
        let mut unborn = UnbornFile::new(path, self.mode)?;
        let (known, multiple_bytes) =
            medium::of_file_system(unborn.file()).map_err(OpenError::from_errno(path, "statfs"))?;
        check_size(len_bytes, multiple_bytes)?;
        unborn.extend(len_bytes, self.sparse)?;
        let file = unborn.file().try_clone().map_err(|e| io_error(path, "dup", &e))?;
        let writable = Self { access: Access::Writable, ..self.clone() };
        let region = writable.map(LockedFile::new(file, path, true)?, path, len_bytes, known, false)?;
        writable.populate_pages(&region)?;
        prepare(&region)?;
        // Through the region, which knows whether a fence of `prepare` has failed.
        region.sync_file()?;
        unborn.publish()?;
        Ok(region)
    }

    /// Opens an existing file, or a device-dax, in its whole length. Holes in a file that is opened for writing are filled, unless it
    /// is to be [sparse](Self::sparse), for a store to a hole could find the file system full.
    ///
    /// # Errors
    /// When there is nothing to map at `path`, or what was found there has been removed meanwhile, it is open elsewhere (also in a
    /// child of fork(2) of a process that was killed with it open, until that child ends or executes another program), there is no
    /// space for its holes, it is a device-dax to be opened as [`scratch`](Self::scratch), or the system says no; in the page
    /// domain also when what an earlier process stored cannot be written back.
    ///
    /// A device-dax that is open in a container by a device node of its own is not found to be open: the locks of a node and of a network
    /// namespace's sysfs are all that there is. Containers that share a device must share its node, by a bind mount.
    ///
    /// # Durability
    /// In the page domain, what is read of a region that is opened for writing is durable: what an earlier process stored is
    /// written back, and what a write-back has lost is read as the medium has it. That costs a write-back, and the page cache's
    /// copy of the file. Opened for reading, this holds but for pages that another program has mapped. In the other domains
    /// what was stored and not flushed may still be in the caches only: who relies on it must flush it first, as
    /// [`Pool`](crate::Pool) does. A file without a name, which a path in /proc can lead to, is as for [`open_file`](Self::open_file).
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Region, OpenError> {
        self.open_with(path, |_| Ok(()))
    }

    /// As [`open`](Self::open), but first passes the region to `check`, before its holes are filled or its pages populated: a file that
    /// `check` refuses is left as it is. `check` must not store to it: a store to a hole may find the file system full.
    ///
    /// # Errors
    /// As [`open`](Self::open), and when `check` fails.
    ///
    /// # Durability
    /// As [`open`](Self::open).
    pub fn open_with<E: From<OpenError>>(
        &self,
        path: impl AsRef<Path>,
        check: impl FnOnce(&Region) -> Result<(), E>,
    ) -> Result<Region, E> {
        let path = path.as_ref();
        let (found, stat) = file::look(path)?;
        let region = self.open_found(&found, &stat, path)?;
        check(&region)?;
        self.fill(&region)?;
        Ok(region)
    }

    /// Opens what was found at a path.
    fn open_found(&self, found: &OwnedFd, stat: &Stat, path: &Path) -> Result<Region, OpenError> {
        if let Some(kind) = medium::unmappable_kind(stat) {
            return Err(OpenError::NotMappable { path: path.to_path_buf(), kind });
        }
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice {
            let dir = medium::device_dax_dir(stat).ok_or_else(|| OpenError::NotMappable {
                path: path.to_path_buf(),
                kind: "character device",
            })?;
            let (len_bytes, align_bytes) =
                medium::device_dax_geometry(&dir).map_err(|e| io_error(path, "reading sysfs", &e))?;
            check_size(len_bytes, align_bytes)?;
            if self.access == Access::Scratch {
                return Err(OpenError::NoScratch { path: path.to_path_buf() });
            }
            let file = file::open(found, path, self.is_writer())?;
            let file =
                LockedFile::new(file, path, self.is_writer())?.with_device(&dir, path, self.is_writer())?;
            return self.map(file, path, len_bytes, Some(Medium::DeviceDax), false);
        }
        let file = LockedFile::new(file::open(found, path, self.is_writer())?, path, self.is_writer())?;
        if file::has_no_name(file.fd(), path)? {
            // Removed between finding and locking it, by a creator that failed, for one, and what would be stored to it lost. But a path
            // in /proc leads to the open file of a process, which may never have had a name.
            let (_, now) = file::look(path)?;
            if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino) {
                return Err(OpenError::NotFound { path: path.to_path_buf() });
            }
        }
        self.map_file(file, path)
    }

    /// As [`open`](Self::open), of a file that is open in any mode, with or without a name. `path` is what messages call it. A
    /// file that has no name is gone after a crash of the machine, and so its region is a [`Domain::Volatile`] one, also on a DAX file system. It
    /// stays one when the file is given a name: nothing is promised before it is opened anew.
    ///
    /// The file is opened again by way of /proc, and `file` is closed. A lock belongs to an open file description, so the description
    /// of `file`, of which a region may be open already, could be locked twice.
    ///
    /// # Errors
    /// As [`open`](Self::open), and when /proc is not mounted.
    pub fn open_file(&self, file: OwnedFd, path: impl AsRef<Path>) -> Result<Region, OpenError> {
        let path = path.as_ref();
        let stat = rustix::fs::fstat(&file).map_err(OpenError::from_errno(path, "stat"))?;
        if let Some(kind) = medium::unmappable_kind(&stat) {
            return Err(OpenError::NotMappable { path: path.to_path_buf(), kind });
        }
        let file = LockedFile::new(file::open(&file, path, self.is_writer())?, path, self.is_writer())?;
        let region = self.map_file(file, path)?;
        self.fill(&region)?;
        Ok(region)
    }

    /// Maps a regular file that is locked.
    fn map_file(&self, file: LockedFile, path: &Path) -> Result<Region, OpenError> {
        // The size under the lock: before it, a creator or a growing writer may have been at work.
        let stat = rustix::fs::fstat(file.fd()).map_err(OpenError::from_errno(path, "stat"))?;
        let len_bytes = u64::try_from(stat.st_size).map_err(|_| OpenError::ZeroSize)?;
        let (known, multiple_bytes) =
            medium::of_file_system(file.fd()).map_err(OpenError::from_errno(path, "statfs"))?;
        let is_page = multiple_bytes <= 4096;
        check_size(len_bytes, if self.any_length && is_page { 1 } else { multiple_bytes })?;
        let nameless = file::has_no_name(file.fd(), path)?;
        let mut region = self.map(file, path, len_bytes, known, nameless)?;
        region.reread(self.keep_pages)?;
        Ok(region)
    }

    /// The last step of an opening: fills the holes of a file that was opened for writing, populates its pages if requested, and
    /// removes the mark of lost writes, as no page with lost writes is left.
    fn fill(&self, region: &Region) -> Result<(), OpenError> {
        let (file, path, len_bytes) = (region.locked_file().fd(), region.path(), region.len_bytes());
        if region.access() == Access::Writable && region.medium() != Medium::DeviceDax && !self.sparse {
            // On tmpfs the blocks of a file are its pages, and nothing else: to count them is enough, once those that were
            // allocated behind its end are gone, which setting its length sees to. Asked to allocate what is there, it visits every
            // page and zeroes those that were never touched: seconds, for some gigabytes.
            if region.medium() == Medium::Tmpfs {
                file::set_length(file, path, len_bytes)?;
            }
            let stat = rustix::fs::fstat(file).map_err(OpenError::from_errno(path, "stat"))?;
            let allocated_bytes =
                u64::try_from(stat.st_blocks).map_or(0, |blocks| blocks.saturating_mul(512));
            let is_whole = region.medium() == Medium::Tmpfs && allocated_bytes >= len_bytes;
            if !is_whole {
                blocks::allocate(file, path, 0..len_bytes)?;
            }
        }
        self.populate_pages(region)?;
        // Only in the page domain were the pages read again.
        if region.domain() == Domain::Page && region.access() == Access::Writable && !self.keep_pages {
            reread::unmark(file, path)?;
        }
        Ok(())
    }

    /// Makes a region of anonymous memory (memfd) of `len_bytes`: gone when the process ends.
    ///
    /// # Errors
    /// When the size is zero or no multiple of 4,096 bytes, or memory is short.
    pub fn anonymous(&self, len_bytes: u64) -> Result<Region, OpenError> {
        let path = Path::new("(anonymous memory)");
        check_size(len_bytes, 4096)?;
        let file = rustix::fs::memfd_create("pm-core", MemfdFlags::CLOEXEC)
            .map_err(OpenError::from_errno(path, "memfd_create"))?;
        file::extend(&file, path, 0..len_bytes, false)?;
        let file = LockedFile::new(file, path, true)?;
        let region = self.map(file, path, len_bytes, Some(Medium::Tmpfs), true)?;
        self.populate_pages(&region)?;
        Ok(region)
    }

    /// Maps `file`, finds out its medium if it is not `known`, and fits the instructions to the domain. One that stays `nameless` is
    /// gone with the process.
    fn map(
        &self,
        file: LockedFile,
        path: &Path,
        len_bytes: u64,
        known: Option<Medium>,
        nameless: bool,
    ) -> Result<Region, OpenError> {
        let len = usize::try_from(len_bytes)
            .map_err(|_| OpenError::NoSpace { path: path.to_path_buf(), len_bytes })?;
        let (mapping, medium) =
            self.map_pages(file.fd(), len, known).map_err(OpenError::from_errno(path, "mmap"))?;
        // What a crash removes anyway need not be written back before.
        let is_kept = self.access != Access::Scratch && !nameless;
        let domain = if is_kept { domain_of(medium, file.fd(), path)? } else { Domain::Volatile };
        let insns = if domain == Domain::Eadr && !self.flush_forced {
            self.insns.with_flush(FlushInsn::Nothing).expect("no instruction is always to be had")
        } else {
            self.insns
        };
        let domain = kept_by(insns.flush(), domain);
        let mut region =
            Region::from_parts(mapping, file, path.to_path_buf(), self.access, medium, domain, insns);
        region.sparse = self.sparse;
        Ok(region)
    }

    fn map_pages(
        &self,
        file: impl AsFd,
        len: usize,
        known: Option<Medium>,
    ) -> Result<(Mapping, Medium), Errno> {
        let is_stored_to = self.access != Access::ReadOnly;
        let map = |flags| match self.address {
            // SAFETY: the caller of `at_address` promises it.
            Some(address) => unsafe { Mapping::at(address, file.as_fd(), len, is_stored_to, flags) },
            None => Mapping::new(file.as_fd(), len, is_stored_to, flags),
        };
        if self.access == Access::Scratch {
            // Memory for the copies is not set aside: there are as many pages as the file has, and few are stored to. A DAX file
            // is not told from another here, and need not be, for its memory is not stored to.
            // Only huge pages are: where those run out, a store is a SIGBUS.
            let reserve =
                if known == Some(Medium::Hugetlbfs) { MapFlags::empty() } else { MapFlags::NORESERVE };
            let mapping = map(MapFlags::PRIVATE | reserve)?;
            return Ok((mapping, known.unwrap_or(Medium::File)));
        }
        let (mut mapping, medium) = match known {
            Some(medium) => (map(MapFlags::SHARED)?, medium),
            // MAP_SYNC makes the block map durable with the page fault that shows it; only DAX can promise that.
            // Where a kernel or a file system cannot, it must refuse, which is what SHARED_VALIDATE is for.
            None => match map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
                Ok(mapping) => (mapping, Medium::DaxFile),
                Err(Errno::OPNOTSUPP | Errno::INVAL) => (map(MapFlags::SHARED)?, Medium::File),
                Err(errno) => return Err(errno),
            },
        };
        if !self.keep_on_fork {
            mapping.advise(Advice::LinuxDontFork)?;
        }
        if self.huge_pages == HugePages::Try && medium == Medium::Tmpfs {
            // DAX and hugetlbfs choose by themselves.
            allow_unknown(mapping.advise(Advice::LinuxHugepage))?;
        }
        if self.sparse && medium == Medium::File {
            // A fault brings in its page alone. With read-ahead come long folios, and a store to one allocates all its blocks.
            allow_unknown(mapping.advise(Advice::Random))?;
        }
        Ok((mapping, medium))
    }

    /// Faults every page in, if that was asked for. After other advice, which holds for pages to come only.
    fn populate_pages(&self, region: &Region) -> Result<(), OpenError> {
        if !self.populate {
            return Ok(());
        }
        let access =
            if region.is_writable() { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        allow_unknown(region.mapping().advise_once(access))
            .map_err(OpenError::from_errno(region.path(), "madvise"))
    }
}

/// Advice that older kernels, and kernels built without huge pages, answer by INVAL: it is only advice.
const fn allow_unknown(answer: Result<(), Errno>) -> Result<(), Errno> {
    match answer {
        Err(Errno::INVAL) => Ok(()),
        answer => answer,
    }
}

/// What a medium promises for a file that a crash does not remove.
fn domain_of(medium: Medium, file: &OwnedFd, path: &Path) -> Result<Domain, OpenError> {
    Ok(match medium {
        Medium::DaxFile | Medium::DeviceDax => {
            medium::dax_domain(&rustix::fs::fstat(file).map_err(OpenError::from_errno(path, "stat"))?)
        }
        Medium::Tmpfs | Medium::Hugetlbfs => Domain::Volatile,
        Medium::File => {
            let forgets = medium::forgets_what_was_synced(file);
            if forgets.map_err(|e| io_error(path, "reading of its mount", &e))? {
                Domain::Volatile
            } else {
                Domain::Page
            }
        }
    })
}

/// What remains of a domain's promise with flushes by this instruction: without any, the caches of the ADR domain are not written
/// back, and nothing is promised.
const fn kept_by(flush: FlushInsn, domain: Domain) -> Domain {
    match (flush, domain) {
        (FlushInsn::Nothing, Domain::Adr) => Domain::Volatile,
        (_, domain) => domain,
    }
}

pub(super) const fn check_size(len_bytes: u64, multiple_bytes: u64) -> Result<(), OpenError> {
    if len_bytes == 0 {
        return Err(OpenError::ZeroSize);
    }
    if !len_bytes.is_multiple_of(multiple_bytes) {
        return Err(OpenError::SizeNotMultiple { len_bytes, multiple_bytes });
    }
    Ok(())
}

fn io_error(path: &Path, operation: &'static str, error: &std::io::Error) -> OpenError {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    OpenError::Io { path: PathBuf::from(path), operation, errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_removed_between_finding_and_locking_it_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        for is_made_again in [false, true] {
            for options in
                [RegionOptions::new(), RegionOptions::new().read_only(), RegionOptions::new().scratch()]
            {
                std::fs::write(&path, [0; 4096]).unwrap();
                let (found, stat) = file::look(&path).unwrap();
                std::fs::remove_file(&path).unwrap();
                if is_made_again {
                    std::fs::write(&path, [0; 4096]).unwrap();
                }
                let opened = options.open_found(&found, &stat, &path);
                assert!(matches!(opened, Err(OpenError::NotFound { .. })), "{opened:?}");
            }
        }
    }

    /// An ordinary file, taken for one that could be mapped with `MAP_SYNC`.
    #[test]
    fn nothing_is_promised_of_a_dax_file_without_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        std::fs::write(&path, [0; 4096]).unwrap();
        for nameless in [false, true] {
            let (found, _) = file::look(&path).unwrap();
            let file = LockedFile::new(file::open(&found, &path, true).unwrap(), &path, true).unwrap();
            let region =
                RegionOptions::new().map(file, &path, 4096, Some(Medium::DaxFile), nameless).unwrap();
            assert_eq!(region.domain() == Domain::Volatile, nameless, "{}", region.domain());
        }
    }

    #[test]
    fn nothing_is_promised_of_caches_that_are_not_written_back() {
        assert_eq!(kept_by(FlushInsn::Nothing, Domain::Adr), Domain::Volatile);
        for domain in [Domain::Eadr, Domain::Page, Domain::Volatile] {
            assert_eq!(kept_by(FlushInsn::Nothing, domain), domain);
        }
        assert_eq!(kept_by(FlushInsn::Clflush, Domain::Adr), Domain::Adr);
    }
}
