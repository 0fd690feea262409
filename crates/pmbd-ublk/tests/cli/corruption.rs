//! Files that are damaged, or of other versions.

use super::scratch::{Scratch, Server, flip, serve_refuses, text};
use pm_core::pool::format::Header;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;

#[test]
fn truncated_pool_is_refused() {
    let scratch = Scratch::new();
    let path = scratch.create();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(512 << 10).unwrap();
    serve_refuses(&scratch, &path, "the pool is truncated: it has 524288 bytes of 1064960");
    file.set_len(5000).unwrap();
    serve_refuses(&scratch, &path, "the size of 5000 bytes is not a multiple of 4096");
    file.set_len(0).unwrap();
    serve_refuses(&scratch, &path, "this is not a pool");
}

#[test]
fn corrupted_header_is_restored_and_reported() {
    let scratch = Scratch::new();
    let path = scratch.create();
    flip(&path, 70);
    let checked = scratch.run(&["check", "disk.pm"]);
    assert_eq!(checked.status.code(), Some(3));
    assert!(text(&checked.stdout).contains("its backup was used"), "{}", text(&checked.stdout));
    assert!(text(&checked.stdout).contains("--repair"), "a check alone repairs nothing");
    assert_eq!(scratch.run(&["check", "disk.pm"]).status.code(), Some(3));
    assert_eq!(scratch.run(&["check", "disk.pm", "--repair"]).status.code(), Some(3));
    assert_eq!(scratch.run(&["check", "disk.pm"]).status.code(), Some(0));

    flip(&path, 70);
    let mut command = scratch.command(&["serve", "disk.pm", "--transport", "nbd"]);
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines: Vec<_> =
        BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok).take(6).collect();
    drop(Server(server));
    assert!(
        lines.iter().any(|line| line.contains("corruption") && line.contains("its backup was used")),
        "{lines:?}"
    );
}

/// A repair is reported even if other corruption is beyond repair. A pool without a disk is not changed.
#[test]
fn check_reports_header_and_descriptor_corruption() {
    let scratch = Scratch::new();
    let path = scratch.create();
    let sound = fs::read(&path).unwrap()[..4096].to_vec();
    flip(&path, 70);
    flip(&path, 8192 + 9);
    let check = |args: &[&str]| -> serde_json::Value {
        let output = scratch.run(&[&["--json", "check", "disk.pm"], args].concat());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for (args, repaired, corruption_count) in
        [(&[][..], false, 2), (&["--repair"], true, 2), (&["--repair"], false, 1), (&[], false, 1)]
    {
        let told = check(args);
        assert_eq!(told["repaired"], repaired, "{told}");
        assert_eq!(told["corruption"].as_array().unwrap().len(), corruption_count, "{told}");
        assert_eq!(fs::read(&path).unwrap()[..4096] == sound, repaired || corruption_count == 1);
    }

    let heap = scratch.path("heap.pm");
    let options = pm_core::RegionOptions::new().sparse(true);
    drop(pm_core::Pool::create(&heap, 8 << 20, &options, &pm_core::PoolOptions::new()).unwrap());
    let before = fs::metadata(&heap).unwrap().blocks();
    assert_eq!(scratch.run(&["check", "--repair", "heap.pm"]).status.code(), Some(1));
    assert_eq!(fs::metadata(&heap).unwrap().blocks(), before);
}

#[test]
fn two_corrupted_headers_are_refused() {
    let scratch = Scratch::new();
    let path = scratch.create();
    let len = fs::metadata(&path).unwrap().len();
    flip(&path, 70);
    flip(&path, len - 4096 + 70);
    serve_refuses(&scratch, &path, "both headers are corrupted");
    let checked = scratch.run(&["check", "disk.pm", "--repair"]);
    assert_eq!(checked.status.code(), Some(3));
    assert!(text(&checked.stdout).contains("nothing that could be restored"), "{}", text(&checked.stdout));
}

#[test]
fn other_pool_versions_are_refused() {
    let scratch = Scratch::new();
    let path = scratch.create();
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - size_of::<Header>();
    for (version, words, help) in [
        (3, "format version 3, and this program supports versions up to 2", "a newer pmbd can open it"),
        (
            1,
            "format version 1, and this program supports only version 2",
            "the pmbd of the version that made it",
        ),
    ] {
        for at in [0, last] {
            bytes[at + 8] = version;
            let crc = crc32c::crc32c(&bytes[at..at + 4092]);
            bytes[at + 4092..at + 4096].copy_from_slice(&crc.to_le_bytes());
        }
        fs::write(&path, &bytes).unwrap();
        serve_refuses(&scratch, &path, words);
        scratch.refuses(&["info", "disk.pm"], &[help]);
    }
}
