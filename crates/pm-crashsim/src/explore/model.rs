//! The shortest way to a test.

use super::{Coverage, Crash, Explorer, Run, Verdict};
use crate::Image;

/// Runs `operation` on a region that starts as `image` (a number makes one of that many zero bytes), and `check` on
/// everything that a crash of it can leave: the default [`Explorer`], as one call.
///
/// ```
/// use pm_core::{FenceError, Pmem};
/// use pm_crashsim::{Crash, Run, model};
///
/// // Two words on one line: written in order, they survive in order.
/// let operation = |run: &Run<()>| {
///     run.pmem().store_u64(0, 1);
///     run.pmem().store_u64(8, 1);
///     run.pmem().persist(0, 16)?;
///     run.ack(());
///     Ok::<(), FenceError>(())
/// };
/// model(4096, operation, |crash: &Crash<()>| {
///     let (first, second) = (crash.pmem().load_u64(0), crash.pmem().load_u64(8));
///     assert!(first >= second);
///     assert!(crash.acked().is_empty() || second == 1);
/// });
/// ```
///
/// # Panics
/// With the story of the first failure found; or if the length is zero or no multiple of 64.
#[track_caller]
pub fn model<A: Send + Sync, O: Verdict, V: Verdict>(
    image: impl Into<Image>,
    operation: impl Fn(&Run<A>) -> O + Sync,
    check: impl Fn(&Crash<'_, A>) -> V + Sync,
) -> Coverage {
    Explorer::default().check(&image.into(), operation, check)
}
