//! Two guests, each with a disk that `pmbd` serves at /dev/ublkb0, joined by a cable.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use miette::{Result, ensure, miette};
use tempfile::TempDir;
use xtask::apt::{self, Need};
use xtask::pmbd::{self, Guest};
use xtask::vm::{MIB, Plug, Vm};

/// The time limit of a command in a guest, generous for a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// The time limit of a change of state in a guest.
const PATIENCE_SECONDS: u32 = 90;

/// The programs of the host that these guests have in addition, with their packages. A name with a slash is below /usr.
const TOOLS: [Need; 7] = [
    Need::new("drbdadm", "drbd-utils"),
    Need::new("drbdsetup", "drbd-utils"),
    Need::new("drbdmeta", "drbd-utils"),
    Need::new("lib/drbd/drbdadm-84", "drbd-utils"),
    Need::new("lib/drbd/drbdsetup-84", "drbd-utils"),
    Need::new("mdadm", "mdadm"),
    Need::new("nvme", "nvme-cli"),
];

/// The file of the disk in each guest, on ext4 with DAX.
pub(crate) const DISK: &str = "/mnt/pmem/disk.pm";

/// Held while a pair runs: more guests would be too slow on two processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The persistent memory of two machines, which keeps its contents from boot to boot, and the cable between them.
pub(crate) struct Pair {
    directory: TempDir,
    /// The size of each disk.
    disk_mib: u64,
    plugs: [Plug; 2],
    _lock: MutexGuard<'static, ()>,
}

/// A running guest that serves its disk.
pub(crate) struct Node {
    pub(crate) guest: Guest,
}

impl Pair {
    /// Waits until no other test runs guests, and boots both, each with a disk of so many MiB.
    pub(crate) fn boot(disk_mib: u64) -> Result<(Self, [Node; 2])> {
        let lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        apt::ensure(&[Vm::needs(), TOOLS.to_vec()].concat())?;
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
        let pair = Self { directory, disk_mib, plugs: Plug::pair()?, _lock: lock };
        program()?;
        let (first, second) = thread::scope(|scope| {
            let second = scope.spawn(|| pair.boot_node(1));
            (pair.boot_node(0), second.join().expect("a boot does not panic"))
        });
        Ok((pair, [first?, second?]))
    }

    /// Boots node 0 or 1 on its persistent memory, and serves its disk, which is created at the first time.
    pub(crate) fn boot_node(&self, index: usize) -> Result<Node> {
        let mut machine = Vm::builder()
            .image(self.directory.path().join(format!("nvdimm{index}.img")))
            .size_bytes(384 * MIB)
            .memory_mib(1024)
            .timeout(COMMAND_TIMEOUT)
            .dax(true)
            .network(self.plugs[index].clone())
            .put(env!("CARGO_BIN_EXE_power-cut-writer"), "/root/power-cut-writer")
            .put(program()?, "/root/pmbd");
        for tool in TOOLS {
            let host = find(tool)?;
            let guest = if tool.program.contains('/') { "/usr" } else { "/usr/bin" };
            machine = machine.put(host, format!("{guest}/{}", tool.program));
        }
        let mut guest = Guest::new(machine.start()?);
        guest.serve(DISK, &self.serve_options())?;
        Ok(Node { guest })
    }

    /// The options with which a disk is served.
    pub(crate) fn serve_options(&self) -> String {
        format!("--size {}M --transport ublk --device 0 --queues 1", self.disk_mib)
    }
}

impl Node {
    /// Runs a shell script that must succeed, and returns its standard output.
    pub(crate) fn check(&mut self, script: &str) -> Result<String> {
        self.guest.check(script)
    }

    /// Waits for the end of a server that was stopped.
    pub(crate) fn wait_for_server(&mut self) -> Result<()> {
        let ended = self.guest.ended(&format!("pmbd{}", DISK.replace('/', "-")))?;
        ensure!(ended == 0, "the server ended with {ended}");
        Ok(())
    }

    /// Serves the disk again after the end of its server. It is created if there is none.
    pub(crate) fn serve_again(&mut self, pair: &Pair) -> Result<()> {
        self.wait_for_server()?;
        self.guest.serve(DISK, &pair.serve_options())?;
        Ok(())
    }

    /// Waits until a shell command succeeds.
    pub(crate) fn wait_until(&mut self, command: &str) -> Result<()> {
        let state = "dmesg | tail -n 40; cat /proc/drbd /proc/mdstat 2>/dev/null";
        let wait = format!(
            "end=$(($(date +%s) + {PATIENCE_SECONDS})); until {command}; do
                [ $(date +%s) -lt $end ] || {{ {state}; exit 1; }}; sleep 0.05
            done"
        );
        self.check(&wait).map(drop)
    }

    /// Cuts the cable at this node, or mends it.
    pub(crate) fn cable(&mut self, state: Cable) -> Result<()> {
        let state = match state {
            Cable::Cut => "down",
            Cable::Whole => "up",
        };
        self.check(&format!("ip link set eth0 {state}")).map(drop)
    }
}

/// Whether packets reach the other node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cable {
    Cut,
    Whole,
}

fn find(tool: Need) -> Result<PathBuf> {
    // Debian's older releases have /lib/drbd outside of /usr.
    let outside = Path::new("/").join(tool.program);
    let found = apt::find(tool.program).or_else(|| Some(outside).filter(|path| path.is_file()));
    found.ok_or_else(|| miette!("the package {} has no {}", tool.package, tool.program))
}

/// `pmbd` in the dev profile, with its assertions, built once for all tests.
fn program() -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    match PROGRAM.get() {
        Some(program) => Ok(program),
        None => pmbd::build(&[]).map(|built| PROGRAM.get_or_init(|| built).as_path()),
    }
}
