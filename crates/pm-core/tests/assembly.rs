//! The machine code of one persist: the seam compiles to bare instructions, without calls on the fast path. The test prints the code.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `examples/one_persist.rs` with optimization, and returns its assembly. The build is in a separate package, because for an example of this
/// package cargo would build all dev-dependencies.
fn assembly() -> String {
    let package = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("assembly");
    let pm_core = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("Cargo.toml"), manifest(pm_core)).unwrap();
    // The same versions of dependencies as in the workspace.
    fs::copy(pm_core.join("../../Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let built = Command::new(env!("CARGO"))
        .args(["rustc", "--release", "--quiet", "--target-dir", "target"])
        .args(["--", "--emit", "asm", "-C", "codegen-units=1"])
        .current_dir(&package)
        .status()
        .unwrap();
    assert!(built.success());
    let newest = |dir: &Path| {
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let assembly = files.filter(|path| path.extension().is_some_and(|extension| extension == "s"));
        assembly.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap()
    };
    fs::read_to_string(newest(&package.join("target/release/deps"))).unwrap()
}

fn manifest(pm_core: &Path) -> String {
    let example = pm_core.join("examples/one_persist.rs");
    format!(
        "[package]\nname = \"one_persist\"\nedition = \"2024\"\n\n[[bin]]\nname = \"one_persist\"\npath = {example:?}\n\n\
         [dependencies]\npm-core = {{ path = {pm_core:?} }}\n\n[workspace]\n"
    )
}

/// The instructions of a function, without directives and comments.
fn function<'a>(assembly: &'a str, name: &str) -> Vec<&'a str> {
    let start = assembly.find(&format!("\n{name}:\n")).unwrap_or_else(|| panic!("no function {name}"));
    let body = &assembly[start..];
    let body = &body[..body.find(".cfi_endproc").unwrap()];
    let lines = body.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '.']));
    lines.filter(|line| !line.ends_with(':')).collect()
}

fn count(body: &[&str], mnemonic: &str) -> usize {
    body.iter().filter(|line| line.split_whitespace().next() == Some(mnemonic)).count()
}

#[test]
fn persist_compiles_to_bare_instructions() {
    let assembly = assembly();
    for (name, moves) in [("store_and_persist", "clwb"), ("stream", "vmovntdq"), ("replace_pair", "vmovdqa")]
    {
        let body = function(&assembly, name);
        println!("{name}:\n    {}", body.join("\n    "));
        assert_eq!(count(&body, "sfence"), 1, "{name}: exactly one fence");
        assert!(count(&body, moves) >= 1, "{name}: {moves} must be inlined");
        // The remaining calls are those of the panics for a range outside the region and for an unaligned pair, of the copies of parts of words, and,
        // in the page domain, of msync, after the check that this process is not a child of fork(2).
        let calls: Vec<_> = body.iter().filter(|line| line.starts_with("call")).collect();
        let expected = |call: &str| {
            ["out_of_range", "panic_fmt", "page_sync", "is_own", "store_each_piece"]
                .iter()
                .any(|part| call.contains(part))
        };
        assert!(calls.iter().all(|call| expected(call)), "{name}: unexpected calls in {calls:?}");
    }
    let body = function(&assembly, "replace_pair");
    assert_eq!(count(&body, "vmovdqa"), 1, "one vector store for both words");
    assert!(
        body.iter().any(|line| line.starts_with("lock") && line.contains("cmpxchg16b")),
        "or one locked exchange"
    );
}
