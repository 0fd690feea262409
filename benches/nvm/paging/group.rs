//! A control group with little memory.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail};
use pm_bench::nvm::journal::{Journal, Left};
use std::fs;
use std::path::{Path, PathBuf};

const NAME: &str = "pm-bench-nvm";

/// Why there can be none, if so.
pub(crate) fn missing() -> Option<String> {
    hierarchy().err().map(|error| error.to_string())
}

/// Creates a group whose processes have at most `bytes` in memory. The journal takes it down.
pub(super) fn add(journal: &mut Journal, bytes: u64) -> Result<PathBuf> {
    let (root, limit) = hierarchy()?;
    let group = root.join(NAME);
    journal.add(Left::Cgroup(group.clone())).into_diagnostic()?;
    fs::create_dir(&group).into_diagnostic().wrap_err_with(|| group.display().to_string())?;
    write(&group.join(limit), &bytes.to_string())?;
    // Only version 1 has this file. The groups have next to no files in memory, and the kernel need not look for them before it pages.
    let preference = group.join("memory.swappiness");
    if preference.exists() {
        write(&preference, "200")?;
    }
    Ok(group)
}

/// Moves the calling process into a group.
pub(super) fn join(group: &Path) -> Result<()> {
    write(&processes(group), "0")
}

/// The file with the processes of a group.
pub(super) fn processes(group: &Path) -> PathBuf {
    group.join("cgroup.procs")
}

/// Where groups of memory are, and the name of the file with their limit: version 1, or else version 2.
fn hierarchy() -> Result<(PathBuf, &'static str)> {
    let first = Path::new("/sys/fs/cgroup/memory");
    if first.join("memory.limit_in_bytes").exists() {
        return Ok((first.to_owned(), "memory.limit_in_bytes"));
    }
    let second = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_to_string(second.join("cgroup.controllers")).unwrap_or_default();
    if !controllers.split_whitespace().any(|name| name == "memory") {
        bail!("there are no control groups of memory in {}", second.display());
    }
    write(&second.join("cgroup.subtree_control"), "+memory")?;
    Ok((second.to_owned(), "memory.max"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).into_diagnostic().wrap_err_with(|| path.display().to_string())
}
