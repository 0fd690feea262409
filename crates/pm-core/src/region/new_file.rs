//! Creating files: a new file has no name until it is complete and durable.

use super::file::has_no_name;
use super::lock::lock;
use super::process::ProcessId;
use super::{OpenError, blocks};
use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// A file that does not have its final name yet. If the process dies before [`publish`](Self::publish), no file of that name remains.
#[derive(Debug)]
pub(super) struct NewFile {
    file: OwnedFd,
    /// The file's directory, opened before the file is created: opening the directory cannot fail later, and renaming it has no effect.
    dir: OwnedFd,
    path: PathBuf,
    name: OsString,
    /// The temporary name, if the file system has no nameless files.
    temporary: Option<OsString>,
    /// The process that creates the file. A child that inherits this value must not remove the file.
    process: ProcessId,
}

impl NewFile {
    /// Creates a locked, nameless, empty file to be published at `path`.
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
            // The errors of file systems without nameless files (open(2), O_TMPFILE).
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => Self::with_temporary_name(dir, path, name, mode),
            Err(errno) => Err(failed("open")(errno)),
        }
    }

    /// Extends the empty file to `len_bytes` zero bytes, and allocates their blocks unless `sparse` is set.
    pub(super) fn extend(&self, len_bytes: u64, sparse: bool) -> Result<(), OpenError> {
        blocks::extend(&self.file, &self.path, 0..len_bytes, sparse)
    }

    /// Creates the file under a temporary name, which remains if the process is killed. The process keeps the file locked while it lives. The next
    /// process that creates a file of the same name removes the unlocked temporary files.
    pub(super) fn with_temporary_name(
        dir: OwnedFd,
        path: &Path,
        name: OsString,
        mode: u32,
    ) -> Result<Self, OpenError> {
        remove_abandoned(&dir, path, &name)?;
        let make = |dir: &OwnedFd, name: &OsStr| {
            let temporary = temporary_name(name);
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
            let file = rustix::fs::openat(dir, &temporary, flags, Mode::from_raw_mode(mode))
                .map_err(OpenError::from_errno(path, "open"))?;
            Ok::<_, OpenError>((file, temporary))
        };
        let (file, temporary) = make(&dir, &name)?;
        // From here on an error removes the file.
        let mut new_file = Self::of(file, dir, path, name, Some(temporary));
        loop {
            match lock(&new_file.file, path, true) {
                Err(OpenError::Busy { .. }) => {}
                locked => {
                    locked?;
                    if !has_no_name(&new_file.file, path)? {
                        return Ok(new_file);
                    }
                }
            }
            // Another process that creates a file of the same name removed this one before it was locked.
            let (file, temporary) = make(&new_file.dir, &new_file.name)?;
            disable_copy_on_write(&file, path);
            (new_file.file, new_file.temporary) = (file, Some(temporary));
        }
    }

    fn of(file: OwnedFd, dir: OwnedFd, path: &Path, name: OsString, temporary: Option<OsString>) -> Self {
        disable_copy_on_write(&file, path);
        Self { file, dir, path: path.to_path_buf(), name, temporary, process: ProcessId::current() }
    }

    pub(super) const fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Gives the file its name, and makes the name durable.
    ///
    /// # Durability
    /// A crash leaves no file, or the file with the contents, size and block map that the caller has made durable. On return, the name is durable.
    pub(super) fn publish(&mut self) -> Result<(), OpenError> {
        let failed = |operation| OpenError::from_errno(&self.path, operation);
        let (dir, name) = (&self.dir, &self.name);
        match &self.temporary {
            Some(temporary) => rename_new(dir, temporary, name).map_err(failed("rename"))?,
            None => {
                let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, &nameless, dir, name, AtFlags::SYMLINK_FOLLOW).map_err(|errno| {
                    // The directory is open, so this error shows that /proc is not mounted.
                    let operation = if errno == Errno::NOENT { "link through /proc" } else { "link" };
                    match errno {
                        Errno::NOENT => OpenError::Io { path: self.path.clone(), operation, errno },
                        errno => failed(operation)(errno),
                    }
                })?;
            }
        }
        // Until its name is durable, an error removes the file by its name.
        self.temporary = Some(self.name.clone());
        // DURABILITY POINT
        let synced = rustix::fs::fsync(&self.dir);
        if synced.is_err() {
            // The file is removed while it is locked: after that, another process could open it by its name.
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
            // No error is returned: the file was not published, so the caller already has an error.
            eprintln!("pm-core: could not remove {}: {errno}", temporary.display());
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.process == ProcessId::current() {
            self.remove();
        }
    }
}

