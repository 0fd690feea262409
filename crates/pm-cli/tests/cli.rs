//! The command as a user runs it: its output and exit codes for sound, corrupted and foreign files, and that inspection changes nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;

use files::{Scratch, Value, flip, open, opening};
use pm_alloc::{Heap, HeapOptions};
use pm_core::{HugePages, Pool, PoolOptions, RegionOptions};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

/// Asserts that a text contains all of these words.
#[track_caller]
fn assert_has(text: &str, words: &[&str]) {
    words.iter().for_each(|words| assert!(text.contains(words), "{words:?} is not in: {text}"));
}

/// What must not happen: a script takes an answer that was not written for an empty one.
#[test]
fn answers_that_cannot_be_written_are_errors() {
    let scratch = Scratch::new();
    scratch.run(&["heap", "create", "h.pm", "--size", "1M"], 0);
    for words in
        [&["heap", "info", "h.pm"][..], &["--json", "heap", "check", "h.pm"], &["--help"], &["--version"]]
    {
        for (is_full, code) in [(true, 1), (false, 0)] {
            let out = match is_full {
                true => Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap()),
                false => Stdio::from(std::io::pipe().unwrap().1),
            };
            let ended = scratch.command(words).stdout(out).output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(code), "{words:?}: {said}");
            assert_eq!(said.contains("cannot write the answer"), is_full, "{words:?}: {said}");
            assert_eq!(said.starts_with("{\"causes\""), is_full && words[0] == "--json", "{words:?}: {said}");
        }
    }
}

/// What must not happen: the answer to a command is the advice to run that command.
#[test]
fn missing_directory_is_named() {
    let scratch = Scratch::new();
    for words in [&["heap", "create", "none/h.pm", "--size", "1M"][..], &["heap", "check", "none/h.pm"]] {
        let said = scratch.run(words, 1);
        assert_has(&said, &["none/h.pm: no such file", "there is no directory none"]);
    }
    assert_has(&scratch.run(&["heap", "check", "h.pm"], 1), &["`pm heap create h.pm --size 64M` makes one"]);
}

/// For machines: each error is an object on standard error, also that of a wrong command line.
#[test]
fn errors_are_objects_with_json() {
    let scratch = Scratch::new();
    for (words, code) in [(&["--json", "heap", "info", "none.pm"][..], 1), (&["--json", "heap", "paint"], 2)]
    {
        let ended = scratch.command(words).output().unwrap();
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(code), 0), "{words:?}");
        let error: Value = serde_json::from_slice(&ended.stderr).unwrap();
        assert!(error["error"].is_string() && error["causes"].is_array(), "{error}");
        assert!(error.get("help").is_some(), "{error}");
    }
}

#[test]
fn heap_is_created_checked_and_drawn() {
    let scratch = Scratch::new();
    let output =
        scratch.run(&["heap", "create", "new.pm", "--size", "1M", "--chunk-bytes", "64K", "--lanes", "3"], 0);
    assert!(
        output.starts_with("new.pm: a heap of 896 KiB in 14 chunks of 64 KiB, on memory (tmpfs)\n"),
        "{output}"
    );
    assert_has(&output, &["  log        3 lanes of "]);
    assert_has(&output, &["  recovery   the next open has nothing to recover\n"]);
    assert_has(&output, &["  allocated  0 bytes in 0 blocks\n"]);

    scratch.heap();
    let output = scratch.run(&["heap", "check", "data.pm"], 0);
    assert_eq!(
        output,
        "data.pm: sound: all headers of 16 allocated blocks and 15 free in 15 chunks, 2 lanes, 2 roots\n"
    );
    let output = scratch.run(&["heap", "info", "data.pm"], 0);
    assert_has(&output, &["  allocated  4.5 KiB in 16 blocks\n"]);
    assert_has(&output, &["  root       list: 8 bytes at "]);
    assert_has(&output, &["  identity   01010101-0101-0101-0101-010101010101\n"]);
    assert_has(&output, &["  made       2001-09-09 01:46:40 UTC, format version 2\n"]);

    let output = scratch.run(&["heap", "map", "data.pm", "-o", "data.svg"], 0);
    assert_eq!(output, "data.svg: 1920 cells of 512 bytes\n");
    let svg = fs::read_to_string(scratch.path("data.svg")).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.contains("allocated: 4.5 KiB") && svg.contains("class=\"free\""),
        "{svg}"
    );
    assert!(!svg.contains("<path class=\"lost\""), "{svg}");
}

