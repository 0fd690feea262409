//! The file with a file system that is not mounted, and paths in it.

use miette::{Context as _, IntoDiagnostic as _, Report, Result, miette};
use pm_alloc::HeapError;
use pm_cli_common::Size;
use pm_core::{OpenError, Pmem, PoolError, Region};
use pm_fs::{FileKind, Fs, FsError, FsOptions, Handle, POOL_BYTES_MIN};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The bytes that are read or written at once.
pub(crate) const BUFFER_BYTES: usize = 1 << 20;

/// Opens the file system in a file.
pub(crate) fn open(file: &Path) -> Result<Fs> {
    open_over(file, &FsOptions::new(), Ok)
}

/// Opens the file system in a file to be read: nothing is stored in the file, which need not be writable.
pub(crate) fn open_read_only(file: &Path) -> Result<Fs> {
    open_over(file, &FsOptions::new().read_only(true), Ok)
}

/// Opens the file system in a file over a wrapper of its region.
pub(crate) fn open_over<P: Pmem>(
    file: &Path,
    options: &FsOptions,
    wrap: impl FnOnce(Region) -> Result<P, FsError>,
) -> Result<Fs<P>> {
    Fs::open_over(file, options, wrap).map_err(|error| at_file(file, error))
}

/// Closes the file system in a file.
pub(crate) fn close<P: Pmem>(fs: Fs<P>, file: &Path) -> Result<()> {
    fs.close().map_err(|error| at_file(file, error))
}

/// An error of the file system in a file, with the path of the file, once, and with help.
pub(crate) fn at_file(file: &Path, error: FsError) -> Report {
    let path = at(file);
    let help = match &error {
        FsError::TooSmall(bytes) => {
            let (given, needed) = (Size(*bytes), Size(POOL_BYTES_MIN));
            return miette!("{path}: a file system needs {needed}, and not {given}");
        }
        FsError::Heap(HeapError::Pool(PoolError::Region(OpenError::NoScratch { path }))) => {
            return miette!(
                help = "only `pmfs mount` without ro, `fsck --repair` and `cp` into it open a device-dax; a copy of it in a file can be read",
                "{} is a device-dax, which cannot be opened without storing to it",
                path.display()
            );
        }
        FsError::Heap(HeapError::Pool(PoolError::Region(error))) => match error {
            OpenError::NotFound { .. } if !has_directory(file) => {
                Some("its directory does not exist".to_owned())
            }
            OpenError::NotFound { .. } => Some(format!("`pmfs mkfs {path} --size 1G` makes one")),
            OpenError::Exists { .. } => Some("existing files are never overwritten".to_owned()),
            OpenError::Busy { .. } => {
                Some("it is mounted, or another program has it open; several may only read it".to_owned())
            }
            OpenError::SizeNotMultiple { .. } => {
                Some("no file system has such a size: is this the right file?".to_owned())
            }
            _ => None,
        },
        _ => None,
    };
    let text = error.to_string();
    let text = if text.starts_with(&path) { text } else { format!("{path}: {text}") };
    match help {
        Some(help) => miette!(help = help, "{text}"),
        None => miette!("{text}"),
    }
}

/// Whether the directory that a file is in, or would be in, exists.
fn has_directory(file: &Path) -> bool {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or_else(|| Path::new(".")).is_dir()
}

/// A path of the host in an error.
pub(crate) fn at(file: &Path) -> String {
    file.display().to_string()
}

/// A path in a file system that is not mounted, always from its root. Symbolic links are not followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolPath {
    names: Vec<Vec<u8>>,
}

impl fmt::Display for PoolPath {
    /// With a slash before each name, as it is typed; `?` for control characters, which a terminal would obey.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.bytes()).replace(char::is_control, "?"))
    }
}

