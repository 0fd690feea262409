//! What the kernels have in common.

/// A result is not what the benchmark's authors published.
#[derive(Debug, thiserror::Error)]
#[error("{kernel}, class {class}: {what} is {found}, not {expected}: the computation is wrong")]
pub struct Wrong {
    /// The kernel.
    pub kernel: &'static str,
    /// The class of its problem.
    pub class: char,
    /// What is wrong.
    pub what: String,
    /// The value.
    pub found: f64,
    /// What it should be.
    pub expected: f64,
}

/// A computation in steps of about the same work.
pub trait Kernel {
    /// Does one step, and verifies what it completes. After the last step of the problem the next one begins it again.
    ///
    /// # Errors
    /// If a result is wrong.
    fn step(&mut self) -> Result<(), Wrong>;

    /// Does the steps that are left, and verifies the result.
    ///
    /// # Errors
    /// If a result is wrong.
    fn finish(&mut self) -> Result<(), Wrong>;
}

/// An index of 32 bits.
pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).expect("memory has more than 32 bits of addresses")
}