/// Makes btrfs overwrite blocks in place. Otherwise each write-back of a page would need new blocks, and fail on a full file system. The file must be
/// empty; btrfs then keeps no checksums of its data. Other file systems write in place anyway.
///
/// # Source
/// ioctl_iflags(2), `FS_NOCOW_FL`.
fn disable_copy_on_write(file: &OwnedFd, path: &Path) {
    const BTRFS: u32 = 0x9123_683E;
    if rustix::fs::fstatfs(file).is_ok_and(|found| u32::try_from(found.f_type) == Ok(BTRFS)) {
        let flags = rustix::fs::ioctl_getflags(file);
        // The file can be used without the flag, with the risk that `RegionOptions::sparse` documents.
        if let Err(errno) = flags.and_then(|flags| rustix::fs::ioctl_setflags(file, flags | IFlags::NOCOW)) {
            eprintln!("pm-core: {} cannot be written in place: {errno}", path.display());
        }
    }
}

/// Renames a file, unless the new name exists.
fn rename_new(dir: &OwnedFd, old: &OsStr, new: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(dir, old, dir, new, RenameFlags::NOREPLACE) {
        // Some file systems, for example network file systems, do not support rename flags (rename(2)).
        Err(Errno::INVAL | Errno::NOSYS) => link_new(dir, old, new),
        renamed => renamed,
    }
}

/// Like [`rename_new`], with link(2), which replaces no existing file, and unlink(2). If the process is killed between the calls, both names remain.
fn link_new(dir: &OwnedFd, old: &OsStr, new: &OsStr) -> Result<(), Errno> {
    rustix::fs::linkat(dir, old, dir, new, AtFlags::empty())?;
    if let Err(errno) = rustix::fs::unlinkat(dir, old, AtFlags::empty()) {
        // The file has its name; only the temporary name is left over.
        eprintln!("pm-core: could not remove {}: {errno}", old.display());
    }
    Ok(())
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

const INFIX: &[u8] = b".creating-";

/// A unique temporary name. A pid alone is not unique: pids repeat in containers and after restarts.
fn temporary_name(name: &OsStr) -> OsString {
    let (number, _) = Uuid::new_v4().as_u64_pair();
    let mut temporary = name.to_os_string();
    temporary.push(OsStr::from_bytes(INFIX));
    temporary.push(format!("{}-{number:016x}", std::process::id()));
    temporary
}

/// Removes the unlocked temporary files of `name`, which killed processes have left.
fn remove_abandoned(dir: &OwnedFd, path: &Path, name: &OsStr) -> Result<(), OpenError> {
    let failed = |operation| OpenError::from_errno(path, operation);
    for entry in rustix::fs::Dir::read_from(dir).map_err(failed("reading the directory"))? {
        let entry = entry.map_err(failed("reading the directory"))?;
        let temporary = entry.file_name();
        if !is_temporary(temporary.to_bytes(), name) {
            continue;
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(dir, temporary, flags, Mode::empty()) {
            Ok(file) => file,
            // The file was removed, belongs to another user, or is a symbolic link.
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::LOOP) => continue,
            Err(errno) => return Err(failed("open of an abandoned file")(errno)),
        };
        match lock(&file, path, true) {
            Ok(()) => {}
            Err(OpenError::Busy { .. }) => continue,
            Err(error) => return Err(error),
        }
        match rustix::fs::unlinkat(dir, temporary, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("removing an abandoned file")(errno)),
        }
    }
    Ok(())
}

