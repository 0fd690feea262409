//! The operations on contents, one in each file. Each uses those before it in this list: where chunks are; room for them; stores; lengths; what moves by its use; pins; loads.

pub(crate) mod chunk;
pub(crate) mod load;
pub(crate) mod pin;
pub(crate) mod place;
pub(crate) mod resize;
pub(crate) mod room;
pub(crate) mod store;
