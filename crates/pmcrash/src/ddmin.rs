//! Delta debugging: the least of a list that still fails.

/// Takes out of `items` what `fails` can do without: halves first, then smaller parts, down to single ones, until each
/// that is left is needed. `fails` holds for `items` as they are.
///
/// # Source
/// Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (TSE 2002).
pub(crate) fn ddmin<E>(
    mut items: Vec<usize>,
    mut fails: impl FnMut(&[usize]) -> Result<bool, E>,
) -> Result<Vec<usize>, E> {
    let mut parts = 2;
    while !items.is_empty() {
        let len = items.len().div_ceil(parts);
        let mut start = 0;
        let mut took = false;
        while start < items.len() {
            let end = (start + len).min(items.len());
            let without = [&items[..start], &items[end..]].concat();
            if fails(&without)? {
                items = without;
                took = true;
            } else {
                start = end;
            }
        }
        match (len, took) {
            (1, false) => break,
            (1, true) => parts = items.len().max(1),
            _ => parts = (items.len().div_ceil(len) * 2).max(2),
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn exactly_what_is_needed_is_left() {
        for needed in [&[][..], &[0], &[99], &[3, 4, 77], &[0, 50, 99]] {
            let mut tries = 0;
            let fails = |items: &[usize]| {
                tries += 1;
                Ok::<bool, Infallible>(needed.iter().all(|item| items.contains(item)))
            };
            assert_eq!(ddmin((0..100).collect(), fails), Ok(needed.to_vec()));
            assert!(tries < 150, "{tries} tries for {needed:?}");
        }
    }
}