#[test]
fn every_command_prints_json() {
    let scratch = Scratch::new();
    scratch.heap();
    let info = scratch.json(&["heap", "info", "data.pm"], 0);
    assert_eq!((&info["chunk_count"], &info["blocks"]["allocated_blocks"]), (&15.into(), &16.into()));
    assert_eq!(info["lanes"].as_array().unwrap().len(), 2);
    assert_eq!(info["pool"]["roots"].as_array().unwrap().len(), 3);
    let pool = scratch.json(&["pool", "info", "data.pm"], 0);
    assert_eq!((&pool["pool_bytes"], &pool["medium"]), (&(1 << 20).into(), &"tmpfs".into()));
    for args in [["pool", "check"], ["heap", "check"]] {
        let output = scratch.json(&[args[0], args[1], "data.pm"], 0);
        assert_eq!(
            (&output["clean"], &output["findings"]),
            (&true.into(), &Value::Array(Vec::new())),
            "{args:?}"
        );
    }
    for args in [["pool", "repair"], ["heap", "repair"]] {
        let output = scratch.json(&[args[0], args[1], "data.pm"], 0);
        assert_eq!(output["left"], Value::Array(Vec::new()), "{args:?}");
    }
    assert_eq!(scratch.json(&["heap", "map", "data.pm", "-o", "data.svg"], 0)["cell_bytes"], 512);
    let created = scratch.json(&["heap", "create", "new.pm", "--size", "1M"], 0);
    assert_eq!(created["blocks"]["allocated_blocks"], 0);
}

#[test]
fn corrupted_block_header_is_found_and_discarded() {
    let scratch = Scratch::new();
    let blocks = scratch.heap();
    let header = blocks[5] - 8;
    flip(&scratch.path("data.pm"), header + 1);
    let output = scratch.unchanged(&["heap", "check", "data.pm"], 3);
    assert!(output.starts_with("data.pm: corrupted\n"), "{output}");
    let words = format!("a block's header at {header:#x} is corrupted: ");
    assert_has(&output, &[&words, &format!("bytes at {:#x} are unreachable", blocks[5])]);
    assert_has(&output, &["`pm heap repair data.pm` discards what is unreachable"]);
    let findings = &scratch.json(&["heap", "check", "data.pm"], 3)["findings"];
    assert_eq!((&findings[0]["part"], &findings[0]["remedy"]), (&"block".into(), &"lose".into()));
    assert_eq!((&findings[0]["offset"], findings.as_array().unwrap().len()), (&header.into(), 1));

    // Lost space is drawn before the repair, too.
    scratch.unchanged(&["heap", "map", "data.pm", "-o", "before.svg"], 0);
    assert!(fs::read_to_string(scratch.path("before.svg")).unwrap().contains("<path class=\"lost\""));

    let output = scratch.run(&["heap", "repair", "data.pm", "--yes"], 0);
    assert!(output.starts_with("data.pm: repaired\n"), "{output}");
    // The heap was closed: the block's length is unknown, and the rest of its chunk is discarded, except the blocks in it.
    assert_has(&output, &["  lost       ", &format!(" from {:#x} to ", blocks[5])]);
    let output = scratch.run(&["heap", "check", "data.pm"], 0);
    assert_has(&output, &["  lost       ", " in 1 extent, by repairs\n"]);
    assert_eq!(scratch.run(&["heap", "repair", "data.pm"], 0), "data.pm: nothing to repair\n");
    let others: Vec<u64> = blocks.iter().copied().filter(|&block| block != blocks[5]).collect();
    assert_eq!(open(&scratch, |heap| heap.blocks()), others);
}

