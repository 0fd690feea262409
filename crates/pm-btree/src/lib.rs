//! An embedded, durable, ordered key/value store in persistent memory: the types of keys and values.

#![forbid(unsafe_code)]

mod types;

pub use types::{DecodeError, EncodeError, Key, LeadingKey, Plain, Value};
