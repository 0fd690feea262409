//! Traces of other tools, for code that does not use the seam.

mod error;
mod mapping;
mod pmemcheck;
mod reader;
mod record;

pub use error::{ImportError, RecordError};
pub use pmemcheck::{Imported, PmemcheckOptions, Tally, pmemcheck};
