//! Ends the change of names that a crash, or a call that failed, has left unfinished.

use super::{free, remove};
use crate::error::ObjectError;
use crate::format::INCOMPLETE;
use crate::session::shared::{NamesState, Row, Shared, incomplete_name};
use crate::volume::object::ObjectRef;
use crate::volume::root::Pending;
use pm_core::Pmem;
use std::sync::MutexGuard;

/// Takes the lock of the names for a change, after ending an earlier one that was left unfinished.
pub(crate) fn lock_names<P: Pmem>(shared: &Shared<P>) -> Result<MutexGuard<'_, NamesState>, ObjectError> {
    let mut state = shared.lock_names()?;
    if state.is_unfinished {
        finish(shared, &mut state)?;
    }
    Ok(state)
}

/// Ends what the last session has left unfinished: a change of names, and objects that are not complete.
///
/// # Durability
/// Each step is durable before the next, and all of them can be repeated.
pub(crate) fn recover<P: Pmem>(shared: &Shared<P>) -> Result<(), ObjectError> {
    let mut state = lock_names(shared)?;
    let Some(names) = shared.names() else { return Ok(()) };
    let mut incomplete = Vec::new();
    for found in names.prefix(INCOMPLETE.encode_utf8(&mut [0; 4]) as &str) {
        let (name, row) = found?;
        incomplete.push((name.value().to_owned(), row.value()));
    }
    incomplete.iter().try_for_each(|(name, row)| remove::remove(shared, &mut state, name, row))
}

/// Ends the change of names that the intent describes. It is never a reason to free the object that was to get the name: an entry of the names that is
/// lost must not take an object with it.
fn finish<P: Pmem>(shared: &Shared<P>, state: &mut NamesState) -> Result<(), ObjectError> {
    match shared.roots.pending(&shared.volume)? {
        Pending::None => {
            (state.has_intent, state.is_unfinished) = (false, false);
            Ok(())
        }
        Pending::Build(new) => match ObjectRef::find(&shared.volume, new) {
            Ok(new) => {
                let names = shared.names_to_change()?;
                names.remove(&incomplete_name(new.number))?;
                free::free(shared, state, &new)
            }
            Err(_) => shared.clear_intent(state),
        },
        Pending::Set { name, new, old } => {
            let find = |offset: Option<u64>| offset.and_then(|at| ObjectRef::find(&shared.volume, at).ok());
            let old_object = find(old);
            match (new, find(new)) {
                (Some(_), Some(new)) => match set(shared, &name, &new) {
                    // The call has not returned, so it may not have been made. The object keeps its blocks.
                    Err(ObjectError::Full) => return shared.clear_intent(state),
                    set => set?,
                },
                // It cannot be verified, so it gets no name, and nothing else loses it.
                (Some(new), None) => {
                    if shared.row(&name)?.is_none_or(|row| row.object != new) {
                        return shared.clear_intent(state);
                    }
                }
                (None, _) => unset(shared, &name, old)?,
            }
            remove::end(shared, state, old_object.as_ref())
        }
    }
}

/// The name becomes that of this object, if it is not.
fn set<P: Pmem>(shared: &Shared<P>, name: &str, new: &ObjectRef) -> Result<(), ObjectError> {
    let row = Row::of(new);
    if shared.row(name)? == Some(row) {
        return Ok(());
    }
    let names = shared.names_to_change()?;
    let mut batch = shared.volume.store.batch();
    batch.remove(names, &incomplete_name(new.number))?;
    batch.insert(names, name, row)?;
    Ok(batch.commit()?)
}

/// The name is removed, if it is that of this object, or of none that can be verified.
fn unset<P: Pmem>(shared: &Shared<P>, name: &str, old: Option<u64>) -> Result<(), ObjectError> {
    let is_its_own = |row: &Row| old.is_none_or(|old| row.object == old);
    if shared.row(name)?.as_ref().is_some_and(is_its_own) {
        shared.names_to_change()?.remove(name)?;
    }
    Ok(())
}
