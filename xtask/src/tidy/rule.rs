//! What a rule is, and the list of them.

use super::rules::{durability, folders, heads, imports, links, unsafe_code, words};
use super::tree::{Tree, Violation};
use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};

/// One rule of the house.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Its name, a word.
    pub name: &'static str,
    /// What it asks for, in one line.
    pub about: &'static str,
    /// Every violation of it in a tree.
    pub check: fn(&Tree) -> Vec<Violation>,
}

/// The rules, in the order in which they are checked.
pub const RULES: &[Rule] = &[
    Rule { name: "unsafe", about: "unsafe stands only where the list has it", check: unsafe_code::check },
    Rule { name: "durability", about: "durability points are marked and listed", check: durability::check },
    Rule { name: "folders", about: "folders hold a dozen files at most", check: folders::check },
    Rule { name: "heads", about: "files have a head, one purpose and no loose ends", check: heads::check },
    Rule { name: "imports", about: "modules import each other in one direction", check: imports::check },
    Rule { name: "links", about: "links between documents lead somewhere", check: links::check },
    Rule { name: "words", about: "no person is the subject of a sentence", check: words::check },
];

/// Every violation of every rule in `tree`, sorted by place.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<_> = RULES.par_iter().flat_map_iter(|rule| (rule.check)(tree)).collect();
    violations.sort();
    violations
}
