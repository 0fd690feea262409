//! Whether the test would notice a missing flush or fence.

use super::quiet::quietly;
use super::{Crash, Explorer, Failure, Run, Verdict};
use crate::{Image, Lints, Site, site};

impl Explorer {
    /// Explores once as it is, then once for each flush and fence that was exercised, without that one; returns
    /// those that nobody missed. An empty answer says that each is needed, and that the check sees it.
    ///
    /// A test that shows this stays honest when a later change makes its check too lenient, or a flush needless.
    ///
    /// # Errors
    /// The failure found with every flush and fence in place.
    pub fn needless_sites<A: Sync, O: Verdict, V: Verdict>(
        &self,
        image: &Image,
        operation: impl Fn(&Run<A>) -> O,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Result<Vec<Site>, Box<Failure>> {
        let coverage = self.explore(image, &operation, &check)?;
        let is_missing =
            |site: &Site| self.edits.suppressed.contains(site) || site::suppressed() == Some(site);
        let unsuppressed = coverage.sites.into_iter().filter(|site| !is_missing(site));
        // It is the check that has to notice, not a lint.
        let bare = self.clone().shrink(false).lints(Lints::all_allowed());
        let nobody_missed = |site: &Site| {
            quietly(|| bare.clone().suppress(site).search(image, &operation, None, &check).is_ok())
        };
        Ok(unsuppressed.filter(nobody_missed).collect())
    }
}
