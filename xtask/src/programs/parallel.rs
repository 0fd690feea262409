//! Work on items in parallel, with results in the items' order.

use miette::{IntoDiagnostic, Result};
use rayon::ThreadPoolBuilder;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};

/// The number of concurrent tests.
const AT_ONCE: usize = 2;

/// Runs `work` on the items in parallel, and returns the results in the items' order.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(usize, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let pool = ThreadPoolBuilder::new().num_threads(AT_ONCE).build().into_diagnostic()?;
    // Items are not batched, because one takes from milliseconds to minutes.
    let work = |(number, item)| work(number, item);
    pool.install(|| items.par_iter().enumerate().with_max_len(1).map(work).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use miette::miette;

    #[test]
    fn parallel_results_keep_their_order() {
        let items: Vec<usize> = (0..50).collect();
        let doubled = in_parallel(&items, |number, item| Ok(number + item)).expect("nothing fails");
        assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        let fails = |_, &item: &usize| if item == 7 { Err(miette!("seven")) } else { Ok(item) };
        assert_eq!(in_parallel(&items, fails).expect_err("one fails").to_string(), "seven");
        assert_eq!(in_parallel(&[0_u8; 0], |_, _| Ok(())).expect("nothing to do"), []);
    }
}
