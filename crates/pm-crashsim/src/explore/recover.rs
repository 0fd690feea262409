//! Recovering once, from an image that somebody kept.

use super::session::catch;
use super::{Coverage, Crash, Explorer, Failure, Verdict};
use crate::sim::Recording;
use crate::{Image, SimPmem};
use std::sync::Arc;

impl Explorer {
    /// Runs `check` once, on a region that starts as `image`, as if a crash had left it after these
    /// acknowledgements: for what a crash left once, and shall be recovered from ever after.
    ///
    /// ```
    /// use pm_core::Pmem;
    /// use pm_crashsim::{Crash, Explorer, SimPmem};
    /// let left = SimPmem::new(4096);
    /// left.store_u64(0, 1);
    /// let check = |crash: &Crash<u64>| crash.expect(crash.pmem().load_u64(0), crash.acked().to_vec());
    /// assert!(Explorer::default().recover(&left.to_image(), &[1], check).is_ok());
    /// let failure = Explorer::default().recover(&left.to_image(), &[2], check).unwrap_err();
    /// assert_eq!(failure.message, "1 was found, where only 2 is allowed");
    /// ```
    ///
    /// # Errors
    /// What the check fails with.
    pub fn recover<A, V: Verdict>(
        &self,
        image: &Image,
        acked: &[A],
        check: impl Fn(&Crash<'_, A>) -> V,
    ) -> Result<(), Box<Failure>> {
        let pmem = Arc::new(SimPmem::recorded(image, self.rules.model, Recording::Nothing, &self.edits));
        pmem.limit(self.accesses_per_check, self.time_per_check);
        let crash = Crash::new(pmem, acked, 1);
        let Some(message) = catch(|| check(&crash).failure()) else {
            return Ok(());
        };
        Err(Box::new(Failure::new(crash.complaint(message), Coverage::default())))
    }
}