/// Whether `temporary` can be a [`temporary_name`] of `name`. It must end in 16 hex digits: a shorter number may be part of a pool's own name.
fn is_temporary(temporary: &[u8], name: &OsStr) -> bool {
    let numbers = temporary.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(INFIX));
    let Some(numbers) = numbers else { return false };
    let Some(at) = numbers.iter().position(|&byte| byte == b'-') else { return false };
    let (pid, number) = (&numbers[..at], &numbers[at + 1..]);
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    !pid.is_empty() && pid.iter().all(u8::is_ascii_digit) && number.len() == 16 && number.iter().all(is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_file(dir: &Path, name: &str) -> NewFile {
        let handle = rustix::fs::open(dir, OFlags::DIRECTORY, Mode::empty()).unwrap();
        NewFile::with_temporary_name(handle, &dir.join(name), OsString::from(name), 0o600).unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A real process, killed by a signal before it publishes the file.
    #[test]
    fn next_creator_removes_file_of_killed_process() {
        const DIE_IN: &str = "PM_CORE_TEST_DIE_IN";
        if let Some(dir) = std::env::var_os(DIE_IN) {
            let _new_file = new_file(Path::new(&dir), "x.pm");
            std::process::abort();
        }
        let dir = tempfile::tempdir().unwrap();
        // Files of other programs stay.
        let others = ["x.pm.creating-me", "x.pm.creating-1-2", "x.pm.creating-2026", "x.pm.creatin"];
        others.iter().for_each(|name| std::fs::write(dir.path().join(name), "").unwrap());
        for killed_count in 1..3 {
            let test = "region::new_file::tests::next_creator_removes_file_of_killed_process";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let killed = child.args([test, "--exact"]).env(DIE_IN, dir.path()).output().unwrap();
            assert!(!killed.status.success());
            assert_eq!(
                names(dir.path()).len(),
                others.len() + 1,
                "after {killed_count} killed processes: each removed its predecessor's file"
            );
        }
        let alive = new_file(dir.path(), "x.pm");
        assert_eq!(names(dir.path()).len(), others.len() + 1, "the file of the killed process is removed");
        let mut second = new_file(dir.path(), "x.pm");
        assert_eq!(names(dir.path()).len(), others.len() + 2, "the file of a live process stays");
        second.publish().unwrap();
        drop((alive, second));
        let mut left = [others.as_slice(), &["x.pm"]].concat();
        left.sort_unstable();
        assert_eq!(names(dir.path()), left);
    }

    #[test]
    fn publish_never_replaces_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, mut second) = (new_file(dir.path(), "x.pm"), new_file(dir.path(), "x.pm"));
        first.publish().unwrap();
        assert!(matches!(second.publish(), Err(OpenError::Exists { .. })));
        // This path is taken on a file system without rename flags.
        let temporary = second.temporary.clone().unwrap();
        assert_eq!(link_new(&second.dir, &temporary, &second.name), Err(Errno::EXIST));
        link_new(&second.dir, &temporary, OsStr::new("y.pm")).unwrap();
        drop((first, second));
        assert_eq!(names(dir.path()), ["x.pm", "y.pm"]);
    }

    #[test]
    fn failed_publish_removes_the_locked_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let mut new_file = NewFile::new(&path, 0o600).unwrap();
        // Names can be added through this descriptor, but it cannot be synced.
        new_file.dir = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let published = new_file.publish();
        assert!(
            matches!(published, Err(OpenError::Io { operation: "fsync of the directory", .. })),
            "{published:?}"
        );
        assert!(!path.exists());
    }
}
