//! What the tests of the real kernel share: one guest at a time, with `pmbd` in it.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use miette::Result;
use tempfile::TempDir;
use xtask::pmbd::{self, Guest, Profile};
use xtask::vm::{Builder, MIB, Vm};

/// The longest that one command in a guest may take, on a slow machine that is busy with other things.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// Held while a guest runs: two of them share two processors badly.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A persistent memory for one test, and this test's turn to boot.
pub(crate) struct Lab {
    directory: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    /// Waits for this test's turn.
    pub(crate) fn new() -> Self {
        // A test that failed has given its turn back like any other.
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // On a disk: the system's own place for temporary files may be too small.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
        Self { directory, _turn: turn }
    }

    /// A machine with 512 MiB of persistent memory, the same at each boot, and `pmbd`.
    pub(crate) fn machine(&self) -> Result<Builder> {
        Ok(Vm::builder()
            .image(self.directory.path().join("nvdimm.img"))
            .size_bytes(512 * MIB)
            .memory_mib(1536)
            .timeout(COMMAND_TIMEOUT)
            .put(program()?, "/root/pmbd"))
    }
}

/// `pmbd`, built once for all tests of a binary.
fn program() -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if PROGRAM.get().is_none() {
        let built = pmbd::build(Profile::Dev)?;
        // Several tests may have built it meanwhile: the same program.
        return Ok(PROGRAM.get_or_init(|| built));
    }
    Ok(PROGRAM.get().expect("just looked"))
}

/// A guest that has booted, on a persistent memory of its own.
pub(crate) struct Running {
    guest: Guest,
    _lab: Lab,
}

impl Running {
    /// Boots a machine that `shape` has given its last touch.
    pub(crate) fn boot(shape: impl FnOnce(Builder) -> Builder) -> Result<Self> {
        let lab = Lab::new();
        let guest = Guest::new(shape(lab.machine()?).start()?);
        Ok(Self { guest, _lab: lab })
    }

    /// Powers the guest off in an orderly way.
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

/// A fio job that writes at random from `jobs` processes, each in its own part of `mib_each` MiB, 32 requests
/// in flight, and then reads back and verifies all that it has written.
pub(crate) fn fio_verify(device: &str, jobs: u32, mib_each: u32) -> String {
    format!(
        "fio --name=verify --filename={device} --rw=randrw --rwmixwrite=70 --bs=4k --ioengine=libaio --direct=1 \
         --iodepth=32 --numjobs={jobs} --size={mib_each}M --offset_increment={mib_each}M --verify=crc32c \
         --verify_fatal=1 --verify_state_save=0 --randrepeat=0 --group_reporting"
    )
}

/// A file system on `device`: made, mounted at /mnt/disk, /src and the machine's libraries copied there and
/// compared, unmounted and mounted again so that the comparison reads the device, unmounted, checked.
pub(crate) fn copy_and_compare(guest: &mut Guest, device: &str, fs: FileSystem, what: &str) -> Result<()> {
    guest.check(&format!("{} {device} && mkdir -p /mnt/disk && mount {device} /mnt/disk", fs.make()))?;
    guest.check(&format!("cp -a {what} /mnt/disk/ && umount /mnt/disk && mount {device} /mnt/disk"))?;
    let compare = format!("for tree in {what}; do diff -r $tree /mnt/disk/$(basename $tree) || exit 1; done");
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
