//! The file that is the guest's persistent memory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result, WrapErr, bail};

use super::builder::MIB;

/// Sizes are multiples of this: the kernel adds memory in sections of 128 MiB.
const SECTION_BYTES: u64 = 128 * MIB;

/// An NVDIMM's file, locked against a second guest while this value exists.
#[derive(Debug)]
pub(super) struct Nvdimm {
    pub(super) path: PathBuf,
    pub(super) size_bytes: u64,
    lock: File,
}

impl Nvdimm {
    /// Opens the file at `path`, creates it if it does not exist, and clears it if `fresh`.
    pub(super) fn open(path: &Path, size_bytes: u64, fresh: bool) -> Result<Self> {
        if !size_bytes.is_multiple_of(SECTION_BYTES) || size_bytes == 0 {
            bail!(
                "the NVDIMM's size must be a multiple of {} MiB, {size_bytes} bytes are not",
                SECTION_BYTES / MIB
            );
        }
        let context = || format!("cannot use {} as an NVDIMM", path.display());
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).into_diagnostic().wrap_err_with(context)?;
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.into_diagnostic().wrap_err_with(context)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!(
                    help = "give this one another image: --image FILE",
                    "another VM runs on {}",
                    path.display()
                )
            }
            Err(TryLockError::Error(error)) => return Err(error).into_diagnostic().wrap_err_with(context),
        }
        let length = file.metadata().into_diagnostic()?.len();
        if fresh && length > 0 {
            file.set_len(0).into_diagnostic().wrap_err_with(context)?;
        }
        if fresh || length == 0 {
            file.set_len(size_bytes).into_diagnostic().wrap_err_with(context)?;
        } else if length != size_bytes {
            bail!(
                help = "--fresh recreates it and discards its content",
                "{} has {length} bytes instead of {size_bytes}",
                path.display()
            );
        }
        Ok(Self { path: path.to_owned(), size_bytes, lock: file })
    }

    /// The lock, to be inherited by QEMU, which may outlive this process and then still uses the image.
    pub(super) fn share_lock(&self) -> Result<File> {
        self.lock.try_clone().into_diagnostic().wrap_err("cannot pass on the lock of the NVDIMM's image")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = SECTION_BYTES;

    #[test]
    fn contents_stay_unless_fresh() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("deep/nvdimm");
        drop(Nvdimm::open(&path, SIZE, false).expect("made"));
        let mut bytes = OpenOptions::new().write(true).open(&path).expect("there");
        std::io::Write::write_all(&mut bytes, b"kept").expect("written");
        drop(Nvdimm::open(&path, SIZE, false).expect("opened"));
        let head = |path: &Path| {
            let mut head = [0; 4];
            std::io::Read::read_exact(&mut File::open(path).expect("there"), &mut head).expect("long enough");
            head
        };
        assert_eq!(&head(&path), b"kept");
        drop(Nvdimm::open(&path, SIZE, true).expect("made anew"));
        assert_eq!(head(&path), [0; 4]);
    }

    #[test]
    fn second_guest_and_wrong_sizes_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("nvdimm");
        let first = Nvdimm::open(&path, SIZE, false).expect("made");
        let error = Nvdimm::open(&path, SIZE, true).expect_err("in use");
        assert!(error.to_string().contains("another VM"), "{error}");
        drop(first);
        assert!(Nvdimm::open(&path, 2 * SIZE, false).is_err());
        assert!(Nvdimm::open(&path, SIZE + 4096, true).is_err());
        assert!(Nvdimm::open(&path, 0, true).is_err());
    }
}
