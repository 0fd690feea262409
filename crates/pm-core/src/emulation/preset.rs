//! Memories with known speeds.

use super::speed::Speed;
use core::fmt;
use core::str::FromStr;
use std::time::Duration;

/// A memory, with the speed that its source gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// DRAM.
    Dram,
    /// Spin-transfer-torque magnetic RAM. Faster than a machine with DRAM: in simulated time only.
    SttMram,
    /// Phase-change memory.
    Pcm,
    /// Memristors.
    Memristor,
    /// One DIMM of Intel Optane persistent memory.
    Optane,
    /// DRAM behind CXL, in a pool of 8 to 16 sockets.
    Cxl,
    /// NAND flash, read and written in pages.
    Nand,
    /// A hard disk.
    Disk,
    /// The emulator of PMFS.
    Pmep,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 9] = [
        Self::Dram,
        Self::SttMram,
        Self::Pcm,
        Self::Memristor,
        Self::Optane,
        Self::Cxl,
        Self::Nand,
        Self::Disk,
        Self::Pmep,
    ];

    /// The name, as [`FromStr`] accepts it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::SttMram => "stt-mram",
            Self::Pcm => "pcm",
            Self::Memristor => "memristor",
            Self::Optane => "optane",
            Self::Cxl => "cxl",
            Self::Nand => "nand",
            Self::Disk => "disk",
            Self::Pmep => "pmep",
        }
    }

    /// Where the figures are from.
    #[must_use]
    pub const fn source(self) -> &'static str {
        match self {
            Self::Dram => "PMBD, Table I: 60 ns",
            Self::SttMram => "PMBD, Table I: reads 6 ns, writes 13 ns",
            Self::Pcm => "PMBD, Table I: reads 50 to 85 ns, writes 150 ns to 1 us; here 85 and 500 ns",
            Self::Memristor => "PMBD, Table I: 100 ns",
            Self::Optane => "Yang et al., FAST 2020: random reads 305 ns, writes 94 ns, 6.6 and 2.3 GB/s",
            Self::Cxl => "Pond, ASPLOS 2023: 180 ns in a pool of 16 sockets",
            Self::Nand => "PMBD, Table I: reads of a page 25 us, writes 200 to 500 us; here 200 us",
            Self::Disk => "a disk of 7,200 rpm: 8.5 ms for seek and half a turn, 150 MB/s",
            Self::Pmep => "PMFS, 4.1: reads 300 ns, bandwidth 9.5 GB/s",
        }
    }

    /// The speed, whose methods change it.
    #[must_use]
    pub const fn speed(self) -> Speed {
        const fn ns(ns: u64) -> Duration {
            Duration::from_nanos(ns)
        }
        let speed = Speed::new();
        match self {
            Self::Dram => speed.read_latency(ns(60)).write_latency(ns(60)),
            Self::SttMram => speed.read_latency(ns(6)).write_latency(ns(13)),
            Self::Pcm => speed.read_latency(ns(85)).write_latency(ns(500)),
            Self::Memristor => speed.read_latency(ns(100)).write_latency(ns(100)),
            // A core has some ten lines in flight.
            Self::Optane => speed
                .read_latency(ns(305))
                .write_latency(ns(94))
                .read_overlap(10)
                .write_overlap(4)
                .read_bandwidth(6_600_000_000)
                .write_bandwidth(2_300_000_000),
            Self::Cxl => {
                speed.read_latency(ns(180)).write_latency(ns(180)).read_overlap(10).write_overlap(10)
            }
            Self::Nand => speed.read_access(ns(25_000)).write_access(ns(200_000)),
            Self::Disk => speed
                .read_access(ns(8_500_000))
                .write_access(ns(8_500_000))
                .read_bandwidth(150_000_000)
                .write_bandwidth(150_000_000),
            Self::Pmep => speed
                .read_latency(ns(300))
                .read_overlap(10)
                .read_bandwidth(9_500_000_000)
                .write_bandwidth(9_500_000_000),
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        Self::ALL.into_iter().find(|preset| preset.name() == name).ok_or(UnknownPreset)
    }
}

/// The error of a name that no preset has.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("no such memory: there are dram, stt-mram, pcm, memristor, optane, cxl, nand, disk and pmep")]
pub struct UnknownPreset;
