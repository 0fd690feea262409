//! Files under regions: appearing whole or not at all, opened by one at a time, with all their blocks allocated.

use super::lock::lock;
use super::process::ProcessId;
use super::{OpenError, blocks, temporary};
use core::ops::Range;
use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, RenameFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Finds out what lies at a path, without opening it: a tape or a watchdog would notice.
pub(super) fn look(path: &Path) -> Result<(OwnedFd, Stat), OpenError> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(OpenError::from_errno(path, "open"))?;
    let stat = rustix::fs::fstat(&found).map_err(OpenError::from_errno(path, "stat"))?;
    Ok((found, stat))
}

/// Opens what a descriptor is of, whatever lies at the path by now: a new open file description, with a lock of its own.
pub(super) fn open(found: &OwnedFd, path: &Path, writable: bool) -> Result<OwnedFd, OpenError> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::open(link, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map_err(|errno| {
        match errno {
            Errno::ACCESS | Errno::PERM => OpenError::Permission {
                path: path.to_path_buf(),
                wanted: if writable { "reading and writing" } else { "reading" },
            },
            // What was found is there, so it is /proc that is not.
            Errno::NOENT => {
                OpenError::Io { path: path.to_path_buf(), operation: "open by way of /proc", errno }
            }
            errno => OpenError::from_errno(path, "open")(errno),
        }
    })
}

/// A file that has no name yet: gone without a trace if the process dies before [`publish`](Self::publish).
#[derive(Debug)]
pub(super) struct UnbornFile {
    file: OwnedFd,
    /// Held open from the start, so that nothing about it can fail, or become another directory, once the file is there.
    dir: OwnedFd,
    path: PathBuf,
    name: OsString,
    /// Where the file system cannot make nameless files, the name that it has meanwhile.
    temporary: Option<OsString>,
    /// The process that makes the file. A child that inherits this value must not remove it.
    process: ProcessId,
}

impl UnbornFile {
    /// Makes a locked, nameless, empty file that is to appear at `path`.
    pub(super) fn new(path: &Path, mode: u32) -> Result<Self, OpenError> {
        let Some(name) = path.file_name().map(OsStr::to_os_string) else {
            return Err(OpenError::NotMappable { path: path.to_path_buf(), kind: "directory" });
        };
        let failed = |operation| OpenError::from_errno(path, operation);
        let dir = rustix::fs::open(parent(path), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed("open of the directory"))?;
        if rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(OpenError::Exists { path: path.to_path_buf() });
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
        match rustix::fs::openat(&dir, ".", flags, Mode::from_raw_mode(mode)) {
            Ok(file) => {
                lock(&file, path, true)?;
                Ok(Self::of(file, dir, path, name, None))
            }
            // File systems without nameless files answer one of these (open(2), O_TMPFILE).
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => Self::with_temporary_name(dir, path, name, mode),
            Err(errno) => Err(failed("open")(errno)),
        }
    }

    /// Makes the empty file one of `len_bytes` zero bytes, all allocated unless it is to be sparse.
    pub(super) fn extend(&self, len_bytes: u64, sparse: bool) -> Result<(), OpenError> {
        extend(&self.file, &self.path, 0..len_bytes, sparse)
    }

    /// Makes the file under a name of its own, which a process that is killed leaves behind. It is locked for as long as its
    /// maker lives, so that the next one can tell, and removes it.
    pub(super) fn with_temporary_name(
        dir: OwnedFd,
        path: &Path,
        name: OsString,
        mode: u32,
    ) -> Result<Self, OpenError> {
        temporary::remove_abandoned(&dir, path, &name)?;
        let make = |dir: &OwnedFd, name: &OsStr| {
            let temporary = temporary::new_name(name);
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
            let file = rustix::fs::openat(dir, &temporary, flags, Mode::from_raw_mode(mode))
                .map_err(OpenError::from_errno(path, "open"))?;
            Ok::<_, OpenError>((file, temporary))
        };
        let (file, temporary) = make(&dir, &name)?;
        // From here on an error removes it.
        let mut unborn = Self::of(file, dir, path, name, Some(temporary));
        loop {
            match lock(&unborn.file, path, true) {
                Err(OpenError::Busy { .. }) => {}
                locked => {
                    locked?;
                    if !has_no_name(&unborn.file, path)? {
                        return Ok(unborn);
                    }
                }
            }
            // Another one that makes a file here has removed it between its making and its lock.
            let (file, temporary) = make(&unborn.dir, &unborn.name)?;
            store_in_place(&file, path);
            (unborn.file, unborn.temporary) = (file, Some(temporary));
        }
    }

