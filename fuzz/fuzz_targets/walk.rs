//! What every trace must bear, whoever made it.

use pm_crashsim::{Explorer, TraceFile};

/// More events are only slower to explore.
const EVENTS: usize = 64;

/// Nothing in a trace makes the simulator panic.
pub fn everywhere(file: &TraceFile) {
    for point in file.crash_points() {
        assert!(point.legal > 0 && point.events <= file.trace().events().len());
    }
    if file.trace().events().len() <= EVENTS {
        let explorer = Explorer::of(file).crashes(1).choices_per_point(4);
        explorer.explore_trace(file, |_| ()).expect("nothing is checked");
    }
}
