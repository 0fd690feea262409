//! `cargo xtask demo`: a disk in persistent memory, with a real kernel's file systems on it, in a minute.

use std::io::{stderr, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{Result, bail};
use xtask::pmbd::{self, Profile, source_tree};
use xtask::vm::Vm;

/// One step: why, and the commands, shown as they are run.
struct Step {
    why: &'static str,
    commands: &'static [&'static str],
}

const STEPS: &[Step] = &[
    Step {
        why: "The guest has 512 MiB of persistent memory, an NVDIMM. On it there is ext4, mounted with -o dax:\n\
              a program that maps a file there has the memory itself before it, no page cache between.",
        commands: &["uname -sr", "grep /mnt/pmem /proc/mounts"],
    },
    Step {
        why: "pmbd makes a file on it and serves it as a block device: a pool with a disk of 320 MiB. It says\n\
              what the bytes live on and what they survive.",
        commands: &[
            "pmbd serve /mnt/pmem/disk.pm --size 320M --transport ublk --queues 2 >/tmp/pmbd.log 2>&1 &",
        ],
    },
    Step {
        why: "It is a disk like any other. Each write is durable before it completes, so the kernel sees no\n\
              volatile cache and has nothing to flush.",
        commands: &["lsblk /dev/ublkb0", "cat /sys/block/ublkb0/queue/write_cache", "pmbd list"],
    },
    Step {
        why: "ext4 on it: this repository's tree and all of the guest's libraries go in. They are read back from\n\
              the device and compared, and the file system is checked.",
        commands: &[
            "mkfs.ext4 -q /dev/ublkb0",
            "mkdir /mnt/disk; mount /dev/ublkb0 /mnt/disk",
            "cp -a /src /usr/lib /mnt/disk/",
            "pmbd stop /dev/ublkb0 || echo '(as it should be: a file system is mounted)'",
            "umount /mnt/disk; mount /dev/ublkb0 /mnt/disk; df -h /mnt/disk",
            "diff -r /src /mnt/disk/src && diff -r /usr/lib /mnt/disk/lib && echo identical",
            "umount /mnt/disk",
            "e2fsck -fn /dev/ublkb0",
        ],
    },
    Step {
        why: "The same with xfs.",
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
        why: "And a load: two jobs write at random, 32 requests in flight, and verify the checksum of all that\n\
              they have written.",
        commands: &[
            "fio --name=verify --filename=/dev/ublkb0 --rw=randrw --bs=4k --ioengine=libaio --direct=1 \
                     --iodepth=32 --numjobs=2 --size=32M --offset_increment=32M --verify=crc32c --verify_fatal=1 \
                     --verify_state_save=0 --group_reporting --output=/tmp/fio.log && grep -E 'err=|IOPS' /tmp/fio.log",
        ],
    },
    Step {
        why: "The server stops, and its device is gone. The pool is in order.",
        commands: &["pmbd stop /dev/ublkb0", "pmbd check /mnt/pmem/disk.pm"],
    },
];

/// After the command that starts the server: what it says, once it has said all. When it ended instead, that is an
/// error.
const INTRODUCTION: &str =
    "until grep -q '^  stop ' /tmp/pmbd.log; do pidof pmbd >/dev/null || break; sleep 0.05; done
    cat /tmp/pmbd.log; test -b /dev/ublkb0";

/// Arguments of `cargo xtask demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Builds pmbd, boots, and goes through the steps.
pub(crate) fn run(_args: &Args) -> Result<ExitCode> {
    println!("Building pmbd as users have it, then booting a virtual machine with persistent memory.");
    let program = pmbd::build(Profile::Release)?;
    let begin = Instant::now();
    let directory =
        tempfile::tempdir_in(program.parent().unwrap_or(&program)).map_err(miette::Report::msg)?;
    let machine = Vm::builder()
        .image(directory.path().join("nvdimm.img"))
        .dax(true)
        .timeout(Duration::from_secs(300))
        .put(&program, "/root/pmbd");
    let sources = source_tree("/src")?;
    let mut vm =
        sources.into_iter().fold(machine, |machine, put| machine.put(put.host, put.guest)).start()?;
    for step in STEPS {
        println!("\n{}", step.why);
        for command in step.commands {
            show(&mut vm, command)?;
        }
    }
    vm.shutdown()?;
    println!(
        "\nThat took {:.0} s, the boot included. A shell in such a machine: cargo xtask vm --dax",
        begin.elapsed().as_secs_f64()
    );
    Ok(ExitCode::SUCCESS)
}

/// Shows a command and its output; it must succeed.
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
