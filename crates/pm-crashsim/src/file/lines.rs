//! Images as the lines in which they differ from another.

use crate::Image;
use crate::image::Line;
use crate::line::LINE;
use std::collections::BTreeMap;

/// Lines by number, in order.
pub(super) type Changed = BTreeMap<u64, Line>;

const ZERO: Line = [0; LINE];

/// The lines of `image` that differ from `before`, or from zeros. In time proportional to the region.
pub(super) fn changed(before: Option<&Image>, image: &Image) -> Changed {
    let numbers = 0..image.len_bytes() / LINE as u64;
    let changed = numbers.filter_map(|number| {
        let line = *image.line(number);
        (line != old(before, number)).then_some((number, line))
    });
    changed.collect()
}

/// The line as it was.
pub(super) fn old(before: Option<&Image>, number: u64) -> Line {
    before.map_or(ZERO, |before| *before.line(number))
}

/// `before` with other lines in place of its own.
pub(super) fn with(before: &Image, lines: Changed) -> Image {
    let mut change = 0;
    for (&number, line) in &lines {
        change ^= before.fingerprint_change(number, before.line(number), line);
    }
    before.overlaid(lines.into_iter().collect(), change)
}
