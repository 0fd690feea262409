//! `pmfs fsck`: checks a file system, and repairs it.

use crate::pool::{at_file, close, open, open_read_only};
use miette::Result;
use pm_alloc::HeapError;
use pm_cli_common::say;
use pm_core::{OpenError, PoolError};
use pm_fs::{CheckReport, Fs, FsError, FsOptions};
use std::path::Path;
use std::process::ExitCode;

/// The exit code for corruption that a check found, or a repair left, as of `pm` and `pmbd`.
const CORRUPTED: u8 = 3;

/// What was found and done.
#[derive(Default)]
struct Done {
    report: CheckReport,
    repaired: Vec<String>,
    /// Why a repair has stored nothing.
    refusal: Option<String>,
}

/// Runs the command.
pub(crate) fn run(file: &Path, repairs: bool, json: bool) -> Result<ExitCode> {
    let done = match repairs {
        true => repair(file)?,
        false => Done { report: open_read_only(file)?.check(), ..Done::default() },
    };
    let is_clean = done.report.problems.is_empty() && done.refusal.is_none();
    print(file, &done, is_clean, json)?;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(CORRUPTED) })
}

/// Repairs a file system, unless that would destroy what is whole: this is known before the file is opened for writing.
fn repair(file: &Path) -> Result<Done> {
    match Fs::open(file, &FsOptions::new().read_only(true)) {
        // A device-dax, whose repair checks the same.
        Err(FsError::Heap(HeapError::Pool(PoolError::Region(OpenError::NoScratch { .. })))) => {}
        Err(error) => return Err(at_file(file, error)),
        Ok(fs) => {
            if let Err(error) = fs.check_repairable() {
                return Ok(Done {
                    report: fs.check(),
                    repaired: Vec::new(),
                    refusal: Some(error.to_string()),
                });
            }
        }
    }
    let mut fs = open(file)?;
    let done = fs.repair().map_err(|error| at_file(file, error))?;
    close(fs, file)?;
    Ok(Done { report: done.left, repaired: done.repaired, refusal: None })
}

fn print(file: &Path, done: &Done, is_clean: bool, json: bool) -> Result<()> {
    let Done { report, repaired, refusal } = done;
    if json {
        return say(serde_json::json!({
            "file": file, "inodes": report.inodes, "pages": report.pages, "problems": report.problems, "repaired": repaired,
            "refusal": refusal,
        }));
    }
    repaired.iter().try_for_each(|repaired| say(format_args!("repaired: {repaired}")))?;
    report.problems.iter().try_for_each(say)?;
    if let Some(refusal) = refusal {
        let file = file.display();
        say(format_args!("refused: nothing was stored: {refusal}"))?;
        say(format_args!(
            "refused: keep a copy of the file as it is, and copy out what can be read, to make a new file system: pmfs cp {file} -r :/ DIRECTORY"
        ))?;
    }
    let result = if is_clean { "clean" } else { "corrupted" };
    let [files, pages] = [(report.inodes, "file"), (report.pages, "page")]
        .map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
    say(format_args!("{}: {files}, {pages}: {result}", file.display()))
}
