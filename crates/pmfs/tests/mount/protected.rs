//! Protected mounts: they are as others are, strays of their servers reach no file, and options without effect are refused.

use crate::common::{pmfs, run};
use crate::mounted::Mount;
use crate::{call_linux, call_the_system, survive_kills};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// All protections that need no protection keys.
const OPTIONS: [&[&str]; 6] = [
    &["--protect", "page-table"],
    &["--protect", "page-table", "--protect-reads", "--window", "64K"],
    &["--protect", "async", "--protect-after", "100"],
    &["--protect", "unmapped"],
    &["-o", "protect=private-map"],
    &["--protect", "unmapped", "--on-stray", "log", "--emulate", "optane"],
];

#[test]
fn calls_work_over_every_protection() {
    for options in OPTIONS {
        call_the_system(Mount::with_options("64M", options));
        call_linux(Mount::with_options("64M", options));
    }
}

#[test]
fn files_survive_the_kill_of_protected_servers() {
    for options in OPTIONS {
        survive_kills(Mount::with_options("64M", options), 2);
    }
}

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// The contents of the file that nothing changes; no two pages are the same.
fn resting() -> Vec<u8> {
    (0..PAGES * PAGE / 8).flat_map(|word| (word as u64 | 0x5EED << 48).to_le_bytes()).collect()
}

/// The addresses in the server of the pages of the resting file. The server is idle: all mappings of the pool are parts of one.
fn resting_addresses(mount: &Mount) -> Vec<u64> {
    let pool = fs::read(mount.file()).unwrap();
    let maps = fs::read_to_string(format!("/proc/{}/maps", mount.server.as_ref().unwrap().id())).unwrap();
    let name = mount.file().display().to_string();
    let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
    let bases: Vec<u64> = maps
        .lines()
        .filter(|line| line.ends_with(&name))
        .map(|line| hex(line.split('-').next().unwrap()) - hex(line.split_whitespace().nth(2).unwrap()))
        .collect();
    assert!(!bases.is_empty() && bases.iter().all(|base| *base == bases[0]), "{maps}");
    let find =
        |page: &[u8]| bases[0] + (pool.chunks(PAGE).position(|found| found == page).unwrap() * PAGE) as u64;
    resting().chunks(PAGE).map(find).collect()
}

/// Stores of a debugger in the place of a bug: the kernel makes them in the server's memory, with the rights that the server's own stores have, except that the
/// kernel has no protection keys. Returns how many were refused, and how many bytes of the resting file are wrong at the end.
fn strays(mut mount: Mount, count: usize) -> (usize, usize) {
    fs::write(mount.path("resting"), resting()).unwrap();
    let addresses = resting_addresses(&mount);
    let memory = format!("/proc/{}/mem", mount.server.as_ref().unwrap().id());
    let memory = File::options().write(true).open(memory).unwrap();
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let refused = std::thread::scope(|threads| {
        let work = threads.spawn(|| {
            while !is_over.load(Relaxed) {
                fs::write(mount.path("draft"), [1; 20_000]).unwrap();
                fs::rename(mount.path("draft"), mount.path("file")).unwrap();
                rounds.fetch_add(1, Relaxed);
            }
        });
        let stray = |number: &usize| {
            let address = addresses[number % PAGES] + (number / PAGES) as u64;
            memory.write_at(&[0xA5], address).is_err()
        };
        let mut refused = (0..count / 2).filter(stray).count();
        while rounds.load(Relaxed) < 3 && !work.is_finished() {
            std::thread::yield_now();
        }
        refused += (count / 2..count).filter(stray).count();
        is_over.store(true, Relaxed);
        work.join().unwrap();
        refused
    });
    mount.stop();
    mount.check();
    let output = pmfs().arg("cat").arg(mount.file()).arg("/resting").output().unwrap();
    assert!(output.status.success() && output.stdout.len() == PAGES * PAGE);
    let wrong = output.stdout.iter().zip(resting()).filter(|(found, written)| **found != *written);
    (refused, wrong.count())
}

