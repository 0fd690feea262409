//! The origin of a failure: the test, its package, and its check.

use super::replay::REPLAY_VARIABLE;
use core::any::type_name;
use std::path::{Path, PathBuf};
use std::{env, thread};

/// The test that explores, as far as the program knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// The name of the test, which is the name of its thread.
    pub(crate) test: Option<String>,
    /// The package, from Cargo's environment.
    pub(crate) package: Option<String>,
    /// The crate of the running program.
    pub(crate) program: Option<String>,
    /// The type of the check. That of a function is its path.
    pub(crate) check: &'static str,
    /// The type of the acknowledgements.
    pub(crate) acked: &'static str,
}

impl Origin {
    /// The test that runs on this thread.
    pub(crate) fn here<A, C>(_check: &C) -> Self {
        let test = thread::current().name().filter(|&name| name != "main").map(str::to_owned);
        let package = env::var("CARGO_PKG_NAME").ok();
        Self { test, package, program: program(), check: type_name::<C>(), acked: type_name::<A>() }
    }

    /// The shell command that runs the test, and in it only the crash of that name.
    pub(crate) fn replay_command(&self, id: &str) -> String {
        let mut command = format!("{REPLAY_VARIABLE}='{id}' cargo test");
        if let Some(package) = &self.package {
            command.push_str(&format!(" -p {package}"));
        }
        if let Some(test) = &self.test {
            command.push_str(&format!(" {test}"));
        }
        // Other explorations of the test report that they skip it, which the test harness hides from a test that passes.
        command.push_str(" -- --nocapture");
        command
    }

    /// A file named after the test in Cargo's target directory. `None` for a program that runs elsewhere.
    pub(crate) fn trace_path(&self) -> Option<PathBuf> {
        let names = [self.program.as_deref(), self.test.as_deref()];
        let name = names.into_iter().flatten().collect::<Vec<_>>().join("-").replace("::", "-");
        let name = if name.is_empty() { "failure" } else { &name };
        Some(target_directory()?.join("pm-crashsim").join(format!("{name}.pmc")))
    }
}

/// The name of the running crate: Cargo names its programs so, with a hash after a hyphen.
fn program() -> Option<String> {
    let path = env::current_exe().ok()?;
    let (name, _hash) = path.file_stem()?.to_str()?.rsplit_once('-')?;
    Some(name.replace('-', "_"))
}

/// Cargo's target directory: an ancestor of the running program, marked as a cache. A program that runs elsewhere, like a doc test, leaves no files.
fn target_directory() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    program.ancestors().find(|directory| directory.join("CACHEDIR.TAG").exists()).map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_path_is_in_the_target_directory_and_named_after_the_test() {
        let origin =
            Origin { test: Some("a::b".to_owned()), program: Some("c".to_owned()), ..Origin::default() };
        let path = |origin: &Origin| origin.trace_path().expect("a test runs in the target directory");
        let directory = target_directory().expect("likewise");
        assert!(path(&origin).ends_with("pm-crashsim/c-a-b.pmc"), "{:?}", path(&origin));
        assert!(path(&origin).starts_with(&directory) && directory.is_absolute(), "{directory:?}");
        assert!(path(&Origin::default()).ends_with("pm-crashsim/failure.pmc"));
    }
}
