//! `pm store` as a user runs it: every command, its output and exit codes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;

use files::{Scratch, flip};
use serde_json::json;
use std::fs;

/// A directory with an empty store, `s.pm`.
fn store() -> Scratch {
    let scratch = Scratch::new();
    let output = scratch.run(&["store", "create", "s.pm", "--size", "64M"], 0);
    assert!(output.starts_with("s.pm: a store of 0 keys in 0 tables\n  space      "), "{output}");
    scratch
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

#[test]
fn reading_changes_no_byte() {
    let scratch = store();
    scratch.run(&["store", "put", "s.pm", "t", "ada", "3"], 0);
    for args in [
        &["get", "s.pm", "t", "ada"][..],
        &["scan", "s.pm", "t"],
        &["dump", "s.pm"],
        &["stat", "s.pm"],
        &["check", "s.pm"],
    ] {
        scratch.unchanged_file("s.pm", &[&["store"], args].concat(), 0);
    }
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
    let output = scratch.json(&["store", "check", "s.pm"], 3);
    assert_eq!((&output["clean"], &output["findings"][0]["part"]), (&false.into(), &"store".into()));
    assert_has(
        &scratch.run(&["store", "check", "s.pm"], 3),
        &["s.pm: corrupted\n", "table \"t\": ", " is corrupted"],
    );
}
