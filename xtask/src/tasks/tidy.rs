//! `cargo xtask tidy`: checks the house rules.

use std::path::Path;
use std::process::ExitCode;

use miette::Result;
use xtask::tidy::{RULES, Tree, check};

/// Prints every violation; success when there is none.
pub(crate) fn run() -> Result<ExitCode> {
    let tree = Tree::read(root())?;
    let violations = check(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    println!("tidy: {} files, {} rules, {} violations", tree.files().count(), RULES.len(), violations.len());
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}
