//! The checker of the house rules, `cargo xtask tidy`, with one file for each rule.
//!
//! A rule is a function from the repository's text to its violations, so that its tests can use snippets. Exceptions are in a list in the rule's file,
//! each with its reason; an unused exception is a violation too.
//!
//! ```
//! use xtask::tidy::{Tree, check};
//!
//! let tree = Tree::of(&[("crates/a/src/one.rs", "fn one() -> u8 {\n    todo!()\n}\n")]);
//! let violations: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
//! assert!(violations.contains(&"crates/a/src/one.rs:2: todo! is unfinished code".to_owned()));
//! ```

mod markdown;
mod modules;
mod rule;
mod rules;
mod rust;
mod tree;

pub use rule::{RULES, Rule, check};
pub use rules::formats;
pub use tree::{File, Tree, Violation};
