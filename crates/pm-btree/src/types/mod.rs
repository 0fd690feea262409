//! The types of keys and values, and their encodings.

mod error;
mod key;
mod option;
mod plain;
mod primitive;
mod tuple;
mod value;

pub use error::{DecodeError, EncodeError};
pub use key::{Key, LeadingKey};
pub use plain::Plain;
pub use value::Value;
