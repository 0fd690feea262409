//! What concerns all objects.

pub(crate) mod check;
