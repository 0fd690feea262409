//! `pm store` as a user runs it: every command, its output and exit codes, and that a killed load has stored the lines that it reported.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;

use files::{Scratch, Value, flip};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;

/// The rows of the long inputs.
const ROWS: u64 = 20_000;

/// SIGKILL.
const KILLED: Option<i32> = Some(9);

/// A directory with an empty store, `s.pm`.
fn store() -> Scratch {
    let scratch = Scratch::new();
    let output = scratch.run(&["store", "create", "s.pm", "--size", "64M"], 0);
    assert!(output.starts_with("s.pm: a store of 0 keys in 0 tables\n  space      "), "{output}");
    scratch
}

/// Rows of CSV in the order of their keys, some of them quoted.
fn csv_rows(count: u64) -> String {
    (0..count).fold(String::new(), |mut rows, row| {
        match row % 100 {
            0 => writeln!(rows, "k{row:05},\"a \"\"quoted\"\", value {row}\""),
            _ => writeln!(rows, "k{row:05},value {row}"),
        }
        .unwrap();
        rows
    })
}

/// Loads, and returns the last object that was printed.
#[track_caller]
fn load(scratch: &Scratch, args: &[&str]) -> Value {
    let output = scratch.run(&[&["--json", "store", "load"], args].concat(), 0);
    serde_json::from_str(output.lines().last().unwrap()).unwrap()
}

#[track_caller]
fn assert_has(text: &str, words: &[&str]) {
    words.iter().for_each(|words| assert!(text.contains(words), "{words:?} is not in: {text}"));
}

#[test]
fn keys_are_put_read_and_removed() {
    let scratch = store();
    assert_eq!(
        scratch.run(&["store", "put", "s.pm", "t", "ada", "3"], 0),
        "s.pm: table \"t\": \"ada\" inserted\n"
    );
    assert_eq!(
        scratch.run(&["store", "put", "s.pm", "t", "ada", "4"], 0),
        "s.pm: table \"t\": \"ada\" replaced\n"
    );
    assert_eq!(scratch.run(&["store", "get", "s.pm", "t", "ada"], 0), "4\n");
    assert_eq!(
        scratch.run(&["store", "remove", "s.pm", "t", "ada"], 0),
        "s.pm: table \"t\": \"ada\" removed\n"
    );
    for command in ["get", "remove"] {
        let error = scratch.run(&["store", command, "s.pm", "t", "ada"], 1);
        assert_has(&error, &["s.pm: table \"t\" has no key \"ada\""]);
    }
    assert_has(
        &scratch.run(&["store", "get", "s.pm", "u", "ada"], 1),
        &["there is no table \"u\"", "`pm store stat s.pm`"],
    );
}

