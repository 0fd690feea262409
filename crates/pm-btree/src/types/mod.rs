//! The types of keys and values, and their encodings.

mod key;
mod option;
mod plain;
mod prefix;
mod primitive;
mod tuple;
mod value;

pub use key::{Key, LeadingKey};
pub use plain::Plain;
pub use prefix::Prefix;
pub(crate) use prefix::end_of_prefix;
pub use value::Value;