    fn of(file: OwnedFd, dir: OwnedFd, path: &Path, name: OsString, temporary: Option<OsString>) -> Self {
        store_in_place(&file, path);
        Self { file, dir, path: path.to_path_buf(), name, temporary, process: ProcessId::current() }
    }

    pub(super) const fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Gives the file its name, and makes the name durable.
    ///
    /// # Durability
    /// Before the link, a crash leaves nothing; after it, the whole file, whose contents, size and block map the caller has
    /// made durable.
    pub(super) fn publish(&mut self) -> Result<(), OpenError> {
        let failed = |operation| OpenError::from_errno(&self.path, operation);
        let (dir, name) = (&self.dir, &self.name);
        match &self.temporary {
            Some(temporary) => rename_new(dir, temporary, name).map_err(failed("rename"))?,
            None => {
                let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, &nameless, dir, name, AtFlags::SYMLINK_FOLLOW).map_err(|errno| {
                    // The one thing that can be missing here, as the directory is open, is /proc.
                    let operation = if errno == Errno::NOENT { "link by way of /proc" } else { "link" };
                    match errno {
                        Errno::NOENT => OpenError::Io { path: self.path.clone(), operation, errno },
                        errno => failed(operation)(errno),
                    }
                })?;
            }
        }
        // From here on the file would be left behind by its own name, until that is durable.
        self.temporary = Some(self.name.clone());
        // DURABILITY POINT
        let synced = rustix::fs::fsync(&self.dir);
        if synced.is_err() {
            // While the file is locked: another process could open it by its name after that.
            self.remove();
        }
        self.temporary = None;
        synced.map_err(OpenError::from_errno(&self.path, "fsync of the directory"))
    }

    /// Removes the name that the file has, if any.
    fn remove(&self) {
        if let Some(temporary) = &self.temporary
            && let Err(errno) = rustix::fs::unlinkat(&self.dir, temporary, AtFlags::empty())
            && errno != Errno::NOENT
        {
            // Not published, so the caller has an error already; this is only the litter.
            eprintln!("pm-core: could not remove {}: {errno}", temporary.display());
        }
    }
}

impl Drop for UnbornFile {
    fn drop(&mut self) {
        if self.process == ProcessId::current() {
            self.remove();
        }
    }
}

/// Has btrfs store to the blocks that the file has: it would write each page to new blocks, and find none where the file system is full. The
/// file, which is empty, has no checksums of its data then. Other file systems store in place anyway.
///
/// # Source
/// ioctl_iflags(2), `FS_NOCOW_FL`.
fn store_in_place(file: &OwnedFd, path: &Path) {
    const BTRFS: u32 = 0x9123_683E;
    if rustix::fs::fstatfs(file).is_ok_and(|found| u32::try_from(found.f_type) == Ok(BTRFS)) {
        let flags = rustix::fs::ioctl_getflags(file);
        // Without the flag the file is usable, with the risk that `RegionOptions::sparse` describes.
        if let Err(errno) = flags.and_then(|flags| rustix::fs::ioctl_setflags(file, flags | IFlags::NOCOW)) {
            eprintln!("pm-core: {} cannot be written in place: {errno}", path.display());
        }
    }
}

/// Renames a file, unless there is one of the new name.
fn rename_new(dir: &OwnedFd, old: &OsStr, new: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(dir, old, dir, new, RenameFlags::NOREPLACE) {
        // The file system takes no flags, as those of the network (rename(2)).
        Err(Errno::INVAL | Errno::NOSYS) => link_new(dir, old, new),
        renamed => renamed,
    }
}