#[test]
fn tables_have_types() {
    let scratch = store();
    for (key, value) in [("-5", "00ff"), ("-70", ""), ("7", "0a")] {
        scratch.run(&["store", "put", "s.pm", "n", key, value, "--key", "i64", "--value", "bytes"], 0);
    }
    scratch.run(&["store", "put", "s.pm", "u", "18446744073709551615", "x", "--key", "u64"], 0);
    scratch.run(&["store", "put", "s.pm", "b", "00FF", "-1", "--key", "bytes", "--value", "i64"], 0);
    assert_eq!(scratch.run(&["store", "scan", "s.pm", "n"], 0), "-70\t\n-5\t00ff\n7\t0a\n");
    assert_eq!(scratch.run(&["store", "scan", "s.pm", "b"], 0), "00ff\t-1\n");
    assert_eq!(
        scratch.json(&["store", "get", "s.pm", "n", "-5"], 0),
        json!({ "key": "-5", "value": "00ff" })
    );

    // The stored types hold without options, too.
    for (args, words) in [
        (&["put", "s.pm", "n", "x", "00"][..], &["s.pm: \"x\" is no i64", "an i64 is a decimal number"][..]),
        (&["put", "s.pm", "n", "1", "0g"], &["\"0g\" is no bytes", "two hexadecimal digits"]),
        (&["get", "s.pm", "u", "-1"], &["\"-1\" is no u64"]),
        (&["scan", "s.pm", "n", "--from", "1.5"], &["\"1.5\" is no i64"]),
        (
            &["put", "s.pm", "n", "1", "00", "--key", "u64"],
            &["table \"n\" maps i64 to bytes, not u64 to bytes"],
        ),
        // Nothing is created for a row of the wrong type.
        (&["put", "s.pm", "new", "x", "00", "--key", "u64"], &["\"x\" is no u64"]),
    ] {
        assert_has(&scratch.run(&[&["store"], args].concat(), 1), words);
    }
    assert_has(
        &scratch.run_any(&["store", "put", "s.pm", "n", "1", "2", "--key", "f64"]).1,
        &["possible values"],
    );
    assert_eq!(scratch.run_any(&["store", "put", "s.pm", "n", "1", "2", "--key", "f64"]).0, Some(2));

    let stat = scratch.run(&["store", "stat", "s.pm"], 0);
    assert_has(
        &stat,
        &[
            "s.pm: a store of 5 keys in 3 tables\n",
            " in a pool of 64 MiB\n",
            "  table      n: 3 keys, i64 to bytes\n",
        ],
    );
    let stat = scratch.json(&["store", "stat", "s.pm"], 0);
    let table = json!({ "name": "b", "key_type": "bytes", "value_type": "i64", "len": 1 });
    assert_eq!(
        (&stat["keys"], &stat["tables"][0], &stat["pool_bytes"]),
        (&5.into(), &table, &(64 << 20).into())
    );
}

#[test]
fn scans_are_limited() {
    let scratch = store();
    for key in ["a", "b", "c\n", "d"] {
        scratch.run(&["store", "put", "s.pm", "t", key, &key.to_uppercase()], 0);
    }
    for (options, rows) in [
        (&[][..], "a\tA\nb\tB\nc\\n\tC\\n\nd\tD\n"),
        (&["--from", "b"], "b\tB\nc\\n\tC\\n\nd\tD\n"),
        (&["--to", "b"], "a\tA\n"),
        (&["--from", "b", "--to", "c"], "b\tB\n"),
        (&["--from", "bb", "--to", "bc"], ""),
        (&["--from", "d", "--to", "b"], ""),
        (&["--from", "b", "--to", "b"], ""),
        (&["--limit", "1"], "a\tA\n"),
        (&["--limit", "0"], ""),
        (&["--reverse", "--limit", "1"], "d\tD\n"),
        (&["--reverse", "--from", "a", "--to", "c"], "b\tB\na\tA\n"),
    ] {
        assert_eq!(scratch.run(&[&["store", "scan", "s.pm", "t"], options].concat(), 0), rows, "{options:?}");
    }
    let rows = scratch.run(&["--json", "store", "scan", "s.pm", "t", "--from", "c"], 0);
    assert_eq!(rows, "{\"key\":\"c\\n\",\"value\":\"C\\n\"}\n{\"key\":\"d\",\"value\":\"D\"}\n");
}

/// The commands that read the store in a file, whose table `t` has this key.
fn reading<'a>(file: &'a str, key: &'a str) -> [Vec<&'a str>; 5] {
    [
        vec!["store", "get", file, "t", key],
        vec!["store", "scan", file, "t"],
        vec!["store", "dump", file],
        vec!["store", "stat", file],
        vec!["store", "check", file],
    ]
}

