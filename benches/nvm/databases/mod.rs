//! Fig. 8: a database on slow and fast memories.

mod measure;

pub(crate) use measure::{PATHS, measure};
