//! The kernel's own replication over `pmbd`: DRBD, and md over NVMe over TCP, in two guests joined by a network. docs/replication.md has the same commands.

mod detach;
mod documented;
mod drbd;
mod md;
mod pair;
mod power_cut;
mod smaller;
mod split_brain;
mod verify;
