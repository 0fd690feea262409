//! Children that are made without the handlers of `fork`, by `_Fork` or `clone`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{HeapFile, compiled, complaints, sound};

#[test]
fn child_made_without_handlers_does_not_allocate_from_its_parents_heap() {
    let program = compiled("review_fork.c", &[]);
    let file = HeapFile::new();
    let output = file.command(&program).output().unwrap();
    // A child that is ended by its first access would do, too: the parent's blocks are its own.
    assert!(output.status.success(), "{}, {}", output.status, complaints(&output));
    sound(&file.path());
}
