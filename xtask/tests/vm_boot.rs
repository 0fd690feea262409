//! Boots the real kernel, and holds it to what the other tests of the real kernel build on.

use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use miette::Result;
use tempfile::TempDir;
use xtask::vm::{Builder, Share, TimedOut, Vm};

/// A directory for an image, on a disk: the system's own place for temporary files may be too small for it.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}

fn builder(directory: &Path) -> Builder {
    Vm::builder().image(directory.join("nvdimm.img")).size_bytes(256 << 20)
}

#[test]
fn guest_has_kernel_devices_and_tools() -> Result<()> {
    let directory = directory();
    std::fs::write(directory.path().join("shared"), "from the host").expect("written");
    let script = directory.path().join("script");
    std::fs::write(&script, "#!/bin/sh\necho put $1\n").expect("written");
    let share =
        |guest: &str, writable| Share { host: directory.path().into(), guest: guest.into(), writable };
    let mut vm = builder(directory.path())
        .dax(true)
        .module("brd rd_nr=1 rd_size=4096")
        .put(&script, "/root/script")
        .put("/bin/cat", "/root/their cat")
        .share(share("/ro", false))
        .share(share("/rw", true))
        .start()?;

    let release = vm.check("uname -r")?;
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().expect("a number"), numbers.next().expect("a number"));
    assert!(version >= (6, 12), "{release}");
    vm.check("test -c /dev/ublk-control && test -b /dev/pmem0 && test -b /dev/ram0")?;
    assert!(vm.check("grep ' /mnt/pmem ' /proc/mounts")?.contains("dax=always"));
    assert_eq!(vm.check("cat /sys/block/ram0/size")?, "8192\n");

    assert_eq!(vm.check("sh script 1; '/root/their cat' /ro/shared")?, "put 1\nfrom the host");
    assert_ne!(vm.run("echo no > /ro/new")?.status, 0);
    vm.check("echo yes > /rw/new")?;
    assert_eq!(std::fs::read_to_string(directory.path().join("new")).expect("the guest made it"), "yes\n");

    for tool in [
        "fio --version",
        "ndctl --version",
        "mkfs.ext4 -V",
        "mkfs.xfs -V",
        "xfs_repair -V",
        "nbd-client --version",
    ] {
        let output = vm.run(tool)?;
        assert!(output.status < 126, "{tool}: {output:?}");
    }
    // busybox has these too, without what is used of them here.
    vm.check(
        "truncate -s 16M /tmp/disk && losetup --find --show /tmp/disk && blkdiscard --zeroout /dev/loop0",
    )?;
    vm.check("stdbuf --output=L true && date +%N | grep -q '[0-9]'")?;
    vm.shutdown()
}

#[test]
fn output_and_exit_codes_come_through() -> Result<()> {
    let directory = directory();
    let mut vm = builder(directory.path()).timeout(Duration::from_secs(60)).start()?;
    for status in [0, 7, 255] {
        assert_eq!(vm.run(&format!("exit {status}"))?.status, status);
    }
    assert_eq!(vm.run("kill -9 $$")?.status, 128 + 9);
    assert_eq!(vm.run("no-such-command")?.status, 127);

    let output = vm.run("echo out; echo err >&2; false")?;
    assert_eq!((output.status, output.stdout.as_str(), output.stderr.as_str()), (1, "out\n", "err\n"));
    let output = vm.run("seq 200000")?;
    assert!(
        output.stdout.lines().eq((1..=200_000).map(|number| number.to_string())),
        "output was lost or reordered"
    );

    // What stays in the background holds the output open: the command ends all the same.
    let begin = Instant::now();
    assert_eq!(vm.run("sleep 50 & echo started")?.stdout, "started\n");
    assert!(begin.elapsed() < Duration::from_secs(40), "waited for the background");

    let checked = vm.check("echo reason >&2; exit 3").expect_err("it failed").to_string();
    assert!(checked.contains("reason") && checked.contains('3'), "{checked}");
    vm.shutdown()
}

#[test]
fn timeout_and_kernel_panic_are_errors() -> Result<()> {
    let directory = directory();
    let mut vm = builder(directory.path()).timeout(Duration::from_secs(1)).start()?;
    let error = vm.run("sleep 100").expect_err("too long");
    assert!(error.downcast_ref::<TimedOut>().is_some(), "{error:?}");
    drop(vm);

    let mut vm = builder(directory.path()).start()?;
    let error = format!("{:?}", vm.run("echo c > /proc/sysrq-trigger").expect_err("a panic"));
    assert!(error.contains("Kernel panic"), "{error}");
    Ok(())
}

/// Writes numbered files, reporting each one once it is synced; the guest's power is cut in the middle of it.
/// Whatever was reported must be there after the next boot.
#[test]
fn power_cut_keeps_reports() -> Result<()> {
    const WRITER: &str = "n=0; while :; do
        echo content $n > /mnt/pmem/$n && sync /mnt/pmem/$n && echo $n > /dev/report
        n=$((n + 1))
    done >/tmp/writer.log 2>&1 &";
    let directory = directory();
    let mut vm = builder(directory.path()).dax(true).start()?;
    vm.check(WRITER)?;
    let mut reports = Vec::new();
    while reports.len() < 50 {
        reports.push(vm.next_report(Duration::from_secs(60)).expect("the writer goes on"));
    }
    reports.extend(vm.power_cut()?);
    let numbers = (0..reports.len()).map(|number| number.to_string());
    assert!(
        reports.iter().eq(numbers.collect::<Vec<_>>().iter()),
        "reports were lost or cut short: {reports:?}"
    );

    let mut vm = builder(directory.path()).dax(true).start()?;
    let script = format!("for n in $(seq 0 {}); do cat /mnt/pmem/$n || exit 1; done", reports.len() - 1);
    let found = vm.check(&script)?;
    assert!(found.lines().eq(reports.iter().map(|number| format!("content {number}"))), "{found}");
    vm.check("umount /mnt/pmem && e2fsck -fn /dev/pmem0")?;
    vm.shutdown()
}

#[test]
fn command_line_passes_exit_code_and_output() {
    let directory = directory();
    let image: PathBuf = directory.path().join("nvdimm.img");
    let task = |script: &str| {
        Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["vm", "--size", "256M", "--image"])
            .arg(&image)
            .args(["--", script])
            .output()
            .expect("xtask runs")
    };
    let output = task("uname -s; exit 7");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(output.stdout, b"Linux\n", "{output:?}");
    assert_eq!(task("true").status.code(), Some(0));
}

/// A guest whose host process was killed powers off, even in the middle of a command, and holds its image until then.
#[test]
fn guest_ends_with_its_host() {
    let directory = directory();
    let image = directory.path().join("nvdimm.img");
    let mut task = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["vm", "--size", "256M", "--image"])
        .arg(&image)
        .args(["--", "echo up; sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("xtask runs");
    let mut line = String::new();
    let stdout = task.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("readable");
    assert_eq!(line, "up\n");
    task.kill().and_then(|()| task.wait()).expect("killed");

    let image = File::open(&image).expect("there");
    assert!(matches!(image.try_lock(), Err(TryLockError::WouldBlock)), "QEMU does not hold the lock");
    let end = Instant::now() + Duration::from_secs(100);
    while image.try_lock().is_err() {
        assert!(Instant::now() < end, "QEMU is still there");
        thread::sleep(Duration::from_millis(20));
    }
}
