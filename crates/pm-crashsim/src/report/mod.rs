//! What is made of a failure for people: a drawing of the crash, a page of text, a test.

mod svg;
mod test_source;
mod text;
mod timeline;
