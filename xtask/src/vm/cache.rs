//! The cache directory for results that are slow to make: the kernel, the initramfs, the agent.

use std::env;
use std::fs::{self, File};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result, WrapErr, miette};

/// The variable that overrides the place of the cache.
const OVERRIDE: &str = "PM_VM_CACHE";

/// The locked cache. If several processes start a VM at the same time, one fills the cache and the others wait.
#[derive(Debug)]
pub(super) struct Cache {
    directory: PathBuf,
    /// Holds the lock until it is dropped.
    _lock: File,
}

impl Cache {
    /// Locks the cache, waiting for other processes. It is outside of cargo's target directory, so that `cargo clean` does not cause a
    /// download of 100 MB.
    pub(super) fn open() -> Result<Self> {
        let directory = locate()?;
        let context = || format!("cannot use the cache {}", directory.display());
        fs::create_dir_all(&directory).into_diagnostic().wrap_err_with(context)?;
        let lock = File::create(directory.join("lock")).into_diagnostic().wrap_err_with(context)?;
        lock.lock().into_diagnostic().wrap_err_with(context)?;
        Ok(Self { directory, _lock: lock })
    }

    /// The path of the cache.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A subdirectory, created if it does not exist.
    pub(super) fn subdirectory(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        fs::create_dir_all(&path)
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// The file of this kind that was made from `inputs`. If it does not exist, `make` writes a temporary file, which is renamed, and files of this
    /// kind that were made from other inputs are removed.
    pub(super) fn file(
        &self,
        kind: &str,
        inputs: &impl Hash,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let directory = self.subdirectory(kind)?;
        let key = BuildHasherDefault::<DefaultHasher>::default().hash_one(inputs);
        let path = directory.join(format!("{key:016x}"));
        if path.exists() {
            return Ok(path);
        }
        let temporary = tempfile::NamedTempFile::new_in(&self.directory).into_diagnostic()?;
        make(temporary.path())?;
        for old in fs::read_dir(&directory).into_diagnostic()? {
            let old = old.into_diagnostic()?.path();
            fs::remove_file(&old)
                .into_diagnostic()
                .wrap_err_with(|| format!("cannot remove {}", old.display()))?;
        }
        temporary.persist(&path).into_diagnostic()?;
        Ok(path)
    }
}

fn locate() -> Result<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable(OVERRIDE)
        .or_else(|| variable("XDG_CACHE_HOME").map(|base| base.join("pm-vm")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/pm-vm")))
        .ok_or_else(|| {
            miette!(
                help = format!("set {OVERRIDE}"),
                "neither XDG_CACHE_HOME nor HOME says where a cache may be"
            )
        })
}
