//! `pm object` as a user runs it: every command, its output and exit codes, and that a killed import has stored the files that it reported.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;

use files::{Scratch, Value, flip};
use serde_json::json;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

/// The source code of this repository: many files of all lengths.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A directory with a few files, `in`.
fn scratch() -> Scratch {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("in/deep/er")).unwrap();
    fs::write(scratch.path("in/a"), b"the first").unwrap();
    fs::write(scratch.path("in/empty"), b"").unwrap();
    fs::write(scratch.path("in/deep/er/long"), vec![b'x'; 300_000]).unwrap();
    scratch
}

#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    let diff = Command::new("diff").arg("-r").args([one, other]).output().unwrap();
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
}

#[test]
fn files_are_imported_and_exported() {
    let scratch = scratch();
    assert_eq!(
        scratch.run(&["object", "import", "o.pmo", "in"], 0),
        "o.pmo: 3 files imported, 293.0 KiB: 3 created, 0 replaced, 0 unchanged\n"
    );
    assert_eq!(scratch.run(&["object", "ls", "o.pmo"], 0), "a\ndeep/er/long\nempty\n");
    assert_eq!(scratch.run(&["object", "ls", "o.pmo", "d", "-l"], 0), "      300000 deep/er/long\n");
    assert_eq!(scratch.run(&["object", "export", "o.pmo", "out"], 0), "o.pmo: 3 objects exported\n");
    assert_same(&scratch.path("in"), &scratch.path("out"));
    // Only what has changed is imported again.
    fs::write(scratch.path("in/a"), b"the other").unwrap();
    fs::write(scratch.path("in/new"), b"new").unwrap();
    let again = scratch.run(&["--json", "object", "import", "o.pmo", "in"], 0);
    let again: Value = serde_json::from_str(again.lines().last().unwrap()).unwrap();
    let expected = json!({
        "path": "o.pmo", "durable_files": 4, "created": 1, "replaced": 1, "unchanged": 2, "bytes": 300_012, "left_out": 0,
    });
    assert_eq!(again, expected);
    scratch.run(&["object", "export", "o.pmo", "out"], 0);
    assert_same(&scratch.path("in"), &scratch.path("out"));
    assert_eq!(
        scratch.run(&["object", "check", "o.pmo"], 0),
        "o.pmo: sound: the heap, the names and 4 objects\n"
    );
}

#[test]
fn objects_are_put_read_renamed_and_deleted() {
    let scratch = scratch();
    assert!(
        scratch.run(&["object", "create", "o.pmo", "--size", "16M"], 0).starts_with("o.pmo: 0 objects\n")
    );
    assert_eq!(scratch.run(&["object", "put", "o.pmo", "n", "in/a"], 0), "o.pmo: object \"n\": 9 bytes\n");
    assert_eq!(scratch.run(&["object", "get", "o.pmo", "n"], 0), "the first");
    let mut child = scratch.start(&["object", "put", "o.pmo", "n", "-"]);
    child.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    assert!(child.wait().unwrap().success());
    scratch.run(&["object", "get", "o.pmo", "n", "-o", "out"], 0);
    assert_eq!(fs::read(scratch.path("out")).unwrap(), b"from a pipe");
    let stat = scratch.json(&["object", "stat", "o.pmo", "n"], 0);
    assert_eq!((&stat["len"], &stat["element_bytes"], &stat["chunks"]), (&json!(11), &json!(1), &json!(1)));
    assert_eq!(
        scratch.run(&["object", "mv", "o.pmo", "n", "m"], 0),
        "o.pmo: object \"n\": renamed to \"m\"\n"
    );
    scratch.run(&["object", "put", "o.pmo", "n", "in/a"], 0);
    let exists = scratch.run(&["object", "mv", "o.pmo", "n", "m"], 1);
    assert!(exists.contains("object \"m\": there is an object with this name"), "{exists}");
    assert_eq!(scratch.run(&["object", "rm", "o.pmo", "n", "m"], 0).lines().count(), 2);
    for command in [
        &["get", "o.pmo", "n"][..],
        &["rm", "o.pmo", "n"],
        &["mv", "o.pmo", "n", "k"],
        &["stat", "o.pmo", "n"],
    ] {
        let missing = scratch.run(&[&["object"], command].concat(), 1);
        assert!(missing.contains("there is no such object"), "{missing}");
    }
    assert_eq!(scratch.json(&["object", "stat", "o.pmo"], 0)["objects"], json!(0));
}

#[test]
fn objects_are_pinned() {
    let scratch = scratch();
    fs::write(scratch.path("contents"), vec![7; 100_000]).unwrap();
    scratch.json(&["object", "create", "t.pmo", "--size", "4M", "--file-size", "4M"], 0);
    scratch.json(&["object", "put", "t.pmo", "n", "contents"], 0);
    let file_used = || scratch.json(&["object", "stat", "t.pmo"], 0)["file_used_bytes"].clone();
    for (tier, pinned, used) in
        [("file", json!("file"), 25 * 4096), ("pool", json!("pool"), 0), ("none", json!(null), 0)]
    {
        assert_eq!(scratch.json(&["object", "pin", "t.pmo", "n", tier], 0)["pinned"], pinned);
        assert_eq!(file_used(), json!(used), "{tier}");
        scratch.json(&["object", "check", "t.pmo"], 0);
    }
    scratch.json(&["object", "create", "o.pmo", "--size", "4M"], 0);
    scratch.json(&["object", "put", "o.pmo", "n", "contents"], 0);
    let refused = scratch.run(&["object", "pin", "o.pmo", "n", "file"], 1);
    assert!(refused.contains("no such tier"), "{refused}");
}

