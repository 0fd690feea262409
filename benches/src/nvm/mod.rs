//! What slow and fast memories do to whole systems: technologies, devices of them, and the paper's numbers beside ours.

pub mod btf;
pub mod cell;
pub mod deadlines;
pub mod derived;
pub mod device;
pub mod figures;
pub mod journal;
pub mod load;
pub mod page;
pub mod paper;
pub mod spin;
pub mod technology;
