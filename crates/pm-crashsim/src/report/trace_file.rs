//! Where the trace of a failure is kept for tools.

use super::Origin;
use crate::TraceFile;
use crate::explore::Failure;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Writes the failure's trace to a file of the test's name in Cargo's target directory, over that of an earlier failure
/// of the same test. Says where; nothing if there is no trace, or no such directory. That it could not be written is said on standard error:
/// the failure itself is the news.
pub(crate) fn save_trace(failure: &Failure) -> Option<PathBuf> {
    let contents = contents(failure)?;
    let path = trace_path(&failure.origin)?;
    match write(&path, &contents) {
        Ok(()) => Some(path),
        Err(error) => {
            eprintln!("pm-crashsim: no trace could be written to {}: {error}", path.display());
            None
        }
    }
}

/// The bytes of the file.
fn contents(failure: &Failure) -> Option<Vec<u8>> {
    TraceFile::from_failure(failure).map(|file| file.to_bytes())
}

fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, contents)
}

fn trace_path(origin: &Origin) -> Option<PathBuf> {
    let names = [origin.program.as_deref(), origin.test.as_deref()];
    let name = names.into_iter().flatten().collect::<Vec<_>>().join("-").replace("::", "-");
    let name = if name.is_empty() { "failure" } else { &name };
    Some(target_directory()?.join("pm-crashsim").join(format!("{name}.pmc")))
}

/// Cargo's target directory: around the running program, and marked as a cache. A program that runs elsewhere, as a doc
/// test does, leaves no files.
fn target_directory() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    program.ancestors().find(|directory| directory.join("CACHEDIR.TAG").exists()).map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_goes_into_the_target_directory_by_the_name_of_its_test() {
        let origin =
            Origin { test: Some("a::b".to_owned()), program: Some("c".to_owned()), ..Origin::default() };
        let path = |origin| trace_path(origin).expect("a test runs in the target directory");
        let directory = target_directory().expect("likewise");
        assert!(path(&origin).ends_with("pm-crashsim/c-a-b.pmc"), "{:?}", path(&origin));
        assert!(path(&origin).starts_with(&directory) && directory.is_absolute(), "{directory:?}");
        assert!(path(&Origin::default()).ends_with("pm-crashsim/failure.pmc"));
    }

    #[test]
    fn a_trace_is_written_where_no_directory_was() {
        let directory = env::temp_dir().join(format!("pm-crashsim-{}", std::process::id()));
        let path = directory.join("pm-crashsim/name.pmc");
        write(&path, b"bytes").expect("a temporary directory can be written to");
        assert_eq!(fs::read(&path).expect("just written"), b"bytes");
        fs::remove_dir_all(directory).expect("just made");
    }
}
