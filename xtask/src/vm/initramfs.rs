//! The guest's file system: an initramfs with programs of this machine.
//!
//! Programs are copied with their shared objects, about 100 MB that QEMU loads at once. With a shared `/usr` each page of a program would be a
//! round trip over 9p through software emulation.

use std::collections::BTreeSet;
use std::env;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};

use super::builder::Put;
use super::cache::Cache;
use super::kernel::Kernel;
use super::modules;
use super::tree::Tree;
use crate::apt::{self, Need};
use crate::process;

/// The guest's first process.
const INIT: &str = include_str!("init.sh");

/// The sources of the agent, which are the key of the compiled agent in the cache.
const AGENT: [&str; 2] = [include_str!("../bin/vm-agent.rs"), include_str!("frame.rs")];

/// Debian packages, and the programs of each that the guest has. They replace busybox's applets of the same names. The shell and programs that
/// start others must not be busybox's: Debian's busybox prefers its applets over all other programs.
const TOOLS: &[(&str, &str)] = &[
    ("fio", "fio"),
    ("ndctl", "ndctl"),
    ("nbd-client", "nbd-client"),
    ("e2fsprogs", "mkfs.ext4 e2fsck fsck.ext4 dumpe2fs debugfs"),
    ("xfsprogs", "mkfs.xfs xfs_repair"),
    ("mount", "mount umount losetup"),
    ("util-linux", "blkdiscard blockdev blkid lsblk setsid unshare"),
    ("tar", "tar"),
    ("diffutils", "diff cmp"),
    ("dash", "sh"),
    ("bash", "bash"),
    ("findutils", "find xargs"),
    ("coreutils", "chroot cp date dd env nice nohup stat sync sha256sum stdbuf timeout"),
];

/// The programs that build the image.
pub(super) const NEEDS: &[Need] = &[
    Need::new("busybox", "busybox-static"),
    Need::new("depmod", "kmod"),
    Need::new("modprobe", "kmod"),
    Need::new("xz", "xz-utils"),
    Need::new("ldd", "libc-bin"),
];

/// All programs of [`TOOLS`].
pub(super) fn tools() -> impl Iterator<Item = Need> {
    let tools = |&(package, programs): &(_, &'static str)| {
        programs.split(' ').map(move |program| Need::new(program, package))
    };
    TOOLS.iter().flat_map(tools)
}

/// Files that the programs open at run time, so that ldd does not list them. They are included if this machine has them.
const COMPANIONS: [&str; 4] = [
    "/usr/libexec/coreutils/libstdbuf.so",
    "/usr/lib/coreutils/libstdbuf.so",
    "/etc/mke2fs.conf",
    "/etc/ndctl.conf",
];

/// The image with the files that are the same at every boot, rebuilt when one of its inputs has changed.
pub(super) fn obtain(cache: &Cache, kernel: &Kernel) -> Result<PathBuf> {
    let agent = agent(cache)?;
    let busybox = program("busybox")?;
    let mut files = vec![kernel.image.clone(), agent.clone(), busybox.clone()];
    for tool in tools() {
        files.push(program(tool.program)?);
    }
    // Changes with the shared objects.
    files.extend(Some(PathBuf::from("/var/lib/dpkg/status")).filter(|list| list.exists()));
    let files = files.into_iter().map(version).collect::<Result<Vec<_>>>()?;
    let sources = [INIT, include_str!("initramfs.rs"), include_str!("tree.rs")];
    let inputs = (sources, include_str!("modules.rs"), files);
    cache.file("initramfs", &inputs, |path| {
        eprintln!("building the initramfs");
        build(path, kernel, &agent, &busybox)
    })
}

/// The path, size and modification time of a file, which identify its content.
fn version(path: PathBuf) -> Result<(PathBuf, u64, SystemTime)> {
    let metadata = path.metadata().into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    let modified = metadata.modified().into_diagnostic()?;
    Ok((path, metadata.len(), modified))
}

/// The agent as a static program, compiled if the cache does not have it.
///
/// rustc is called directly: cargo would recompile the dependencies of this package for other flags, and the agent has none.
fn agent(cache: &Cache) -> Result<PathBuf> {
    cache.file("agent", &AGENT, |path| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/vm-agent.rs");
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut rustc = Command::new(rustc);
        rustc.args(["--edition=2024", "--crate-name=vm_agent", "--crate-type=bin"]);
        rustc.args(["-Copt-level=2", "-Cpanic=abort", "-Cstrip=symbols", "-Ctarget-feature=+crt-static"]);
        process::output(rustc.arg(&source).arg("-o").arg(path)).map(drop)
    })
}

/// Writes the image for one boot: the cached image, followed by an archive with the files that are put into this guest.
pub(super) fn with_puts(base: &Path, puts: &[Put], path: &Path) -> Result<()> {
    let mut tree = Tree::empty();
    let mut programs = Vec::new();
    for put in puts {
        add_put(&mut tree, &mut programs, &put.host, &put.guest)?;
    }
    add_libraries(&mut tree, &programs)?;
    let mut out = File::create(path).into_diagnostic()?;
    io::copy(&mut File::open(base).into_diagnostic()?, &mut out).into_diagnostic()?;
    write(&tree, out).wrap_err("cannot put the files into the guest")
}

