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

/// The latencies of a run's requests in microseconds. Those of fio's histogram have an error of up to 1.6 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// The median.
    pub median_us: f64,
    /// Of 99 % of the requests at most this.
    pub p99_us: f64,
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

    /// The latencies in fio's output.
    ///
    /// # Errors
    /// As [`Job::done`].
    pub fn latency(self, output: &str) -> Result<Latency> {
        self.done(output)?;
        percentiles(&json(output)?["jobs"][0][self.access.name()]["clat_ns"])
    }

    /// The latencies of the flushes in fio's output, of a run with `--fsync=1`.
    ///
    /// # Errors
    /// As [`Job::done`].
    pub fn flush_latency(self, output: &str) -> Result<Latency> {
        self.done(output)?;
        percentiles(&json(output)?["jobs"][0]["sync"]["lat_ns"])
    }

    /// Parses fio's output.
    ///
    /// # Errors
    /// If the output is not JSON, reports an error, or has a rate of zero.
    pub fn done(self, output: &str) -> Result<Done> {
        let json = json(output)?;
        let job = &json["jobs"][0];
        let done = &job[self.access.name()];
        let (rate, count) = (done["iops"].as_f64(), done["total_ios"].as_f64());
        match (job["error"].as_i64(), rate, count) {
            (Some(0), Some(iops), Some(count)) if iops > 0.0 => Ok(Done { iops, count }),
            (error, ..) => Err(miette!("{self}: fio's error is {error:?}, and its rate {rate:?}")),
        }
    }
}

fn percentiles(latencies: &Value) -> Result<Latency> {
    let percentile = |name: &str| {
        let ns = latencies["percentile"][name].as_f64();
        ns.map(|ns| ns / 1e3).ok_or_else(|| miette!("fio has no percentile {name} in {latencies}"))
    };
    Ok(Latency { median_us: percentile("50.000000")?, p99_us: percentile("99.000000")? })
}

fn json(output: &str) -> Result<Value> {
    // Warnings may precede the JSON.
    let json = output.find('{').map_or("", |start| &output[start..]);
    serde_json::from_str(json).into_diagnostic().wrap_err_with(|| format!("fio wrote {output:?}"))
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
    fn latencies_are_in_microseconds() {
        let output = r#"{"jobs": [{"error": 0, "write": {"iops": 12.5, "total_ios": 25,
            "clat_ns": {"percentile": {"50.000000": 16064, "99.000000": 20500}}}}]}"#;
        assert_eq!(JOB.latency(output).unwrap(), Latency { median_us: 16.064, p99_us: 20.5 });
        let flushes = output.replace("\"write\"", "\"write\": {\"iops\": 1, \"total_ios\": 1}, \"sync\"");
        let flushes = flushes.replace("clat_ns", "lat_ns");
        assert_eq!(JOB.flush_latency(&flushes).unwrap(), Latency { median_us: 16.064, p99_us: 20.5 });
        assert!(JOB.flush_latency(output).is_err(), "nothing was flushed");
        assert!(JOB.latency(&output.replace("16064", "null")).is_err());
        assert!(JOB.latency(&output.replace("12.5", "0")).is_err(), "nothing was written");
    }

    #[test]
    fn errors_are_not_rates() {
        assert!(JOB.done(r#"{"jobs": [{"error": 5, "write": {"iops": 9, "total_ios": 9}}]}"#).is_err());
        assert!(JOB.done("fio: failed").is_err());
    }
}
