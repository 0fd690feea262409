//! The rules, one file each.

pub(super) mod durability;
pub(super) mod folders;
pub mod formats;
pub(super) mod heads;
pub(super) mod imports;
pub(super) mod links;
pub(super) mod unsafe_code;
pub(super) mod words;
