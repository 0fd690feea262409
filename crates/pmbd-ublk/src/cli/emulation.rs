//! The options of `pmbd serve` that emulate a slower memory.

use clap::Args;
use pm_cli_common::Size;
use pm_core::emulation::{Preset, Speed};
use std::time::Duration;

/// A slower memory, in place of the machine's own.
#[derive(Debug, Args)]
#[command(next_help_heading = "Emulation of a slower memory")]
pub(crate) struct Emulation {
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
    pub(super) fn speed(&self) -> Option<Speed> {
        let ns = Duration::from_nanos;
        let given = [
            self.emulate.map(Change::Memory),
            self.read_latency.map(|latency| Change::ReadLatency(ns(latency))),
            self.write_latency.map(|latency| Change::WriteLatency(ns(latency))),
            self.read_bandwidth.map(|Size(bytes)| Change::ReadBandwidth(bytes)),
            self.write_bandwidth.map(|Size(bytes)| Change::WriteBandwidth(bytes)),
            self.barrier_latency.map(|latency| Change::BarrierLatency(ns(latency))),
            self.rdsx.map(Change::ReadSlowdown),
            self.wrsx.map(Change::WriteSlowdown),
        ];
        let mut changes = given.into_iter().flatten().peekable();
        changes.peek()?;
        Some(changes.fold(Speed::new(), |speed, change| change.of(speed)))
    }

    /// The options as they were given, for the operator.
    pub(super) fn describe(&self) -> String {
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

/// One option.
#[derive(Clone, Copy, Debug)]
enum Change {
    Memory(Preset),
    ReadLatency(Duration),
    WriteLatency(Duration),
    ReadBandwidth(u64),
    WriteBandwidth(u64),
    BarrierLatency(Duration),
    ReadSlowdown(f64),
    WriteSlowdown(f64),
}

impl Change {
    const fn of(self, speed: Speed) -> Speed {
        match self {
            Self::Memory(preset) => preset.speed(),
            Self::ReadLatency(latency) => speed.read_latency(latency),
            Self::WriteLatency(latency) => speed.write_latency(latency),
            Self::ReadBandwidth(bytes) => speed.read_bandwidth(bytes),
            Self::WriteBandwidth(bytes) => speed.write_bandwidth(bytes),
            Self::BarrierLatency(latency) => speed.barrier_latency(latency),
            Self::ReadSlowdown(factor) => speed.read_slowdown(factor),
            Self::WriteSlowdown(factor) => speed.write_slowdown(factor),
        }
    }
}
