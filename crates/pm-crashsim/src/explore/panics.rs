//! Panics of closures under test: caught, and silent where they are expected and tell nothing new.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::thread;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

static INSTALLED: Once = Once::new();

/// Whether panics of this thread go unsaid.
pub(super) fn is_quiet() -> bool {
    IS_QUIET.get()
}

/// Runs the closure as quietly as the thread on whose behalf it runs.
pub(super) fn inherit_quiet<T>(is_quiet: bool, closure: impl FnOnce() -> T) -> T {
    if is_quiet { quietly(closure) } else { closure() }
}

/// Runs the closure without a word about panics in it, as long as they are of this thread.
///
/// A failure that was found is repeated hundreds of times to shrink it: the same message each time would bury the
/// report.
pub(super) fn quietly<T>(closure: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_QUIET.set(self.0);
        }
    }
    if !thread::panicking() {
        INSTALLED.call_once(|| {
            let loud = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                // A thread that is being torn down has no such variable any more, and nothing to hide.
                if !IS_QUIET.try_with(Cell::get).unwrap_or(false) {
                    loud(info);
                }
            }));
        });
    }
    let _restore = Restore(IS_QUIET.replace(true));
    closure()
}

/// What a closure under test complains of, if it does; a panic is a complaint.
pub(crate) fn catch(closure: impl FnOnce() -> Option<String>) -> Option<String> {
    // A panic may leave the closure's captures half changed; the exploration ends there, and only the caller sees them again.
    catch_unwind(AssertUnwindSafe(closure)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Some(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    })
}
