//! A replicated key/value store in persistent memory, which Redis clients use: nodes with the state of `pm-openraft`, and the protocols between them.

#![forbid(unsafe_code)]

mod error;
#[doc(hidden)]
pub mod fuzzing;
mod node;
mod peer;
mod program;
mod redis;
mod serve;

pub use error::ServeError;
pub use serve::{ServeOptions, serve};
