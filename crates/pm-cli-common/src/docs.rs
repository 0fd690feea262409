//! Subcommands that tell shells and `man` of a command.

use clap::Subcommand;
use clap_complete::Shell;
use miette::{Context as _, IntoDiagnostic as _};
use std::path::PathBuf;

/// What every command can tell of itself: to be flattened into its subcommands.
#[derive(Debug, Subcommand)]
pub enum Docs {
    /// Print completions for a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// Write the manual pages into a directory.
    Man {
        /// Which directory; it must exist.
        dir: PathBuf,
    },
}

impl Docs {
    /// Tells it.
    ///
    /// # Errors
    /// When a manual page cannot be written.
    pub fn run(&self, mut command: clap::Command) -> miette::Result<()> {
        match self {
            Self::Completions { shell } => {
                let name = command.get_name().to_owned();
                clap_complete::generate(*shell, &mut command, name, &mut std::io::stdout());
                Ok(())
            }
            Self::Man { dir } => clap_mangen::generate_to(command, dir)
                .into_diagnostic()
                .wrap_err_with(|| format!("writing manual pages into {}", dir.display())),
        }
    }
}
