//! Removes a name, and frees its object.

use super::free;
use crate::error::ObjectError;
use crate::ops::contents::chunk;
use crate::session::shared::{NamesState, Row, Shared};
use crate::volume::object::ObjectRef;
use crate::volume::root::Pending;
use pm_core::Pmem;

/// Removes a name with this row, and frees its object. An object that is corrupted is not freed.
///
/// # Durability
/// Durable when this returns, with the removal of the name. Three fences, and one more for every 32 chunks but the last ones.
pub(crate) fn remove<P: Pmem>(
    shared: &Shared<P>,
    state: &mut NamesState,
    name: &str,
    row: &Row,
) -> Result<(), ObjectError> {
    let object = shared.find(row).ok();
    let old = object.as_ref().map(|object| object.offset);
    let pending = Pending::Set { name: name.to_owned(), new: None, old };
    shared.volume.transaction(|change| shared.roots.set_pending(change, &pending))?;
    (state.has_intent, state.is_unfinished) = (true, true);
    if let Err(error) = shared.names_to_change()?.remove(name) {
        // The name stays.
        shared.clear_intent(state)?;
        return Err(error.into());
    }
    end(shared, state, object.as_ref())
}

/// The object has lost its name, durably: ends its handles, and frees it.
pub(crate) fn end<P: Pmem>(
    shared: &Shared<P>,
    state: &mut NamesState,
    object: Option<&ObjectRef>,
) -> Result<(), ObjectError> {
    let Some(object) = object else {
        state.is_unfinished = false;
        return Ok(());
    };
    if let Some(control) = shared.known(object.number) {
        control.delete();
        chunk::forget(shared, &control);
    }
    free::free(shared, state, object)
}
