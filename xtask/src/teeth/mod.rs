//! Mutation testing of durability: each flush and fence that a crate's tests execute is removed in turn, and a test must fail.
//!
//! The tests are built once, and a test that has run since then with all sites is not repeated. `pm-crashsim` reports the sites that a test executes, and removes one site from a whole process (its crate documentation,
//! under "Teeth"). The sites of a crate are those in its `src/`, `examples/` and `tests/`, and its own tests must detect their removal. Documentation
//! tests are not run.
//!
//! A flush or fence in a test that is redundant on purpose is *set aside* by a comment with the reason ([`marks`]). It is removed too, and it is an error
//! if a test then fails. Sites in `src/` and `examples/` cannot be set aside.

mod baseline;
mod campaign;
mod marks;
mod records;
mod report;
mod site;

pub use baseline::{Baseline, Blobs, blobs};
pub use campaign::{Campaign, Listed, Progress, Selection};
pub use marks::{Mark, marks};
pub use records::{Executed, Records};
pub use report::{Report, Tried, Verdict, WrongMark};
pub use site::{Kind, Site};
