//! Recording without exploring: for code that wants a trace, to be kept or looked at.

use crate::sim::Recording;
use crate::site::Edits;
use crate::{Image, Model, SimPmem, TraceFile};

impl SimPmem {
    /// A region that starts as `image`, under `model`, and records what is done to it, for
    /// [`to_trace_file`](Self::to_trace_file).
    #[must_use]
    pub fn recording(image: &Image, model: Model) -> Self {
        Self::recorded(image, model, Recording::Writes, &Edits::default())
    }

    /// Marks in the record that an operation returned, as [`Run::ack`](crate::Run::ack) does.
    #[track_caller]
    pub fn ack(&self) {
        self.mark_ack();
    }

    /// The record so far, with what the region held at the start. Empty, unless the region is
    /// [`recording`](Self::recording).
    #[must_use]
    pub fn to_trace_file(&self) -> TraceFile {
        let (start, trace) = self.start_and_trace();
        TraceFile::new(self.model(), start, trace)
    }
}
