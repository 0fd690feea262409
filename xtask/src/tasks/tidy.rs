//! `cargo xtask tidy`: checks the house rules.

use std::process::ExitCode;

use miette::Result;
use xtask::cargo;
use xtask::tidy::{RULES, Tree, check};

/// Prints every violation, and succeeds if there are none.
pub(crate) fn run() -> Result<ExitCode> {
    let tree = Tree::read(cargo::root())?;
    let violations = check(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    println!("tidy: {} files, {} rules, {} violations", tree.files().count(), RULES.len(), violations.len());
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