/// A test that runs as root may write to such a file all the same: so the bytes are compared.
fn set_mode(scratch: &Scratch, mode: u32) {
    fs::set_permissions(scratch.path("s.pm"), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn reading_changes_no_byte() {
    let scratch = store();
    scratch.run(&["store", "put", "s.pm", "t", "ada", "3"], 0);
    set_mode(&scratch, 0o444);
    for args in reading("s.pm", "ada") {
        scratch.unchanged_file("s.pm", &args, 0);
    }
}

#[test]
fn reading_after_a_kill_changes_no_byte() {
    let scratch = store();
    let rows = csv_rows(ROWS);
    let reported = load_and_kill(&scratch, &rows, 1, true, &[]);
    set_mode(&scratch, 0o444);
    let last = format!("k{:05}", reported - 1);
    for args in reading("s.pm", &last) {
        scratch.unchanged_file("s.pm", &args, 0);
    }
    // It is recovered each time, and once more to be changed.
    set_mode(&scratch, 0o644);
    assert_has(&scratch.run(&["store", "remove", "s.pm", "t", &last], 0), &["removed"]);
}

/// A file that the kernel lets no process change, whatever its privileges.
#[test]
fn sealed_store_is_read() {
    let scratch = store();
    scratch.run(&["store", "put", "s.pm", "t", "ada", "3"], 0);
    let mut sealed = fs::File::from(memfd_create("sealed", MemfdFlags::ALLOW_SEALING).unwrap());
    sealed.write_all(&fs::read(scratch.path("s.pm")).unwrap()).unwrap();
    fcntl_add_seals(&sealed, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), sealed.as_raw_fd());
    for args in reading(&path, "ada") {
        scratch.run(&args, 0);
    }
    scratch.run(&["store", "put", &path, "t", "ada", "4"], 1);
}

#[test]
fn other_files_are_refused() {
    let scratch = Scratch::new();
    scratch.heap();
    scratch.pool();
    fs::write(scratch.path("text.pm"), [b'x'; 8192]).unwrap();
    let commands: [&[&str]; 8] = [
        &["put", "FILE", "t", "k", "v"],
        &["get", "FILE", "t", "k"],
        &["remove", "FILE", "t", "k"],
        &["scan", "FILE", "t"],
        &["load", "FILE", "t", "rows.csv"],
        &["dump", "FILE"],
        &["stat", "FILE"],
        &["check", "FILE"],
    ];
    fs::write(scratch.path("rows.csv"), "k,v\n").unwrap();
    for command in commands {
        let run = |file: &str| {
            let args: Vec<&str> = command.iter().map(|arg| if *arg == "FILE" { file } else { arg }).collect();
            scratch.run(&[&["store"], &args[..]].concat(), 1)
        };
        assert_has(&run("none.pm"), &["none.pm: no such file", "`pm store create none.pm --size 64M`"]);
        assert_has(&run("text.pm"), &["text.pm: ", "is this the right file?"]);
        assert_has(&run("pool.pm"), &["pool.pm: ", "`pm pool info pool.pm`"]);
        assert_has(&run("data.pm"), &["data.pm: the heap holds no store", "`pm heap info data.pm`"]);
    }
    let error = scratch.run(&["store", "create", "data.pm", "--size", "64M"], 1);
    assert_has(&error, &["data.pm", "existing files are never overwritten"]);
    assert_has(&scratch.run(&["heap", "check", "data.pm"], 0), &["sound"]);
}

#[test]
fn check_verifies_heap_and_store() {
    let scratch = store();
    fs::write(scratch.path("rows.csv"), csv_rows(1000)).unwrap();
    scratch.run(&["store", "load", "s.pm", "t", "rows.csv"], 0);
    let output = scratch.run(&["store", "check", "s.pm"], 0);
    assert_eq!(output, "s.pm: sound: the heap and all nodes and records of 1000 keys\n");
    let output = scratch.json(&["store", "check", "s.pm"], 0);
    assert_eq!(output, json!({ "path": "s.pm", "clean": true, "findings": [], "keys": 1000 }));
    // A store is a heap, and a pool.
    assert_has(&scratch.run(&["heap", "check", "s.pm"], 0), &["sound"]);
    assert_has(&scratch.run(&["pool", "check", "s.pm"], 0), &["sound"]);

    flip(&scratch.path("s.pm"), 40);
    let output = scratch.json(&["store", "check", "s.pm"], 3);
    assert_eq!((&output["findings"][0]["part"], &output["keys"]), (&"pool-header".into(), &1000.into()));
}

#[test]
fn corrupted_values_are_found() {
    let scratch = store();
    let value = "the only value with these words";
    for key in ["a", "b", "c"] {
        scratch.run(
            &["store", "put", "s.pm", "t", key, if key == "b" { value } else { "another value, a long one" }],
            0,
        );
    }
    let file = fs::read(scratch.path("s.pm")).unwrap();
    let offset = file.windows(value.len()).position(|bytes| bytes == value.as_bytes()).unwrap();
    flip(&scratch.path("s.pm"), offset as u64);

    let (code, output) = scratch.run_any(&["store", "get", "s.pm", "t", "b"]);
    assert_eq!(code, Some(3), "{output}");
    assert_has(&output, &["Error: ", "s.pm: the store is corrupted at offset", "`pm store check s.pm`"]);
    assert_eq!(scratch.run(&["store", "get", "s.pm", "t", "c"], 0), "another value, a long one\n");
    for args in [&["scan", "s.pm", "t"][..], &["dump", "s.pm"], &["dump", "s.pm", "-o", "out.csv"]] {
        let (code, output) = scratch.run_any(&[&["store"], args].concat());
        assert_eq!(code, Some(3), "{args:?}: {output}");
    }
    // A dump goes on behind a corrupted entry.
    let rows = "t,a,\"another value, a long one\"\nt,c,\"another value, a long one\"\n";
    assert_eq!(fs::read_to_string(scratch.path("out.csv")).unwrap(), rows);
    let (_, output) = scratch.run_any(&["store", "dump", "s.pm"]);
    assert_has(&output, &[rows, "all rows but 1 corrupted entry"]);
    let output = scratch.json(&["store", "check", "s.pm"], 3);
    assert_eq!((&output["clean"], &output["findings"][0]["part"]), (&false.into(), &"store".into()));
    assert_has(
        &scratch.run(&["store", "check", "s.pm"], 3),
        &["s.pm: corrupted\n", "table \"t\": ", " is corrupted"],
    );
}

#[test]
fn csv_is_loaded_by_columns() {
    let scratch = store();
    let rows = "name,type,mass\nsirius,\"A, main sequence\",2.06\nvega,A,2.14\n";
    fs::write(scratch.path("stars.csv"), rows).unwrap();
    let load = |table: &str, options: &[&str]| {
        let output = load(&scratch, &[&["s.pm", table, "stars.csv"], options].concat());
        (output, scratch.run(&["store", "scan", "s.pm", table], 0))
    };
    let (output, rows) = load("rest", &["--header"]);
    assert_eq!(output, json!({ "path": "s.pm", "durable_lines": 3, "inserted": 2, "replaced": 0 }));
    assert_eq!(rows, "sirius\t\"A, main sequence\",2.06\nvega\tA,2.14\n");
    assert_eq!(load("mass", &["--header", "--value-column", "mass"]).1, "sirius\t2.06\nvega\t2.14\n");
    assert_eq!(
        load("by-mass", &["--header", "--key-column", "3", "--value-column", "1"]).1,
        "2.06\tsirius\n2.14\tvega\n"
    );
    assert_eq!(
        load("no-header", &["--value-column", "2"]).1,
        "name\ttype\nsirius\tA, main sequence\nvega\tA\n"
    );

    for (options, words) in [
        (
            &["--header", "--key-column", "colour"][..],
            &["no column \"colour\"", "the columns are: name, type, mass"][..],
        ),
        (&["--key-column", "name"], &["column \"name\" has a name", "--header"]),
        (&["--key-column", "0"], &["numbered from 1"]),
        (&["--key-column", "4"], &["stars.csv: the first 0 lines are durable", "line 1 has no column 4"]),
        (&["--key", "u64"], &["line 1", "\"name\" is no u64"]),
    ] {
        let error = scratch.run(&[&["store", "load", "s.pm", "new", "stars.csv"], options].concat(), 1);
        assert_has(&error, words);
    }
    fs::write(scratch.path("cut.csv"), "a,1\nb,2\nc\n").unwrap();
    let error = scratch.run(&["store", "load", "s.pm", "t", "cut.csv"], 1);
    assert_has(&error, &["cut.csv: the first 2 lines are durable", "line: 3"]);
    assert_eq!(scratch.run(&["store", "scan", "s.pm", "t"], 0), "a\t1\nb\t2\n");
}

#[test]
fn json_lines_are_loaded_by_fields() {
    let scratch = store();
    let rows = "{\"key\":\"a\",\"value\":1}\n\n{\"key\":7,\"value\":{\"x\": [1, true]}}\n{\"id\":\"b\",\"value\":\"2\"}";
    fs::write(scratch.path("rows.jsonl"), rows).unwrap();
    let error = scratch.run(&["store", "load", "s.pm", "t", "rows.jsonl"], 1);
    assert_has(&error, &["the first 3 lines are durable", "line 4 has no field \"key\""]);
    assert_eq!(scratch.run(&["store", "scan", "s.pm", "t"], 0), "7\t{\"x\":[1,true]}\na\t1\n");
    let error = scratch.run(&["store", "load", "s.pm", "t", "rows.jsonl", "--key-column", "id"], 1);
    assert_has(&error, &["the first 0 lines are durable", "line 1 has no field \"id\""]);
    fs::write(scratch.path("rows.txt"), "{\"id\":\"b\",\"text\":\"2\"}").unwrap();
    assert_has(&scratch.run(&["store", "load", "s.pm", "t", "rows.txt"], 1), &["rows.txt", "--format"]);
    let fields = ["--format", "jsonl", "--key-column", "id", "--value-column", "text"];
    let output = load(&scratch, &[&["s.pm", "t", "rows.txt"], &fields[..]].concat());
    assert_eq!((&output["durable_lines"], &output["inserted"]), (&1.into(), &1.into()));
    fs::write(scratch.path("rows.jsonl"), "{\"key\":\"a\",\"value\":1}\n{\"key\":").unwrap();
    let error = scratch.run(&["store", "load", "s.pm", "t", "rows.jsonl"], 1);
    assert_has(&error, &["the first 1 line are durable", "line 2 is no JSON object"]);
}

#[test]
fn dumps_are_loaded_again() {
    let scratch = store();
    scratch.run(&["store", "put", "s.pm", "n", "-5", "00ff", "--key", "i64", "--value", "bytes"], 0);
    for (key, value) in [("a,b", "\"quoted\""), ("line\nline", ""), ("é\r", "\u{1}\t"), ("", " x ")] {
        scratch.run(&["store", "put", "s.pm", "t", key, value], 0);
    }
    let rows = scratch.run(&["--json", "store", "scan", "s.pm", "t"], 0);
    for format in ["csv", "jsonl"] {
        let [store, one, all] = ["pm", "one", "all"].map(|name| format!("{format}.{name}"));
        let [one, all] = [one, all].map(|name| format!("{name}.{format}"));
        scratch.run(&["store", "create", &store, "--size", "64M"], 0);
        assert_eq!(scratch.run(&["store", "dump", "s.pm", "t", "-o", &one], 0), format!("{one}: 4 rows\n"));
        scratch.run(&["store", "load", &store, "t", &one], 0);
        assert_eq!(scratch.run(&["--json", "store", "scan", &store, "t"], 0), rows, "{format}");

        // All tables: JSON lines have the types, too.
        assert_eq!(scratch.json(&["store", "dump", "s.pm", "-o", &all], 0)["rows"], 5);
        assert_eq!(
            scratch.run(&["store", "dump", "s.pm", "--format", format], 0),
            fs::read_to_string(scratch.path(&all)).unwrap()
        );
        fs::remove_file(scratch.path(&store)).unwrap();
        scratch.run(&["store", "create", &store, "--size", "64M"], 0);
        scratch.run(&["store", "load", &store, &all], 0);
        assert_eq!(scratch.run(&["--json", "store", "scan", &store, "t"], 0), rows, "{format}");
        let value = if format == "jsonl" {
            json!({ "key": -5, "value": "00ff" })
        } else {
            json!({ "key": "-5", "value": "00ff" })
        };
        assert_eq!(scratch.json(&["store", "scan", &store, "n"], 0), value, "{format}");
    }
    assert_has(&scratch.run(&["store", "dump", "s.pm", "-o", "s.pm"], 1), &["writing s.pm", "File exists"]);
    assert_has(&scratch.run(&["store", "dump", "s.pm", "none"], 1), &["there is no table \"none\""]);
    assert_eq!(scratch.run(&["--json", "store", "dump", "s.pm", "t"], 0).lines().count(), 4);
}

/// Starts a load of standard input, passes it `rows` slowly, and kills it once `reports` reports have been read and some further lines have been
/// passed. Returns the number of lines that were reported as durable.
fn load_and_kill(scratch: &Scratch, rows: &str, reports: usize, is_json: bool, options: &[&str]) -> u64 {
    let mut args = vec!["store", "load", "s.pm", "t", "-", "--format", "csv"];
    args.extend(is_json.then_some("--json"));
    args.extend(options);
    let mut load = scratch.start(&args);
    let mut input = load.stdin.take().unwrap();
    let report: Box<dyn std::io::Read> =
        if is_json { Box::new(load.stdout.take().unwrap()) } else { Box::new(load.stderr.take().unwrap()) };
    let mut report = BufReader::new(report);
    // The end of the rows is never passed, so the load is killed in the middle.
    let passed = &rows.as_bytes()[..rows.len() - rows.len() / 10];
    let mut reported = 0;
    let mut read = |line: &str| {
        let lines = if is_json {
            serde_json::from_str::<Value>(line).unwrap()["durable_lines"].as_u64().unwrap()
        } else {
            let lines =
                line.strip_prefix("s.pm: ").and_then(|line| line.strip_suffix(" lines are durable\n"));
            lines.unwrap().parse().unwrap()
        };
        assert!(lines > reported, "reports increase");
        reported = lines;
    };
    // Parts of the rows, which end inside a row. After each, the load waits for more, and its lines are reported nevertheless.
    let end = |part: usize| passed.len() * part / (reports + 1);
    for part in 0..reports {
        input.write_all(&passed[end(part)..end(part + 1)]).unwrap();
        let mut line = String::new();
        report.read_line(&mut line).unwrap();
        read(&line);
    }
    // Now it is killed while it stores rows.
    input.write_all(&passed[end(reports)..]).unwrap();
    load.kill().unwrap();
    let status = load.wait().unwrap();
    assert_eq!(status.signal(), KILLED);
    // What it reported until then counts, too. The last line may be cut off.
    let mut line = String::new();
    while report.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
        read(&line);
        line.clear();
    }
    reported
}

