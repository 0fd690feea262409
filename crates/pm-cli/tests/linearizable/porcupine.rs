//! The checker Porcupine, a program in Go.

use super::checker::Verdict;
use super::history::Operation;
use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The time for a history, above which it is undecided.
const TIMEOUT: &str = "120s";

/// The built program. None if this machine has no Go, or not the module.
pub(crate) fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut places = env::split_paths(&path).chain([PathBuf::from("/usr/local/go/bin")]);
        let go = places.find_map(|place| Some(place.join("go")).filter(|go| go.is_file()));
        let Some(go) = go else {
            eprintln!(
                "Go is not on this machine: histories are checked by the checker in Rust alone, not by Porcupine"
            );
            return None;
        };
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("porcupine-check");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../system-tests/porcupine");
        let built = Command::new(go)
            .args(["build", "-mod=readonly", "-buildvcs=false", "-o"])
            .arg(&program)
            .arg(".")
            .current_dir(source)
            .output()
            .unwrap();
        if !built.status.success() {
            // Its module may be out of reach.
            let reason = String::from_utf8_lossy(&built.stderr);
            eprintln!(
                "Porcupine cannot be built, so histories are checked by the checker in Rust alone: {reason}"
            );
            return None;
        }
        Some(program)
    };
    BUILT.get_or_init(build).as_deref()
}

/// Writes a history as JSON lines.
pub(crate) fn write(history: &[Operation], path: &Path) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    for operation in history {
        serde_json::to_writer(&mut file, operation).unwrap();
        file.write_all(b"\n").unwrap();
    }
    file.flush().unwrap();
}

/// Checks the history in a file by the program.
pub(crate) fn check(program: &Path, history: &Path) -> BTreeMap<String, Verdict> {
    let checked = Command::new(program).args(["-timeout", TIMEOUT]).arg(history).output().unwrap();
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(
        matches!(checked.status.code(), Some(0..=2)),
        "{}: {}",
        checked.status,
        String::from_utf8_lossy(&checked.stderr)
    );
    let verdict = |line: &str| {
        let (verdict, key) = line.split_once(' ').unwrap();
        let verdict = match verdict {
            "ok" => Verdict::Linearizable,
            "illegal" => Verdict::Illegal("no order explains its history".to_owned()),
            "unknown" => Verdict::Undecided(format!("more than {TIMEOUT}")),
            _ => panic!("{line:?} is no verdict"),
        };
        (key.to_owned(), verdict)
    };
    text.lines().map(verdict).collect()
}
