//! Closures of the program that run under an object's lock: the calls that they must not make.

use crate::error::ObjectError;
use core::cell::RefCell;

thread_local! {
    /// The sessions whose locks this thread has while a closure of the program runs.
    static IN_CLOSURES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Exists while a closure of the program runs.
#[must_use]
pub(crate) struct InClosure {
    session: usize,
}

impl InClosure {
    /// Before the closure is called.
    pub(crate) fn enter(session: usize) -> Self {
        IN_CLOSURES.with_borrow_mut(|sessions| sessions.push(session));
        Self { session }
    }
}

impl Drop for InClosure {
    fn drop(&mut self) {
        IN_CLOSURES.with_borrow_mut(|sessions| {
            if let Some(at) = sessions.iter().rposition(|session| *session == self.session) {
                sessions.remove(at);
            }
        });
    }
}

/// Whether this thread runs a closure of the program under a lock of this session.
pub(crate) fn is_in_closure(session: usize) -> bool {
    IN_CLOSURES.with_borrow(|sessions| sessions.contains(&session))
}

/// Checks that this thread may take locks of this session.
pub(crate) fn check(session: usize) -> Result<(), ObjectError> {
    if is_in_closure(session) { Err(ObjectError::Nested) } else { Ok(()) }
}
