//! Debian's kernel package, downloaded and unpacked but not installed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use miette::{IntoDiagnostic, Result, WrapErr, miette};

use super::cache::Cache;
use crate::{apt, process};

/// Packages that depend on a kernel with ublk; the first that exists is used. Debian 12 has a 6.12 in addition to its default 6.1; from Debian 13 on
/// the default kernel is recent enough.
const META_PACKAGES: [&str; 2] = ["linux-image-6.12-amd64", "linux-image-amd64"];

/// The oldest supported kernel.
const OLDEST: (u32, u32) = (6, 12);

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    /// Its release, as of `uname -r`.
    pub(super) release: String,
    /// The image.
    pub(super) image: PathBuf,
    /// The directory of the modules, `.../lib/modules/RELEASE`.
    pub(super) modules: PathBuf,
}

/// The kernel in the cache. It is downloaded if there is none, or, with `update`, if apt lists a newer one.
pub(super) fn obtain(cache: &Cache, update: bool) -> Result<Kernel> {
    let directory = cache.subdirectory("kernel")?;
    let current = directory.join("current");
    if current.exists() && !update {
        return open(&current);
    }
    let package = newest_package(update)?;
    let unpacked = directory.join(&package);
    if !unpacked.exists() {
        fetch(&package, &directory)?;
    }
    let link = tempfile::tempdir_in(&directory).into_diagnostic()?;
    let link = link.path().join("current");
    symlink(&package, &link).into_diagnostic()?;
    fs::rename(&link, &current).into_diagnostic()?;
    open(&current)
}

/// Finds the image and the modules in an unpacked package.
fn open(package: &Path) -> Result<Kernel> {
    let context = || format!("in the kernel package unpacked at {}", package.display());
    let boot = fs::read_dir(package.join("boot")).into_diagnostic().wrap_err_with(context)?;
    let image = boot
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")))
        .ok_or_else(|| miette!("there is no boot/vmlinuz-*"))
        .wrap_err_with(context)?;
    let name = image.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let release = name.trim_start_matches("vmlinuz-").to_owned();
    let modules = ["usr/lib/modules", "lib/modules"]
        .map(|directory| package.join(directory).join(&release))
        .into_iter()
        .find(|path| path.is_dir())
        .ok_or_else(|| miette!("there are no modules of {release}"))
        .wrap_err_with(context)?;
    Ok(Kernel { release, image, modules })
}

/// The name of the newest kernel package that apt lists.
fn newest_package(update: bool) -> Result<String> {
    apt::ensure(&[apt::Need::new("apt-cache", "apt"), apt::Need::new("dpkg", "dpkg")])?;
    // Old lists name packages that the archive no longer has, so an update refreshes them first.
    if update && apt::is_root() {
        apt::update()?;
    }
    if let Some(package) = known_package()? {
        return Ok(package);
    }
    apt::update().wrap_err("apt lists no kernel of 6.12 or later")?;
    known_package()?
        .ok_or_else(|| miette!("apt lists none of {META_PACKAGES:?} with a kernel of 6.12 or later"))
}

fn known_package() -> Result<Option<String>> {
    for meta in META_PACKAGES {
        let output = Command::new("apt-cache").args(["depends", meta]).output().into_diagnostic()?;
        if let Some(package) = parse_depends(&String::from_utf8_lossy(&output.stdout)) {
            return Ok(Some(package));
        }
    }
    Ok(None)
}

/// The kernel package in the output of `apt-cache depends`, if it is not too old.
fn parse_depends(text: &str) -> Option<String> {
    let depends = |line: &str| line.trim().strip_prefix("Depends: ").map(str::to_owned);
    text.lines().filter_map(depends).find(|package| version(package).is_some_and(|version| version >= OLDEST))
}

/// The first two numbers of the version in a kernel package's name.
fn version(package: &str) -> Option<(u32, u32)> {
    let mut numbers = package.strip_prefix("linux-image-")?.split(['.', '-', '+']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Downloads `package` and unpacks it atomically as `directory/package`.
fn fetch(package: &str, directory: &Path) -> Result<()> {
    let work = tempfile::tempdir_in(directory).into_diagnostic()?;
    eprintln!("fetching {package} (about 100 MB)");
    if download(package, work.path()).is_err() {
        // The lists may be out of date: the archive removes a package when it gets a newer version.
        apt::update().wrap_err_with(|| format!("cannot download {package}"))?;
        download(package, work.path())?;
    }
    let archive = fs::read_dir(work.path())
        .into_diagnostic()?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| miette!("apt-get download {package} left no package"))?;
    eprintln!("unpacking {package}");
    let tree = work.path().join("tree");
    process::output(Command::new("dpkg").arg("-x").args([&archive, &tree]))?;
    open(&tree)?;
    fs::rename(&tree, directory.join(package)).into_diagnostic()
}

fn download(package: &str, directory: &Path) -> Result<()> {
    let mut apt_get = Command::new("apt-get");
    apt_get.args(["download", "--quiet", package]).current_dir(directory).stdin(Stdio::null());
    process::output(&mut apt_get).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_of_meta_package_is_found() {
        let text = "linux-image-6.12-amd64\n  Depends: linux-image-6.12.117+deb12-amd64\n";
        assert_eq!(parse_depends(text).as_deref(), Some("linux-image-6.12.117+deb12-amd64"));
    }

    #[test]
    fn old_kernel_is_rejected() {
        assert_eq!(parse_depends("linux-image-amd64\n  Depends: linux-image-6.1.0-37-amd64\n"), None);
        assert_eq!(parse_depends("N: Unable to locate package\n"), None);
        assert_eq!(parse_depends(""), None);
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(version("linux-image-6.1.0-37-amd64"), Some((6, 1)));
        assert!(version("linux-image-6.12.117+deb12-amd64") > version("linux-image-6.9.7-amd64"));
        assert!(version("linux-image-7.0-amd64") > Some(OLDEST));
        assert_eq!(version("linux-image-amd64"), None);
    }
}
