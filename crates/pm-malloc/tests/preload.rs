//! Unmodified programs with the library preloaded: they behave as without it, and their blocks are in the file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{HeapFile, assert_silent, compiled, complaints, first_line, library, open, sound};
use pm_core::{Pmem, Pool, PoolOptions, RegionOptions};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs an exercise that prints no message, and checks its heap.
fn passes(name: &str) {
    let file = HeapFile::new();
    assert_silent(name, &file.exercise(name));
    sound(&file.path());
}

#[test]
fn functions_match_their_manuals() {
    let file = HeapFile::new();
    let output = file.exercise("functions");
    assert!(output.status.success(), "{}", complaints(&output));
    // The one unsupported case.
    let complaints = complaints(&output);
    assert!(complaints.contains("at multiples of 4096 bytes are volatile"), "{complaints}");
    assert_eq!(complaints.lines().count(), 1, "{complaints}");
}

/// By address, for C and C++, also with operators of the program's own.
#[test]
fn blocks_are_aligned_by_address() {
    let file = HeapFile::in_memory();
    let run = |flags: &[&str]| file.command(compiled("aligned.cc", flags)).output().unwrap();
    let output = run(&[]);
    assert!(output.status.success() && output.stdout == b"aligned\n", "{}", complaints(&output));
    // In a file of this length a chunk is shorter than the longest alignment.
    let complaint = complaints(&output);
    assert!(complaint.lines().count() <= 1 && complaint.contains("are volatile"), "{complaint}");
    let output = run(&["-DOWN_OPERATORS"]);
    assert!(output.status.success() && output.stdout == b"own operators\n", "{}", complaints(&output));
    sound(&file.path());
}

/// What must not happen: a module that is loaded with `RTLD_DEEPBIND` frees a block of the heap by glibc's `free`, which aborts the program.
#[test]
fn modules_use_the_heap_although_they_bind_deeply() {
    let (program, module) = (compiled("loads_module.c", &[]), compiled("module.c", &["-shared", "-fPIC"]));
    let file = HeapFile::in_memory();
    let output = file.command(&program).arg(&module).output().unwrap();
    assert_silent("loads a module", &output);
    assert_eq!(output.stdout, b"from the module, allocated there\n");
    sound(&file.path());
    let kept = file.command(&program).arg(&module).env("PM_MALLOC_DEEPBIND", "1").output().unwrap();
    assert!(!kept.status.success(), "glibc does not know the block");
    let missing = file.command(&program).arg("no such module").output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(complaints(&missing).contains("no such module"), "{}", complaints(&missing));
}

/// Blocks that grow to 4 MB in total by small steps. A single one has free space after it, and stays in place once it is long; several in
/// turn each move when they have grown by a part of their length. Moving at each step would copy 31 GB, or 3.9 GB with eight.
#[test]
fn growth_of_blocks_is_not_quadratic() {
    let growth = compiled("growth.c", &[]);
    for (blocks, limit) in [("1", 4_000_000), ("8", 40_000_000)] {
        let output = HeapFile::in_memory().command(&growth).arg(blocks).output().unwrap();
        assert!(output.status.success(), "{}", complaints(&output));
        let moved: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        println!("{blocks} blocks: {moved} bytes moved");
        assert!(moved <= limit, "{blocks} blocks: {moved} bytes moved");
    }
}

#[test]
fn file_takes_only_used_space() {
    use std::os::unix::fs::MetadataExt as _;
    let file = HeapFile::new();
    assert!(file.exercise("leave").status.success());
    let metadata = std::fs::metadata(file.path()).unwrap();
    assert_eq!(metadata.len(), 128 << 20);
    assert!(metadata.blocks() * 512 < 4 << 20, "{} bytes allocated", metadata.blocks() * 512);
    let whole = HeapFile::new();
    let mut command = whole.command(common::exercise());
    assert!(command.arg("leave").env("PM_MALLOC_SPARSE", "0").status().unwrap().success());
    assert!(std::fs::metadata(whole.path()).unwrap().blocks() * 512 >= 128 << 20);
}

