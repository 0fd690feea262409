//! A block device in memory whose requests complete in the calling thread, and a delay before each of them.

use crate::bpf::{self, Attached};
use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use pm_bench::nvm::journal::{Journal, Left, zram_devices};
use pm_bench::nvm::spin::{Delays, Offsets};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const HOT_ADD: &str = "/sys/class/zram-control/hot_add";

/// A zram device, which the journal takes down.
#[derive(Debug)]
pub(crate) struct Zram {
    pub(crate) device: PathBuf,
    /// The device's number as the kernel has it.
    id: u32,
    offsets: Offsets,
}

impl Zram {
    /// Adds one of this size.
    pub(crate) fn add(journal: &mut Journal, bytes: u64) -> Result<Self> {
        let offsets = Offsets::of_kernel().into_diagnostic()?;
        if !Path::new(HOT_ADD).exists() {
            return Err(miette!(
                "{HOT_ADD} does not exist: the kernel has no zram, or its module is not loaded"
            ));
        }
        journal.add(Left::ZramBesides(zram_devices().into_diagnostic()?)).into_diagnostic()?;
        let added = fs::read_to_string(HOT_ADD).into_diagnostic().wrap_err(HOT_ADD)?;
        let number: u32 = added.trim().parse().into_diagnostic()?;
        journal.replace_last(Left::Zram(number)).into_diagnostic()?;
        let size = format!("/sys/block/zram{number}/disksize");
        fs::write(&size, bytes.to_string()).into_diagnostic().wrap_err(size)?;
        let device = PathBuf::from(format!("/dev/zram{number}"));
        let id =
            fs::metadata(&device).into_diagnostic().wrap_err_with(|| device.display().to_string())?.rdev();
        // The kernel's own form of the number of a device.
        let id = rustix::fs::major(id) << 20 | rustix::fs::minor(id);
        Ok(Self { device, id, offsets })
    }

    /// Delays its requests until the result is dropped.
    pub(crate) fn delay(&self, delays: impl FnOnce(u32) -> Delays) -> Result<Attached> {
        bpf::attach(c"block_bio_queue", &delays(self.id).program(self.offsets))
    }
}