#[test]
fn corrupted_end_word_is_restored_without_loss() {
    let scratch = Scratch::new();
    let blocks = scratch.heap();
    let chunks_start = scratch.json(&["heap", "info", "data.pm"], 0)["chunks_start"].as_u64().unwrap();
    flip(&scratch.path("data.pm"), chunks_start + (64 << 10) - 1);
    let output = scratch.unchanged(&["heap", "check", "data.pm"], 3);
    assert_has(&output, &["the end word of a chunk", "no data is lost"]);
    let repaired = scratch.json(&["heap", "repair", "data.pm", "-y"], 0);
    assert_eq!(
        (&repaired["lost"], &repaired["restored"][0]["part"]),
        (&Value::Array(Vec::new()), &"block".into())
    );
    assert_has(&scratch.run(&["heap", "check", "data.pm"], 0), &["sound"]);
    assert_eq!(open(&scratch, |heap| heap.blocks()), blocks);
}

#[test]
fn structures_with_copy_are_restored() {
    let scratch = Scratch::new();
    scratch.heap();
    let whole = fs::read(scratch.path("data.pm")).unwrap();
    let start = scratch.json(&["heap", "info", "data.pm"], 0)["heap_start"].as_u64().unwrap();
    let lane = start + 3 * 4096;
    for (offset, part, place) in [
        (40, "pool-header", 0),
        ((1 << 20) - 100, "pool-header", (1 << 20) - 4096),
        (start + 50, "heap-header", start),
        (start + 8192 + 50, "heap-header", start + 8192),
        (start + 4096, "floor", start + 4096),
        (start + 4096 + 2048, "floor", start + 4096),
        (start + 4096 + 64 + 3, "chunk-count", start + 4096 + 64),
        (start + 4096 + 64 + 2048, "chunk-count", start + 4096 + 64),
        (lane, "lane", lane),
    ] {
        fs::write(scratch.path("data.pm"), &whole).unwrap();
        flip(&scratch.path("data.pm"), offset);
        let file = fs::read(scratch.path("data.pm")).unwrap();
        let output = scratch.json(&["heap", "check", "data.pm"], 3);
        assert_eq!(
            (&output["findings"][0]["part"], &output["findings"][0]["offset"]),
            (&part.into(), &place.into())
        );
        assert_eq!(
            (output["findings"].as_array().unwrap().len(), &output["clean"]),
            (1, &false.into()),
            "{output}"
        );
        assert!(fs::read(scratch.path("data.pm")).unwrap() == file, "{offset}: a check changes nothing");
        assert!(scratch.run(&["heap", "info", "data.pm"], 0).contains("  corruption "), "{offset}");

        let repaired = scratch.json(&["heap", "repair", "data.pm", "--yes"], 0);
        assert_eq!(repaired["restored"][0]["part"], part, "{offset}: {repaired}");
        assert!(scratch.run(&["heap", "check", "data.pm"], 0).contains("sound"), "{offset}");
    }
}

#[test]
fn corrupted_log_entry_is_reported_and_retired() {
    let scratch = Scratch::new();
    scratch.unrecovered();
    let start = scratch.json(&["heap", "info", "data.pm"], 0)["heap_start"].as_u64().unwrap();
    // The data of the first entry of lane 0 and 1; one of them at least is above the floor.
    for lane in 0..2 {
        flip(&scratch.path("data.pm"), start + 3 * 4096 + lane * (2 + 62) * 64 + 128 + 8);
    }
    let output = scratch.unchanged(&["heap", "check", "data.pm"], 3);
    assert_has(&output, &["1 entries of lane", "at unknown offsets"]);
    assert_has(&scratch.run(&["heap", "repair", "data.pm", "--yes"], 0), &["repaired"]);
    assert_has(&scratch.run(&["heap", "check", "data.pm"], 0), &["sound"]);
}

#[test]
fn dangling_roots_are_reported_and_left() {
    let scratch = Scratch::new();
    scratch.heap();
    open(&scratch, |heap| {
        heap.transaction(|tx| {
            let list = tx.root::<u64>("list")?.unwrap();
            tx.free(list)
        })
        .unwrap();
    });
    let output = scratch.unchanged(&["heap", "check", "data.pm"], 3);
    assert_has(&output, &["root \"list\" refers to no allocated block: 8 bytes at "]);
    assert_has(&output, &["nothing was changed; nothing here can be repaired"]);
    let left = scratch.json(&["heap", "repair", "data.pm"], 3);
    assert_eq!((&left["left"][0]["part"], &left["restored"]), (&"root".into(), &Value::Array(Vec::new())));
}