fn build(path: &Path, kernel: &Kernel, agent: &Path, busybox: &Path) -> Result<()> {
    let mut tree = Tree::new();
    tree.text("/init", 0o755, INIT);
    tree.text("/etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n");
    tree.text("/etc/group", 0o644, "root:x:0:\n");
    tree.symlink("/etc/mtab", "/proc/mounts");
    tree.file("/usr/bin/vm-agent", agent, 0o755);
    let mut programs = vec![busybox.to_owned()];
    for tool in tools() {
        let host = program(tool.program)?;
        tree.file(&format!("/usr/bin/{}", tool.program), &host, 0o755);
        programs.push(host);
    }
    for companion in COMPANIONS.map(Path::new) {
        if companion.exists() {
            tree.file(&companion.to_string_lossy(), companion, 0o755);
        }
    }
    add_libraries(&mut tree, &programs)?;
    add_busybox(&mut tree, busybox)?;
    let staging = tempfile::tempdir().into_diagnostic()?;
    let staged = modules::stage(kernel, staging.path())?;
    add_put(&mut tree, &mut Vec::new(), &staged, &format!("/usr/lib/modules/{}", kernel.release))?;
    write(&tree, File::create(path).into_diagnostic()?)
}

/// Adds busybox, and links for those of its applets that have no other program of the same name.
fn add_busybox(tree: &mut Tree, busybox: &Path) -> Result<()> {
    tree.file("/usr/bin/busybox", busybox, 0o755);
    for applet in process::output(Command::new(busybox).arg("--list"))?.lines() {
        let path = format!("/usr/bin/{applet}");
        if !tree.contains(&path) {
            tree.symlink(&path, "busybox");
        }
    }
    Ok(())
}

/// Adds the file or directory `host` as `guest`, and executable files to `programs`.
fn add_put(tree: &mut Tree, programs: &mut Vec<PathBuf>, host: &Path, guest: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let context = || format!("cannot put {} into the guest", host.display());
    let metadata = host.metadata().into_diagnostic().wrap_err_with(context)?;
    if !metadata.is_dir() {
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o111 != 0 {
            programs.push(host.to_owned());
        }
        tree.file(guest, host, mode);
        return Ok(());
    }
    tree.directory(guest);
    for entry in host.read_dir().into_diagnostic().wrap_err_with(context)? {
        let entry = entry.into_diagnostic()?;
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| miette!("{:?} is not UTF-8", entry.path()))?;
        add_put(tree, programs, &entry.path(), &format!("{guest}/{name}"))?;
    }
    Ok(())
}

fn write(tree: &Tree, out: File) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, out);
    tree.write(&mut out).and_then(|()| out.flush()).into_diagnostic().wrap_err("cannot write the initramfs")
}

fn program(name: &str) -> Result<PathBuf> {
    apt::find(name).ok_or_else(|| miette!("{name} is not on PATH"))
}

/// Adds the shared objects of `programs`, as the dynamic loader finds them, at their paths on this machine. Static programs and scripts have none.
fn add_libraries(tree: &mut Tree, programs: &[PathBuf]) -> Result<()> {
    if programs.is_empty() {
        return Ok(());
    }
    // ldd's exit status depends on whether the last file is dynamic. Missing libraries are in its output.
    let output = Command::new("ldd")
        .args(programs)
        .env("LC_ALL", "C")
        .output()
        .into_diagnostic()
        .wrap_err("cannot run ldd")?;
    for library in parse_ldd(&String::from_utf8_lossy(&output.stdout))? {
        tree.file(&library, library.as_ref(), 0o755);
    }
    Ok(())
}

/// The absolute paths in the output of ldd for one or more programs.
fn parse_ldd(text: &str) -> Result<BTreeSet<String>> {
    let mut libraries = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with(char::is_whitespace)) {
        let line = line.trim();
        if line.ends_with("=> not found") {
            bail!("a program for the guest has a missing library: {line}");
        }
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        // Lines without a path are for the kernel's object (linux-vdso), or messages such as "statically linked".
        if let (true, Some((path, _))) = (path.starts_with('/'), path.rsplit_once(" (0x")) {
            libraries.insert(path.to_owned());
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found_once() {
        let text = "/usr/bin/a:\n\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n/usr/bin/b:\n\tnot a dynamic executable\n\
                    /usr/bin/c:\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3)\n\tstatically linked\n";
        let libraries = parse_ldd(text).expect("all are found");
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries, expected.map(String::from).into());
    }

    #[test]
    fn missing_library_is_an_error() {
        let error = parse_ldd("\tlibgone.so.1 => not found\n").expect_err("missing");
        assert!(error.to_string().contains("libgone.so.1"), "{error}");
    }

    #[test]
    fn program_needs_its_loader() {
        let mut tree = Tree::empty();
        add_libraries(&mut tree, &["/bin/sh".into()]).expect("ldd runs");
        assert!(tree.nodes().any(|(path, _)| path.contains("ld-linux") || path.contains("ld-musl")));
    }
}