#[test]
fn killed_load_has_stored_all_reported_lines() {
    let rows = csv_rows(ROWS);
    for (reports, is_json) in [(1, true), (1, false), (2, true), (5, false), (9, true)] {
        let scratch = store();
        fs::write(scratch.path("rows.csv"), &rows).unwrap();
        let reported = load_and_kill(&scratch, &rows, reports, is_json, &[]);
        assert!((1..ROWS).contains(&reported), "{reported}");

        // The reported lines, and possibly some after them, are stored.
        let stored = scratch.unchanged_file("s.pm", &["store", "dump", "s.pm", "t"], 0);
        assert!(rows.starts_with(&stored), "the first lines are stored: {reports}");
        let stored = stored.lines().count() as u64;
        assert!(
            (reported..ROWS).contains(&stored),
            "{reported} lines were reported, and {stored} are stored"
        );
        scratch.unchanged_file("s.pm", &["store", "check", "s.pm"], 0);

        // A second load completes it.
        let output = load(&scratch, &["s.pm", "t", "rows.csv"]);
        let expected =
            json!({ "path": "s.pm", "durable_lines": ROWS, "inserted": ROWS - stored, "replaced": stored });
        assert_eq!(output, expected);
        assert!(scratch.run(&["store", "dump", "s.pm", "t"], 0) == rows, "the dump equals the input");
        let keys = scratch.json(&["store", "check", "s.pm"], 0)["keys"].as_u64();
        assert_eq!(keys, Some(ROWS));
    }
}

