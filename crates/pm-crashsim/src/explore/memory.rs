//! What was recovered from already.

use std::collections::HashMap;

/// Which contents, after which acknowledgements, were recovered from already, and how many more crashes were tried
/// inside. Images are told apart by their fingerprints: all are over one base.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    tried_inside: HashMap<(u128, usize), usize>,
}

/// What a run acknowledged.
#[derive(Debug)]
pub(crate) struct History<'h, A> {
    pub(crate) acked: &'h [A],
    /// For each count of acknowledgements, from none to all, a number that stands for just these in this order.
    pub(crate) numbers: &'h [usize],
}

impl Memory {
    /// Whether the contents are to be recovered from, with up to `crashes_left` crashes inside; then they are not
    /// again.
    pub(crate) fn is_new(&mut self, fingerprint: u128, history: usize, crashes_left: usize) -> bool {
        let key = (fingerprint, history);
        let is_new = self.tried_inside.get(&key).is_none_or(|&tried| tried < crashes_left);
        if is_new {
            self.tried_inside.insert(key, crashes_left);
        }
        is_new
    }

    /// How many different contents were recovered from. The same ones after other acknowledgements count again.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub(crate) fn images(&self) -> u64 {
        self.tried_inside.len() as u64
    }
}
