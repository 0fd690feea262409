//! Randomly corrupted files under every command. No command panics; commands that look change nothing; and what a repair reports agrees
//! with what a check finds before and after it. As many files as `PM_CRASH_SEQUENCES` says, from the seed `PM_CRASH_FIRST` on.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod files;

use fastrand::Rng;
use files::Scratch;
use pm_core::pool::format::{Header, RootSlot};
use pm_core::{bytes_of, from_bytes};
use std::fs;

const PAGE: u64 = 4096;
const LINE: usize = 64;

/// A number at a limit of some kind.
fn odd(random: &mut Rng) -> u64 {
    let limits = [0, 1, 4096, 8192, 12288, 16384, 20480, 1 << 20, 1 << 40, (1 << 48) - 1, 1 << 63, u64::MAX];
    let limit = limits[random.usize(..limits.len())];
    match random.u8(..3) {
        0 => limit,
        1 => limit.wrapping_sub(PAGE),
        _ => random.u64(..) >> random.u32(..64),
    }
}

/// Corrupts the bytes of a file with these blocks, and returns how.
fn corruption(bytes: &mut [u8], random: &mut Rng, blocks: &[u64]) -> String {
    let len = bytes.len() as u64;
    let kind = random.u64(..10);
    // Headers, root slots, the heap's header, its state words, the log, headers of blocks, or anywhere.
    let at = match random.u64(..11) {
        0 => random.u64(..PAGE),
        1 => PAGE + random.u64(..512),
        2 => len - PAGE + random.u64(..PAGE),
        3 => 8192 + random.u64(..128),
        4 => 12288 + random.u64(..128) + 2048 * random.u64(..2),
        5 => 16384 + random.u64(..128),
        6 | 7 => 20480 + random.u64(..2 * 64 * 64),
        8 | 9 => blocks[random.usize(..blocks.len())] - 8 + random.u64(..16),
        _ => random.u64(..len),
    } as usize;
    let line = at / LINE * LINE;
    match kind {
        0..=3 => bytes[at] ^= 1 << random.u64(..8),
        4 => bytes[line..line + LINE].fill(0),
        5 => random.fill(&mut bytes[line..line + LINE]),
        6 => {
            let page = at / PAGE as usize * PAGE as usize;
            bytes[page..page + PAGE as usize].fill(0);
        }
        7 => {
            let from = random.u64(..len / LINE as u64) as usize * LINE;
            bytes.copy_within(from..from + LINE, line);
        }
        8 => return corrupt_header(bytes, random),
        _ => return corrupt_slot(bytes, random),
    }
    format!("kind {kind} at {at:#x}")
}

/// Writes a header with a valid checksum and odd numbers, or its backup, or both.
fn corrupt_header(bytes: &mut [u8], random: &mut Rng) -> String {
    let mut header: Header = from_bytes(|out| out.copy_from_slice(&bytes[..PAGE as usize]));
    let (field, value) = (random.u64(..6), odd(random));
    match field {
        0 => header.pool_bytes = value,
        1 => header.data_start = value,
        2 => header.data_bytes = value,
        3 => header.generation = value,
        4 => header.created_s = value,
        _ => {
            header.data_start = value / PAGE * PAGE;
            header.data_bytes = header.pool_bytes.wrapping_sub(PAGE).wrapping_sub(header.data_start);
        }
    }
    let header = header.sealed();
    let (is_first, is_backup) = (random.bool(), random.bool());
    if is_first {
        bytes[..PAGE as usize].copy_from_slice(bytes_of(&header));
    }
    if is_backup {
        let backup = bytes.len() - PAGE as usize;
        bytes[backup..].copy_from_slice(bytes_of(&header));
    }
    format!("field {field} of the header (first: {is_first}, backup: {is_backup}) is {value:#x}")
}

/// Writes a root slot with a valid checksum and an odd number.
fn corrupt_slot(bytes: &mut [u8], random: &mut Rng) -> String {
    let slots = if random.bool() { 4 } else { 64 };
    let at = PAGE as usize + LINE * random.u64(..slots) as usize;
    let mut root: RootSlot = from_bytes(|out| out.copy_from_slice(&bytes[at..at + LINE]));
    let value = odd(random);
    root.state = 1;
    match random.u64(..4) {
        0 => root.target_offset = value,
        1 => root.target_bytes = value,
        2 => root.generation = value,
        _ => root.name[random.u64(..24) as usize] = value as u8,
    }
    bytes[at..at + LINE].copy_from_slice(bytes_of(&root.sealed()));
    format!("the slot at {at:#x} is {root:?}")
}

