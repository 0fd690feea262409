//! The program `pmbd`, for tests and tasks that run it in a guest: building it, and serving disks with it.

mod host;
mod server;

pub use host::{Profile, build, source_tree};
pub use server::{Guest, Server};
