//! `./x test fs-suites`: suites of other projects, run on a mounted pm-fs.

mod load;
mod posix;
mod sqlite;
mod suites;
mod xfstests;

pub(super) use suites::run;