/// A file, and what was done to it.
struct Corrupted<'s> {
    scratch: &'s Scratch,
    told: String,
}

impl Corrupted<'_> {
    /// Runs a command on the file: the exit code, and what it printed.
    #[track_caller]
    fn run(&self, args: &[&str]) -> (i32, String) {
        let (code, text) = self.scratch.run_any(&[args, &["data.pm"]].concat());
        let is_known = matches!(code, Some(0 | 1 | 3)) && !text.contains("panicked");
        assert!(is_known, "{}: {args:?} ends with {code:?}: {text}", self.told);
        (code.unwrap(), text)
    }

    /// Runs all commands.
    fn check(&self, kind: &str) {
        let path = self.scratch.path("data.pm");
        let before = fs::read(&path).unwrap();
        for args in
            [&["pool", "info"][..], &["pool", "check"], &["heap", "info"], &["heap", "map", "-o", "x.svg"]]
        {
            self.run(args);
        }
        let (found, found_text) = self.run(&["heap", "check"]);
        let is_opened = self.run(&["heap", "info"]).0 != 1;
        assert!(fs::read(&path).unwrap() == before, "{}: a command that looks changed the file", self.told);

        let discards = kind == "heap" && self.told.len().is_multiple_of(2);
        let repair: &[&str] =
            if discards { &[kind, "repair", "--yes", "--discard-roots"] } else { &[kind, "repair", "--yes"] };
        let unrepaired = fs::read(&path).unwrap();
        let (repaired, text) = self.run(repair);
        if text.contains("refused") {
            assert!(
                fs::read(&path).unwrap() == unrepaired,
                "{}: a refused repair changed the file",
                self.told
            );
        }
        if kind == "heap" && is_opened {
            assert!(found != 0 || repaired == 0, "{}: sound before the repair: {text}", self.told);
            let is_repairable = found == 3 && found_text.contains("`pm heap repair");
            assert!(!is_repairable || repaired != 1, "{}: {found_text}, but {text}", self.told);
        }
        let (left, left_text) = self.run(&[kind, "check"]);
        assert!(repaired != 0 || left == 0, "{}: {kind} repaired: {text}, but {left_text}", self.told);
        assert!(
            repaired != 3 || left != 0,
            "{}: {kind} repair left corruption: {text}, but {left_text}",
            self.told
        );
        let (again, again_text) = self.run(repair);
        assert_eq!(again, repaired, "{}: {text}, and a second time {again_text}", self.told);
    }
}

#[test]
fn corrupted_files_make_no_command_panic_or_contradict_another() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (first, count) = (number("PM_CRASH_FIRST", 0), number("PM_CRASH_SEQUENCES", 24));
    let scratch = Scratch::new();
    let blocks = scratch.heap();
    let closed = fs::read(scratch.path("data.pm")).unwrap();
    fs::remove_file(scratch.path("data.pm")).unwrap();
    scratch.unrecovered();
    let killed = fs::read(scratch.path("data.pm")).unwrap();
    for seed in first..first + count {
        let mut random = Rng::with_seed(seed);
        let mut bytes = if random.bool() { closed.clone() } else { killed.clone() };
        let corruptions: Vec<String> =
            (0..1 + random.u64(..3)).map(|_| corruption(&mut bytes, &mut random, &blocks)).collect();
        match random.u64(..12) {
            0 => bytes.resize(bytes.len() + 4096 * (1 + random.u64(..3) as usize), 0),
            1 => bytes.truncate(bytes.len() - 4096),
            _ => {}
        }
        fs::write(scratch.path("data.pm"), &bytes).unwrap();
        let told =
            format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1, {} bytes, {corruptions:?}", bytes.len());
        let kind = if random.u64(..4) == 0 { "pool" } else { "heap" };
        Corrupted { scratch: &scratch, told }.check(kind);
    }
}
