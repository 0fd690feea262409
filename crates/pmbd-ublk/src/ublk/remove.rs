//! Stopping a device from outside its server.

use super::control::Control;
use super::usage::{self, Claim};
use super::{UblkError, device};
use std::time::Duration;

/// Stops and deletes a device, whether it has a server or waits for one. Its server, if any, ends.
///
/// # Errors
/// [`UblkError::Foreign`] for a device of another program. [`UblkError::InUse`] while it is mounted or held,
/// unless `force`: then a mounted file system fails as if its disk were pulled. [`UblkError::TimedOut`] if
/// somebody has it open after `timeout`: the device then goes when they close it.
pub fn stop(device_id: u32, force: bool, timeout: Duration) -> Result<(), UblkError> {
    let mut control = Control::open()?;
    if control.info(device_id)?.identity.is_none() {
        return Err(UblkError::Foreign { device_id });
    }
    let claim = if force { None } else { Some(claim(device_id)?) };
    control.stop(device_id, timeout)?;
    drop(claim);
    control.delete(device_id, timeout)?;
    gone(device_id)
}

/// Holds a device so that nobody can begin to use it while it is being stopped.
pub(super) fn claim(device_id: u32) -> Result<Claim, UblkError> {
    usage::claim(device_id)
        .map_err(UblkError::system("opening the block device exclusively"))?
        .map_err(|usage| UblkError::InUse { device_id, usage })
}

/// The driver has said that the device is deleted; its entry in sysfs goes at the same time.
pub(super) fn gone(device_id: u32) -> Result<(), UblkError> {
    if device::exists(device_id) {
        return Err(UblkError::TimedOut { command: "delete", device_id, waited: Duration::ZERO });
    }
    Ok(())
}
