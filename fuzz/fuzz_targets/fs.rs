//! Changes bytes of a file system, opens it, checks it and uses it. The result of each call is an error or a value; none panics or hangs.
//!
//! The input is a byte that says whether there are files without a name, and then edits, which `edits.rs` describes.
#![no_main]

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../crates/pm-fs/tests/library/edits.rs"]
mod edits;

use edits::{Edit, Image};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, edits)) = input.split_first() else { return };
    Image::get(first & 1 != 0).attack(&Edit::parse_all(edits));
});
