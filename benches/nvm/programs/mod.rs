//! Programs on file systems: databases, of Fig. 8, and those of V.A.

mod berkeley_db;
mod build;
mod patch;
mod postgres;
mod postmark;
mod rates;

pub(crate) use berkeley_db::{BerkeleyDb, compile};
pub(crate) use build::{build, missing as build_missing};
pub(crate) use patch::{Patch, serve as serve_patch};
pub(crate) use postgres::{Postgres, serve as serve_postgres};
pub(crate) use postmark::{Postmark, serve as serve_postmark};
pub(crate) use rates::{PATHS, Workload, measure};
