//! Mutation testing of durability: each flush and fence that a crate's tests exercise is taken away in turn, and
//! some test has to fail.
//!
//! The tests are built once. `pm-crashsim` says which sites each test exercises, and takes one away from a
//! whole process (its crate documentation, under "Teeth"). A crate answers for itself: what counts are the sites in
//! its own `src/`, `examples/` and `tests/`, and its own tests must miss them. Documentation tests are not asked: they
//! teach.
//!
//! A flush or fence of a test that is there to do nothing, say to show that alone it does nothing, is *set aside* by
//! a comment that gives the reason ([`marks`]). It is tried all the same, and missing it is an error then: reasons that
//! are wrong do not stay. What a crate ships, its `src/` and `examples/`, is never set aside.

mod campaign;
mod marks;
mod packages;
mod program;
mod report;
mod site;

pub use campaign::{Campaign, Listed, Progress};
pub use marks::{Mark, marks};
pub use packages::{build, packages};
pub use program::{Outcome, Package, Program};
pub use report::{Report, Tried, Verdict, WrongMark};
pub use site::{Kind, Site};
