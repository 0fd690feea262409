//! The command as a user runs it: import, show, replay, minimise, and errors for bad input.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::Pmem as _;
use pm_crashsim::{Crash, Explorer, Image, Run, TraceFile};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Two values, and then a flag that promises both. Between them, something that has nothing to do with it.
const LOG: &str = "START|REGISTER_FILE;/mnt/pool;0x10000;0x1000;0x0\
    |STORE;0x10200;0x63;0x8|FLUSH;0x10200;0x40|FENCE\
    |STORE;0x10040;0x7;0x8;0x1091F6: publish (publish.c:10)|FLUSH;0x10040;0x40\
    |STORE;0x10080;0x8;0x8;0x1091FF: publish (publish.c:11)|FLUSH;0x10080;0x40|FENCE\
    |STORE;0x10000;0x1;0x8;0x109208: publish (publish.c:13)|FLUSH;0x10000;0x40|FENCE\
    |publish.END|STORE;0x10240;0x63;0x8|STOP\n";

/// Fails when the flag is there and a value is not.
const CHECK: &str = "word() { od -An -tu8 -j$1 -N8 \"$image\" | tr -d ' '; }
    image=$1
    [ $(word 0) = 0 ] && exit 0
    [ $(word 64) = 7 ] && [ $(word 128) = 8 ] && exit 0
    echo \"the flag is set, and the values are $(word 64) and $(word 128)\"
    exit 9";

/// The name of the crash in the output of `replay`.
fn crash_name(printed: &str) -> &str {
    printed.split("--crash ").nth(1).unwrap().split(' ').next().unwrap()
}

struct Scratch(TempDir);