/// The same by a link, which replaces nothing either. A process that is killed in between leaves both names.
fn link_new(dir: &OwnedFd, old: &OsStr, new: &OsStr) -> Result<(), Errno> {
    rustix::fs::linkat(dir, old, dir, new, AtFlags::empty())?;
    if let Err(errno) = rustix::fs::unlinkat(dir, old, AtFlags::empty()) {
        // The file is there; this is only the litter.
        eprintln!("pm-core: could not remove {}: {errno}", old.display());
    }
    Ok(())
}

/// Whether a file is gone when it is closed. It has been locked, so that no creator will remove it.
pub(super) fn has_no_name(file: &OwnedFd, path: &Path) -> Result<bool, OpenError> {
    let failed = |operation| OpenError::from_errno(path, operation);
    if rustix::fs::fstat(file).map_err(failed("stat"))?.st_nlink != 0 {
        return Ok(false);
    }
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    Ok(leads_to_no_name(link.map_err(failed("readlink in /proc"))?.as_bytes()))
}

/// Whether this is how /proc shows a file that has no name. A link count of zero does not prove that: some file systems in user space do
/// not count links.
///
/// # Source
/// proc(5), `/proc/pid/fd`.
fn leads_to_no_name(link: &[u8]) -> bool {
    link.ends_with(b" (deleted)")
}

/// Sets a file's length.
pub(super) fn set_length(file: impl AsFd, path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    check_length(path, len_bytes)?;
    rustix::fs::ftruncate(file, len_bytes).map_err(|errno| match errno {
        Errno::FBIG => OpenError::NoSpace { path: path.to_path_buf(), len_bytes },
        errno => OpenError::from_errno(path, "ftruncate")(errno),
    })
}

/// Refuses to make a file longer than any is; the system would only say that the argument is wrong.
fn check_length(path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    let no_space = |_| OpenError::NoSpace { path: path.to_path_buf(), len_bytes };
    i64::try_from(len_bytes).map(drop).map_err(no_space)
}

/// Refuses to make a file longer than this process may: the system would send it a SIGXFSZ, which ends it.
fn check_limit(path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if len_bytes > limit => {
            Err(OpenError::from_errno(path, "the limit of the length of files (RLIMIT_FSIZE)")(Errno::FBIG))
        }
        _ => Ok(()),
    }
}

/// Makes a file end where `new` does, with all blocks of `new` allocated unless it is to be sparse. The length changes in one step,
/// when the blocks are there: neither a kill nor a full file system leaves another length, or one whose blocks are missing, unless the file
/// system moves the end as it allocates (NFS). A kill before that leaves blocks behind the end, which the next growing takes. A file that is
/// longer is not cut: what it has there was not stored by the caller.
pub(super) fn extend(file: impl AsFd, path: &Path, new: Range<u64>, sparse: bool) -> Result<(), OpenError> {
    let stat = rustix::fs::fstat(&file).map_err(OpenError::from_errno(path, "stat"))?;
    let found_bytes = stat.st_size.cast_unsigned();
    if found_bytes > new.end {
        return Err(OpenError::Shrink { len_bytes: found_bytes, wanted_bytes: new.end });
    }
    check_length(path, new.end)?;
    if new.end > found_bytes {
        check_limit(path, new.end)?;
    }
    let extended = match sparse {
        true => Ok(()),
        false => blocks::allocate(&file, path, new.clone()),
    };
    extended.and_then(|()| set_length(&file, path, new.end)).or_else(|error| {
        // This gives back blocks behind the end, too.
        set_length(&file, path, found_bytes)?;
        Err(error)
    })
}

