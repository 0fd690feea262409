//! The kernel modules of the guest, with their dependencies as kmod resolves them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use miette::{IntoDiagnostic, Result, WrapErr, bail};

use super::kernel::Kernel;
use crate::process;

/// The modules by name, including those that others request at run time and not as dependencies, such as the checksums of ext4 and xfs.
const WANTED: &str = "ublk_drv nbd brd loop null_blk nfit nd_pmem dax_pmem device_dax nd_e820 virtio_pmem virtio_pci \
    virtio_console virtio_blk 9p 9pnet_virtio overlay dm_mod ext4 xfs crc32c_generic crc32c_intel \
    configfs fuse virtio_net drbd nvmet nvmet_tcp nvme_tcp raid1";

/// Copies [`WANTED`] and their dependencies uncompressed into a directory below `root`, with the index that modprobe reads, and returns the
/// directory.
pub(super) fn stage(kernel: &Kernel, root: &Path) -> Result<PathBuf> {
    let release = &kernel.release;
    let package = base(root, "package", kernel.modules.ancestors().nth(2).unwrap_or(&kernel.modules))?;
    // The installation of a kernel package would run depmod.
    if !kernel.modules.join("modules.dep.bin").exists() {
        process::output(Command::new("depmod").arg("--basedir").arg(&package).arg(release))?;
    }
    let lib = root.join("lib");
    let staged = lib.join("modules").join(release);
    fs::create_dir_all(&staged).into_diagnostic()?;
    for module in with_dependencies(&package, release, WANTED)? {
        unpack(&module, &staged)?;
    }
    // From these files depmod learns the built-in modules, which modprobe then treats as loaded.
    for name in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        fs::copy(kernel.modules.join(name), staged.join(name))
            .into_diagnostic()
            .wrap_err("incomplete kernel package")?;
    }
    process::output(Command::new("depmod").arg("--basedir").arg(base(root, "staged", &lib)?).arg(release))?;
    Ok(staged)
}

/// Creates a base directory for depmod and modprobe. Depending on their version they read `lib` or `usr/lib` in it: both are `lib`.
fn base(root: &Path, name: &str, lib: &Path) -> Result<PathBuf> {
    let base = root.join(name);
    fs::create_dir_all(base.join("usr")).into_diagnostic()?;
    ["lib", "usr/lib"].into_iter().try_for_each(|link| symlink(lib, base.join(link))).into_diagnostic()?;
    Ok(base)
}

/// The files of these modules and of their dependencies, without built-in modules.
fn with_dependencies(base: &Path, release: &str, modules: &str) -> Result<BTreeSet<PathBuf>> {
    let mut modprobe = Command::new("modprobe");
    // Without this machine's configuration, which may replace modules by commands.
    modprobe.args(["--config", "/dev/null", "--set-version", release, "--dirname"]).arg(base);
    let steps = process::output(modprobe.args(["--show-depends", "--all"]).args(modules.split_whitespace()))?;
    Ok(files(&steps))
}

/// The files in modprobe's list of steps.
fn files(steps: &str) -> BTreeSet<PathBuf> {
    let file = |step: &str| Some(step.strip_prefix("insmod ")?.trim_end().into());
    steps.lines().filter_map(file).collect()
}

/// Copies a module, uncompressed: unpacking it once here is faster than in the guest at every boot.
fn unpack(module: &Path, directory: &Path) -> Result<()> {
    let name = module.file_name().unwrap_or_default().to_string_lossy();
    let to = |name: &str| directory.join(name);
    if let Some(name) = name.strip_suffix(".xz") {
        let out = File::create(to(name)).into_diagnostic()?;
        process::output(Command::new("xz").args(["--decompress", "--stdout"]).arg(module).stdout(out))
            .map(drop)
    } else if name.ends_with(".ko") {
        fs::copy(module, to(&name)).map(drop).into_diagnostic()
    } else {
        bail!("{} has an unknown compression", module.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_modules_have_no_files() {
        let steps =
            "insmod /m/nd_btt.ko \ninsmod /m/nd pmem.ko.xz \nbuiltin virtio_pci\ninsmod /m/nd_btt.ko \n";
        let expected = ["/m/nd_btt.ko", "/m/nd pmem.ko.xz"].map(PathBuf::from);
        assert_eq!(files(steps), expected.into());
    }

    #[test]
    fn unknown_module_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let error = with_dependencies(root.path(), "6.12.0", "gone").unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
    }
}