#[test]
fn strays_of_the_server_reach_files_without_protection_only() {
    const COUNT: usize = 1000;
    // Longer windows than a page may be over pages of two files.
    for options in OPTIONS.into_iter().filter(|options| !options.contains(&"--window")) {
        let (refused, wrong) = strays(Mount::with_options("64M", options), COUNT);
        println!("{options:?}: {refused} of {COUNT} strays refused, {wrong} bytes wrong");
        assert_eq!((refused, wrong), (COUNT, 0), "{options:?}");
    }
    let (refused, wrong) = strays(Mount::new(), COUNT);
    println!("none: {refused} of {COUNT} strays refused, {wrong} bytes wrong");
    assert!(refused == 0 && wrong > COUNT * 9 / 10, "{refused} refused, {wrong} wrong");
}

/// Before a server is started, except that a machine without protection keys says so when the file system is opened.
#[test]
fn options_without_effect_are_refused() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (file, directory) = (dir.path().join("disk.pm"), dir.path().join("mount"));
    fs::create_dir(&directory).unwrap();
    run(pmfs().args(["mkfs", "--size", "16M"]).arg(&file));
    let before = fs::read(&file).unwrap();
    let mount = |options: &[&str]| -> Output {
        let output = pmfs().arg("mount").arg(&file).arg(&directory).args(options).output().unwrap();
        assert!(!output.status.success(), "{options:?}: {output:?}");
        assert!(fs::read(&file).unwrap() == before, "{options:?}");
        output
    };
    let text = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stderr).replace(['\n', '│'], " ");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (options, words) in [
        (&["-o", "ro", "--protect", "unmapped"][..], "no store reaches it, and --protect has no effect"),
        (&["-o", "ro,protect=page-table"], "no store reaches it, and --protect has no effect"),
        (&["--protect", "none", "--protect-reads"], "have no effect with --protect none"),
        (&["--protect", "none", "--protect-after", "7"], "have no effect with --protect none"),
        (&["--protect", "unmapped", "--window", "8K"], "--window is for --protect page-table and async"),
        (&["--protect", "page-table", "--protect-after", "7"], "--protect-after is for --protect async"),
        (&["--protect", "page-table", "--window", "5000"], "windows have a power of two of bytes, not 5000"),
        (&["-o", "protect=mprotect"], "mprotect is no protection"),
        (&["--rdsx", "0.1"], ""),
    ] {
        let output = mount(options);
        assert_eq!(output.status.code(), Some(1), "{options:?}: {output:?}");
        assert!(text(&output).contains(words), "{options:?}: {}", text(&output));
    }
    for options in [&["--window", "8K"][..], &["--protect-reads"], &["--on-stray", "log"]] {
        assert!(text(&mount(options)).contains("--protect <METHOD>"), "{options:?}");
    }
    if !has_protection_keys() {
        assert!(text(&mount(&["--protect", "pkey"])).contains("protection keys are not to be had"));
    }
}

/// Whether the CPU and the kernel have protection keys, of which /proc/cpuinfo says so.
fn has_protection_keys() -> bool {
    fs::read_to_string("/proc/cpuinfo").unwrap().split_whitespace().any(|flag| flag == "ospke")
}

/// Options of the command line reach the server in the background, and it says what it does.
#[test]
fn background_server_is_protected() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (file, directory) = (Path::new("disk.pm"), dir.path().join("mount"));
    fs::create_dir(&directory).unwrap();
    run(pmfs().args(["mkfs", "--size", "16M"]).arg(file).current_dir(dir.path()));
    let options = ["--protect", "page-table", "--protect-reads", "--emulate", "optane"];
    let mut command = pmfs();
    command.args(["--json", "mount"]).args(options).arg("--").arg(file).arg("mount").current_dir(dir.path());
    let json: serde_json::Value = serde_json::from_str(&run(&mut command)).unwrap();
    assert_eq!(json["protected"], "by page-table, against stray stores and loads");
    assert!(json["emulates"].as_str().unwrap().starts_with("optane"), "{json}");
    assert_eq!(json["file"], dir.path().join(file).display().to_string());
    fs::write(directory.join("new"), "written").unwrap();
    assert_eq!(fs::read(directory.join("new")).unwrap(), b"written");
    run(pmfs().arg("umount").arg(&directory));
}
