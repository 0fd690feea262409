//! Making a failing sequence short.

/// The shortest failing part of `ops` that is found, and its failure, which so far is `failure`.
///
/// Every single operation is tried, and every two of them in order; if all these pass, operations are left out one
/// by one for as long as the rest fails.
pub(super) fn shrink<Op: Clone, F>(
    ops: &[Op],
    failure: F,
    fails: impl Fn(&[Op]) -> Option<F>,
) -> (Vec<Op>, F) {
    let shorter = |part: &[Op]| {
        let fails = if part.len() < ops.len() { fails(part) } else { None };
        fails.map(|failure| (part.to_vec(), failure))
    };
    let mut singles = ops.chunks(1);
    let pairs = || (1..ops.len()).flat_map(move |second| (0..second).map(move |first| (first, second)));
    let smallest = singles
        .find_map(shorter)
        .or_else(|| pairs().find_map(|(a, b)| shorter(&[ops[a].clone(), ops[b].clone()])));
    smallest.unwrap_or_else(|| leave_out(ops, failure, fails))
}

fn leave_out<Op: Clone, F>(ops: &[Op], failure: F, fails: impl Fn(&[Op]) -> Option<F>) -> (Vec<Op>, F) {
    let (mut ops, mut failure) = (ops.to_vec(), failure);
    // From the end: later operations are needed least. Two are never enough, as is known by now.
    let mut at = ops.len();
    while at > 0 && ops.len() > 3 {
        at -= 1;
        let mut rest = ops.clone();
        rest.remove(at);
        if let Some(found) = fails(&rest) {
            (ops, failure) = (rest, found);
            at = ops.len();
        }
    }
    (ops, failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shrinks 0 to 9, which fail where `wanted` are there in order.
    fn shrunk(wanted: &[u32]) -> Vec<u32> {
        let fails = |ops: &[u32]| {
            let mut ops = ops.iter();
            wanted.iter().all(|number| ops.any(|op| op == number)).then_some(())
        };
        let all: Vec<u32> = (0..10).collect();
        shrink(&all, (), fails).0
    }

    #[test]
    fn only_what_is_needed_is_left() {
        for wanted in [&[0][..], &[9], &[2, 7], &[0, 1], &[1, 4, 8], &[0, 3, 5, 6, 9]] {
            assert_eq!(shrunk(wanted), wanted);
        }
    }

    #[test]
    fn what_cannot_be_shortened_stays() {
        assert_eq!(shrink(&[1], "first", |_| Some("again")), (vec![1], "first"));
        assert_eq!(shrink(&[1, 2, 3, 4], "first", |_| None), (vec![1, 2, 3, 4], "first"));
    }
}
