//! The cells of each figure, so that what runs and what the documents name is one list.

use super::device::{Device, Kind};
use super::load::{Direction, Load};
use super::technology::{Attachment, MovedBy, Technologies, Technology, TechnologyError};
use std::fmt;

/// The latencies of Figs 6 and 7 in nanoseconds: on the memory bus up to 1600.
const SWEEP: [u64; 12] = [25, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200];
const LONGEST_ON_MEMORY_BUS: u64 = 1600;

/// The databases of Fig. 8.
pub const DATABASES: [&str; 2] = ["btree", "hash"];

/// The queries in place of those of Fig. 8 whose databases are not public.
pub const QUERIES: [&str; 2] = ["select", "join"];

/// The programs on files of V.A whose rate is measured.
pub const RATES: [&str; 2] = ["postmark", "patch"];

/// The programs of Fig. 10.
pub const PAGED_PROGRAMS: [&str; 3] = ["is", "cg", "dgemm"];

/// The technologies of a quick run of programs: a disk, flash, and a phase-change memory.
pub const OF_QUICK_PROGRAMS: [&str; 3] = ["disk-raid", "x25e-raid", "ddr-pcm"];

/// The arrays of Fig. 9, in halves of the memory: half of it, twice and eight times as much.
pub const PAGING_HALVES: [u64; 3] = [1, 4, 16];

/// The length of the paper's random accesses.
pub const PAGE_BYTES: u64 = 4096;

/// What is between the program and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Nothing.
    Raw,
    /// A file on XFS.
    Xfs,
    /// A file on ext4.
    Ext4,
}

/// The latency of single random accesses of 4 KiB.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyCell {
    /// The cell's name.
    pub name: String,
    /// The device.
    pub technology: Technology,
    /// What is above it.
    pub layer: Layer,
    /// The direction.
    pub kind: Kind,
}

/// The bandwidth of 16 threads.
#[derive(Clone, Debug, PartialEq)]
pub struct BandwidthCell {
    /// The cell's name.
    pub name: String,
    /// The device.
    pub technology: Technology,
    /// What the threads do.
    pub load: Load,
}

/// The bandwidth of 16 random accesses of 4 KiB in flight on a block device or a file.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedCell {
    /// The cell's name.
    pub name: String,
    /// The device.
    pub technology: Technology,
    /// What is above it.
    pub layer: Layer,
    /// The direction.
    pub load: Load,
}

/// The latency of a flush after a write.
#[derive(Clone, Debug, PartialEq)]
pub struct FlushCell {
    /// The cell's name.
    pub name: String,
    /// The device.
    pub technology: Technology,
}

impl FlushCell {
    /// What the model says, in nanoseconds: the flush follows the end of a write of 4 KiB.
    #[must_use]
    pub fn asked_ns(&self) -> u64 {
        Device::flush_latency_ns(&self.technology)
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        })
    }
}

impl LatencyCell {
    /// What the model says, in nanoseconds.
    #[must_use]
    pub fn asked_ns(&self) -> u64 {
        Device::latency_ns(&self.technology, self.kind, PAGE_BYTES)
    }
}

/// The cells of Figs 5 and 6.
pub fn latency_cells(technologies: &Technologies) -> Result<Vec<LatencyCell>, TechnologyError> {
    let mut cells = Vec::new();
    for technology in technologies.iter() {
        for layer in [Layer::Raw, Layer::Xfs, Layer::Ext4] {
            for kind in [Kind::Read, Kind::Write] {
                let name = format!("fig5/{}/{layer}/{kind}", technology.name);
                cells.push(LatencyCell { name, technology: technology.clone(), layer, kind });
            }
        }
    }
    for (bus, technology) in swept(technologies)? {
        for kind in [Kind::Read, Kind::Write] {
            let name = format!("fig6/{bus}/{}/{kind}", technology.read_ns);
            cells.push(LatencyCell { name, technology: technology.clone(), layer: Layer::Raw, kind });
        }
    }
    Ok(cells)
}

/// The cells of Figs 4 and 7.
pub fn bandwidth_cells(technologies: &Technologies) -> Result<Vec<BandwidthCell>, TechnologyError> {
    let mut cells = Vec::new();
    for technology in technologies.iter() {
        for (bytes, is_sequential) in [(PAGE_BYTES, false), (4 << 20, true)] {
            for direction in [Direction::Read, Direction::Write, Direction::Mixed] {
                let load = Load { direction, bytes, is_sequential };
                let name = format!("fig4/{}/{load}", technology.name);
                cells.push(BandwidthCell { name, technology: technology.clone(), load });
            }
        }
    }
    for technology in eight_channels(technologies)? {
        let name = format!("channels/in-process/{}", technology.read_ns);
        let load = Load { direction: Direction::Read, bytes: PAGE_BYTES, is_sequential: false };
        cells.push(BandwidthCell { name, technology, load });
    }
    for (bus, technology) in swept(technologies)? {
        for (direction, kind) in [(Direction::Read, Kind::Read), (Direction::Write, Kind::Write)] {
            let load = Load { direction, bytes: PAGE_BYTES, is_sequential: false };
            let name = format!("fig7/{bus}/{}/{kind}", technology.read_ns);
            cells.push(BandwidthCell { name, technology: technology.clone(), load });
        }
    }
    Ok(cells)
}

