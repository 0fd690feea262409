//! The file below a region: growing it with its mapping, and syncing it.

use super::open::check_size;
use super::options::Access;
use super::{Medium, OpenError, Region, file, medium};
use std::os::fd::AsFd;

impl Region {
    /// Grows the file and the mapping to `len_bytes`; the new bytes are zero, and allocated unless the region was made or opened as
    /// [sparse](crate::RegionOptions::sparse). `&mut`, because the mapping moves.
    ///
    /// # Errors
    /// When the region or its file would shrink, the size is no multiple of the medium's page, the region is read-only, scratch or a
    /// device-dax, or that of the parent of a process made by fork(2) ([`OpenError::Busy`]), or space or addresses are short. The region
    /// and the file are as they were then, but for this case: when the file cannot be [synced](Self::sync_file) in its new length, it is
    /// longer than the region, and in the page domain the failed sync may have been about data that was stored before, and poisons
    /// the region.
    ///
    /// # Durability
    /// When it returns, a crash leaves the new length; before, the old one or the new one.
    pub fn grow(&mut self, len_bytes: u64) -> Result<(), OpenError> {
        let len = self.check_growth(len_bytes)?;
        if len_bytes == self.len_bytes {
            return Ok(());
        }
        let path = self.path();
        let file = self.locked_file().locked_fd(path)?.as_fd();
        // Before the file changes, for this may fail; nothing is accessed behind the file's end.
        let mapping = self.mapping.resized(file, len).map_err(OpenError::from_errno(path, "mmap"))?;
        file::extend(file, path, self.len_bytes..len_bytes, self.sparse)?;
        // DURABILITY POINT
        self.sync_file()?;
        self.mapping = mapping;
        self.len_bytes = len_bytes;
        self.writable_bytes = len_bytes;
        Ok(())
    }

    /// Refuses what [`grow`](Self::grow) refuses before it asks for space or addresses. Returns the length of the new mapping.
    pub(crate) fn check_growth(&self, len_bytes: u64) -> Result<usize, OpenError> {
        let path = self.path();
        if self.access() != Access::Writable {
            return Err(OpenError::ReadOnly { path: path.to_path_buf() });
        }
        if self.medium == Medium::DeviceDax {
            return Err(OpenError::NotMappable { path: path.to_path_buf(), kind: "device of fixed size" });
        }
        let file = self.locked_file().locked_fd(path)?;
        let (_, page_bytes) = medium::of_file_system(file).map_err(OpenError::from_errno(path, "statfs"))?;
        check_size(len_bytes, page_bytes)?;
        if len_bytes < self.len_bytes {
            return Err(OpenError::Shrink { len_bytes: self.len_bytes, wanted_bytes: len_bytes });
        }
        usize::try_from(len_bytes).map_err(|_| OpenError::NoSpace { path: path.to_path_buf(), len_bytes })
    }

    /// Syncs the file: its length, which blocks it has, and, in the page domain, all that was stored. The domain of the region
    /// stays as it is: that of a [nameless](crate::RegionOptions::open_file) file is volatile also when it has a name by now.
    ///
    /// # Errors
    /// When the system says no. In the page domain that poisons the region as a failed fence does, and one that is poisoned says
    /// so. In a child of fork(2), of its parent's region, [`OpenError::Busy`]: the kernel tells of a write-back that failed once, and the
    /// parent is to be told.
    ///
    /// # Durability
    /// When it returns, a crash of the machine leaves the file as long as it is, and in the page domain with its contents, if it has
    /// a name.
    pub fn sync_file(&self) -> Result<(), OpenError> {
        let file = self.locked_file().locked_fd(self.path())?;
        match &self.page_sync {
            Some(page_sync) => page_sync.sync_file(|| rustix::fs::fsync(file))?,
            None => rustix::fs::fsync(file),
        }
        .map_err(OpenError::from_errno(self.path(), "fsync"))
    }
}
