//! Installs Debian packages with the programs, libraries and headers that a task needs.
//!
//! As root, on a machine with apt, missing packages are installed; otherwise the error lists them.

use std::collections::BTreeSet;
use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};

/// A program or another file, and its Debian package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The program's name, or the file's path below `/usr`, for [`find`].
    pub program: &'static str,
    /// The Debian package.
    pub package: &'static str,
}

impl Need {
    /// `program` of `package`.
    pub const fn new(program: &'static str, package: &'static str) -> Self {
        Self { program, package }
    }
}

/// The path of `program`, searched on `PATH` and then in the `sbin` directories, which Debian omits from an ordinary user's `PATH`.
///
/// A name with a slash is a file below `/usr`, such as `include/zlib.h`. A file in `lib` may also be in its directory for this machine's architecture.
pub fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        let own = format!("lib/{}-linux-gnu/", env::consts::ARCH);
        let places = [program.to_owned(), program.replacen("lib/", &own, 1)];
        return places.iter().map(|place| Path::new("/usr").join(place)).find(|file| file.is_file());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(sbin).map(|directory| directory.join(program)).find(|file| is_program(file))
}

/// Installs the missing packages of `needs`.
///
/// # Errors
/// If a package is missing and this process is not root, or there is no apt-get, or it fails. The message lists the packages.
pub fn ensure(needs: &[Need]) -> Result<()> {
    let packages = missing(needs);
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.iter().copied().collect::<Vec<_>>().join(" ");
    if !is_root() || find("apt-get").is_none() {
        bail!(
            help = format!("as root: apt-get install --no-install-recommends {list}"),
            "these required Debian packages are not installed: {list}"
        );
    }
    update()?;
    eprintln!("installing {list}");
    apt_get(&["install", "--yes", "--quiet", "--no-install-recommends"], packages.iter().copied())?;
    match missing(needs) {
        absent if absent.is_empty() => Ok(()),
        absent => Err(miette!("installed {list}, but files of {absent:?} are still missing")),
    }
}

/// Refreshes apt's package lists, once in this process.
pub fn update() -> Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    if DONE.get().is_some() {
        return Ok(());
    }
    if !is_root() {
        bail!(help = "as root: apt-get update", "apt's package lists are missing or old");
    }
    eprintln!("refreshing apt's package lists");
    apt_get(&["update", "--quiet"], [])?;
    DONE.get_or_init(|| ());
    Ok(())
}

/// Whether this process may install packages.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The packages of missing `needs`, each once, sorted.
fn missing(needs: &[Need]) -> BTreeSet<&'static str> {
    needs.iter().filter(|need| find(need.program).is_none()).map(|need| need.package).collect()
}

fn apt_get<'a>(arguments: &[&str], packages: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let status = Command::new("apt-get")
        .args(arguments)
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        // The caller of the task may parse its standard output.
        .stdout(io::stderr())
        .status()
        .into_diagnostic()
        .wrap_err("cannot run apt-get")?;
    if status.success() { Ok(()) } else { Err(miette!("apt-get {} failed: {status}", arguments.join(" "))) }
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SH: Need = Need::new("sh", "dash");
    const NONE: Need = Need::new("no-such-program-anywhere", "no-such-package");

    #[test]
    fn installed_program_is_found() {
        assert!(find("sh").is_some_and(|path| path.ends_with("sh")));
        assert!(missing(&[SH]).is_empty());
        ensure(&[SH]).expect("nothing to install");
    }

    #[test]
    fn name_with_slash_is_file_below_usr() {
        assert_eq!(find("bin/sh"), Some(PathBuf::from("/usr/bin/sh")));
        let libc = find("lib/libc.so.6").expect("the C library");
        assert!(libc.starts_with("/usr/lib") && libc.is_absolute());
        assert_eq!(find("lib/no-such-library.so"), None);
        assert_eq!(find("include/"), None, "a directory is not a file");
    }

    #[test]
    fn missing_package_is_listed_once() {
        assert_eq!(missing(&[NONE, SH, NONE]), BTreeSet::from(["no-such-package"]));
    }

    #[test]
    fn directory_and_plain_file_are_no_programs() {
        assert!(!is_program(Path::new("/")));
        assert!(!is_program(Path::new("/etc/passwd")));
    }
}
