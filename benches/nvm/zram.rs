//! A block device in memory whose requests complete in the calling thread, and a delay before each of them.

use crate::bpf::{self, Attached};
use crate::files;
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::nvm::journal::{Journal, Left, zram_devices};
use pm_bench::nvm::spin::{Delay, Delays, Offsets};
use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use xtask::apt;

const HOT_ADD: &str = "/sys/class/zram-control/hot_add";

const TRACEPOINT: &CStr = c"block_bio_queue";

/// A zram device, which the journal takes down.
#[derive(Debug)]
pub(crate) struct Zram {
    pub(crate) device: PathBuf,
    /// The device's number as the kernel has it.
    id: u32,
    offsets: Offsets,
}

impl Zram {
    /// Why there can be none with a delay, if so.
    pub(crate) fn missing() -> Option<String> {
        if !apt::is_root() {
            return Some("needs root, for zram and eBPF".into());
        }
        if !files::has_driver(HOT_ADD, "zram") {
            return Some("the kernel has no zram".into());
        }
        let offsets = match Offsets::of_kernel() {
            Ok(offsets) => offsets,
            Err(error) => return Some(error.to_string()),
        };
        // No device has this number.
        let delays = Delays { device: 0, read: Delay::default(), write: Delay::default(), longest_ns: 0 };
        bpf::attach(TRACEPOINT, &delays.program(offsets)).err().map(|error| error.to_string())
    }

    /// Adds one of this size.
    pub(crate) fn add(journal: &mut Journal, bytes: u64) -> Result<Self> {
        let offsets = Offsets::of_kernel().into_diagnostic()?;
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
        bpf::attach(TRACEPOINT, &delays(self.id).program(self.offsets))
    }
}