impl Scratch {
    /// With the trace of a log in `run.pmc`.
    fn new(log: &str) -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        fs::write(scratch.path("run.log"), log).unwrap();
        scratch.run("import pmemcheck run.log -o run.pmc --ack-at publish.END", 0);
        scratch
    }

    /// Where the values are published without a flush of the second.
    fn faulty() -> Self {
        Self::new(&LOG.replace("|FLUSH;0x10080;0x40", ""))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs with the words of `args` and expects that exit code; returns the output, or for code 1 the error in one line.
    #[track_caller]
    fn run(&self, args: &str, code: i32) -> String {
        self.run_with(args, &[], code)
    }

    /// The same with further arguments, which may contain spaces.
    #[track_caller]
    fn run_with(&self, args: &str, further: &[&str], code: i32) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pmcrash"));
        command.args(args.split(' ')).args(further).current_dir(self.0.path()).env("NO_COLOR", "1");
        let output = command.output().unwrap();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        if code == 1 { err.split_whitespace().collect::<Vec<_>>().join(" ") } else { out }
    }

    /// The same, followed by the check.
    #[track_caller]
    fn checked(&self, args: &str, code: i32) -> String {
        self.run_with(args, &["--check", "sh", "-c", CHECK, "check", "{}"], code)
    }

    #[track_caller]
    fn json(&self, args: &str, code: i32) -> Vec<Value> {
        let lines = self.run(&format!("--json {args}"), code);
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[test]
fn correct_run_is_accepted() {
    let scratch = Scratch::new(LOG);
    let printed = scratch.checked("replay run.pmc", 0);
    assert!(
        printed.contains("every image was accepted: tried ") && printed.contains(" legal choices at "),
        "{printed}"
    );
    let printed = scratch.checked("replay run.pmc --model chunk8 --crash all", 0);
    assert!(printed.contains("every image was accepted"), "{printed}");
    // No image fails, so nothing is minimised.
    assert!(scratch.checked("minimise run.pmc -o small.pmc", 0).contains("every image was accepted"));
    assert!(!scratch.path("small.pmc").exists());
}

#[test]
fn bound_of_recoveries_is_kept_and_reported() {
    let scratch = Scratch::new(LOG);
    let bounded = |args: &str| scratch.checked(&format!("{args} --recoveries 5"), 0);
    let printed = bounded("replay run.pmc");
    assert!(printed.contains("every image of a sample was accepted: tried "), "{printed}");
    assert!(
        printed.contains(", 5 recoveries; the bounds are --choices 4096 and --recoveries 5"),
        "{printed}"
    );
    let printed = bounded("minimise run.pmc -o small.pmc");
    assert!(printed.starts_with("every image of a sample (the bounds are --choices 4096 and "), "{printed}");
    let printed = scratch.json("replay run.pmc --recoveries 5 --check true", 0);
    assert!(
        printed[0]["images"] == 5 && printed[0]["recoveries"] == 5 && printed[0]["exhaustive"] == false,
        "{printed:?}"
    );
    // A bound that is not reached makes no sample.
    let printed = scratch.checked("replay run.pmc --recoveries 1000", 0);
    assert!(printed.starts_with("every image was accepted: "), "{printed}");
    scratch.run("replay run.pmc --recoveries 0 --check true", 2);
}

/// What must not happen: images stay in the temporary folder when the command is stopped.
#[test]
fn stopped_command_leaves_no_images() {
    let scratch = Scratch::new(LOG);
    for signal in ["TERM", "INT", "HUP"] {
        let tmp = scratch.path("tmp");
        fs::create_dir_all(&tmp).unwrap();
        let started = scratch.path("started");
        let check = format!("touch {}; sleep 30", started.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_pmcrash"));
        command.args(["replay", "run.pmc", "--check", "sh", "-c", &check]).current_dir(scratch.0.path());
        let mut running = command.env("TMPDIR", &tmp).spawn().unwrap();
        while !started.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(fs::read_dir(&tmp).unwrap().count(), 1, "the folder of the images");
        let sent = Command::new("kill").args(["-s", signal, &running.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let ended = running.wait().unwrap();
        assert!(ended.code().is_none(), "SIG{signal} ends it: {ended}");
        assert_eq!(fs::read_dir(&tmp).unwrap().count(), 0, "SIG{signal}");
        fs::remove_file(&started).unwrap();
    }
}

#[test]
fn bound_of_time_is_reported() {
    let scratch = Scratch::new(LOG);
    let printed = scratch.run_with("replay run.pmc --seconds 1 --check", &["sh", "-c", "sleep 2"], 0);
    assert!(printed.contains("--seconds 1"), "{printed}");
}

#[test]
fn missing_flush_is_found_replayed_and_saved() {
    let scratch = Scratch::faulty();
    let printed = scratch.checked("replay run.pmc --save failure.pmc", 3);
    assert!(printed.contains("exit status: 9") && printed.contains("the values are 7 and 0"), "{printed}");
    assert!(printed.contains("publish.c:11"), "the report names the lost store: {printed}");
    let name = crash_name(&printed);
    assert!(name.starts_with("px86-line:"), "{name}");

    scratch.checked(&format!("replay run.pmc --crash {name}"), 3);
    assert!(scratch.checked("replay failure.pmc", 3).contains("the recorded crash: rejected"));
    scratch.run(&format!("replay run.pmc --crash {name} -o named.img"), 0);
    scratch.run("replay failure.pmc -o recorded.img", 0);
    let image = fs::read(scratch.path("recorded.img")).unwrap();
    assert_eq!(image, fs::read(scratch.path("named.img")).unwrap());
    assert_eq!((image.len(), image[0], image[64], image[128]), (4096, 1, 7, 0));
}

#[test]
fn failing_trace_is_minimised() {
    let scratch = Scratch::faulty();
    let printed = scratch.checked("minimise run.pmc -o small.pmc", 3);
    assert!(printed.contains("exit status: 9"), "{printed}");
    let shown = scratch.json("show small.pmc", 0);
    let kinds: Vec<&str> = shown.iter().filter_map(|line| line["kind"].as_str()).collect();
    // Both values and the flag, for with nothing lost it must be in order. The first crash that is found loses what it may after the
    // flag was persisted: the first value and the flag are durable by a flush each, and one fence is enough for both.
    assert_eq!(kinds, ["store", "flush", "store", "store", "flush", "fence"]);
    assert!(printed.contains("small.pmc: 6 of 11 events, 1 of 1 lost lines"), "{printed}");
    assert!(scratch.checked("replay small.pmc", 3).contains("rejected"));
}

#[test]
fn listing_has_events_points_and_places() {
    let scratch = Scratch::faulty();
    let printed = scratch.run("show run.pmc", 0);
    assert!(
        printed.starts_with("run.pmc: 4096 bytes, px86-line, 12 events of 1 threads, 0 crashes"),
        "{printed}"
    );
    assert!(printed.contains("publish.c:13") && printed.contains("2 legal images"), "{printed}");
    let lines = scratch.json("show run.pmc --kind store --lines 0..2", 0);
    let offsets: Vec<u64> = lines.iter().filter_map(|line| line["offset"].as_u64()).collect();
    assert_eq!(offsets, [0x40, 0]);
    assert_eq!(lines.iter().find(|line| line["offset"] == 0x40).unwrap()["data"], "0700000000000000");
    assert!(lines.iter().any(|line| line["legal"] == "4" && line["pending_lines"] == 2), "{lines:?}");

    assert_eq!(scratch.run("filter run.pmc -o few.pmc --events 3..6", 0), "few.pmc: 3 of 12 events\n");
    let few = scratch.json("show few.pmc", 0);
    assert_eq!(few[0]["events"], 3);
    let none = scratch.json("show run.pmc --thread 7", 0);
    assert!(none.iter().all(|line| line["kind"].is_null()));
}

#[test]
fn errors_have_reasons_and_help() {
    let scratch = Scratch::new(LOG);
    let mut corrupted = fs::read(scratch.path("run.pmc")).unwrap();
    corrupted[30] ^= 1;
    fs::write(scratch.path("corrupted.pmc"), &corrupted).unwrap();
    let two = "START|REGISTER_FILE;/a;0x0;0x40;0x0|REGISTER_FILE;/b;0x40;0x40;0x0|STOP";
    fs::write(scratch.path("two.log"), two).unwrap();
    fs::write(scratch.path("odd.log"), "START|WHAT;0x0|STOP").unwrap();
    for (args, printed) in [
        ("show nothing.pmc", "nothing.pmc: reading failed: No such file"),
        ("show run.log", "pmcrash import"),
        ("show corrupted.pmc", "corrupted"),
        ("replay run.pmc --check /nonexistent/recover", "running /nonexistent/recover: No such file"),
        ("replay run.pmc -o x.img", "none"),
        ("replay run.pmc --crash page:0:1.1 -o x.img", "names no crash"),
        ("replay run.pmc --crash px86-line:0:99+0 -o x.img", "no crash"),
        ("import pmemcheck two.log -o x.pmc", "--file chooses"),
        ("import pmemcheck two.log -o ./two.log", "over the log"),
        ("import pmemcheck odd.log -o x.pmc", "line 1, record 1 (\"WHAT;0x0\"): it is of no known kind"),
    ] {
        let error = scratch.run(args, 1);
        assert!(error.contains(printed), "{args}: {error}");
    }
    scratch.run("replay run.pmc", 2);
    scratch.run("show run.pmc --lines x", 2);
    assert_eq!(fs::read_to_string(scratch.path("two.log")).unwrap(), two, "not overwritten");
}

#[test]
fn import_starts_from_the_given_image() {
    let scratch = Scratch::new(LOG);
    fs::write(scratch.path("before"), [5; 5000]).unwrap();
    let printed = &scratch.json("import pmemcheck run.log -o run.pmc --start before", 0)[0];
    assert_eq!((&printed["stores"], &printed["region_bytes"]), (&5.into(), &5056.into()));
    // There is no recovery, so the first image is rejected, in which nothing was kept.
    let printed = scratch.run("replay run.pmc --check false", 3);
    scratch.run(&format!("replay run.pmc --crash {} -o first.img", crash_name(&printed)), 0);
    let image = fs::read(scratch.path("first.img")).unwrap();
    assert_eq!((image.len(), image[0x200], image[4999], image[5000]), (5056, 5, 5, 0));
}

/// A failure that pm-crashsim found, in the second of two crashes.
#[test]
fn crashes_inside_of_recovery_are_shown_and_written() {
    let scratch = Scratch::new(LOG);
    let operation = |run: &Run<()>| run.pmem().store_u64(0, 1);
    let check = |crash: &Crash<()>| {
        let pmem = crash.pmem();
        if pmem.load_u64(0) == 1 && pmem.load_u64(64) == 0 {
            pmem.store_u64(64, 2);
            pmem.persist(64, 8).map_err(|error| error.to_string())?; // teeth: stopped half way with it or without
            pmem.store_u64(0, 3);
        }
        if crash.crashes() == 2 && pmem.load_u64(0) == 1 {
            Err("stopped half way".to_owned())
        } else {
            Ok(())
        }
    };
    let failure = Explorer::default().explore(&Image::zeroed(4096), operation, check).unwrap_err();
    TraceFile::from_failure(&failure).unwrap().save(scratch.path("nested.pmc")).unwrap();

    let printed = scratch.run("show nested.pmc", 0);
    assert!(
        printed.contains("2 crashes\n  stopped half way") && printed.contains("\nrecovery from crash 1:\n"),
        "{printed}"
    );
    let lines = scratch.json("show nested.pmc --kind store", 0);
    let stores = lines.iter().filter(|line| line["kind"] == "store");
    let stores: Vec<_> = stores.map(|line| (line["level"].as_u64(), line["offset"].as_u64())).collect();
    assert_eq!(stores, [(Some(0), Some(0)), (Some(1), Some(64)), (Some(1), Some(0))]);
    scratch.run("replay nested.pmc -o last.img", 0);
    let image = fs::read(scratch.path("last.img")).unwrap();
    assert_eq!((image[0], image[64]), (1, 2), "the second crash, not the first");
    let check = ["--check", "sh", "-c", "[ $(od -An -tu1 -N1 $1) != 1 ]", "check"];
    scratch.run_with("minimise nested.pmc -o small.pmc", &check, 3);
    assert_eq!(scratch.json("show small.pmc", 0)[0]["crashes"], 1, "of the recovery");
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let scratch = Scratch::new(LOG);
    assert!(scratch.run("completions bash", 0).contains("pmcrash"));
    scratch.run("man .", 0);
    for page in ["pmcrash.1", "pmcrash-replay.1"] {
        assert!(fs::read_to_string(scratch.path(page)).unwrap().contains(".TH"), "{page}");
    }
}

/// The check of a real program, `list.c`, over the image alone: the nodes of a list in a libpmemobj pool, and their count.
const LIST_CHECK: &str = "word() { od -An -tu8 -j$1 -N8 \"$image\" | tr -d ' '; }
    image=$1
    count=$(word $((0x3c0550))) nodes=0 node=$(word $((0x3c0598)))
    while [ $node != 0 ]; do
        nodes=$((nodes + 1))
        node=$(word $((node + 16)))
    done
    [ $count = $nodes ] || [ $count = $((nodes + 1)) ] && exit 0
    echo \"count $count, nodes $nodes\"
    exit 1";

#[test]
fn bug_of_a_real_program_is_found_at_its_line() {
    let logs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../pm-crashsim/tests/fixtures");
    let scratch = Scratch(tempfile::tempdir().unwrap());
    for (log, code) in [("list_fixed.pmemcheck.log", 0), ("list_bug.pmemcheck.log", 3)] {
        let log = logs.join(log);
        let printed = scratch.run_with("import pmemcheck -o run.pmc", &[log.to_str().unwrap()], 0);
        assert!(printed.contains("70 stores"), "{printed}");
        let check = ["--check", "sh", "-c", LIST_CHECK, "check", "{}"];
        let printed = scratch.run_with("replay run.pmc", &check, code);
        if code == 3 {
            assert!(printed.contains("count 0, nodes 1") && printed.contains("list.c:28"), "{printed}");
        }
    }
}
