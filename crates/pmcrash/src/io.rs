//! Traces and images as files, answers on standard output, and progress on the terminal.

use indicatif::{ProgressBar, ProgressStyle};
use miette::{Context as _, IntoDiagnostic as _, miette};
use pm_crashsim::{Image, TraceError, TraceFile};
use serde_json::Value;
use std::error::Error;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;

/// Blocks of this size that are zero are holes in the file of an image.
const BLOCK_BYTES: usize = 4096;
static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Reads a trace.
pub(crate) fn open(path: &Path) -> miette::Result<TraceFile> {
    TraceFile::open(path).map_err(|error| {
        let help = match &error {
            TraceError::NotATrace { .. } => "`pmcrash import` makes a trace of another tool's log",
            TraceError::UnsupportedVersion { .. } => "another version of pmcrash wrote it, and can read it",
            TraceError::Truncated { .. } | TraceError::Checksum { .. } => "record it again: it is not usable",
            TraceError::Io(_) => return miette!("{}: {}", path.display(), chain(&error)),
            _ => return miette!("{}: {error}", path.display()),
        };
        miette!(help = help, "{}: {error}", path.display())
    })
}

/// Writes a trace.
pub(crate) fn save(file: &TraceFile, path: &Path) -> miette::Result<()> {
    file.save(path).into_diagnostic().wrap_err_with(|| format!("writing {}", path.display()))
}

/// Reads the initial contents of a region. A ragged end is filled with zeros.
pub(crate) fn image(path: &Path) -> miette::Result<Image> {
    let mut bytes = fs::read(path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    if bytes.is_empty() {
        return Err(miette!("{} is empty: no region is", path.display()));
    }
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    Ok(Image::from_bytes(bytes))
}

/// Whether both paths lead to one existing file.
pub(crate) fn are_the_same(one: &Path, other: &Path) -> bool {
    one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// Writes an image, with holes where it is zero.
pub(crate) fn write_image(image: &Image, path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.set_len(image.len_bytes())?;
    let bytes = image.to_bytes();
    for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        if *block != ZEROS[..block.len()] {
            file.seek(SeekFrom::Start((number * BLOCK_BYTES) as u64))?;
            file.write_all(block)?;
        }
    }
    Ok(())
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Prints a line of the answer. False when standard output is closed, as by `head`.
pub(crate) fn say(line: impl Display) -> bool {
    pm_cli_common::tell(line)
}

/// Prints the answer as one JSON object or as text. False when standard output is closed.
pub(crate) fn answer(json: bool, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> bool {
    say(if json { value().to_string() } else { text() })
}

/// A saturating number of choices.
pub(crate) fn count(count: u128) -> String {
    if count == u128::MAX { "more than 2^128".to_owned() } else { count.to_string() }
}

/// A progress bar on the terminal, if there is one, for at most that many images.
pub(crate) fn progress(most: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos} of at most {len} images, {elapsed}");
    let bar = ProgressBar::new(most).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
    bar
}