#[test]
fn killed_load_in_groups_has_stored_a_prefix_with_all_reported_lines() {
    let rows = csv_rows(ROWS);
    for (reports, group) in [(1, 7), (2, 64), (5, 1000)] {
        let scratch = store();
        let reported = load_and_kill(&scratch, &rows, reports, true, &["--group", &group.to_string()]);
        assert_eq!(reported % group, 0, "only whole groups are reported");
        let stored = scratch.run(&["store", "dump", "s.pm", "t"], 0);
        assert!(rows.starts_with(&stored) && stored.lines().count() as u64 >= reported, "{reported}");
        scratch.unchanged_file("s.pm", &["store", "check", "s.pm"], 0);

        fs::write(scratch.path("rows.csv"), &rows).unwrap();
        let output = load(&scratch, &["s.pm", "t", "rows.csv", "--group", &group.to_string()]);
        assert_eq!(output, json!({ "path": "s.pm", "durable_lines": ROWS, "rows": ROWS }));
        assert!(scratch.run(&["store", "dump", "s.pm", "t"], 0) == rows, "the dump equals the input");
    }
}

#[test]
fn load_of_a_file_is_killed_at_its_first_report() {
    let rows = csv_rows(ROWS);
    let scratch = store();
    fs::write(scratch.path("rows.csv"), &rows).unwrap();
    let mut load = scratch.start(&["store", "load", "s.pm", "t", "rows.csv", "--json"]);
    let mut report = String::new();
    BufReader::new(load.stdout.take().unwrap()).read_line(&mut report).unwrap();
    load.kill().unwrap();
    load.wait().unwrap(); // It may have ended before.
    let reported = serde_json::from_str::<Value>(&report).unwrap()["durable_lines"].as_u64().unwrap();
    assert!(reported > 0);
    let stored = scratch.run(&["store", "dump", "s.pm", "t"], 0);
    assert!(rows.starts_with(&stored) && stored.lines().count() as u64 >= reported);
}

