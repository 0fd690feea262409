//! The mapping from addresses of a process to offsets in a file.

/// A mapped range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    address: u64,
    len_bytes: u64,
    offset: u64,
}

/// Mapped ranges, none of which overlaps another.
#[derive(Debug, Default)]
pub(super) struct Mappings(Vec<Mapping>);

impl Mappings {
    /// Adds a range and replaces earlier mappings there. Neither end is after the last address or offset.
    pub(super) fn add(&mut self, address: u64, len_bytes: u64, offset: u64) {
        self.remove(address, len_bytes);
        if len_bytes > 0 {
            self.0.push(Mapping { address, len_bytes, offset });
        }
    }

    /// Removes a range, which has other contents now.
    pub(super) fn remove(&mut self, address: u64, len_bytes: u64) {
        let end = address + len_bytes;
        let mut rest = Vec::with_capacity(self.0.len() + 1);
        for old in self.0.drain(..) {
            let old_end = old.address + old.len_bytes;
            let before = address.min(old_end).saturating_sub(old.address);
            let after = old_end.saturating_sub(end.max(old.address));
            rest.push(Mapping { len_bytes: before, ..old });
            let skipped = old.len_bytes - after;
            rest.push(Mapping {
                address: old.address + skipped,
                len_bytes: after,
                offset: old.offset + skipped,
            });
        }
        rest.retain(|mapping| mapping.len_bytes > 0);
        self.0 = rest;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The mapped parts of a range: their offset in the range, their offset in the file, and their length.
    pub(super) fn parts(&self, address: u64, len_bytes: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let end = address + len_bytes;
        self.0.iter().filter_map(move |mapping| {
            let from = address.max(mapping.address);
            let to = end.min(mapping.address + mapping.len_bytes);
            (from < to).then(|| (from - address, mapping.offset + (from - mapping.address), to - from))
        })
    }
}

/// The parts of a range, those that are adjacent in the file joined; `None` if not all of the range is mapped.
pub(super) fn joined(mut parts: Vec<(u64, u64, u64)>, len_bytes: u64) -> Option<Vec<(u64, u64, u64)>> {
    if parts.iter().map(|&(_, _, mapped)| mapped).sum::<u64>() != len_bytes {
        return None;
    }
    parts.sort_unstable();
    let mut joined: Vec<(u64, u64, u64)> = Vec::with_capacity(parts.len());
    for (from, offset, len) in parts {
        match joined.last_mut() {
            Some((_, last, last_len)) if *last + *last_len == offset => *last_len += len,
            _ => joined.push((from, offset, len)),
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_mappings_hide_earlier_ones() {
        let mut mappings = Mappings::default();
        mappings.add(1000, 100, 0);
        mappings.add(1040, 20, 4096);
        let mut parts: Vec<_> = mappings.parts(990, 200).collect();
        parts.sort_unstable();
        assert_eq!(parts, [(10, 0, 40), (50, 4096, 20), (70, 60, 40)]);
        mappings.add(900, 300, 0);
        assert_eq!(mappings.parts(1040, 8).collect::<Vec<_>>(), [(0, 140, 8)]);
        assert_eq!(mappings.parts(1200, 8).count(), 0);
        mappings.add(0, u64::MAX, 0);
        assert_eq!(mappings.0.len(), 1);
    }
}
