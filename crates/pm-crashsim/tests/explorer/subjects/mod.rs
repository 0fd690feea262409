//! Small persistent structures to test the tests with: each sound, and with bugs planted.

pub(crate) mod cell;
pub(crate) mod log;
pub(crate) mod table;