impl PoolPath {
    /// A path that needs no colon, but may have one.
    pub(crate) fn new(argument: &OsStr) -> Result<Self> {
        let bytes = argument.as_bytes();
        let bytes = bytes.strip_prefix(b":").unwrap_or(bytes);
        let names = bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let path = Self { names: names.map(<[u8]>::to_vec).collect() };
        if path.names.iter().any(|name| matches!(&name[..], b"." | b"..")) {
            return Err(miette!(
                help = "write the path from the root, without . and ..",
                ":{path}: . and .. are no names in a file system that is not mounted"
            ));
        }
        Ok(path)
    }

    /// An argument that is in the file system if it starts with a colon.
    pub(crate) fn marked(argument: &OsStr) -> Option<Result<Self>> {
        argument.as_bytes().starts_with(b":").then(|| Self::new(argument))
    }

    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let mut names = self.names.clone();
        names.push(name.to_vec());
        Self { names }
    }

    /// The last name; the root has none.
    pub(crate) fn name(&self) -> Option<&[u8]> {
        self.names.last().map(|name| &name[..])
    }

    /// The directory with the last name.
    pub(crate) fn parent(&self) -> Self {
        let (_, names) = self.names.split_last().unwrap_or((&Vec::new(), &[])); // the root is in itself
        Self { names: names.to_vec() }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.names.iter().flat_map(|name| [b"/", &name[..]].concat()).collect();
        if bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes
    }

    /// The file at this path.
    pub(crate) fn find(&self, fs: &Fs) -> Result<Handle> {
        self.try_find(fs)?.ok_or_else(|| self.error(FsError::NotFound))
    }

    /// The file at this path, `None` if the last name does not exist.
    pub(crate) fn try_find(&self, fs: &Fs) -> Result<Option<Handle>> {
        let mut found = fs.root();
        let mut path = Self::default();
        for (number, name) in (1..).zip(&self.names) {
            if found.kind() == FileKind::Symlink {
                return Err(miette!(
                    help = "write the path without links",
                    ":{self}: :{path} is a symbolic link, which is not followed in a file system that is not mounted"
                ));
            }
            path = path.join(name);
            found = match found.lookup(name) {
                Ok(found) => found,
                Err(FsError::NotFound) if number == self.names.len() => return Ok(None),
                Err(error) => return Err(path.error(error)),
            };
        }
        Ok(Some(found))
    }

    /// An error at this path.
    pub(crate) fn error(&self, error: FsError) -> miette::Report {
        Err::<(), _>(error)
            .into_diagnostic()
            .wrap_err_with(|| format!(":{self}"))
            .expect_err("it is an error")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized() {
        let path = |text: &str| PoolPath::new(OsStr::new(text)).map(|path| path.to_string()).ok();
        for (text, expected) in [
            ("", "/"),
            (":", "/"),
            ("//", "/"),
            ("a//b/", "/a/b"),
            (":/a", "/a"),
            ("/:a", "/:a"),
            ("\x1b[m", "/?[m"),
        ] {
            assert_eq!(path(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!([path("/a/../b"), path(":."), path("/..")], [None, None, None]);
        assert!(path("/..a").is_some());
    }

    #[test]
    fn reading_of_a_device_dax_is_refused_with_help() {
        let path = Path::new("/dev/dax0.0");
        let error = PoolError::Region(OpenError::NoScratch { path: path.to_path_buf() });
        let report = at_file(path, FsError::Heap(HeapError::Pool(error)));
        assert_eq!(
            report.to_string(),
            "/dev/dax0.0 is a device-dax, which cannot be opened without storing to it"
        );
        assert!(report.help().is_some_and(|help| help.to_string().contains("`pmfs mount` without ro")));
    }

    #[test]
    fn root_is_its_own_parent() {
        let path = PoolPath::new(OsStr::new("/a/b")).expect("valid");
        assert_eq!((path.parent().to_string(), path.name()), ("/a".into(), Some(&b"b"[..])));
        let root = path.parent().parent();
        assert_eq!((root.parent(), root.name()), (PoolPath::default(), None));
    }
}
