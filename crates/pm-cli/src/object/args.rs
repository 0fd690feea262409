//! The command line of `pm object`.

use clap::{Args, Subcommand};
use pm_cli_common::Size;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum ObjectCommand {
    /// Create a file without objects.
    Create(Sized),
    /// Make an object of each file of a directory, named by its path there. Files whose objects have their contents are left out, so that an import that
    /// was interrupted is completed by another. Reports how many files are durable. Creates FILE if it does not exist, and lets it grow.
    Import(Import),
    /// Write each object to a file of a directory, named by the object.
    Export(Export),
    /// Print the names of objects.
    Ls(Ls),
    /// Write the contents of an object to standard output, or to a file.
    Get(Get),
    /// Create an object with the contents of a file or of standard input, or replace it. Durable when the command ends.
    Put(Put),
    /// Delete objects. Durable when the command ends.
    Rm(Rm),
    /// Rename an object. Durable when the command ends.
    Mv(Mv),
    /// Move the chunks of an object to a tier, where they stay. Durable when the command ends.
    Pin(Pin),
    /// Print what is known of an object, or of all together.
    Stat(Stat),
    /// Verify all objects, and that all space in use belongs to one. Changes nothing.
    Check(Target),
}

#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The file, or device-dax.
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Sized {
    /// The file, which must not exist.
    pub(crate) file: PathBuf,
    /// Its size.
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Size,
    /// The size of a second file, FILE.file, to which contents move when FILE is full. Default: none.
    #[arg(long, value_name = "SIZE")]
    pub(crate) file_size: Option<Size>,
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The file with the objects.
    pub(crate) file: PathBuf,
    /// The directory. Symbolic links to files are followed.
    pub(crate) dir: PathBuf,
    /// The size of a new file.
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub(crate) size: Size,
    /// The size of a second file of a new file, FILE.file, to which contents move when FILE is full. FILE does not grow then. Default: none.
    #[arg(long, value_name = "SIZE", conflicts_with = "max_size")]
    pub(crate) file_size: Option<Size>,
    /// The size up to which the file may grow. Default: as far as there is room.
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_size: Option<Size>,
    /// Keep copies of contents that are often read in so much DRAM.
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(crate) dram: Size,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The file with the objects.
    pub(crate) file: PathBuf,
    /// The directory, which is created if it does not exist. Its files with names of objects are replaced.
    pub(crate) dir: PathBuf,
    /// Export only objects whose names start with this.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// The file.
    pub(crate) file: PathBuf,
    /// Print only names that start with this.
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// Print the lengths, too.
    #[arg(long, short)]
    pub(crate) long: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The file.
    pub(crate) file: PathBuf,
    /// The name of the object.
    pub(crate) name: String,
    /// The output. Default: standard output.
    #[arg(long, short, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The file.
    pub(crate) file: PathBuf,
    /// The name of the object.
    pub(crate) name: String,
    /// The contents; `-` for standard input.
    pub(crate) input: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// The file.
    pub(crate) file: PathBuf,
    /// The names of the objects.
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Mv {
    /// The file.
    pub(crate) file: PathBuf,
    /// The name of the object.
    pub(crate) from: String,
    /// Its new name, which no object has.
    pub(crate) to: String,
}

#[derive(Debug, Args)]
pub(crate) struct Pin {
    /// The file.
    pub(crate) file: PathBuf,
    /// The name of the object.
    pub(crate) name: String,
    /// The tier.
    pub(crate) tier: PinTier,
}

/// Where chunks stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PinTier {
    /// FILE itself.
    Pool,
    /// The second file, FILE.file.
    File,
    /// Wherever their use shows that they belong.
    None,
}

#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// The file.
    pub(crate) file: PathBuf,
    /// The name of an object.
    pub(crate) name: Option<String>,
}
