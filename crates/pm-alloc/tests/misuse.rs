//! Misuses of the heap that must not compile, each with the compiler's message; and correct uses, which must compile.
//!
//! The messages are those of the toolchain in `rust-version`. After a change of the toolchain or of the API,
//! `TRYBUILD=overwrite cargo test -p pm-alloc --test misuse` regenerates them; review them before committing.

// A module, because cases that pass make trybuild build all dependencies again instead of checking them.
#[path = "misuse/right.rs"]
mod right;

#[test]
fn right_uses_compile() {
    right::compiles();
}

#[test]
fn misuses_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/misuse/wrong_*.rs");
}
