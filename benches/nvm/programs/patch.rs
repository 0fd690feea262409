//! Patch: patches of a history, one after the other, on a tree of sources, each durable before the next.

use super::rates::Workload;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, ensure};
use pm_bench::Conversation;
use pm_bench::nvm::figures;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;
use tempfile::TempDir;
use xtask::apt::{self, Need};
use xtask::{cargo, process};

const NEEDS: [Need; 3] = [Need::new("git", "git"), Need::new("tar", "tar"), Need::new("gzip", "gzip")];
/// The newest changes of the history, merges as one change.
const PATCHES: usize = 50;

/// The patches of this repository, compressed, in the order in which they apply, and the tree to which the first applies.
pub(crate) struct Patch {
    directory: TempDir,
}

impl Patch {
    /// Why there are none, if so.
    pub(crate) fn missing() -> Option<String> {
        let is_there = apt::ensure(&NEEDS).and_then(|()| revisions());
        match is_there {
            Ok(revisions) if revisions.len() > PATCHES => None,
            Ok(_) => Some(format!("the clone of the repository has fewer than {PATCHES} changes to apply")),
            Err(error) => Some(format!("{error}: the patches are the changes of a clone of the repository")),
        }
    }

    /// Writes them into a temporary directory.
    pub(crate) fn prepare() -> Result<Self> {
        let directory = tempfile::tempdir().into_diagnostic()?;
        let revisions = revisions()?;
        fs::write(directory.path().join("revisions"), revisions.join("\n")).into_diagnostic()?;
        let archive = directory.path().join("tree.tar");
        process::output(
            git().args(["archive", "--format=tar", "--output"]).arg(&archive).arg(&revisions[0]),
        )?;
        for (number, pair) in revisions.windows(2).enumerate() {
            let path = patch(directory.path(), number);
            let file = File::create(&path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
            let mut diff = git();
            diff.args(["diff", "--binary", "--full-index", "--no-renames"]).args(pair).stdout(Stdio::piped());
            piped(&mut diff, Command::new("gzip").stdout(file))?;
        }
        Ok(Self { directory })
    }
}

impl Workload for Patch {
    fn title(&self) -> String {
        "Patch".into()
    }

    fn cell(&self, technology: &str) -> String {
        figures::files("patch", technology)
    }

    fn start(&self, at: &Path) -> Result<Conversation> {
        let executable = std::env::current_exe().into_diagnostic()?;
        let mut command = Command::new(executable);
        Conversation::start(command.args(["--serve", "patch"]).arg(at).arg(self.directory.path()))
    }
}

/// Is the program that applies them: unpacks the tree; then for each line of its input applies all patches, or if they are applied takes them all back, so
/// that each run has the same patches, and writes a line `SECONDS PATCHES`. At the end of the input it compares the tree with that of the history.
pub(crate) fn serve(tree: &Path, patches: &Path) -> Result<ExitCode> {
    let text = fs::read_to_string(patches.join("revisions")).into_diagnostic()?;
    let revisions: Vec<&str> = text.lines().collect();
    process::output(Command::new("tar").arg("-xf").arg(patches.join("tree.tar")).arg("-C").arg(tree))?;
    let directory = File::open(tree).into_diagnostic()?;
    let sync = || rustix::fs::syncfs(&directory).into_diagnostic();
    sync()?;
    let mut numbers: Vec<usize> = (0..revisions.len() - 1).collect();
    let mut is_back = false;
    println!("ready");
    for line in std::io::stdin().lines() {
        line.into_diagnostic()?;
        let begin = Instant::now();
        for number in &numbers {
            apply(tree, &patch(patches, *number), is_back)?;
            sync()?;
        }
        println!("{} {}", begin.elapsed().as_secs_f64(), numbers.len());
        numbers.reverse();
        is_back = !is_back;
    }
    compare(tree, if is_back { revisions[revisions.len() - 1] } else { revisions[0] })?;
    println!("exact");
    Ok(ExitCode::SUCCESS)
}

/// Applies a compressed patch, or takes it back.
fn apply(tree: &Path, patch: &Path, is_back: bool) -> Result<()> {
    let mut gzip = Command::new("gzip");
    gzip.args(["--decompress", "--stdout"]).arg(patch).stdout(Stdio::piped());
    let mut apply = Command::new("git");
    apply.args(["apply", "--whitespace=nowarn", "--allow-empty"]).args(is_back.then_some("--reverse"));
    // A repository around the tree does not matter.
    apply.env("GIT_CEILING_DIRECTORIES", "/").current_dir(tree);
    piped(&mut gzip, &mut apply).wrap_err_with(|| patch.display().to_string())
}

/// Compares a tree with the one of a revision, by the names that git gives to contents.
fn compare(tree: &Path, revision: &str) -> Result<()> {
    let index = tempfile::tempdir().into_diagnostic()?;
    let in_index = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.env("GIT_DIR", index.path().join("git")).env("GIT_WORK_TREE", tree).current_dir(tree);
        process::output(command.args(arguments))
    };
    in_index(&["init", "--quiet"])?;
    in_index(&["add", "--all", "--force"])?;
    let found = in_index(&["write-tree"])?;
    let expected = process::output(git().arg("rev-parse").arg(format!("{revision}^{{tree}}")))?;
    ensure!(found == expected, "the tree is not that of {revision}");
    Ok(())
}

/// The revisions between which the patches are, oldest first.
fn revisions() -> Result<Vec<String>> {
    let limit = format!("--max-count={}", PATCHES + 1);
    let text = process::output(git().args(["rev-list", "--first-parent", &limit, "HEAD"]))?;
    let mut revisions: Vec<String> = text.lines().map(str::to_owned).collect();
    revisions.reverse();
    Ok(revisions)
}

fn patch(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("{number}.gz"))
}

/// git in this repository, which may belong to another user.
fn git() -> Command {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "-C"]).arg(cargo::root());
    git
}

/// Runs two programs, of which the first writes to the second.
fn piped(first: &mut Command, second: &mut Command) -> Result<()> {
    let mut first = first.spawn().into_diagnostic()?;
    let output = first.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let done = process::output(second.stdin(output));
    let status = first.wait().into_diagnostic()?;
    done?;
    ensure!(status.success(), "the first of two programs failed: {status}");
    Ok(())
}
