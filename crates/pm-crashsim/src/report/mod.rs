//! What is made of a failure for people: a drawing of the crash, a page of text, a command, a test.

mod command;
mod origin;
mod paint;
mod svg;
mod test_source;
mod text;
mod timeline;
mod trace_file;

pub(crate) use origin::Origin;
pub(crate) use paint::Paint;
pub(crate) use svg::svg;
pub(crate) use test_source::test_source;
pub(crate) use text::write_report;
pub(crate) use trace_file::save_trace;
