//! Programs that load a file system: fio, which verifies what it has written; dbench, with the calls of a file server; postmark, with those of mail; and
//! stress-ng, with each kind of call in turn.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use miette::{IntoDiagnostic, Result, WrapErr, ensure, miette};
use xtask::{apt, process};

use super::super::mounted::{Mounted, line};

/// The calls that dbench makes, below `/usr`.
pub(super) const DBENCH_CALLS: &str = "share/dbench/client.txt";

/// How fio writes: by calls, and to mappings.
const FIO_ENGINES: [&str; 2] = ["psync", "mmap"];

/// Two jobs at the same time write blocks of different lengths at random offsets, and read them again. An error ends them.
const FIO: [&str; 9] = [
    "--name=job",
    "--numjobs=2",
    "--rw=randwrite",
    "--bsrange=512-64k",
    "--size=128m",
    "--fallocate=none",
    "--verify=crc32c",
    "--verify_fatal=1",
    "--group_reporting",
];

/// Clients of dbench, and its seconds.
const DBENCH: [&str; 3] = ["-t", "20", "4"];

/// Twenty thousand transactions on five thousand files.
const POSTMARK: &str =
    "set number 5000\nset transactions 20000\nset subdirectories 50\nset size 500 20000\nset seed 1\n";

/// The stressors of stress-ng for files. Each runs twice at the same time, for so many seconds.
const STRESSORS: &str = "access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl filename flock fpunch fsize fstat getdent \
                         hdd io link locka lockf lockofd mknod mmap msync open rename seek sendfile splice symlink sync-file touch utime xattr";
const STRESS_SECONDS: &str = "2";

/// Runs fio with each engine. What it has written is verified at once, and after the next mount.
pub(super) fn fio(mounted: &mut Mounted) -> Result<()> {
    let directory = |engine: &str, mount: &Path| mount.join(engine);
    let command = |engine: &str, mount: &Path| {
        let mut command = Command::new("fio");
        command.args(FIO).arg(format!("--ioengine={engine}"));
        command.arg(format!("--directory={}", directory(engine, mount).display()));
        command
    };
    for engine in FIO_ENGINES {
        fs::create_dir(directory(engine, &mounted.mount)).into_diagnostic()?;
        summary(&mut command(engine, &mounted.mount), "WRITE:")?;
    }
    mounted.stop()?;
    mounted.start()?;
    for engine in FIO_ENGINES {
        summary(command(engine, &mounted.mount).arg("--verify_only"), "err= 0")?;
    }
    Ok(())
}

/// Runs dbench.
pub(super) fn dbench(mounted: &mut Mounted) -> Result<()> {
    let calls = apt::find(DBENCH_CALLS).ok_or_else(|| miette!("/usr/{DBENCH_CALLS} is missing"))?;
    let mut command = Command::new("dbench");
    command.arg("-c").arg(calls).arg("-D").arg(&mounted.mount).args(DBENCH);
    summary(&mut command, "Throughput")
}

/// Runs postmark, which removes all its files at the end.
pub(super) fn postmark(mounted: &mut Mounted) -> Result<()> {
    let directory = mounted.mount.join("postmark");
    fs::create_dir(&directory).into_diagnostic()?;
    let mut command = Command::new("postmark");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    println!("$ {}", line(&command));
    let mut child = command.spawn().into_diagnostic().wrap_err("postmark")?;
    let script = format!("set location {}\n{POSTMARK}run\nquit\n", directory.display());
    child.stdin.take().expect("it is piped").write_all(script.as_bytes()).into_diagnostic()?;
    let output = child.wait_with_output().into_diagnostic()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // It says so, and goes on.
    let is_good = output.status.success() && !said.to_lowercase().contains("error");
    let rate = said.lines().find(|line| line.contains("per second")).filter(|_| is_good);
    println!("{}", rate.ok_or_else(|| miette!("postmark: {}\n{said}", output.status))?.trim());
    let left = fs::read_dir(&directory).into_diagnostic()?.count();
    ensure!(left == 0, "postmark has left {left} files");
    Ok(())
}

/// Runs the stressors of stress-ng one after the other.
pub(super) fn stress(mounted: &mut Mounted) -> Result<()> {
    let mut failed = Vec::new();
    for stressor in STRESSORS.split_whitespace() {
        let mut command = Command::new("stress-ng");
        command.args([&format!("--{stressor}"), "2", "--timeout", STRESS_SECONDS, "--verify", "--quiet"]);
        command.arg("--temp-path").arg(&mounted.mount);
        let output = command.output().into_diagnostic().wrap_err("stress-ng")?;
        if !output.status.success() {
            println!("{}: {}\n{}", line(&command), output.status, String::from_utf8_lossy(&output.stderr));
            failed.push(stressor);
        }
    }
    ensure!(failed.is_empty(), "of the stressors have failed: {}", failed.join(", "));
    println!("stress-ng: {} stressors", STRESSORS.split_whitespace().count());
    Ok(())
}

/// Runs a command that must succeed, and prints the line of its output with these words, which must be there.
fn summary(command: &mut Command, words: &str) -> Result<()> {
    println!("$ {}", line(command));
    let said = process::output(command)?;
    let found = said.lines().find(|line| line.contains(words));
    println!("{}", found.ok_or_else(|| miette!("{}: no {words} in\n{said}", line(command)))?.trim());
    Ok(())
}
