//! pm-core.
