//! What the driver knows about the devices there are.

use super::control::Control;
use super::{DeviceIdentity, Features, UblkError};
use libublk_rs_sys as sys;
use std::io::ErrorKind;

/// What a device is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceState {
    /// Not started yet, or stopped.
    Dead,
    /// Served.
    Live,
    /// Its server is gone, and requests wait for the next one.
    Quiesced,
    /// Its server is gone, and requests fail until the next one.
    FailIo,
    /// A state that this program does not know.
    Unknown(u16),
}

impl From<u16> for DeviceState {
    fn from(state: u16) -> Self {
        match u32::from(state) {
            sys::UBLK_S_DEV_DEAD => Self::Dead,
            sys::UBLK_S_DEV_LIVE => Self::Live,
            sys::UBLK_S_DEV_QUIESCED => Self::Quiesced,
            sys::UBLK_S_DEV_FAIL_IO => Self::FailIo,
            _ => Self::Unknown(state),
        }
    }
}

/// What the driver knows about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// N of `/dev/ublkbN`.
    pub device_id: u32,
    /// What it is doing.
    pub state: DeviceState,
    /// Its server, or the last one it had.
    pub pid: i32,
    /// Queues.
    pub queues: u16,
    /// Requests in flight in each.
    pub depth: u16,
    /// Longest read or write.
    pub max_io_bytes: u32,
    /// What the driver granted when the device was added.
    pub features: Features,
    /// Whose it is, if it is of this program.
    pub identity: Option<DeviceIdentity>,
}

impl From<&sys::ublksrv_ctrl_dev_info> for DeviceInfo {
    fn from(info: &sys::ublksrv_ctrl_dev_info) -> Self {
        Self {
            device_id: info.dev_id,
            state: info.state.into(),
            pid: info.ublksrv_pid,
            queues: info.nr_hw_queues,
            depth: info.queue_depth,
            max_io_bytes: info.max_io_buf_bytes,
            features: Features::from_bits(info.flags),
            identity: DeviceIdentity::of_mark(info.ublksrv_flags),
        }
    }
}

/// Whether a ublk device of that number exists, whoever made it and whatever its state.
pub(super) fn exists(device_id: u32) -> bool {
    std::path::Path::new(&format!("/sys/class/ublk-char/ublkc{device_id}")).exists()
}

/// This program's devices, by number.
///
/// # Errors
/// When there is no ublk here, or the driver does not answer.
pub fn devices() -> Result<Vec<DeviceInfo>, UblkError> {
    let mut control = Control::open()?;
    let mut devices = all(&mut control)?;
    devices.retain(|device| device.identity.is_some());
    Ok(devices)
}

/// Everybody's devices, by number.
pub(super) fn all(control: &mut Control) -> Result<Vec<DeviceInfo>, UblkError> {
    let mut devices = Vec::new();
    for device_id in numbers()? {
        match control.info(device_id) {
            Ok(info) => devices.push(info),
            // It went away since it was listed.
            Err(UblkError::NoDevice { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    devices.sort_unstable_by_key(|device| device.device_id);
    Ok(devices)
}

/// Whether the machine has a device of any user. Also true without sysfs, where none could be seen. Needs no permission.
pub(super) fn may_be_any() -> Result<bool, UblkError> {
    Ok(!std::path::Path::new("/sys/class").exists() || !numbers()?.is_empty())
}

/// The numbers of the devices of all users.
fn numbers() -> Result<Vec<u32>, UblkError> {
    let failed = || UblkError::system("listing /sys/class/ublk-char");
    let entries = match std::fs::read_dir("/sys/class/ublk-char") {
        Ok(entries) => entries,
        // The class comes with the first device on some kernels.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed()(e)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        numbers.extend(number(&entry.map_err(failed())?.file_name().to_string_lossy()));
    }
    Ok(numbers)
}

/// N of "ublkcN".
fn number(name: &str) -> Option<u32> {
    name.strip_prefix("ublkc")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_record_is_understood() {
        let identity = DeviceIdentity::new("pool");
        let info = DeviceInfo::from(&sys::ublksrv_ctrl_dev_info {
            nr_hw_queues: 2,
            queue_depth: 64,
            state: 2,
            max_io_buf_bytes: 1 << 19,
            dev_id: 7,
            ublksrv_pid: 42,
            flags: 0x58,
            ublksrv_flags: identity.mark(),
            ..Default::default()
        });
        let features = Features::from_bits(0x58);
        let (state, identity) = (DeviceState::Quiesced, Some(identity));
        let expected = DeviceInfo {
            device_id: 7,
            state,
            pid: 42,
            queues: 2,
            depth: 64,
            max_io_bytes: 1 << 19,
            features,
            identity,
        };
        assert_eq!(info, expected);
        assert!(features.contains(Features::WANTED));
    }

    #[test]
    fn unknown_states_stay_unknown() {
        assert_eq!(DeviceState::from(0), DeviceState::Dead);
        assert_eq!(DeviceState::from(1), DeviceState::Live);
        assert_eq!(DeviceState::from(3), DeviceState::FailIo);
        assert_eq!(DeviceState::from(9), DeviceState::Unknown(9));
    }

    #[test]
    fn device_numbers_are_parsed_from_sysfs_names() {
        assert_eq!(number("ublkc12"), Some(12));
        for other in ["ublkc", "ublkb1", "ublkc-1", "ublkc1p1", "loop0"] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
