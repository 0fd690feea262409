//! Operations that must succeed on every valid trace, from any source.

use pm_core::Pmem as _;
use pm_crashsim::{Crash, Explorer, TraceFile};

/// The longest trace that is explored: a longer one only takes more time.
const EVENTS: usize = 24;

/// Counts and explores the crash points of a trace: the simulator never panics.
pub fn everywhere(file: &TraceFile) {
    for point in file.crash_points() {
        assert!(point.legal > 0 && point.events <= file.trace().events().len());
    }
    if file.trace().events().len() <= EVENTS {
        let explorer = Explorer::of(file).crashes(1).choices_per_point(4);
        let read_a_little = |crash: &Crash<'_, ()>| crash.pmem().load(0, &mut [0; 64]);
        for reduce in [false, true] {
            explorer.clone().reduce(reduce).explore_trace(file, read_a_little).expect("nothing is checked");
        }
    }
}
