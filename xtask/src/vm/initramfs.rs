//! The guest's file system: an initramfs with the tools of this machine.
//!
//! Tools are copied with their shared objects rather than reached through a shared `/usr`: some 100 MB that
//! QEMU puts into memory at once, where every page of a program read over 9p is a round trip through software
//! emulation.

use std::env;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};

use super::builder::Put;
use super::cache::Cache;
use super::kernel::Kernel;
use super::tree::Tree;
use super::{elf, modules};
use crate::apt::{self, Need};

/// The guest's first process.
const INIT: &str = include_str!("init.sh");

/// The agent's two files. Their text stands in this program too, so that a change of either leads to another key.
const AGENT: [&str; 2] = [include_str!("../bin/vm-agent.rs"), include_str!("frame.rs")];

/// The tools that the guest has besides busybox's, by the package that they come from. A tool named here
/// replaces busybox's of the same name. The shell must not be busybox's, nor what starts other
/// programs: as Debian builds it, busybox prefers its own programs over all others, wherever they are.
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

/// What building the image takes.
pub(super) const NEEDS: &[Need] = &[
    Need::new("busybox", "busybox-static"),
    Need::new("depmod", "kmod"),
    Need::new("modinfo", "kmod"),
    Need::new("xz", "xz-utils"),
    Need::new("ldd", "libc-bin"),
];

/// The tools, one by one.
pub(super) fn tools() -> impl Iterator<Item = Need> {
    let tools = |&(package, programs): &(_, &'static str)| {
        programs.split(' ').map(move |program| Need::new(program, package))
    };
    TOOLS.iter().flat_map(tools)
}

/// Files that a tool opens by itself, so that ldd does not name them: in the image where this machine has
/// them.
const COMPANIONS: [&str; 4] = [
    "/usr/libexec/coreutils/libstdbuf.so",
    "/usr/lib/coreutils/libstdbuf.so",
    "/etc/mke2fs.conf",
    "/etc/ndctl.conf",
];

/// The name of a cached file: a hash of all that went into it.
#[derive(Debug)]
pub(super) struct Key(DefaultHasher);

impl Key {
    pub(super) fn new() -> Self {
        Self(DefaultHasher::new())
    }

    pub(super) fn add(&mut self, input: impl Hash) {
        input.hash(&mut self.0);
    }

    /// A file, by its path, length and time of change: what is in it need not be read.
    fn add_file(&mut self, path: &Path) -> Result<()> {
        let metadata = path.metadata().into_diagnostic().wrap_err_with(|| path.display().to_string())?;
        self.add((path, metadata.len(), metadata.modified().into_diagnostic()?));
        Ok(())
    }

    pub(super) fn finish(self) -> String {
        format!("{:016x}", self.0.finish())
    }
}

/// The image with everything that is the same at every boot.
pub(super) fn obtain(cache: &Cache, kernel: &Kernel) -> Result<PathBuf> {
    let agent = agent(cache)?;
    let busybox = program("busybox")?;
    let mut key = Key::new();
    // The way an image is built; the tools; and the list of what is installed, for their libraries.
    key.add([INIT, include_str!("initramfs.rs"), include_str!("tree.rs")]);
    key.add([include_str!("elf.rs"), include_str!("modules.rs")]);
    key.add_file(&kernel.image)?;
    for file in [&agent, &busybox] {
        key.add_file(file)?;
    }
    for tool in tools() {
        key.add_file(&program(tool.program)?)?;
    }
    let installed = Path::new("/var/lib/dpkg/status");
    if installed.exists() {
        key.add_file(installed)?;
    }
    cache.file("initramfs", &key.finish(), |path| {
        eprintln!("building the initramfs");
        build(path, kernel, &agent, &busybox)
    })
}

/// The agent as a static program, compiled when the cache does not have it.
///
/// rustc is called directly: the agent has no dependencies, and cargo would compile those of the whole
/// package again for another set of flags.
fn agent(cache: &Cache) -> Result<PathBuf> {
    let mut key = Key::new();
    key.add(AGENT);
    cache.file("agent", &key.finish(), |path| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/vm-agent.rs");
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .args(["--edition=2024", "--crate-name=vm_agent", "--crate-type=bin"])
            .args(["-Copt-level=2", "-Cpanic=abort", "-Cstrip=symbols", "-Ctarget-feature=+crt-static"])
            .arg(&source)
            .arg("-o")
            .arg(path)
            .output()
            .into_diagnostic()
            .wrap_err("cannot run rustc")?;
        if !output.status.success() {
            bail!("cannot compile {}:\n{}", source.display(), String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    })
}

/// Writes the image for one boot: the cached one, followed by an archive with what was put into this guest.
pub(super) fn with_puts(base: &Path, puts: &[Put], path: &Path) -> Result<()> {
    let mut tree = Tree::empty();
    let mut programs = Vec::new();
    for put in puts {
        add_put(&mut tree, &mut programs, &put.host, &put.guest)?;
    }
    elf::add_libraries(&mut tree, &programs)?;
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
    elf::add_libraries(&mut tree, &programs)?;
    add_busybox(&mut tree, busybox)?;
    let staging = tempfile::tempdir().into_diagnostic()?;
    let staged = modules::stage(kernel, staging.path())?;
    add_put(&mut tree, &mut Vec::new(), &staged, &format!("/usr/lib/modules/{}", kernel.release))?;
    write(&tree, File::create(path).into_diagnostic()?)
}

/// busybox, and a link for each of its applets that no tool has taken the name of.
fn add_busybox(tree: &mut Tree, busybox: &Path) -> Result<()> {
    tree.file("/usr/bin/busybox", busybox, 0o755);
    let output =
        Command::new(busybox).arg("--list").output().into_diagnostic().wrap_err("cannot run busybox")?;
    if !output.status.success() {
        bail!("busybox --list failed: {}", output.status);
    }
    for applet in String::from_utf8_lossy(&output.stdout).lines() {
        let path = format!("/usr/bin/{applet}");
        if !tree.contains(&path) {
            tree.symlink(&path, "busybox");
        }
    }
    Ok(())
}

/// Adds the file or directory `host` as `guest`, and notes in `programs` what may need shared objects.
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
