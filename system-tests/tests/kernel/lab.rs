//! The environment of the tests on the real kernel: one guest at a time, with `pmbd`.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use miette::Result;
use tempfile::TempDir;
use xtask::pmbd::{self, Guest};
use xtask::vm::{Builder, MIB, Vm};

/// The time limit of a command in a guest, generous for a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// Held while a guest runs: concurrent guests would be too slow on two processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The persistent memory of one test, and the lock of the running guest.
pub(crate) struct Lab {
    directory: TempDir,
    _lock: MutexGuard<'static, ()>,
}

impl Lab {
    /// Waits until no other test runs a guest.
    pub(crate) fn new() -> Self {
        let lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // On a disk: the system's directory for temporary files may be too small.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
        Self { directory, _lock: lock }
    }

    /// A machine with `pmbd` and 512 MiB of persistent memory, which keeps its content from boot to boot.
    pub(crate) fn machine(&self) -> Result<Builder> {
        Ok(Vm::builder()
            .image(self.directory.path().join("nvdimm.img"))
            .size_bytes(512 * MIB)
            .memory_mib(1536)
            .timeout(COMMAND_TIMEOUT)
            .put(program()?, "/root/pmbd"))
    }
}

/// `pmbd` in the dev profile, with its assertions, built once for all tests.
fn program() -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    match PROGRAM.get() {
        Some(program) => Ok(program),
        None => pmbd::build(&[]).map(|built| PROGRAM.get_or_init(|| built).as_path()),
    }
}

/// The number in the environment variable `name`, or `default`.
pub(crate) fn from_env(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// A running guest with its own persistent memory.
pub(crate) struct Running {
    guest: Guest,
    _lab: Lab,
}

impl Running {
    /// Boots a machine that `configure` has completed.
    pub(crate) fn boot(configure: impl FnOnce(Builder) -> Builder) -> Result<Self> {
        let lab = Lab::new();
        let guest = Guest::new(configure(lab.machine()?).start()?);
        Ok(Self { guest, _lab: lab })
    }

    /// Shuts the guest down.
    pub(crate) fn shutdown(self) -> Result<()> {
        self.guest.vm.shutdown()
    }
}

impl Deref for Running {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

/// A fio command: `jobs` processes write at random, each to its own part of `mib_each` MiB with 32 requests in flight, and then read and verify all
/// written data.
pub(crate) fn fio_verify(device: &str, jobs: u32, mib_each: u32) -> String {
    format!(
        "fio --name=verify --filename={device} --rw=randrw --rwmixwrite=70 --bs=4k --ioengine=libaio --direct=1 \
         --iodepth=32 --numjobs={jobs} --size={mib_each}M --offset_increment={mib_each}M --verify=crc32c \
         --verify_fatal=1 --verify_state_save=0 --randrepeat=0 --group_reporting"
    )
}

/// Creates a file system on `device`, mounts it at /mnt/disk, copies `trees` to it, remounts it so that the comparison reads the device, compares,
/// unmounts and checks it.
pub(crate) fn copy_and_compare(guest: &mut Guest, device: &str, fs: FileSystem, trees: &str) -> Result<()> {
    guest.check(&format!("{} {device} && mkdir -p /mnt/disk && mount {device} /mnt/disk", fs.make()))?;
    guest.check(&format!("cp -a {trees} /mnt/disk/ && umount /mnt/disk && mount {device} /mnt/disk"))?;
    let compare =
        format!("for tree in {trees}; do diff -r $tree /mnt/disk/$(basename $tree) || exit 1; done");
    guest.check(&compare)?;
    guest.check(&format!("umount /mnt/disk && {} {device}", fs.verify()))?;
    Ok(())
}

/// A file system of the guest's kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    fn make(self) -> &'static str {
        match self {
            Self::Ext4 => "mkfs.ext4 -q -F",
            Self::Xfs => "modprobe xfs && mkfs.xfs -q -f",
        }
    }

    /// Fails unless the file system is clean.
    fn verify(self) -> &'static str {
        match self {
            Self::Ext4 => "e2fsck -fn",
            Self::Xfs => "xfs_repair -n",
        }
    }
}
