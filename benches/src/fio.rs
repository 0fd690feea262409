//! fio, the client that asks all block servers the same.

use miette::{Context as _, IntoDiagnostic as _, Result, miette};
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// What fio does to a device.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Reads or writes.
    pub access: Access,
    /// How many requests it keeps under way.
    pub depth: u32,
}

/// The direction of random accesses of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// From the device.
    Read,
    /// To it.
    Write,
}

/// What fio did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// Requests a second.
    pub iops: f64,
    /// Requests in all.
    pub count: f64,
}

impl Access {
    /// One after the other.
    pub const BOTH: [Self; 2] = [Self::Read, Self::Write];
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match self.access {
            Access::Read => "randread",
            Access::Write => "randwrite",
        };
        write!(f, "{access} 4k depth {}", self.depth)
    }
}

impl Job {
    /// Reads and writes at these depths.
    pub fn at_depths(depths: [u32; 2]) -> impl Iterator<Item = Self> {
        depths.into_iter().flat_map(|depth| Access::BOTH.map(|access| Self { access, depth }))
    }

    /// fio's arguments, but for those that say what the device is.
    #[must_use]
    pub fn arguments(self, size_bytes: u64, runtime: Duration) -> Vec<String> {
        let access = if self.access == Access::Read { "randread" } else { "randwrite" };
        vec![
            "--name=bench".into(),
            format!("--rw={access}"),
            "--bs=4k".into(),
            format!("--iodepth={}", self.depth),
            format!("--size={size_bytes}"),
            "--time_based".into(),
            format!("--runtime={}ms", runtime.as_millis()),
            // A map of the blocks already visited costs the client more than the server has to do.
            "--norandommap".into(),
            "--thread".into(),
            "--output-format=json".into(),
        ]
    }

    /// What fio did, from what it wrote.
    ///
    /// # Errors
    /// When it is no JSON, or says that something went wrong, or that nothing was done.
    pub fn done(self, output: &str) -> Result<Done> {
        // Warnings may come before.
        let json = output.find('{').map_or("", |start| &output[start..]);
        let json: Value =
            serde_json::from_str(json).into_diagnostic().wrap_err_with(|| format!("fio wrote {output:?}"))?;
        let job = &json["jobs"][0];
        let direction = if self.access == Access::Read { "read" } else { "write" };
        let (rate, count) = (job[direction]["iops"].as_f64(), job[direction]["total_ios"].as_f64());
        match (job["error"].as_i64(), rate, count) {
            (Some(0), Some(iops), Some(count)) if iops > 0.0 => Ok(Done { iops, count }),
            (error, ..) => Err(miette!("{self}: fio's error is {error:?}, and its rate {rate:?}")),
        }
    }
}

/// Arguments that write every byte of a device once, so that no side serves pages that do not exist.
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

    const JOB: Job = Job { access: Access::Write, depth: 4 };

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
