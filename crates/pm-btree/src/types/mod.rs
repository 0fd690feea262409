//! The types of keys and values, and their encodings.

mod key;
mod option;
mod plain;
mod primitive;
mod tuple;
mod value;

pub use key::{Key, LeadingKey};
pub use plain::Plain;
pub use value::Value;
