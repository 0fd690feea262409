//! The public calls: on a pool of objects, and on one object.

pub(crate) mod contents;
pub(crate) mod list;
pub(crate) mod object;
pub(crate) mod objects;
pub(crate) mod transaction;