#[test]
fn what_cannot_be_done_is_said() {
    let scratch = scratch();
    let missing = scratch.run(&["object", "ls", "none.pmo"], 1);
    assert!(missing.contains("pm object create none.pmo"), "{missing}");
    scratch.run(&["store", "create", "s.pm", "--size", "16M"], 0);
    let store = scratch.run(&["object", "ls", "s.pm"], 1);
    assert!(store.contains("holds no objects"), "{store}");
    // Names that are no paths below a directory.
    scratch.run(&["object", "create", "o.pmo", "--size", "16M"], 0);
    for name in ["../out", "/out", "a/../b", "./a", "a//b", "good"] {
        scratch.run(&["object", "put", "o.pmo", name, "in/a"], 0);
    }
    let refused = scratch.run(&["object", "export", "o.pmo", "out"], 1);
    assert!(refused.contains("5 objects were not exported"), "{refused}");
    assert_eq!(fs::read_dir(scratch.path("out")).unwrap().count(), 1);
    assert!(!scratch.path("out/../../out").exists());
    // Files that cannot be objects.
    fs::write(scratch.path("in").join(std::ffi::OsStr::from_bytes(b"\xff")), b"").unwrap();
    fs::write(scratch.path("in/deep").join("n".repeat(252)), b"").unwrap();
    std::os::unix::fs::symlink("nowhere", scratch.path("in/dangling")).unwrap();
    let left_out = scratch.run(&["object", "import", "i.pmo", "in"], 1);
    assert!(left_out.contains("3 files were left out"), "{left_out}");
    assert_eq!(scratch.json(&["object", "stat", "i.pmo"], 0)["objects"], json!(3));
    // A file that may not grow.
    fs::write(scratch.path("in/longer"), vec![1; 20 << 20]).unwrap();
    let full = scratch.run(&["object", "import", "f.pmo", "in", "--size", "8M", "--max-size", "16M"], 1);
    assert!(full.contains("the pool is full") && full.contains("are durable"), "{full}");
    scratch.run(&["object", "check", "f.pmo"], 0);
}

#[test]
fn corruption_ends_with_its_status() {
    let scratch = scratch();
    scratch.run(&["object", "import", "o.pmo", "in", "--size", "8M"], 0);
    let bytes = fs::read(scratch.path("o.pmo")).unwrap();
    let tag = (0..bytes.len()).step_by(64).find(|at| bytes[*at..*at + 4] == *b"OBJT").unwrap();
    flip(&scratch.path("o.pmo"), tag as u64 + 9);
    let check = scratch.run(&["object", "check", "o.pmo"], 3);
    assert!(check.contains("an object's block is corrupted at offset"), "{check}");
    let found = scratch.json(&["object", "check", "o.pmo"], 3);
    assert_eq!(found["clean"], json!(false));
    let read =
        ["a", "deep/er/long", "empty"].map(|name| scratch.run_any(&["object", "get", "o.pmo", name]).0);
    assert_eq!(read.iter().filter(|code| **code == Some(3)).count(), 1, "{read:?}");
    assert_eq!(read.iter().filter(|code| **code == Some(0)).count(), 2, "{read:?}");
    // An import replaces it.
    scratch.run(&["object", "import", "o.pmo", "in"], 0);
    scratch.run(&["object", "export", "o.pmo", "out"], 0);
    assert_same(&scratch.path("in"), &scratch.path("out"));
}

#[test]
fn killed_imports_keep_what_they_reported() {
    check_killed_imports(&["--size", "8M"]);
}

/// As before, and most of the contents move to a second file.
#[test]
fn killed_imports_into_two_tiers_keep_what_they_reported() {
    let scratch = check_killed_imports(&["--size", "4M", "--file-size", "256M"]);
    let stat = scratch.json(&["object", "stat", "o.pmo"], 0);
    assert!(stat["file_used_bytes"].as_u64().unwrap() > 2 << 20, "{stat}");
    fs::rename(scratch.path("o.pmo.file"), scratch.path("other")).unwrap();
    let missing = scratch.run(&["object", "ls", "o.pmo"], 1);
    assert!(missing.contains("o.pmo.file, cannot be opened"), "{missing}");
}

/// An import is killed again and again: the files that it reported are there, in the order of their names, each whole, and the last import completes it.
fn check_killed_imports(sizes: &[&str]) -> Scratch {
    let scratch = Scratch::new();
    let import = [&["--json", "object", "import", "o.pmo", SOURCES], sizes].concat();
    let durable =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["durable_files"].as_u64().unwrap();
    let mut reported = 0;
    for kill in 0..4 {
        let mut child = scratch.start(&import);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        // The pool is complete before the first report.
        let mut last = durable(&lines.next().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(30 * kill));
        child.kill().unwrap();
        last = lines.last().map_or(last, |line| durable(&line));
        let was_killed = child.wait().unwrap().signal() == Some(9);
        reported = if was_killed { last.max(reported) } else { last };
        let objects = scratch.run(&["object", "ls", "o.pmo"], 0).lines().count() as u64;
        assert!(objects >= last, "kill {kill}: {objects} of {last}");
        scratch.run(&["object", "check", "o.pmo"], 0);
    }
    let names = scratch.run(&["object", "ls", "o.pmo"], 0);
    let first: Vec<&str> = names.lines().take(usize::try_from(reported).unwrap()).collect();
    scratch.run(&["object", "export", "o.pmo", "part"], 0);
    for name in first {
        assert!(
            fs::read(scratch.path("part").join(name)).unwrap()
                == fs::read(Path::new(SOURCES).join(name)).unwrap(),
            "{name}"
        );
    }
    scratch.run(&import, 0);
    scratch.run(&["object", "export", "o.pmo", "out"], 0);
    assert_same(Path::new(SOURCES), &scratch.path("out"));
    scratch.run(&["object", "check", "o.pmo"], 0);
    scratch
}
