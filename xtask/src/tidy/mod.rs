//! The house rules, checked by machine: `cargo xtask tidy`, one file a rule.
//!
//! A rule is a function from the repository's text to its violations, so that its own tests can show it good and
//! bad snippets. What a rule lets pass stands in a list in its file, each entry with its reason; an entry
//! that nothing needs any more is a violation too.
//!
//! ```
//! use xtask::tidy::{Tree, check};
//!
//! let tree = Tree::of(&[("crates/a/src/one.rs", "fn one() -> u8 {\n    todo!()\n}\n")]);
//! let violations: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
//! assert!(violations.contains(&"crates/a/src/one.rs:2: todo! is not a finished program".to_owned()));
//! ```

mod durability;
mod formats;
mod heads;
mod imports;
mod links;
mod markdown;
mod modules;
mod rule;
mod rust;
mod tree;
mod unsafe_code;
mod words;

pub use rule::{RULES, Rule, check};
pub use tree::{File, Tree, Violation};
