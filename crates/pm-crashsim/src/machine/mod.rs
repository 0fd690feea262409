//! The machine: replays a record and knows, at each step, what is durable for sure and what is pending.

mod commit;
mod kill;
mod legal;
mod state;

pub(crate) use state::Machine;
