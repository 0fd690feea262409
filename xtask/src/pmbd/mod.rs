//! The program `pmbd`, for tests and tasks that run it in a guest: building it, and serving disks with it.

mod build;
mod server;
mod sources;

pub use build::{Profile, build};
pub use server::{Guest, Server};
pub use sources::source_tree;
