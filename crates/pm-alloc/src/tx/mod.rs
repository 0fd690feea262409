//! Transactions, and views with changes that need no transaction: atomic and durable, at one fence in most cases.

mod error;
mod transaction;
mod view;

pub use error::TxError;
pub(crate) use transaction::run;
pub use transaction::{Durability, Tx};
pub use view::View;
