//! File systems on block devices, and the drivers of these.

use crate::supervisor::mount_point;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail};
use pm_bench::nvm::figures::Layer;
use pm_bench::nvm::journal::{Journal, Left};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::process;

/// Makes a file system on a device.
pub(crate) fn make(layer: Layer, device: &Path) -> Result<()> {
    let (program, force) = match layer {
        Layer::Raw => bail!("a device without a file system cannot be mounted"),
        Layer::Xfs => ("mkfs.xfs", "-f"),
        Layer::Ext4 => ("mkfs.ext4", "-F"),
    };
    process::output(Command::new(program).args(["-q", force]).arg(device)).map(drop)
}

/// Mounts the file system on a device. The journal unmounts it.
pub(crate) fn mount(journal: &mut Journal, layer: Layer, device: &Path) -> Result<PathBuf> {
    let at = mount_point(&layer.to_string());
    journal.add(Left::Mount(at.clone())).into_diagnostic()?;
    fs::create_dir_all(&at).into_diagnostic().wrap_err_with(|| at.display().to_string())?;
    process::output(Command::new("mount").arg(device).arg(&at))?;
    Ok(at)
}

/// Whether the kernel has this file of a driver, if need be after loading the driver's module.
pub(crate) fn has_driver(path: &str, module: &str) -> bool {
    let is_there = || Path::new(path).exists();
    is_there() || process::succeeds(Command::new("modprobe").arg(module)) && is_there()
}
