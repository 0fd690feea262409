//! A disk that pmbd serves over NBD, and its client fio.

use crate::{Server, fio};
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use std::path::Path;
use std::process::Command;
use xtask::process;

/// A disk that is served over NBD until it is dropped.
#[derive(Debug)]
pub struct Disk {
    _server: Server,
    uri: String,
    directory: tempfile::TempDir,
}

impl Disk {
    /// Serves a new disk of `size_bytes` in `parent`, with these options of `pmbd serve`, and writes every byte of it once.
    pub fn serve(pmbd: &Path, parent: &Path, size_bytes: u64, options: &[&str]) -> Result<Self> {
        let directory =
            tempfile::tempdir_in(parent).into_diagnostic().wrap_err_with(|| parent.display().to_string())?;
        let socket = directory.path().join("socket");
        let mut server = Server::start(
            Command::new(pmbd)
                .args(["--json", "serve"])
                .arg(directory.path().join("disk.pm"))
                .args(["--size", &size_bytes.to_string(), "--populate", "--transport", "nbd", "--socket"])
                .arg(&socket)
                .args(options)
                // Keeps this server out of the user's list of running servers.
                .env("PMBD_RUN_DIR", directory.path().join("run")),
        )?;
        server.wait_for_line("\"serving\"")?;
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let disk = Self { _server: server, uri, directory };
        disk.fio(fio::fill(size_bytes))?;
        Ok(disk)
    }

    /// Its address, for other clients.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The directory of its file.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs fio and returns its output.
    pub fn fio(&self, arguments: Vec<String>) -> Result<String> {
        let uri = format!("--uri={}", self.uri);
        process::output(Command::new("fio").args(["--ioengine=nbd", &uri]).args(arguments))
    }
}
