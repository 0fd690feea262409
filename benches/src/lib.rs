//! What every comparison is made of: alternating rounds, medians of ratios, the facts about the machine, and
//! the table, JSON file and picture that come out.
//!
//! # How a comparison is made
//! Ours and theirs do the same work in *pairs*, one right after the other, in alternating order. Each pair
//! gives one ratio, and the median of the ratios is the result: a machine that is busy with other things,
//! warms up or changes its clock disturbs both sides of a pair alike, and the few pairs that it disturbs
//! unevenly do not move a median. The absolute figures beside it are medians too, and are worth less.
//!
//! A ratio above 1 always means that ours is faster.
//!
//! ```
//! use pm_bench::{Goal, Report, Row, Side, rounds};
//!
//! let pairs = rounds(5, |side| match side {
//!     Side::Ours => Ok::<_, std::convert::Infallible>(200.0),
//!     Side::Theirs => Ok(100.0),
//! }).unwrap();
//! let row = Row::new("twice as fast", "a rival", "op/s", pairs, Goal::AtLeast(0.95));
//! assert_eq!(row.ratio(), 2.0);
//! let mut report = Report::new("example");
//! report.push(row);
//! assert!(report.missed().is_empty());
//! ```

#![forbid(unsafe_code)]

pub mod fio;
pub mod lackey;
pub mod plan;

mod cli;
mod machine;
mod pairs;
mod plot;
mod report;
mod server;

pub use cli::Cli;
pub use machine::Machine;
pub use pairs::{Pair, Side, median, processor_time, rounds, rounds_of};
pub use plot::{Plot, Series};
pub use report::{Goal, Report, Row};
pub use server::Server;
