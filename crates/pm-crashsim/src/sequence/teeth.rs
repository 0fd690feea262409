//! Whether the sequences would notice a missing flush or fence.

use super::failure::SequenceFailure;
use super::runner::Sequences;
use super::subject::Oracle;
use crate::Site;
use std::collections::BTreeSet;

impl<S: Oracle + Clone> Sequences<S> {
    /// Explores every sequence of one to `max_len` operations of `alphabet`, then again for each flush and fence that
    /// was exercised, without that one; returns those that nobody missed. An empty answer says that each is needed,
    /// and that these sequences show it.
    ///
    /// # Errors
    /// The failure found with every flush and fence in place.
    pub fn needless_sites(
        &self,
        alphabet: &[S::Op],
        max_len: usize,
    ) -> Result<Vec<Site>, SequenceFailure<S::Op>> {
        let mut sites = BTreeSet::new();
        self.explore_each(alphabet, max_len, |coverage| sites.extend(coverage.sites))?;
        let nobody_missed = |site: &Site| {
            let without = self.clone().suppress(site);
            without.explore_each(alphabet, max_len, drop).is_ok()
        };
        Ok(sites.into_iter().filter(nobody_missed).collect())
    }
}