#[test]
fn corrupted_root_slots_are_discarded() {
    let scratch = Scratch::new();
    scratch.heap();
    // The second slot: a root of the program.
    flip(&scratch.path("data.pm"), 4096 + 64 + 20);
    for command in ["pool", "heap"] {
        let output = scratch.unchanged(&[command, "check", "data.pm"], 3);
        assert_has(&output, &["a slot of the root directory is corrupted: a root may be missing"]);
    }
    // Slots of a heap are repaired by `heap repair` only: the log may have the root.
    assert_has(&scratch.run(&["pool", "repair", "data.pm", "--yes"], 3), &["corruption is left"]);
    let output = scratch.unchanged(&["heap", "repair", "data.pm", "--yes"], 3);
    assert_has(
        &output,
        &["corruption is left", "  refused    nothing was stored: a root is lost", "--discard-roots"],
    );
    let output = scratch.run(&["heap", "repair", "data.pm", "--yes", "--discard-roots"], 0);
    assert!(output.starts_with("data.pm: repaired\n  discarded  a slot of the root directory"), "{output}");
    scratch.run(&["heap", "check", "data.pm"], 0);

    scratch.pool();
    flip(&scratch.path("pool.pm"), 4096);
    let output = scratch.unchanged_file("pool.pm", &["pool", "check", "pool.pm"], 3);
    assert_has(&output, &["`pm pool repair pool.pm` discards what is unreachable"]);
    let lost = scratch.json(&["pool", "repair", "pool.pm", "--yes"], 0);
    assert_eq!(lost["lost"][0]["part"], "root-slot");
    scratch.run(&["pool", "check", "pool.pm"], 0);
}

#[test]
fn pool_without_heap_is_checked_and_repaired() {
    let scratch = Scratch::new();
    scratch.pool();
    let output = scratch.unchanged_file("pool.pm", &["pool", "info", "pool.pm"], 0);
    assert!(output.starts_with("pool.pm: a pool of 1 MiB on memory (tmpfs)\n"), "{output}");
    assert_eq!(
        scratch.run(&["pool", "check", "pool.pm"], 0),
        "pool.pm: both copies of the header, and the roots, are sound\n"
    );
    let output = scratch.run(&["heap", "check", "pool.pm"], 1);
    assert_has(&output, &["the pool holds no heap", "`pm pool info pool.pm` prints"]);

    flip(&scratch.path("pool.pm"), 60);
    let output = scratch.unchanged_file("pool.pm", &["pool", "check", "pool.pm"], 3);
    assert_has(&output, &["  corruption the header at the start has checksum 0x"]);
    assert_has(&output, &["`pm pool repair pool.pm` restores it"]);
    let output = scratch.unchanged_file("pool.pm", &["pool", "repair", "pool.pm"], 1);
    assert_has(&output, &["no terminal on which to ask", "--yes repairs"]);
    assert!(scratch.run(&["pool", "repair", "pool.pm", "--yes"], 0).starts_with("pool.pm: repaired\n"));
    scratch.run(&["pool", "check", "pool.pm"], 0);
    assert_eq!(scratch.run(&["pool", "repair", "pool.pm"], 0), "pool.pm: nothing to repair\n");
}

/// Their growth was interrupted too, so the backup is searched for inside.
#[test]
fn sparse_files_stay_sparse() {
    let scratch = Scratch::new();
    let sparse = RegionOptions::new().sparse(true).huge_pages(HugePages::Never);
    opening(|| {
        drop(Pool::create(scratch.path("pool.pm"), 8 << 20, &sparse, &PoolOptions::new()).unwrap());
        let options = HeapOptions::new().region(sparse);
        drop(Heap::create(scratch.path("heap.pm"), 8 << 20, &options).unwrap());
    });
    for (kind, file) in [("pool", "pool.pm"), ("pool", "heap.pm"), ("heap", "heap.pm")] {
        let path = scratch.path(file);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(16 << 20).unwrap();
        flip(&path, 60);
        let blocks = || fs::metadata(&path).unwrap().blocks();
        let before = blocks();
        scratch.run(&[kind, "check", file], 3);
        assert_eq!(blocks(), before, "by a check of the {kind} in {file}");
        assert_has(&scratch.run(&[kind, "repair", file, "--yes"], 0), &[": repaired"]);
        assert_eq!(blocks(), before, "by a repair of the {kind} in {file}");
    }
}

