//! `pmfs mount` and `pmfs umount`.

mod arguments;
mod background;
mod command;
mod options;
mod server;
mod umount;

pub(crate) use arguments::Mount;
pub(crate) use command::{Helper, run, run_helper};
pub(crate) use umount::umount;
