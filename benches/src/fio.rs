//! fio, the client of all block servers.

use miette::{Context as _, IntoDiagnostic as _, Result, miette};
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// A load of accesses of one length.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The direction of the accesses.
    pub access: Access,
    /// The number of requests in flight.
    pub depth: u32,
    /// The length of an access in KiB.
    pub kib: u32,
    /// Whether one access follows the other, or they are random.
    pub is_sequential: bool,
}

/// The direction of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// Requests a second.
    pub iops: f64,
    /// Requests in all.
    pub count: f64,
}

impl Access {
    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.is_sequential { "seq" } else { "rand" };
        write!(f, "{order}{} {}k depth {}", self.access.name(), self.kib, self.depth)
    }
}

impl Job {
    /// Random accesses of 4 KiB.
    #[must_use]
    pub const fn new(access: Access, depth: u32) -> Self {
        Self { access, depth, kib: 4, is_sequential: false }
    }

    /// Random reads and writes of 4 KiB at these depths.
    pub fn at_depths(depths: [u32; 2]) -> impl Iterator<Item = Self> {
        let both = |depth| [Access::Read, Access::Write].map(|access| Self::new(access, depth));
        depths.into_iter().flat_map(both)
    }

    /// fio's arguments, except those that select the device.
    #[must_use]
    pub fn arguments(self, size_bytes: u64, runtime: Duration) -> Vec<String> {
        vec![
            "--name=bench".into(),
            format!("--rw={}{}", if self.is_sequential { "" } else { "rand" }, self.access.name()),
            format!("--bs={}k", self.kib),
            format!("--iodepth={}", self.depth),
            format!("--size={size_bytes}"),
            "--time_based".into(),
            format!("--runtime={}ms", runtime.as_millis()),
            // A map of the blocks already visited costs the client more than the server's work.
            "--norandommap".into(),
            "--thread".into(),
            "--output-format=json".into(),
        ]
    }

    /// Parses fio's output.
    ///
    /// # Errors
    /// If the output is not JSON, reports an error, or has a rate of zero.
    pub fn done(self, output: &str) -> Result<Done> {
        // Warnings may precede the JSON.
        let json = output.find('{').map_or("", |start| &output[start..]);
        let json: Value =
            serde_json::from_str(json).into_diagnostic().wrap_err_with(|| format!("fio wrote {output:?}"))?;
        let job = &json["jobs"][0];
        let done = &job[self.access.name()];
        let (rate, count) = (done["iops"].as_f64(), done["total_ios"].as_f64());
        match (job["error"].as_i64(), rate, count) {
            (Some(0), Some(iops), Some(count)) if iops > 0.0 => Ok(Done { iops, count }),
            (error, ..) => Err(miette!("{self}: fio's error is {error:?}, and its rate {rate:?}")),
        }
    }
}

/// Arguments to write every byte of a device once, so that all its pages exist.
#[must_use]
pub fn fill(size_bytes: u64) -> Vec<String> {
    vec![
        "--name=fill".into(),
        "--rw=write".into(),
        "--bs=256k".into(),
        "--iodepth=4".into(),
        format!("--size={size_bytes}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job = Job::new(Access::Write, 4);

    #[test]
    fn rate_is_of_the_measured_direction() {
        let output = r#"a warning
            {"jobs": [{"error": 0, "read": {"iops": 0, "total_ios": 0},
                       "write": {"iops": 12.5, "total_ios": 25}}]}"#;
        assert_eq!(JOB.done(output).unwrap(), Done { iops: 12.5, count: 25.0 });
        assert!(Job { access: Access::Read, ..JOB }.done(output).is_err(), "nothing was read");
    }

    #[test]
    fn errors_are_not_rates() {
        assert!(JOB.done(r#"{"jobs": [{"error": 5, "write": {"iops": 9, "total_ios": 9}}]}"#).is_err());
        assert!(JOB.done("fio: failed").is_err());
    }
}
