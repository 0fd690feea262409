//! Subcommands that tell shells and `man` of a command.

use clap::Subcommand;
use clap_complete::Shell;
use miette::{Context as _, IntoDiagnostic as _};
use std::io::Write as _;
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
    /// When they cannot be written. A reader of completions that has gone away is no error.
    pub fn run(&self, mut command: clap::Command) -> miette::Result<()> {
        match self {
            Self::Completions { shell } => {
                let name = command.get_name().to_owned();
                // By way of a buffer: the generator panics when it cannot write.
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut command, name, &mut script);
                let mut out = std::io::stdout().lock();
                match out.write_all(&script).and_then(|()| out.flush()) {
                    Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                        Err(error).into_diagnostic().wrap_err("writing completions")
                    }
                    _ => Ok(()),
                }
            }
            Self::Man { dir } => clap_mangen::generate_to(command, dir)
                .into_diagnostic()
                .wrap_err_with(|| format!("writing manual pages into {}", dir.display())),
        }
    }
}
