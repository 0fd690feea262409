//! The devices that exist, and the one that belongs to a pool.

use super::error::{UblkError, UblkUnavailable};
use super::info::{DeviceIdentity, DeviceInfo, DeviceState, Features};
use pm_ublk::{Control, ControlError};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest time that the driver takes to notice the death of a server: kernels that check by a timer need five seconds.
const NOTICE: Duration = Duration::from_secs(15);
/// The pause between two queries meanwhile.
const RETRY: Duration = Duration::from_millis(10);

/// Whether ublk can be used here and now, and the driver's features. Changes nothing.
///
/// # Errors
/// With what is missing and what would help: see [`UblkUnavailable`].
pub fn available() -> Result<Features, UblkUnavailable> {
    match Control::open().and_then(|mut control| control.features()) {
        Ok(features) => Ok(Features::from_bits_retain(features)),
        Err(error) => Err(match error.into() {
            UblkError::Unavailable(why) => why,
            other => UblkUnavailable::Unusable { reason: other.to_string() },
        }),
    }
}

/// This program's devices, by number.
///
/// # Errors
/// When ublk cannot be used, or the driver does not answer.
pub fn devices() -> Result<Vec<DeviceInfo>, UblkError> {
    let mut devices = all(&mut Control::open()?)?;
    devices.retain(|device| device.identity.is_some());
    Ok(devices)
}

/// The device of this pool that waits for a server, if there is one. Waits until the driver has noticed the death of its last server.
///
/// # Errors
/// [`UblkError::AlreadyServed`] if the device has a server, [`UblkError::NotRecoverable`] if it cannot be taken over; else when ublk cannot
/// be used or the driver does not answer.
pub fn find_recoverable(identity: DeviceIdentity) -> Result<Option<DeviceInfo>, UblkError> {
    Ok(match find(&mut Control::open()?, identity)? {
        PoolDevice::Waiting(device) => Some(device),
        PoolDevice::None | PoolDevice::Dead(_) => None,
    })
}

/// Whether any device of this program, of whichever pool, waits for a server, or will if its server dies now. For a caller that has
/// to know before it opens a pool: the server of a live device can die, and release the pool's lock, before that.
///
/// If this user may not query the driver, any ublk device of the machine counts as one that may wait.
///
/// # Errors
/// When ublk cannot be used or the driver does not answer.
pub fn may_any_wait() -> Result<bool, UblkError> {
    match devices() {
        // sysfs needs no permission. Without it no device could be seen.
        Err(UblkError::Unavailable(UblkUnavailable::NoPermission)) => {
            Ok(!Path::new("/sys/class").exists() || !numbers()?.is_empty())
        }
        devices => Ok(devices?.iter().any(may_wait)),
    }
}

/// By the state alone: the number of the last server may belong to another process by now.
fn may_wait(device: &DeviceInfo) -> bool {
    device.state != DeviceState::Dead
}

/// The device of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolDevice {
    /// The pool has no device.
    None,
    /// It waits for a server.
    Waiting(DeviceInfo),
    /// It never started, or was stopped and not deleted, and its server is gone.
    Dead(DeviceInfo),
}

/// Finds the device of a pool.
pub(super) fn find(control: &mut Control, identity: DeviceIdentity) -> Result<PoolDevice, UblkError> {
    let started = Instant::now();
    loop {
        let ours = all(control)?.into_iter().find(|device| device.identity == Some(identity));
        let Some(device) = ours else { return Ok(PoolDevice::None) };
        let DeviceInfo { device_id, pid, .. } = device;
        match device.state {
            DeviceState::Quiesced | DeviceState::FailIo => {
                let recoverable = device.features.contains(Features::USER_RECOVERY);
                return if recoverable {
                    Ok(PoolDevice::Waiting(device))
                } else {
                    Err(UblkError::NotRecoverable { device_id })
                };
            }
            _ if is_alive(pid) => return Err(UblkError::AlreadyServed { device_id, pid }),
            DeviceState::Dead => return Ok(PoolDevice::Dead(device)),
            // The driver quiesces the device when it notices, or stops it if it cannot be recovered.
            DeviceState::Live | DeviceState::Unknown(_) if started.elapsed() >= NOTICE => {
                return Err(UblkError::AlreadyServed { device_id, pid });
            }
            DeviceState::Live | DeviceState::Unknown(_) => std::thread::sleep(RETRY),
        }
    }
}

/// Whether a ublk device of that number exists, of any program and in any state.
pub(super) fn exists(device_id: u32) -> bool {
    Path::new(&format!("/sys/class/ublk-char/ublkc{device_id}")).exists()
}

/// The devices of all programs, by number.
fn all(control: &mut Control) -> Result<Vec<DeviceInfo>, UblkError> {
    let mut devices = Vec::new();
    for device_id in numbers()? {
        match control.info(device_id) {
            Ok(info) => devices.push(DeviceInfo::from(&*info)),
            // Deleted since it was listed.
            Err(ControlError::NoDevice { .. }) => {}
            Err(other) => return Err(other.into()),
        }
    }
    devices.sort_unstable_by_key(|device| device.device_id);
    Ok(devices)
}

/// The numbers of the devices of all users.
fn numbers() -> Result<Vec<u32>, UblkError> {
    let failed = || UblkError::system("listing /sys/class/ublk-char");
    let entries = match std::fs::read_dir("/sys/class/ublk-char") {
        Ok(entries) => entries,
        // Some kernels create the class with the first device.
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

/// Whether a process runs. A zombie does not.
fn is_alive(pid: i32) -> bool {
    let own = i32::try_from(std::process::id()).unwrap_or(-1);
    // This process can have the number of a server that died.
    pid != own && std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !has_ended(&stat))
}

/// By the state in /proc/PID/stat, after the name, which may contain any characters.
fn has_ended(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X') | None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_parsed_from_sysfs_names() {
        assert_eq!(number("ublkc12"), Some(12));
        for other in ["ublkc", "ublkb1", "ublkc-1", "ublkc1p1", "loop0"] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn device_may_wait_unless_dead() {
        for (state, expected) in [
            (DeviceState::Quiesced, true),
            (DeviceState::FailIo, true),
            (DeviceState::Live, true),
            (DeviceState::Unknown(9), true),
            (DeviceState::Dead, false),
        ] {
            // The process of its server runs, or does not.
            for pid in [1, i32::MAX] {
                let (queues, depth, max_io_bytes) = (1, 32, 1 << 16);
                let (features, identity) = (Features::WANTED, Some(DeviceIdentity::new("p")));
                let device =
                    DeviceInfo { device_id: 3, state, pid, queues, depth, max_io_bytes, features, identity };
                assert_eq!(may_wait(&device), expected, "{state:?}");
            }
        }
    }

    #[test]
    fn zombies_are_not_alive() {
        assert!(has_ended("12 (a) Z b) Z 1 2"));
        assert!(!has_ended("12 (a) Z b) S 1 2"));
        assert!(has_ended(""));
        assert!(is_alive(1));
        assert!(!is_alive(i32::MAX));
    }
}
