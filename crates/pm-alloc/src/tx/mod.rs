//! Transactions, and the changes of a view, which need no transaction. Both are atomic and durable, and most of them cost one fence.

mod error;
mod transaction;
mod view;

pub use error::TxError;
pub(crate) use transaction::run;
pub use transaction::{Durability, Tx};
pub use view::View;
