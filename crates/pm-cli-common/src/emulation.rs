//! The options of servers that emulate a slower memory.

use crate::size::Size;
use clap::Args;
use pm_core::emulation::{Preset, Speed};
use std::time::Duration;

/// A slower memory, in place of the machine's own.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Emulation of a slower memory")]
pub struct Emulation {
    /// The memory: dram, stt-mram, pcm, memristor, optane, cxl, nand, disk or pmep. The options below change its speed.
    #[arg(long, value_name = "MEMORY")]
    emulate: Option<Preset>,
    /// The latency of reading a line of 64 bytes, in nanoseconds.
    #[arg(long, value_name = "NS")]
    read_latency: Option<u64>,
    /// The latency of writing a line, in nanoseconds.
    #[arg(long, value_name = "NS")]
    write_latency: Option<u64>,
    /// The bandwidth of reads, in bytes a second.
    #[arg(long, value_name = "SIZE")]
    read_bandwidth: Option<Size>,
    /// The bandwidth of writes, in bytes a second.
    #[arg(long, value_name = "SIZE")]
    write_bandwidth: Option<Size>,
    /// The latency of a fence, in nanoseconds.
    #[arg(long, value_name = "NS")]
    barrier_latency: Option<u64>,
    /// Reads take this many times as long as copies from this machine's DRAM.
    #[arg(long, value_name = "FACTOR")]
    rdsx: Option<f64>,
    /// Writes take this many times as long as copies to this machine's DRAM.
    #[arg(long, value_name = "FACTOR")]
    wrsx: Option<f64>,
}

impl Emulation {
    /// The speed; `None` without any of the options.
    #[must_use]
    pub fn speed(&self) -> Option<Speed> {
        if self.describe().is_empty() {
            return None;
        }
        let ns = Duration::from_nanos;
        let mut speed = self.emulate.map_or(Speed::new(), Preset::speed);
        if let Some(latency) = self.read_latency {
            speed = speed.read_latency(ns(latency));
        }
        if let Some(latency) = self.write_latency {
            speed = speed.write_latency(ns(latency));
        }
        if let Some(Size(bytes)) = self.read_bandwidth {
            speed = speed.read_bandwidth(bytes);
        }
        if let Some(Size(bytes)) = self.write_bandwidth {
            speed = speed.write_bandwidth(bytes);
        }
        if let Some(latency) = self.barrier_latency {
            speed = speed.barrier_latency(ns(latency));
        }
        if let Some(factor) = self.rdsx {
            speed = speed.read_slowdown(factor);
        }
        if let Some(factor) = self.wrsx {
            speed = speed.write_slowdown(factor);
        }
        Some(speed)
    }

    /// The options as they were given, for the operator.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut words: Vec<String> =
            self.emulate.map(|memory| format!("{memory} ({})", memory.source())).into_iter().collect();
        let mut add = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("{name} {value}")));
        };
        let ns = |latency: Option<u64>| latency.map(|latency| format!("{latency} ns"));
        let rate = |size: Option<Size>| size.map(|size| format!("{size}/s"));
        add("reads of a line", ns(self.read_latency));
        add("writes of a line", ns(self.write_latency));
        add("reads at", rate(self.read_bandwidth));
        add("writes at", rate(self.write_bandwidth));
        add("fences", ns(self.barrier_latency));
        add("reads", self.rdsx.map(|factor| format!("{factor} times as long as DRAM")));
        add("writes", self.wrsx.map(|factor| format!("{factor} times as long as DRAM")));
        words.join(", ")
    }
}
