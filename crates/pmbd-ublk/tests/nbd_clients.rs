//! Common clients against a server in this process: `nbdinfo`, `nbdcopy` and fio's nbd engine.
//!
//! They are required: a missing one fails its test, and the message names the Debian package to install.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod nbd_common;

use nbd_common::{MIB, Server, engine, engine_over, pattern};
use pmbd::NbdOptions;
use std::io::ErrorKind;
use std::process::{Command, Output, Stdio};

/// Runs a client to its successful end, within a minute or two.
fn run(tool: &str, package: &str, args: &[&str]) -> Output {
    if let Err(error) = Command::new(tool).arg("--version").stdout(Stdio::null()).status() {
        assert_ne!(error.kind(), ErrorKind::NotFound, "`{tool}` is missing: apt-get install {package}");
        panic!("`{tool}` does not start: {error}");
    }
    let output = Command::new("timeout").args(["--kill-after=5", "120", tool]).args(args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{tool} {args:?}: {}\n{out}\n{err}", output.status);
    output
}

fn described() -> NbdOptions {
    NbdOptions { export_name: "pm0".into(), description: "persistent memory".into(), ..NbdOptions::default() }
}

#[test]
fn nbdinfo_reports_all_features() {
    let server = Server::start(engine(64 * MIB), described());
    let output = run("nbdinfo", "libnbd-bin", &["--json", &server.uri()]);
    let json = String::from_utf8(output.stdout).unwrap();
    for expected in [
        r#""protocol": "newstyle-fixed""#,
        r#""structured": true"#,
        r#""export-name": "pm0""#,
        r#""description": "persistent memory""#,
        r#""export-size": 67108864"#,
        r#""is_read_only": false"#,
        r#""can_df": true"#,
        r#""can_fast_zero": true"#,
        r#""can_flush": true"#,
        r#""can_fua": true"#,
        r#""can_multi_conn": true"#,
        r#""can_trim": true"#,
        r#""can_zero": true"#,
        r#""block_size_minimum": 1"#,
        r#""block_size_preferred": 4096"#,
        r#""block_size_maximum": 67108864"#,
    ] {
        assert!(json.contains(expected), "{expected} is missing:\n{json}");
    }
    let listed = run("nbdinfo", "libnbd-bin", &["--list", &server.uri()]);
    assert!(String::from_utf8(listed.stdout).unwrap().contains(r#"export="pm0""#));
}

#[test]
fn nbdinfo_reports_read_only_export() {
    let server = Server::start(engine(MIB).read_only(), described());
    run("nbdinfo", "libnbd-bin", &["--is", "read-only", &server.uri()]);
    run("nbdinfo", "libnbd-bin", &["--can", "flush", &server.uri()]);
}

#[test]
fn nbdcopy_round_trips_image() {
    let server = Server::start(engine(64 * MIB), described());
    let dir = tempfile::tempdir().unwrap();
    let (original, copy) = (dir.path().join("in"), dir.path().join("out"));
    let mut image = pattern(42, usize::try_from(64 * MIB).unwrap());
    image[1 << 20..8 << 20].fill(0);
    std::fs::write(&original, &image).unwrap();
    run("nbdcopy", "libnbd-bin", &["--flush", original.to_str().unwrap(), &server.uri()]);
    run("nbdcopy", "libnbd-bin", &[&server.uri(), copy.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == image, "the image came back different");
    assert!(server.counts().clients_total > 2, "nbdcopy used several connections");
    assert_eq!(server.counts().errors, 0);
}

#[test]
fn fio_verifies_at_depth_16() {
    let server = Server::start(engine(64 * MIB), described());
    fio_verify(&server, "64m");
}

#[test]
fn fio_verifies_with_write_back_cache() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let region = pm_core::RegionOptions::new().create(dir.path().join("disk.pm"), 16 * MIB).unwrap();
    let server = Server::start(engine_over(region), described());
    fio_verify(&server, "16m");
}

fn fio_verify(server: &Server, size: &str) {
    let uri = format!("--uri={}", server.uri());
    let size = format!("--size={size}");
    for (rw, bs) in [("--rw=randwrite", "--bs=4k"), ("--rw=randrw", "--bsrange=512-64k")] {
        let fixed =
            ["--name=verify", "--ioengine=nbd", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1"];
        let more = ["--do_verify=1", "--verify_state_save=0", "--fsync=64", "--randseed=7", "--minimal"];
        let args: Vec<&str> = fixed.into_iter().chain(more).chain([&uri, rw, bs, &size]).collect();
        run("fio", "fio", &args);
    }
    let counts = server.await_counts(|c| c.clients == 0);
    assert_eq!(counts.errors, 0);
    assert!(counts.written_bytes > 0 && counts.read_bytes > 0, "{counts:?}");
}

#[test]
fn client_killed_under_load_leaves_no_thread() {
    let server = Server::start(engine(64 * MIB), described());
    let uri = format!("--uri={}", server.uri());
    let mut fio = Command::new("fio")
        .args(["--name=load", "--ioengine=nbd", "--iodepth=16", "--rw=randrw", "--bs=4k", "--size=64m"])
        .args(["--time_based", "--runtime=60", "--thread", &uri])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("`fio` starts: apt-get install fio");
    server.await_counts(|c| c.requests > 100);
    fio.kill().unwrap();
    fio.wait().unwrap();
    server.await_counts(|c| c.clients == 0);
    run("nbdinfo", "libnbd-bin", &["--size", &server.uri()]);
}
