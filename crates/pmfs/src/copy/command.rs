//! The command: which way it copies, and to which names.

use super::export::Export;
use super::import::Import;
use super::tally::Tally;
use crate::pool::{PoolPath, close, open, open_read_only};
use miette::{Result, bail, miette};
use pm_fs::{FileKind, Fs, Handle};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `pmfs cp`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A path in the file system starts with a colon, and is always from its root: `pmfs cp disk.pm -r src/ :/src`, \
    `pmfs cp disk.pm :/src/main.rs .`. If DEST is a directory, the copies are in it; the contents of `:/`, and of a path of the host that ends with `/.`, are \
    copied without a directory around them.\n\n\
    Permissions and times of modification are kept, and the owners if root copies. Holes stay holes, and symbolic links stay links; they are not followed. \
    Existing files are overwritten. Pipes, sockets and devices are not copied, and make the exit code 1. Hard links become separate files, and \
    extended attributes are not copied.\n\n\
    Another error ends the copy. What was copied before it stays."
)]
pub(crate) struct Cp {
    /// The file.
    file: PathBuf,
    /// Files and directories: all in the file system, or none.
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    /// A directory, or the name of the copy: in the file system if the sources are not, and the other way round.
    #[arg(value_name = "DEST")]
    destination: PathBuf,
    /// Copy directories with everything below them.
    #[arg(short, long)]
    recursive: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Cp, is_json: bool) -> Result<ExitCode> {
    let marked = |path: &PathBuf| PoolPath::marked(path.as_os_str()).transpose();
    let destination = marked(&args.destination)?;
    let sources: Vec<Option<PoolPath>> = args.sources.iter().map(marked).collect::<Result<_>>()?;
    if let Some(source) = sources.iter().position(|source| source.is_some() == destination.is_some()) {
        let source = args.sources[source].display();
        let to = args.destination.display();
        let both =
            if destination.is_some() { "both in the file system" } else { "both outside of the file system" };
        return Err(miette!(
            help = "of source and destination one is in the file system, and starts with a colon: `pmfs cp FILE README.md :/docs`",
            "{source} and {to} are {both}"
        ));
    }
    let mut tally = Tally::new();
    match destination {
        Some(destination) => {
            let fs = open(&args.file)?;
            let copied = import(args, &fs, &destination, &mut tally);
            tally.end();
            copied?;
            close(fs, &args.file)?;
        }
        None => {
            let fs = open_read_only(&args.file)?;
            let copied = export(args, &fs, sources.iter().flatten(), &mut tally);
            tally.end();
            copied?;
        }
    }
    tally.print(&args.file, is_json);
    Ok(if tally.refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Copies into the file system.
fn import(args: &Cp, fs: &Fs, destination: &PoolPath, tally: &mut Tally) -> Result<()> {
    let found = destination.try_find(fs)?;
    let directory = found.filter(|found| found.kind() == FileKind::Directory);
    if directory.is_none() && args.sources.len() > 1 {
        bail!(":{destination} is no directory, and so cannot have several files");
    }
    let mut import = Import::new(&args.file, args.recursive, tally)?;
    for source in &args.sources {
        match (&directory, name_of(source)) {
            (Some(directory), Some(name)) => {
                import.copy(source, directory, &destination.join(name.as_bytes()))?;
            }
            (Some(directory), None) => import.copy_contents(source, directory, destination)?,
            (None, _) => {
                let parent: Handle = destination.parent().find(fs)?;
                import.copy(source, &parent, destination)?;
            }
        }
    }
    Ok(())
}

/// Copies out of the file system.
fn export<'a>(
    args: &Cp,
    fs: &Fs,
    sources: impl Iterator<Item = &'a PoolPath>,
    tally: &mut Tally,
) -> Result<()> {
    let destination = &args.destination;
    // A link to a directory is one.
    let is_directory = destination.is_dir();
    if !is_directory && args.sources.len() > 1 {
        bail!("{} is no directory, and so cannot have several files", destination.display());
    }
    let mut export = Export::new(&args.file, args.recursive, tally)?;
    for source in sources {
        let file = source.find(fs)?;
        match source.name().filter(|_| is_directory) {
            Some(name) => export.copy(source, &file, &destination.join(OsStr::from_bytes(name)))?,
            None if is_directory => export.copy_contents(source, &file, destination)?,
            None => export.copy(source, &file, destination)?,
        }
    }
    Ok(())
}

/// The name of the copy of a source on the host. `.`, `..`, `/` and paths that end with `/.` have none.
fn name_of(source: &Path) -> Option<&OsStr> {
    // `Path` takes no notice of a dot at the end.
    let bytes = source.as_os_str().as_bytes();
    if bytes.ends_with(b"/.") || bytes.ends_with(b"/./") { None } else { source.file_name() }
}