#[test]
fn fresh_heap_replaces_only_a_heap() {
    let file = HeapFile::new();
    let leave = |fresh: &str| {
        let output =
            file.command(common::exercise()).arg("leave").env("PM_MALLOC_FRESH", fresh).output().unwrap();
        assert!(output.status.success());
        let complaint = complaints(&output);
        (complaint.is_empty()).then(|| sound(&file.path()).blocks().len()).ok_or(complaint)
    };
    let first = leave("1").unwrap();
    assert_eq!(leave("0"), Ok(2 * first), "the existing blocks stay");
    assert_eq!(leave("1"), Ok(first), "replaced");
    // Also by a symbolic link, which stays.
    let link = file.path().with_extension("link");
    std::os::unix::fs::symlink(file.path(), &link).unwrap();
    let mut by_link = file.command(common::exercise());
    assert!(
        by_link
            .arg("leave")
            .envs([("PM_MALLOC_FRESH", "1")])
            .env("PM_MALLOC_FILE", &link)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!((sound(&file.path()).blocks().len(), link.is_symlink()), (first, true));
    // A corrupted one too.
    let bytes = std::fs::read(file.path()).unwrap();
    std::fs::write(file.path(), [&bytes[..8192], &[0xff; 65536], &bytes[8192 + 65536..]].concat()).unwrap();
    assert!(leave("0").is_err());
    assert_eq!(leave("1"), Ok(first));
    let foreign = vec![b'x'; 1 << 20];
    std::fs::write(file.path(), &foreign).unwrap();
    assert!(leave("1").is_err());
    assert_eq!(std::fs::read(file.path()).unwrap(), foreign, "a file that is not a heap was changed");
    std::fs::remove_file(file.path()).unwrap();
    // Like a disk of pmbd.
    drop(Pool::create(file.path(), 1 << 20, &RegionOptions::new(), &PoolOptions::new()).unwrap());
    let disk = std::fs::read(file.path()).unwrap();
    let complaint = leave("1").unwrap_err();
    assert!(complaint.contains("no heap"), "{complaint}");
    assert_eq!(std::fs::read(file.path()).unwrap(), disk, "a pool that is not a heap was changed");
}

#[test]
fn realloc_keeps_contents() {
    passes("realloc");
}

#[test]
fn threads_free_blocks_of_others() {
    passes("threads");
}

#[test]
fn forked_child_has_own_copy() {
    passes("forks");
}

#[test]
fn full_heap_is_error() {
    let file = HeapFile::new();
    let output = file.command(common::exercise()).arg("full").env("PM_MALLOC_SIZE", "4M").output().unwrap();
    assert!(output.status.success(), "{}", complaints(&output));
}

/// The file system is full long before the sparse heap: allocations fail, but no store does, nor in the next process.
#[test]
fn full_file_system_is_error_and_no_signal() {
    let (file, directory) = (HeapFile::new(), tempfile::tempdir().unwrap());
    // In a mount namespace of its own; without root, as the root of a user namespace.
    let script = r#"mount -t tmpfs -o size=8m,mode=700 tmpfs "$0" || exit 77
        export PM_MALLOC_FILE="$0/heap" PM_MALLOC_SIZE=64M
        LD_PRELOAD="$1" "$2" full || exit
        # The heap that it leaves has a few free blocks, and is as full.
        LD_PRELOAD="$1" "$2" leave && LD_PRELOAD="$1" "$2" more || exit
        cp --sparse=always "$0/heap" "$3""#;
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["/bin/sh", "-c", script]).arg(directory.path()).arg(library()).arg(common::exercise());
    let output = command.arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, complaints(&output));
    let messages = complaints(&output);
    assert!(messages.lines().any(|line| line.contains("for a forked child in")), "{messages}");
    assert!(sound(&file.path()).blocks().len() > 100);
}

#[test]
fn misuse_is_reported_and_ignored() {
    let file = HeapFile::new();
    let output = file.exercise("misuse");
    assert!(output.status.success(), "{}", complaints(&output));
    let complaints = complaints(&output);
    let of =
        |function: &str| complaints.lines().filter(|line| line.contains(&format!("]: {function}: "))).count();
    // A double free, and frees inside of a block, not at a line, and with a corrupted header.
    assert_eq!((of("free"), of("realloc"), of("malloc_usable_size")), (4, 1, 1), "{complaints}");
    let heap = open(file.path()).unwrap();
    assert_eq!(heap.check().corruptions.len(), 1, "the overwritten header");
}

