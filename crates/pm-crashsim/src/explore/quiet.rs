//! Panics that are expected and tell nothing new.

use std::cell::Cell;
use std::panic;
use std::sync::Once;
use std::thread;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

static INSTALLED: Once = Once::new();

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
