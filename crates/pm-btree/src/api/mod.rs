//! The public calls: a store, its tables, batches and groups. Each encodes what it is given, and calls one operation.

mod batch;
mod catalogue;
mod group;
mod guard;
mod load;
mod op_list;
mod range;
mod removal;
mod reservation;
mod shared;
mod store;
mod table;

pub use batch::WriteBatch;
pub use catalogue::TableInfo;
pub use guard::{Encoded, Guard, Swap};
pub use load::{LoadError, LoadFailure};
pub use range::{KeyValue, Range};
pub use store::{CloseError, Store};
pub use table::Table;