#[test]
fn unreadable_files_are_corrupted_or_foreign() {
    let scratch = Scratch::new();
    scratch.heap();
    let whole = fs::read(scratch.path("data.pm")).unwrap();
    let start = scratch.json(&["heap", "info", "data.pm"], 0)["heap_start"].as_u64().unwrap();
    for (places, words) in [
        ([100, (1 << 20) - 100], "both headers are corrupted"),
        ([start + 50, start + 8242], "the heap's header at offset 8192 and its copy are both corrupted"),
        ([start + 4160, start + 4160 + 2048], "the heap's number of chunks"),
        ([start + 4096, start + 4096 + 2048], "the floor of the log is corrupted"),
    ] {
        fs::write(scratch.path("data.pm"), &whole).unwrap();
        places.iter().for_each(|&offset| flip(&scratch.path("data.pm"), offset));
        let output = scratch.unchanged(&["heap", "check", "data.pm"], 3);
        assert_has(&output, &[words, "nothing here can be repaired"]);
        let output = scratch.unchanged(&["heap", "info", "data.pm"], 1);
        assert_has(&output, &[words, "restore the file from a copy"]);
        scratch.unchanged(&["heap", "repair", "data.pm", "--yes"], 1);
    }
    fs::write(scratch.path("data.pm"), &whole[..whole.len() / 2]).unwrap();
    let output = scratch.unchanged(&["heap", "check", "data.pm"], 3);
    assert_has(&output, &["the pool is truncated: it has 524288 bytes of 1048576"]);
    fs::write(scratch.path("data.pm"), &whole[..5000]).unwrap();
    assert_has(&scratch.unchanged(&["pool", "check", "data.pm"], 1), &["is this the right file?"]);
    fs::write(scratch.path("data.pm"), vec![b'x'; 1 << 16]).unwrap();
    assert_has(&scratch.unchanged(&["heap", "check", "data.pm"], 1), &["this is not a pool"]);
    let output = scratch.run(&["heap", "info", "nothing.pm"], 1);
    assert_has(&output, &["nothing.pm: no such file", "pm heap create nothing.pm"]);
}

#[test]
fn heap_in_use_is_refused() {
    let scratch = Scratch::new();
    scratch.heap();
    // Open in this process, and inherited by the children of other threads: no process can open it again.
    let open = Heap::open(scratch.path("data.pm"), &HeapOptions::new()).unwrap();
    for args in
        [["heap", "info"], ["heap", "check"], ["heap", "repair"], ["pool", "info"], ["pool", "repair"]]
    {
        let output = scratch.run(&[args[0], args[1], "data.pm"], 1);
        assert!(
            output.contains("data.pm is in use") && output.contains("stop the program"),
            "{args:?}: {output}"
        );
    }
    drop(open);
}

#[test]
fn readers_are_shared() {
    let scratch = Scratch::new();
    scratch.heap();
    let reader = RegionOptions::new().read_only().open(scratch.path("data.pm")).unwrap();
    for command in ["pool", "heap"] {
        scratch.run(&[command, "check", "data.pm"], 0);
    }
    drop(reader);
}

