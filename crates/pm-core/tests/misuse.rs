//! Misuses of durability that must not compile, each with the compiler's messages; and the correct use, which must.
//!
//! The messages are those of the toolchain in `rust-version`. After a change, `TRYBUILD=overwrite cargo test -p pm-core --test misuse` updates
//! them; read them before you commit them.

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