#[test]
fn blocks_of_ended_process_are_in_file() {
    let file = HeapFile::new();
    assert!(file.exercise("leave").status.success());
    let heap = sound(&file.path());
    let texts = heap.blocks().into_iter().map(|block| {
        let mut text = [0; 40];
        heap.pool().pmem().load(block, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut left: Vec<_> = texts.filter(|text| text.contains("of those that are left")).collect();
    left.sort();
    assert_eq!(left.len(), 10);
    assert!(left.iter().enumerate().all(|(index, text)| text.starts_with(&format!("block {index} "))));
}

#[test]
fn killed_process_leaves_sound_heap() {
    let file = HeapFile::new();
    for round in 0..5_u64 {
        let mut child =
            file.command(common::exercise()).arg("forever").stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(first_line(&mut child), "ready");
        std::thread::sleep(Duration::from_millis(20 + 7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let heap = open(file.path()).unwrap();
        let report = heap.check();
        assert!(report.is_clean(), "round {round}: {:?}", report.corruptions);
        assert!(report.allocated_blocks > 0);
        drop(heap);
        // The next one uses the same heap, or a new one.
        if round % 2 == 1 {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
}

#[test]
fn output_of_programs_is_unchanged() {
    let numbers = (0..20_000_u64).map(|n| n.wrapping_mul(2_654_435_761) % 100_003);
    let numbers: String = numbers.map(|n| format!("{n}\n")).collect();
    let scripts = [
        "ls -lR /usr/share/doc | cksum",
        "sort -n | uniq -c | sort -rn | tail -100",
        "sort --parallel=2 -S 64K | sed 's/1/one/g' | cksum",
        "awk '{ seen[$1 % 1000]++ } END { for (n = 0; n < 1000; n++) print n, seen[n] }'",
        "find /usr/bin /usr/share -maxdepth 1 2>&1 | sort | xargs -n 500 echo | cksum",
    ];
    for script in scripts {
        let run = |command: &mut Command| {
            let command = command.args(["-c", script]).env("LC_ALL", "C");
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let text = numbers.clone();
            // A script that reads no input closes the pipe.
            let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).is_ok());
            let output = child.wait_with_output().unwrap();
            writer.join().unwrap();
            assert_silent(script, &output);
            output.stdout
        };
        let directory = tempfile::tempdir().unwrap();
        let heaps = directory.path().join("%p");
        let mut preloaded = Command::new("/bin/sh");
        preloaded.env("LD_PRELOAD", library()).env("PM_MALLOC_FILE", heaps);
        preloaded.env("PM_MALLOC_SIZE", "16M").env("PM_MALLOC_KEEP", "1");
        assert_eq!(run(&mut preloaded), run(&mut Command::new("/bin/sh")), "{script}");
        let heaps: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(heaps.len() >= 2, "{script}: the shell's, and the others'");
        for heap in heaps {
            sound(&heap);
        }
    }
}

#[test]
fn missing_heap_is_reported() {
    let file = HeapFile::new();
    let echo = |command: &mut Command| {
        let output = command.arg("works").output().unwrap();
        assert_eq!(output.stdout, b"works\n");
        complaints(&output)
    };
    let unnamed = echo(Command::new("/bin/echo").env("LD_PRELOAD", library()));
    assert!(unnamed.contains("PM_MALLOC_FILE is not set; memory is volatile"), "{unnamed}");

    let foreign = vec![b'x'; 1 << 20];
    std::fs::write(file.path(), &foreign).unwrap();
    let complaint = echo(&mut file.command("/bin/echo"));
    assert!(complaint.contains("memory is volatile"), "{complaint}");
    assert_eq!(std::fs::read(file.path()).unwrap(), foreign, "a file that is not a heap was changed");
}

#[test]
fn file_in_use_is_refused() {
    let file = HeapFile::new();
    let mut first = file.command(common::exercise());
    first.arg("hold").env("PM_MALLOC_SIZE", "8M");
    let mut first =
        first.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut first), "ready");

    let before = std::fs::read(file.path()).unwrap();
    // The program runs with volatile memory, after one message.
    let second = file.exercise("leave");
    assert!(second.status.success(), "{}", second.status);
    let complaint = complaints(&second);
    let path = file.path().display().to_string();
    assert!(complaint.contains(&format!("]: {path}: is in use by another process; ")), "{complaint}");
    assert!(complaint.contains("%p in PM_MALLOC_FILE"), "{complaint}");
    assert!(complaint.ends_with("; memory is volatile\n"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    // The first one waits, so the file is unchanged.
    assert!(std::fs::read(file.path()).unwrap() == before, "the second one wrote into the file");

    drop(first.stdin.take());
    assert_silent("hold", &first.wait_with_output().unwrap());
    drop(sound(&file.path()));
    // Now the file is free.
    assert_eq!(complaints(&file.exercise("leave")), "");
}

#[test]
fn message_names_path_once() {
    let file = HeapFile::new();
    std::fs::create_dir(file.path()).unwrap();
    let output = file.command("/bin/echo").output().unwrap();
    let complaint = complaints(&output);
    assert!(output.status.success() && complaint.ends_with("; memory is volatile\n"), "{complaint}");
    assert_eq!(complaint.matches(&file.path().display().to_string()).count(), 1, "{complaint}");
}