/// A killed process leaves entries that may not have been applied.
#[test]
fn pending_recovery_is_reported_and_not_run() {
    let scratch = Scratch::new();
    let blocks = scratch.unrecovered();
    let output = scratch.unchanged(&["heap", "info", "data.pm"], 0);
    assert_has(&output, &["  recovery   the next open replays 2 transactions, and rolls back 0\n"]);
    assert_eq!(scratch.json(&["heap", "info", "data.pm"], 0)["recovery"]["replayed"], 2);
    // Structures that recovery replays are not corrupted: a header, and a slot of the root directory.
    flip(&scratch.path("data.pm"), blocks[5] - 8);
    flip(&scratch.path("data.pm"), 4096 + 64 + 20);
    for command in ["heap", "pool"] {
        assert!(scratch.unchanged(&[command, "check", "data.pm"], 0).contains("sound"), "{command}");
    }
    let found = open(&scratch, |heap| (heap.blocks(), heap.open_report().recovery.replayed));
    assert_eq!(found, (blocks, 2));
    assert_has(&scratch.unchanged(&["heap", "info", "data.pm"], 0), &["has nothing to recover"]);
}

#[test]
fn wear_is_drawn_from_histogram() {
    let scratch = Scratch::new();
    let blocks = scratch.heap();
    let writes = format!("{{\"line_bytes\":64,\"writes\":[[{},100],[{},3],[0,7]]}}", blocks[0], blocks[9]);
    fs::write(scratch.path("wear.json"), writes).unwrap();
    let map = ["heap", "map", "data.pm", "-o", "data.svg", "--wear", "wear.json"];
    scratch.unchanged(&map, 0);
    let svg = fs::read_to_string(scratch.path("data.svg")).unwrap();
    let line = format!("103 writes, 100 of them to the line at {:#x}; 7 elsewhere in the file", blocks[0]);
    assert_has(&svg, &[&line]);
    assert!(
        svg.contains("<path class=\"w5\"")
            && svg.contains("<path class=\"w1\"")
            && !svg.contains("<path class=\"w3\"")
    );

    fs::write(scratch.path("wear.json"), "{\"line_bytes\":32,\"writes\":[]}").unwrap();
    assert_has(&scratch.run(&map, 1), &["has lines of 32 bytes"]);
    fs::write(scratch.path("wear.json"), "[]").unwrap();
    assert_has(&scratch.run(&map, 1), &["wear.json: is not {\"line_bytes\":64"]);
    let output = scratch.unchanged(&["heap", "map", "data.pm", "-o", "./data.pm"], 1);
    assert_has(&output, &["is the heap itself"]);
}

#[test]
fn create_refuses_invalid_arguments() {
    let scratch = Scratch::new();
    scratch.heap();
    assert_has(&scratch.run(&["heap", "create", "data.pm", "--size", "1M"], 1), &["already exists"]);
    let output = scratch.run(&["heap", "create", "x.pm", "--size", "1M", "--chunk-bytes", "5000"], 1);
    assert!(
        output.contains("the length of a chunk is a power of two") && !scratch.path("x.pm").exists(),
        "{output}"
    );
    assert_has(
        &scratch.run(&["heap", "create", "x.pm", "--size", "5000"], 1),
        &["the smallest pool has 16384"],
    );
    scratch.run(&["heap", "create", "x.pm"], 2);
    scratch.run(&["heap", "create", "x.pm", "--size", "a lot"], 2);
    scratch.run(&["heap", "mend", "x.pm"], 2);
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let scratch = Scratch::new();
    assert_has(&scratch.run(&["completions", "bash"], 0), &["pm__"]);
    scratch.run(&["man", "."], 0);
    for page in ["pm.1", "pm-heap-check.1", "pm-pool-repair.1"] {
        assert!(fs::read_to_string(scratch.path(page)).unwrap().contains(".TH"), "{page}");
    }
}

