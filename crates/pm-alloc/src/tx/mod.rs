//! Transactions: all or nothing, at any crash, for one fence.

mod blocks;
mod nesting;
mod roots;
mod transaction;
mod typed;
mod view;

pub use transaction::Tx;
pub use view::View;
