//! Corundum: persistent memory for Rust, here a string that grows at its end.

use crate::harness::*;

const LEN: u64 = 0;
const BYTES: u64 = 256;
const LINE_BYTES: u64 = 64;

/// Writes back a range and fences.
fn persist(pmem: &SimPmem, form: Form, offset: u64, len_bytes: u64) -> Done {
    let mut line = offset / LINE_BYTES * LINE_BYTES;
    let end = match form {
        Form::Bug => line + len_bytes,
        Form::Fixed => offset + len_bytes,
    };
    while line < end {
        pmem.flush(line, 1);
        line += LINE_BYTES;
    }
    pmem.fence()
}

fn push_str(pmem: &SimPmem, form: Form, text: &str) -> Done {
    let len = pmem.load_u64(LEN);
    pmem.store(BYTES + len, text.as_bytes()); //~ B33 lost: flush missing
    persist(pmem, form, BYTES + len, text.len() as u64)?;
    pmem.store_u64(LEN, len + text.len() as u64);
    persist(pmem, form, LEN, 8)
}

fn string(pmem: &SimPmem) -> String {
    let mut bytes = vec![0; usize::try_from(pmem.load_u64(LEN)).expect("a short string")];
    pmem.load(BYTES, &mut bytes);
    String::from_utf8(bytes).expect("valid UTF-8")
}

/// B33, found in Corundum's source: a flush rounds the start of its range down to a line, and computes the end from the rounded start. A range that
/// is short of a line and straddles two loses its end: here, that of the second word.
pub(crate) fn flush_end_derived_from_the_rounded_start(form: Form) -> Case {
    const WORDS: [&str; 2] = ["a first word that takes most of one line of 64 bytes, but ", "not the second"];
    Case::steps(
        image(|_| ()),
        WORDS,
        move |pmem, word| push_str(pmem, form, word),
        [0, 1, 2].map(|count| WORDS[..count].concat()),
        |pmem| Ok(string(pmem)),
    )
}
