//! pm-core-derive.
