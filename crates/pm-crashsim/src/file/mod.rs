//! Traces in files.

mod error;
mod format;
mod read;
mod trace_file;
mod wire;
mod write;

pub use error::TraceError;
pub use trace_file::TraceFile;
