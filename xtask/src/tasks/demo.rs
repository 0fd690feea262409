//! `cargo xtask demo`: a disk in persistent memory with file systems of a real kernel, in a minute.

use std::io::{stderr, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{Result, bail};
use xtask::pmbd::{self, source_tree};
use xtask::vm::Vm;

/// An explanation, and the commands, which are printed as they run.
struct Step {
    text: &'static str,
    commands: &'static [&'static str],
}

const STEPS: &[Step] = &[
    Step {
        text: "The guest has 512 MiB of persistent memory, an NVDIMM with ext4, mounted with -o dax: a program that maps\n\
               a file there accesses the memory directly, without a page cache.",
        commands: &["uname -sr", "grep /mnt/pmem /proc/mounts"],
    },
    Step {
        text: "pmbd creates a file on it, a pool with a disk of 320 MiB, and serves it as a block device. It prints the\n\
               medium and the persistence domain.",
        commands: &[
            "pmbd serve /mnt/pmem/disk.pm --size 320M --transport ublk --queues 2 >/tmp/pmbd.log 2>&1 &",
        ],
    },
    Step {
        text: "The disk is an ordinary block device. Each write is durable before it completes, so the kernel sees no\n\
               volatile cache and sends no Flush requests.",
        commands: &["lsblk /dev/ublkb0", "cat /sys/block/ublkb0/queue/write_cache", "pmbd list"],
    },
    Step {
        text: "ext4 on the disk: this repository and the guest's libraries are copied to it, read back from the device\n\
               and compared, and the file system is checked.",
        commands: &[
            "mkfs.ext4 -q /dev/ublkb0",
            "mkdir /mnt/disk; mount /dev/ublkb0 /mnt/disk",
            "cp -a /src /usr/lib /mnt/disk/",
            "pmbd stop /dev/ublkb0 || echo '(as expected: a file system is mounted)'",
            "umount /mnt/disk; mount /dev/ublkb0 /mnt/disk; df -h /mnt/disk",
            "diff -r /src /mnt/disk/src && diff -r /usr/lib /mnt/disk/lib && echo identical",
            "umount /mnt/disk",
            "e2fsck -fn /dev/ublkb0",
        ],
    },
    Step {
        text: "The same with xfs.",
        commands: &[
            "modprobe xfs; mkfs.xfs -q -f /dev/ublkb0; mount /dev/ublkb0 /mnt/disk",
            "cp -a /src /usr/lib /mnt/disk/",
            "umount /mnt/disk; mount /dev/ublkb0 /mnt/disk",
            "diff -r /src /mnt/disk/src && diff -r /usr/lib /mnt/disk/lib && echo identical",
            "umount /mnt/disk",
            "xfs_repair -n /dev/ublkb0 >/tmp/xfs_repair.log 2>&1 && echo clean",
        ],
    },
    Step {
        text: "A load: two jobs write at random with 32 requests in flight, and verify the checksums of all written\n\
               data.",
        commands: &[
            "fio --name=verify --filename=/dev/ublkb0 --rw=randrw --bs=4k --ioengine=libaio --direct=1 \
                     --iodepth=32 --numjobs=2 --size=32M --offset_increment=32M --verify=crc32c --verify_fatal=1 \
                     --verify_state_save=0 --group_reporting --output=/tmp/fio.log && grep -E 'err=|IOPS' /tmp/fio.log",
        ],
    },
    Step {
        text: "The server stops, and its device is removed. The pool is valid.",
        commands: &["pmbd stop /dev/ublkb0", "pmbd check /mnt/pmem/disk.pm"],
    },
];

/// Follows the command that starts the server: waits for all of its output and prints it, or fails if the server has ended.
const INTRODUCTION: &str =
    "until grep -q '^  stop ' /tmp/pmbd.log; do pidof pmbd >/dev/null || break; sleep 0.05; done
    cat /tmp/pmbd.log; test -b /dev/ublkb0";

/// Builds pmbd, boots, and runs the steps.
pub(crate) fn run() -> Result<ExitCode> {
    println!("Building pmbd in the release profile, then booting a virtual machine with persistent memory.");
    let program = pmbd::build(&["--release"])?;
    let begin = Instant::now();
    let directory =
        tempfile::tempdir_in(program.parent().unwrap_or(&program)).map_err(miette::Report::msg)?;
    let mut vm = Vm::builder()
        .image(directory.path().join("nvdimm.img"))
        .dax(true)
        .timeout(Duration::from_secs(300))
        .put(&program, "/root/pmbd")
        .puts(source_tree("/src")?)
        .start()?;
    for step in STEPS {
        println!("\n{}", step.text);
        for command in step.commands {
            show(&mut vm, command)?;
        }
    }
    vm.shutdown()?;
    println!(
        "\nThis took {:.0} s, including the boot. A shell in such a machine: cargo xtask vm --dax",
        begin.elapsed().as_secs_f64()
    );
    Ok(ExitCode::SUCCESS)
}

/// Prints and runs a command, which must succeed.
fn show(vm: &mut Vm, command: &str) -> Result<()> {
    println!("\n$ {command}");
    let script = match command.strip_suffix('&') {
        Some(server) => format!("{server} &\n{INTRODUCTION}"),
        None => command.to_owned(),
    };
    match vm.run_into(&script, &mut stdout(), &mut stderr())? {
        0 => Ok(()),
        code => bail!("{command:?} ended with {code}"),
    }
}
