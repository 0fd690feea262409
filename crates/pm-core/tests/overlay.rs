//! Regions on volatile overlay file systems, and on one on a disk.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Domain, Medium, Pmem, RegionOptions};
use std::path::Path;
use std::process::Command;

/// Tells a child of the test where its overlay is mounted.
const MOUNTED: &str = "PM_CORE_TEST_OVERLAY";

/// Mounts an overlay in a separate process, and checks the domain of a region on it. `mount` is a script, whose `$0` is the directory of all
/// layers.
fn domain_on_overlay(test: &str, mount: &str, expected: Domain) {
    if let Some(dir) = std::env::var_os(MOUNTED) {
        let path = Path::new(&dir).join("data.pm");
        let region = RegionOptions::new().create(&path, 1 << 16).unwrap();
        assert_eq!((region.medium(), region.domain()), (Medium::File, expected));
        drop(region);
        // The same for an existing file.
        let region = RegionOptions::new().open(&path).unwrap();
        assert_eq!((region.medium(), region.domain()), (Medium::File, expected));
        return;
    }
    // On a disk. Layers in memory are mounted in it.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = format!(
        r#"cd "$0" && mkdir lower memory upper work merged && {mount} && exec "$1" "$2" --exact --nocapture"#
    );
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        // Without root, as the root of a user namespace.
        command.arg("--map-root-user");
    }
    command.args(["/bin/sh", "-c", &script]).arg(dir.path()).arg(std::env::current_exe().unwrap()).arg(test);
    let output = command.env(MOUNTED, dir.path().join("merged")).output().unwrap();
    let [told, failed] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{}: {told}{failed}", output.status);
    assert!(told.contains("1 passed"), "{told}");
}

#[test]
fn overlay_with_upper_layer_in_memory_is_volatile() {
    domain_on_overlay(
        "overlay_with_upper_layer_in_memory_is_volatile",
        r#"mount -t tmpfs tmpfs memory && mkdir memory/upper memory/work &&
        mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/memory/upper,workdir=$0/memory/work" merged"#,
        Domain::Volatile,
    );
}

#[test]
fn overlay_mounted_volatile_is_volatile() {
    domain_on_overlay(
        "overlay_mounted_volatile_is_volatile",
        r#"mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work,volatile" merged"#,
        Domain::Volatile,
    );
}

/// The counterpart of the tests above: not every overlay is volatile.
#[test]
fn overlay_on_disk_is_page_domain() {
    domain_on_overlay(
        "overlay_on_disk_is_page_domain",
        r#"mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work" merged"#,
        Domain::Page,
    );
}

/// The directory that the program runs in has one of the same name, in memory.
#[test]
fn overlay_that_was_mounted_by_relative_paths_is_as_the_disk() {
    domain_on_overlay(
        "overlay_that_was_mounted_by_relative_paths_is_as_the_disk",
        r#"mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged &&
        mount -t tmpfs tmpfs memory && mkdir memory/upper && cd memory"#,
        Domain::Page,
    );
}

/// The path of the upper layer leads to the overlay itself, and from there again.
#[test]
fn overlay_whose_upper_layer_seems_to_be_in_itself_is_as_the_disk() {
    domain_on_overlay(
        "overlay_whose_upper_layer_seems_to_be_in_itself_is_as_the_disk",
        r#"mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work" merged &&
        mkdir merged/upper merged/merged && mount --bind merged "$0""#,
        Domain::Page,
    );
}
