//! Comparisons: alternating rounds, medians of ratios, and reports as a table, a JSON file and charts.
//!
//! # Method
//! Both sides do the same work in *pairs*, one directly after the other, in alternating order. Each pair gives one ratio, and the median of
//! the ratios is the result. Other load, a cold start or a change of the clock frequency affects both sides of a pair alike, and the few pairs
//! that are affected unevenly do not move the median. The absolute figures are medians too, but less reliable.
//!
//! A ratio above 1 means that ours is faster.
//!
//! ```
//! use pm_bench::{Report, Side, rounds};
//!
//! let [pairs] = rounds(5, |side| Ok(if side == Side::Ours { [200.0] } else { [100.0] }))?;
//! let mut report = Report::new("example");
//! report.row("twice as fast", "a rival", "op/s", pairs, Some(0.95));
//! assert_eq!(report.rows()[0].ratio(), 2.0);
//! assert_eq!(report.missed_count(), 0);
//! # Ok::<(), miette::Report>(())
//! ```

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_errors_doc,
    reason = "errors are reports for a person, and say themselves what has failed"
)]

pub mod fio;
pub mod lackey;
pub mod npb;
pub mod nvm;
pub mod plan;
pub mod postmark;

mod cli;
mod conversation;
mod disk;
mod pairs;
mod plot;
mod report;
mod server;

pub use cli::Cli;
pub use conversation::Conversation;
pub use disk::Disk;
pub use pairs::{Pair, Side, median, processor_time, processors, rounds, rounds_of, run_on};
pub use plot::{BarChart, Plot, Series};
pub use report::{Report, Row};
pub use server::Server;