#[test]
fn full_store_keeps_the_lines_it_reported_and_grows() {
    let scratch = Scratch::new();
    scratch.run(&["store", "create", "s.pm", "--size", "8M"], 0);
    let rows = (0..ROWS).fold(String::new(), |rows, row| rows + &format!("k{row:05},{}\n", "v".repeat(1000)));
    fs::write(scratch.path("rows.csv"), &rows).unwrap();
    let error = scratch.run(&["store", "load", "s.pm", "t", "rows.csv"], 1);
    assert_has(&error, &["the store is full", "rows.csv: the first ", "pm store grow s.pm --size"]);
    let words = error.split("the first ").nth(1).unwrap();
    let durable: usize = words.split(' ').next().unwrap().parse().unwrap();
    let stored = scratch.run(&["store", "dump", "s.pm", "t"], 0);
    assert!(rows.starts_with(&stored) && stored.lines().count() == durable, "{durable}");

    let error = scratch.run(&["store", "grow", "s.pm", "--size", "4M"], 1);
    assert_has(&error, &["s.pm"]);
    assert_has(&scratch.run(&["store", "grow", "s.pm", "--size", "32M"], 0), &["in a pool of 32 MiB"]);
    scratch.run(&["store", "load", "s.pm", "t", "rows.csv"], 0);
    assert_eq!(scratch.run(&["store", "dump", "s.pm", "t"], 0), rows);
    assert_has(&scratch.run(&["store", "compact", "s.pm"], 0), &["0 bytes can be used again"]);
}

/// A store that a process has open for changes cannot be grown by another: the error names the process.
#[test]
fn growing_a_store_in_use_names_its_process() {
    let scratch = Scratch::new();
    scratch.run(&["store", "create", "data.pm", "--size", "1M"], 0);
    let store = pm_btree::Store::open(scratch.path("data.pm"), &pm_btree::StoreOptions::new()).unwrap();
    let output = scratch.run(&["store", "grow", "data.pm", "--size", "2M"], 1);
    assert!(output.contains("data.pm is in use"), "{output}");
    let holder = format!("process {}", std::process::id());
    // Lines are broken where they are long.
    let words = output.split_whitespace().collect::<Vec<_>>().join(" ").replace("│ ", "");
    assert!(words.contains(&holder) && words.contains("stop the program"), "{output}");
    drop(store);
    scratch.run(&["store", "grow", "data.pm", "--size", "2M"], 0);
}
