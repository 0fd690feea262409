//! Transactions: all or nothing, at any crash, for one fence.

mod blocks;
mod links;
mod nesting;
mod publish;
mod roots;
mod transaction;
mod typed;
mod view;
mod work;

pub use transaction::{Durability, Tx};
pub use view::View;
