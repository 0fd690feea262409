//! `pmfs mount` and `pmfs umount`.

mod background;
mod command;
mod options;
mod server;
mod umount;

pub(crate) use command::{Helper, Mount, run, run_helper};
pub(crate) use umount::umount;
