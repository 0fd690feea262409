//! An open store: its space, and the numbers of its changes.

mod batch_slots;
mod classes;
mod epochs;
mod extent;
mod extent_table;
mod grace;
mod limbo;
mod long_records;
mod options;
#[expect(clippy::module_inception, reason = "the folder is named after its main type")]
mod session;
mod space;
mod stock;

pub(crate) use batch_slots::BatchSlot;
pub(crate) use classes::{CLASS_COUNT, Class, Units};
pub(crate) use grace::Active;
pub(crate) use long_records::LongRecords;
pub use options::StoreOptions;
pub(crate) use session::{HeldOff, Session};
pub(crate) use space::Reserved;
pub(crate) use stock::{Stock, Supply};