/// The first part of `rest`, which is not empty, that is not a hole. A file system or device that cannot tell is taken to have no
/// holes.
pub(super) fn next_data(file: impl AsFd, rest: Range<u64>) -> Option<Range<u64>> {
    let start = match rustix::fs::seek(&file, SeekFrom::Data(rest.start)) {
        Ok(start) if start >= rest.start => start,
        Err(Errno::NXIO) => return None,
        // A character device, such as devdax, answers with a position that does not depend on what it was asked.
        Ok(_) | Err(_) => return Some(rest),
    };
    // The same device answers zero, so that zero seems to be both data and a hole.
    let hole = rustix::fs::seek(&file, SeekFrom::Hole(start)).ok().filter(|&hole| hole > start);
    let end = hole.unwrap_or(rest.end).min(rest.end);
    (start < end).then_some(start..end)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unborn(dir: &Path, name: &str) -> UnbornFile {
        let handle = rustix::fs::open(dir, OFlags::DIRECTORY, Mode::empty()).unwrap();
        UnbornFile::with_temporary_name(handle, &dir.join(name), OsString::from(name), 0o600).unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A real process, killed by a signal between making the file and naming it.
    #[test]
    fn creation_killed_before_it_is_published_blocks_no_other_and_is_removed() {
        const DIE_IN: &str = "PM_CORE_TEST_DIE_IN";
        if let Some(dir) = std::env::var_os(DIE_IN) {
            let _unborn = unborn(Path::new(&dir), "x.pm");
            std::process::abort();
        }
        let dir = tempfile::tempdir().unwrap();
        // Of other makers: what is no litter of ours stays.
        let others = ["x.pm.creating-me", "x.pm.creating-1-2", "x.pm.creating-2026", "x.pm.creatin"];
        others.iter().for_each(|name| std::fs::write(dir.path().join(name), "").unwrap());
        for litter_count in 1..3 {
            let test =
                "region::file::tests::creation_killed_before_it_is_published_blocks_no_other_and_is_removed";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let killed = child.args([test, "--exact"]).env(DIE_IN, dir.path()).output().unwrap();
            assert!(!killed.status.success());
            assert_eq!(
                names(dir.path()).len(),
                others.len() + 1,
                "after {litter_count}, one removed the other's"
            );
        }
        let alive = unborn(dir.path(), "x.pm");
        assert_eq!(names(dir.path()).len(), others.len() + 1, "the litter is gone");
        let mut second = unborn(dir.path(), "x.pm");
        assert_eq!(names(dir.path()).len(), others.len() + 2, "what is being made stays");
        second.publish().unwrap();
        drop((alive, second));
        let mut left = [others.as_slice(), &["x.pm"]].concat();
        left.sort_unstable();
        assert_eq!(names(dir.path()), left);
    }

    #[test]
    fn of_two_files_with_one_name_the_first_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, mut second) = (unborn(dir.path(), "x.pm"), unborn(dir.path(), "x.pm"));
        first.publish().unwrap();
        assert!(matches!(second.publish(), Err(OpenError::Exists { .. })));
        // Where renames take no flags.
        let temporary = second.temporary.clone().unwrap();
        assert_eq!(link_new(&second.dir, &temporary, &second.name), Err(Errno::EXIST));
        link_new(&second.dir, &temporary, OsStr::new("y.pm")).unwrap();
        drop((first, second));
        assert_eq!(names(dir.path()), ["x.pm", "y.pm"]);
    }

    #[test]
    fn file_has_no_name_when_it_was_removed_or_never_had_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let is_nameless = |file: &OwnedFd| has_no_name(file, &path).unwrap();
        let named: OwnedFd = std::fs::File::create(&path).unwrap().into();
        assert!(!is_nameless(&named));
        std::fs::remove_file(&path).unwrap();
        assert!(is_nameless(&named));
        let flags = OFlags::RDWR | OFlags::TMPFILE;
        assert!(is_nameless(&rustix::fs::open(dir.path(), flags, Mode::RUSR | Mode::WUSR).unwrap()));
        // Where no links are counted, only this tells.
        assert!(leads_to_no_name(b"/mnt/x.pm (deleted)") && !leads_to_no_name(b"/mnt/x.pm"));
    }

    #[test]
    fn file_whose_name_is_not_durable_is_removed_before_it_is_unlocked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let mut unborn = UnbornFile::new(&path, 0o600).unwrap();
        // It takes names, and cannot be synced.
        unborn.dir = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let published = unborn.publish();
        assert!(
            matches!(published, Err(OpenError::Io { operation: "fsync of the directory", .. })),
            "{published:?}"
        );
        assert!(!path.exists());
    }

    #[test]
    fn device_that_cannot_tell_has_no_holes() {
        let device = std::fs::File::open("/dev/zero").unwrap();
        for rest in [4096..8192, 0..8192] {
            assert_eq!(next_data(&device, rest.clone()), Some(rest));
        }
    }
}
