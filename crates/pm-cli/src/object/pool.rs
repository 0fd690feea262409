//! Pools of objects in files.

use super::failure::Failure;
use pm_objects::{Objects, ObjectsOptions};
use std::path::Path;

/// Creates a file without objects.
pub(crate) fn create(path: &Path, pool_bytes: u64) -> Result<Objects, Failure> {
    Objects::create_pool(path, pool_bytes, &ObjectsOptions::new()).map_err(Failure::open(path))
}

/// Opens a pool to change it.
pub(crate) fn open(path: &Path) -> Result<Objects, Failure> {
    Objects::open_pool(path, &ObjectsOptions::new()).map_err(Failure::open(path))
}

/// Opens a pool to read it. The file, which may be read-only, is unchanged.
pub(crate) fn open_unchanged(path: &Path) -> Result<Objects, Failure> {
    Objects::open_pool_read_only(path, &ObjectsOptions::new()).map_err(Failure::open(path))
}

/// Closes a pool without handles.
pub(crate) fn close(objects: Objects, path: &Path) -> Result<(), Failure> {
    objects.close().map_err(Failure::open(path))
}
