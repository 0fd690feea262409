//! What every trace must bear, whoever made it.

use pm_core::Pmem as _;
use pm_crashsim::{Crash, Explorer, TraceFile};

/// More events are only slower to explore.
const EVENTS: usize = 24;

/// Nothing in a trace makes the simulator panic.
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