#[test]
fn repair_asks_on_terminal() {
    let scratch = Scratch::new();
    let blocks = scratch.heap();
    let path = scratch.path("data.pm");
    let start = scratch.json(&["heap", "info", "data.pm"], 0)["chunks_start"].as_u64().unwrap();
    let end = start + (128 << 10) - 8;
    flip(&path, blocks[3] - 8);
    flip(&path, end);
    flip(&path, 100);
    let corrupted = fs::read(&path).unwrap();
    let repair = ["heap", "repair", "data.pm"];
    let output = scratch.asked(&repair, "n\n", 3);
    assert_has(&output, &["Recover the heap, and restore that? [y/N]", "corruption is left"]);
    let output = scratch.asked(&repair, "\u{4}", 3);
    assert!(output.contains("corruption is left"), "the end of the input means no: {output}");
    assert!(fs::read(&path).unwrap() == corrupted);

    let output = scratch.asked(&repair, "y\nn\nyes\n", 3);
    assert_has(&output, &["Discard the block? [y/N]", "Restore it? [y/N]"]);
    assert_has(&output, &[&format!("  restored   the end word of a chunk at {end:#x}")]);
    assert!(!output.contains("  lost "), "{output}");
    let left = &scratch.json(&["heap", "check", "data.pm"], 3)["findings"];
    assert_eq!((left.as_array().unwrap().len(), &left[0]["offset"]), (1, &(blocks[3] - 8).into()));
    assert_has(&scratch.asked(&repair, "y\n", 0), &["data.pm: repaired"]);

    let pool = scratch.pool();
    flip(&pool, (1 << 20) - 100);
    assert_has(&scratch.asked(&["pool", "repair", "pool.pm"], "no\n", 3), &["corruption is left"]);
    assert_has(
        &scratch.asked(&["pool", "repair", "pool.pm"], "y\n", 0),
        &["Restore it from the other copy? [y/N]"],
    );
    scratch.run(&["pool", "check", "pool.pm"], 0);
}

/// Opening for writing restores the header, so if that is refused the slots are not discarded either.
#[test]
fn refused_header_repair_changes_nothing() {
    let scratch = Scratch::new();
    let path = scratch.pool();
    flip(&path, 70);
    flip(&path, 4096);
    let before = fs::read(&path).unwrap();
    let output = scratch.asked(&["pool", "repair", "pool.pm"], "n\ny\n", 3);
    assert!(
        output.contains("corruption is left")
            && !output.contains("restored")
            && !output.contains("discarded"),
        "{output}"
    );
    assert!(fs::read(&path).unwrap() == before, "changed, after a no: {output}");
}

/// Data of a killed server may be in the page cache only. Inspection does not write it back.
#[test]
fn inspection_keeps_pages_cached() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("data.pm");
    fs::write(&path, {
        let scratch = Scratch::new();
        scratch.heap();
        fs::read(scratch.path("data.pm")).unwrap()
    })
    .unwrap();
    assert!(Command::new("sync").arg(&path).status().unwrap().success());
    let resident = || {
        let pages =
            Command::new("fincore").args(["--noheadings", "--raw", "--output", "PAGES"]).arg(&path).output();
        String::from_utf8(pages.expect("`fincore` starts: apt-get install util-linux").stdout).unwrap()
    };
    let before = resident();
    assert_eq!(before.trim(), "256", "all pages of the file are in the cache");
    for args in [["pool", "info"], ["pool", "check"], ["heap", "info"], ["heap", "check"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_pm")).args(args).arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(resident(), before, "{args:?}");
    }
}

/// A file system needs the blocks below a corrupted header: a repair of its heap stores nothing, and says so.
#[test]
fn heap_of_file_system_with_broken_chain_is_not_repaired() {
    let scratch = Scratch::new();
    let path = scratch.path("data.pm");
    let ino = files::opening(|| {
        let fs = pm_fs::Fs::create(&path, 1 << 20, &pm_fs::FsOptions::new()).unwrap();
        let ino = fs.root().create("file", pm_fs::NewFile::default()).unwrap().ino();
        fs.close().unwrap();
        ino
    });
    assert_eq!(scratch.run(&["heap", "repair", "data.pm", "--yes"], 0), "data.pm: nothing to repair\n");
    flip(&path, ino * 64 - 8);
    for options in [&["--yes"][..], &["--yes", "--discard-roots"]] {
        let output = scratch.unchanged(&[&["heap", "repair", "data.pm"], options].concat(), 3);
        assert_has(
            &output,
            &["corruption is left", "nothing was stored: the heap has a file system", "pmfs cp"],
        );
        let json = scratch.json(&[&["heap", "repair", "data.pm"], options].concat(), 3);
        assert!(json["refusal"].is_string() && json["lost"] == Value::Array(Vec::new()), "{json}");
    }
}
