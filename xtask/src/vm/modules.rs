//! The kernel modules that the guest has, with everything they depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use ignore::WalkBuilder;
use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};

use super::kernel::Kernel;

/// The modules by name. What one of them asks the kernel for at run time, rather than in its list of
/// dependencies, stands here too: the checksums of ext4 and xfs, for instance.
const WANTED: &str = "ublk_drv nbd brd loop null_blk nfit nd_pmem dax_pmem device_dax nd_e820 virtio_pmem virtio_pci \
    virtio_console virtio_blk 9p 9pnet_virtio overlay dm_mod ext4 xfs crc32c_generic crc32c_intel \
    configfs fuse";

/// Unpacks [`WANTED`] and its dependencies into `root/usr/lib/modules/RELEASE`, with the index that modprobe
/// reads.
pub(super) fn stage(kernel: &Kernel, root: &Path) -> Result<PathBuf> {
    let files = index(&kernel.modules.join("kernel"))?;
    let wanted = closure(WANTED.split(' '), |name| match files.get(name) {
        Some(file) => dependencies(file).map(Some),
        None if is_built_in(kernel, name)? => Ok(None),
        None => Err(miette!("the kernel {} has no module {name}", kernel.release)),
    })?;
    let staged = root.join("usr/lib/modules").join(&kernel.release);
    fs::create_dir_all(&staged).into_diagnostic()?;
    for name in wanted {
        unpack(&files[&name], &staged.join(format!("{name}.ko")))?;
    }
    // With these depmod knows what is built in, and modprobe takes a built-in module for a loaded one.
    for name in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        fs::copy(kernel.modules.join(name), staged.join(name))
            .into_diagnostic()
            .wrap_err("incomplete kernel package")?;
    }
    fs::create_dir_all(root.join("lib")).into_diagnostic()?;
    std::os::unix::fs::symlink("../usr/lib/modules", root.join("lib/modules")).into_diagnostic()?;
    run(Command::new("depmod").arg("--basedir").arg(root).arg(&kernel.release))?;
    Ok(staged)
}

/// `wanted` and everything that `dependencies` leads to from there; names without a file (`None`) are left
/// out.
fn closure<'w>(
    wanted: impl IntoIterator<Item = &'w str>,
    mut dependencies: impl FnMut(&str) -> Result<Option<Vec<String>>>,
) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut pending: Vec<_> = wanted.into_iter().map(normal).collect();
    while let Some(name) = pending.pop() {
        if seen.insert(name.clone())
            && let Some(next) = dependencies(&name)?
        {
            pending.extend(next);
            found.insert(name);
        }
    }
    Ok(found)
}

/// Every module file below `directory` by its name.
fn index(directory: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in WalkBuilder::new(directory).standard_filters(false).build() {
        let entry = entry.into_diagnostic()?;
        if let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
            files.insert(normal(name), entry.into_path());
        }
    }
    Ok(files)
}

fn dependencies(file: &Path) -> Result<Vec<String>> {
    Ok(parse_dependencies(&run(Command::new("modinfo").args(["--field", "depends"]).arg(file))?))
}

/// The names in a module's list of dependencies, which commas separate.
fn parse_dependencies(text: &str) -> Vec<String> {
    text.split([',', '\n']).map(str::trim).filter(|name| !name.is_empty()).map(normal).collect()
}

/// File names have dashes where the kernel's names for the same modules have underscores.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

fn is_built_in(kernel: &Kernel, name: &str) -> Result<bool> {
    let list = fs::read_to_string(kernel.modules.join("modules.builtin")).into_diagnostic()?;
    Ok(list
        .lines()
        .filter_map(|path| path.rsplit('/').next()?.strip_suffix(".ko"))
        .any(|built_in| normal(built_in) == name))
}

/// Writes a module uncompressed: unpacking here, once, is faster than in the guest at every boot.
fn unpack(module: &Path, to: &Path) -> Result<()> {
    match module.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => fs::copy(module, to).map(|_| ()).into_diagnostic(),
        Some("xz") => {
            let out = File::create(to).into_diagnostic()?;
            let status =
                Command::new("xz").args(["--decompress", "--stdout"]).arg(module).stdout(out).status();
            match status.into_diagnostic().wrap_err("cannot run xz")? {
                status if status.success() => Ok(()),
                status => Err(miette!("xz --decompress {} failed: {status}", module.display())),
            }
        }
        _ => Err(miette!("{} is packed in an unknown way", module.display())),
    }
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().into_diagnostic().wrap_err_with(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    String::from_utf8(output.stdout).into_diagnostic()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_followed_to_the_end_and_circles_end() {
        let depends = |name: &str| {
            Ok(match name {
                "nd_pmem" => Some(parse_dependencies("libnvdimm,nd-btt\n")),
                "nd_btt" => Some(parse_dependencies("libnvdimm,nd_pmem")),
                "libnvdimm" => Some(parse_dependencies("\n")),
                "virtio_pci" => None,
                other => bail!("{other} was not asked for"),
            })
        };
        let found = closure(["nd-pmem", "virtio_pci"], depends).expect("all known");
        assert_eq!(found, ["libnvdimm", "nd_btt", "nd_pmem"].map(String::from).into());
    }

    #[test]
    fn unknown_module_is_an_error() {
        let error = closure(["gone"], |name| Err(miette!("no module {name}"))).expect_err("unknown");
        assert!(error.to_string().contains("gone"));
    }
}
