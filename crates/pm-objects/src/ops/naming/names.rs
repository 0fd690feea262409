//! Changes names of objects that are complete.

use super::{recover, remove};
use crate::error::ObjectError;
use crate::ops::contents::room::{self, Holds};
use crate::session::shared::{Shared, check_name};
use pm_core::Pmem;

/// Deletes the object with this name. Calls on its handles fail from then on.
///
/// # Durability
/// Durable when this returns, with the removal of the name. Three fences, and one more for every 32 chunks but the last ones.
pub(crate) fn delete<P: Pmem>(shared: &Shared<P>, name: &str) -> Result<(), ObjectError> {
    let mut state = recover::lock_names(shared)?;
    let row = shared.row(name)?.ok_or(ObjectError::NotFound)?;
    remove::remove(shared, &mut state, name, &row)
}

/// Renames an object.
///
/// # Durability
/// Durable when this returns, with the batch that removes the one name and inserts the other. Two fences, and one more if the last change of names was of
/// another kind.
pub(crate) fn rename<P: Pmem>(shared: &Shared<P>, from: &str, to: &str) -> Result<(), ObjectError> {
    check_name(from)?;
    check_name(to)?;
    let mut state = recover::lock_names(shared)?;
    let row = shared.row(from)?.ok_or(ObjectError::NotFound)?;
    if shared.row(to)?.is_some() {
        return Err(ObjectError::Exists);
    }
    // Otherwise recovery could give the object that was created last its old name again.
    shared.clear_intent(&mut state)?;
    let names = shared.names_to_change()?;
    room::with_room(shared, Holds::Names, || {
        let mut batch = shared.volume.store.batch();
        batch.remove(names, from)?;
        batch.insert(names, to, row)?;
        Ok(batch.commit()?)
    })
}
