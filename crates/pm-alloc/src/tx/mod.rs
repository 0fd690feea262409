//! Transactions, and views: atomic and durable changes, for one fence each.

mod error;
mod transaction;
mod view;

pub use error::TxError;
pub(crate) use transaction::run;
pub use transaction::{Durability, Tx};
pub use view::View;
