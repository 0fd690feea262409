//! Berkeley DB, of Fig. 8: durable transactions on a B-tree and on a hash table.

use super::rates::Workload;
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::Conversation;
use pm_bench::nvm::figures;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use xtask::apt::{self, Need};
use xtask::process;

const SOURCE: &str = include_str!("../../c/berkeley_db.c");
const NEEDS: [Need; 2] = [Need::new("include/db.h", "libdb5.3-dev"), Need::new("cc", "gcc")];
/// Some 200 MB, with a cache of 16 MB.
const RECORDS: &str = "1000000";

/// The compiled program, for one kind of database.
pub(crate) struct BerkeleyDb {
    database: &'static str,
    program: PathBuf,
    _directory: TempDir,
}

impl BerkeleyDb {
    pub(crate) fn compile(database: &'static str) -> Result<Self> {
        apt::ensure(&NEEDS)?;
        let (program, directory) = compile("berkeley_db", SOURCE, "-ldb")?;
        Ok(Self { database, program, _directory: directory })
    }
}

impl Workload for BerkeleyDb {
    fn title(&self) -> String {
        format!("Berkeley DB, {}", self.database)
    }

    fn cell(&self, technology: &str) -> String {
        figures::database(self.database, technology)
    }

    fn start(&self, at: &Path) -> Result<Conversation> {
        Conversation::start(Command::new(&self.program).arg(at).args([self.database, RECORDS]))
    }
}

/// Compiles a program of one file, with a library.
pub(crate) fn compile(name: &str, text: &str, library: &str) -> Result<(PathBuf, TempDir)> {
    let directory = tempfile::tempdir().into_diagnostic()?;
    let program = directory.path().join(name);
    let source = program.with_extension("c");
    fs::write(&source, text).into_diagnostic().wrap_err_with(|| source.display().to_string())?;
    let options = ["-O3", "-std=gnu17", "-Wall", "-Wextra", "-Werror"];
    process::output(
        Command::new("cc").args(options).arg(&source).arg("-o").arg(&program).args([library, "-lm"]),
    )?;
    Ok((program, directory))
}
