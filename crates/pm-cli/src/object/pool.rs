//! Pools of objects in files.

use super::failure::Failure;
use pm_cli_common::Size;
use pm_objects::{Objects, ObjectsOptions};
use std::path::Path;

/// Creates a file without objects, and perhaps one with a lower tier beside it.
pub(crate) fn create(
    path: &Path,
    size: Size,
    file_size: Option<Size>,
    mut options: ObjectsOptions,
) -> Result<Objects, Failure> {
    if let Some(size) = file_size {
        options = options.file_bytes(size.0);
    }
    Objects::create_pool(path, size.0, &options).map_err(Failure::open(path))
}

/// Opens a pool to change it.
pub(crate) fn open(path: &Path) -> Result<Objects, Failure> {
    open_with(path, &ObjectsOptions::new())
}

/// As [`open`], with options.
pub(crate) fn open_with(path: &Path, options: &ObjectsOptions) -> Result<Objects, Failure> {
    Objects::open_pool(path, options).map_err(Failure::open(path))
}

/// Opens a pool to read it. The file, which may be read-only, is unchanged.
pub(crate) fn open_unchanged(path: &Path) -> Result<Objects, Failure> {
    Objects::open_pool_read_only(path, &ObjectsOptions::new()).map_err(Failure::open(path))
}

/// Closes a pool without handles.
pub(crate) fn close(objects: Objects, path: &Path) -> Result<(), Failure> {
    objects.close().map_err(Failure::open(path))
}