/// The cells of Fig. 4 on block devices and file systems, of technologies that are devices, and of a device whose channels alone take time.
pub fn queued_cells(technologies: &Technologies) -> Result<Vec<QueuedCell>, TechnologyError> {
    let mut cells = Vec::new();
    let load = |direction| Load { direction, bytes: PAGE_BYTES, is_sequential: false };
    for technology in technologies.iter().filter(|technology| technology.moved_by == MovedBy::Dma) {
        for layer in [Layer::Raw, Layer::Xfs, Layer::Ext4] {
            for direction in [Direction::Read, Direction::Write] {
                let name = format!("fig4/{}/{layer}/{}", technology.name, load(direction));
                let (technology, load) = (technology.clone(), load(direction));
                cells.push(QueuedCell { name, technology, layer, load });
            }
        }
    }
    for technology in eight_channels(technologies)? {
        let name = format!("channels/block-device/{}", technology.read_ns);
        cells.push(QueuedCell { name, technology, layer: Layer::Raw, load: load(Direction::Read) });
    }
    Ok(cells)
}

/// The names of all cells of a run, those without delay included.
pub fn names(technologies: &Technologies) -> Result<Vec<String>, TechnologyError> {
    let mut names: Vec<String> = latency_cells(technologies)?.into_iter().map(|cell| cell.name).collect();
    names.extend(bandwidth_cells(technologies)?.into_iter().map(|cell| cell.name));
    names.extend(queued_cells(technologies)?.into_iter().map(|cell| cell.name));
    names.extend(flush_cells(technologies).into_iter().map(|cell| cell.name));
    let all = technologies.iter().map(|technology| technology.name.as_str());
    for technology in all.chain(["dram", "no-delay"]) {
        names.extend(PAGING_HALVES.map(|halves| paging(technology, halves)));
        names.push(fault(technology));
        names.extend(DATABASES.into_iter().chain(QUERIES).map(|name| database(name, technology)));
        names.extend(RATES.into_iter().chain(["build"]).map(|name| files(name, technology)));
        names.extend(PAGED_PROGRAMS.map(|name| paged(name, technology)));
    }
    for layer in [Layer::Raw, Layer::Xfs, Layer::Ext4] {
        names.extend([Kind::Read, Kind::Write].map(|kind| no_delay(layer, kind)));
    }
    Ok(names)
}

/// The name of the cell with the latency of zram itself.
#[must_use]
pub fn no_delay(layer: Layer, kind: Kind) -> String {
    format!("fig5/no-delay/{layer}/{kind}")
}

/// The name of the cell with the transactions of a database.
#[must_use]
pub fn database(database: &str, technology: &str) -> String {
    format!("fig8/{database}/{technology}")
}

/// The name of the cell with the rate of a program on files, or its time.
#[must_use]
pub fn files(program: &str, technology: &str) -> String {
    format!("files/{program}/{technology}")
}

/// The name of the cell with the steps of a program that pages.
#[must_use]
pub fn paged(program: &str, technology: &str) -> String {
    format!("fig10/{program}/{technology}")
}

/// The name of the cell with the updates of an array of so many halves of the memory.
#[must_use]
pub fn paging(technology: &str, halves: u64) -> String {
    format!("fig9/{technology}/{}", halves as f64 / 2.0)
}

/// The name of the cell with the cost of a fault.
#[must_use]
pub fn fault(technology: &str) -> String {
    format!("fig9/{technology}/fault")
}

/// The flushes of the technologies that take time for one.
#[must_use]
pub fn flush_cells(technologies: &Technologies) -> Vec<FlushCell> {
    let flushing = technologies.iter().filter(|technology| technology.flush_ns > 0);
    let cell = |technology: &Technology| FlushCell {
        name: format!("flush/{}", technology.name),
        technology: technology.clone(),
    };
    flushing.map(cell).collect()
}

/// HASTE's eight channels, without what is around them.
fn eight_channels(technologies: &Technologies) -> Result<Vec<Technology>, TechnologyError> {
    let haste = technologies.get("haste-dram")?;
    let alone = Technology { request_ns: 0, fixed_ns: 0, channels: 8, ..haste.clone() };
    Ok([200_000, 1_000_000].map(|ns| alone.with_latency(ns)).into())
}

/// The technologies of Figs 6 and 7: the paper's two attachments, each with all latencies.
fn swept(technologies: &Technologies) -> Result<Vec<(&'static str, Technology)>, TechnologyError> {
    let mut swept = Vec::new();
    for (bus, name) in [("memory-bus", "ddr-dram"), ("pcie", "haste-dram")] {
        let technology = technologies.get(name)?;
        let is_in_memory = matches!(technology.attachment, Attachment::MemoryBus | Attachment::Cxl);
        let longest = if is_in_memory { LONGEST_ON_MEMORY_BUS } else { u64::MAX };
        swept.extend(SWEEP.iter().filter(|ns| **ns <= longest).map(|ns| (bus, technology.with_latency(*ns))));
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use super::super::cell::crossing;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_every_technology_is_measured() {
        let technologies = Technologies::built_in();
        let cells = latency_cells(&technologies).unwrap();
        let names: HashSet<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(names.len(), cells.len());
        assert_eq!(cells.len(), technologies.iter().count() * 6 + (7 + 12) * 2);
        for name in ["fig5/ddr-pcm/xfs/write", "fig6/memory-bus/1600/read", "fig6/pcie/51200/write"] {
            assert!(names.contains(name), "{name}");
        }
        assert!(!names.contains("fig6/memory-bus/3200/read"));
        let cells = bandwidth_cells(&technologies).unwrap();
        let names: HashSet<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(names.len(), cells.len());
        for name in
            ["fig4/disk-raid/random-4k/mixed", "fig4/ddr-pcm/sequential-4096k/read", "fig7/pcie/25600/read"]
        {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn devices_are_measured_with_file_systems_and_flushes() {
        let technologies = Technologies::built_in();
        let cells = queued_cells(&technologies).unwrap();
        let all = bandwidth_cells(&technologies).unwrap();
        let names = cells.iter().map(|cell| &cell.name).chain(all.iter().map(|cell| &cell.name));
        assert_eq!(names.collect::<HashSet<_>>().len(), cells.len() + all.len());
        assert!(cells.iter().any(|cell| cell.name == "fig4/haste-pcm/xfs/random-4k/write"));
        assert!(!cells.iter().any(|cell| cell.name.starts_with("fig4/ddr")), "cores wait for these");
        let channels = cells.iter().find(|cell| cell.name == "channels/block-device/1000000").unwrap();
        let asked = channels.load.asked_mb_s(&channels.technology);
        assert!((asked / (8.0 * 4.096) - 1.0).abs() < 0.01, "8 * 4096 bytes a millisecond: {asked}");
        let flushes = flush_cells(&technologies);
        let flush = |name: &str| flushes.iter().find(|cell| cell.name == name).unwrap().asked_ns();
        let fusion = technologies.get("fusion-io").unwrap();
        // Counted from the end of the write in the cache, of which the fixed cost is a part.
        assert_eq!(flush("flush/fusion-io"), fusion.write_ns + fusion.flush_ns);
        assert_eq!(flush("flush/disk-raid"), 140_000);
    }

    #[test]
    fn models_have_the_paper_s_latencies() {
        let technologies = Technologies::built_in();
        for (name, kind, us) in [
            ("ddr-dram", Kind::Read, 3.0),
            ("ddr-dram", Kind::Write, 3.0),
            ("haste-dram", Kind::Read, 16.0),
            ("haste-pcm", Kind::Write, 16.0),
            ("fusion-io", Kind::Read, 26.0),
            ("x25e-raid", Kind::Read, 75.0),
            ("optane-ssd", Kind::Read, 8.9),
            ("disk-raid", Kind::Read, 7250.0),
        ] {
            let technology = technologies.get(name).unwrap();
            let model = Device::latency_ns(technology, kind, PAGE_BYTES) as f64 / 1e3;
            assert!((model / us - 1.0).abs() < 0.03, "{name}: {model} us, {us} us in the paper");
        }
    }

    #[test]
    fn memory_bus_crosses_pcie_where_the_paper_says() {
        let cells = latency_cells(&Technologies::built_in()).unwrap();
        let curve = |bus: &str| -> Vec<(f64, f64)> {
            let reads = cells.iter().filter(|cell| cell.name.starts_with(bus) && cell.kind == Kind::Read);
            reads.map(|cell| (cell.technology.read_ns as f64, cell.asked_ns() as f64)).collect()
        };
        let at = crossing(&curve("fig6/memory-bus"), &curve("fig6/pcie")).unwrap();
        assert!((at / 800.0 - 1.0).abs() < 0.25, "{at} ns; in the paper 800 ns");
    }
}
