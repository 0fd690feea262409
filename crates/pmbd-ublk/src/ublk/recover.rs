//! Finding the device that a dead server of this pool has left.

use super::control::Control;
use super::transport::Spec;
use super::{DeviceIdentity, DeviceInfo, DeviceState, Features, UblkError, UblkUnavailable, device};
use libublk_rs_sys as sys;
use std::time::{Duration, Instant};

/// The driver notices the death of a server late: on the kernels that look for it by the clock, after five
/// seconds.
const NOTICE: Duration = Duration::from_secs(15);
/// How often to ask meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// The device of this pool that waits for a server, if there is one. Waits until the driver has noticed the
/// death of its last one.
///
/// # Errors
/// [`UblkError::AlreadyServed`] if the device has a server, [`UblkError::NotRecoverable`] if it cannot get
/// another; else when there is no ublk here or the driver does not answer.
pub fn find_recoverable(identity: DeviceIdentity) -> Result<Option<DeviceInfo>, UblkError> {
    let mut control = Control::open()?;
    Ok(match find(&mut control, identity)? {
        Found::Waiting(device) => Some(device),
        Found::Nothing | Found::Remains(_) => None,
    })
}

/// Whether any device of this program, whichever pool's, waits for a server, or will if its server dies now. For a caller that has
/// to know before it opens a pool: the server of a device that is live can die, and release the pool's lock, before that.
///
/// If this user may not ask the driver, any ublk device of the machine counts as one that may wait.
///
/// # Errors
/// When there is no ublk here or the driver does not answer.
pub fn may_any_wait() -> Result<bool, UblkError> {
    match device::devices() {
        Err(UblkError::Unavailable(UblkUnavailable::NoPermission)) => device::may_be_any(),
        devices => Ok(devices?.iter().any(may_wait)),
    }
}

/// Whatever the number of its server: that may belong to another process by now.
fn may_wait(device: &DeviceInfo) -> bool {
    device.state != DeviceState::Dead
}

/// What there is of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No device.
    Nothing,
    /// A device that waits for a server.
    Waiting(DeviceInfo),
    /// A device that never started, or was stopped and not deleted, and whose server is gone.
    Remains(DeviceInfo),
}

/// Looks through the driver's devices for this pool's.
pub(super) fn find(control: &mut Control, identity: DeviceIdentity) -> Result<Found, UblkError> {
    let started = Instant::now();
    loop {
        let ours = device::all(control)?.into_iter().find(|device| device.identity == Some(identity));
        let Some(device) = ours else { return Ok(Found::Nothing) };
        let DeviceInfo { device_id, pid, .. } = device;
        match device.state {
            DeviceState::Quiesced | DeviceState::FailIo => {
                let recoverable = device.features.contains(Features::USER_RECOVERY);
                return if recoverable {
                    Ok(Found::Waiting(device))
                } else {
                    Err(UblkError::NotRecoverable { device_id })
                };
            }
            _ if is_alive(pid) => return Err(UblkError::AlreadyServed { device_id, pid }),
            DeviceState::Dead => return Ok(Found::Remains(device)),
            // Without recovery the driver stops the device when it notices; asking again shows what becomes
            // of it.
            DeviceState::Live | DeviceState::Unknown(_) if started.elapsed() >= NOTICE => {
                return Err(UblkError::AlreadyServed { device_id, pid });
            }
            DeviceState::Live | DeviceState::Unknown(_) => std::thread::sleep(ASK_AGAIN),
        }
    }
}

/// Whether a process runs. One that has ended and was not waited for does not.
fn is_alive(pid: i32) -> bool {
    let own = i32::try_from(std::process::id()).unwrap_or(-1);
    // A server that died can have had the number that this process got.
    pid != own && std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !has_ended(&stat))
}

/// By the state in /proc/PID/stat, behind the name, which may hold anything.
fn has_ended(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X') | None)
}

/// Checks that a device can go on as what is to be served, and gives the specification with the device's
/// counts.
///
/// # Errors
/// [`UblkError::Changed`] for the first property that a client would see change.
pub(super) fn compatible(
    device: &DeviceInfo,
    has: &sys::ublk_params,
    wanted: &Spec,
) -> Result<Spec, UblkError> {
    let (old, new) = (&has.basic, &wanted.params.basic);
    let cache = sys::UBLK_ATTR_VOLATILE_CACHE;
    let properties = [
        ("its capacity in bytes", old.dev_sectors << 9, new.dev_sectors << 9),
        ("its logical sector in bytes", 1 << old.logical_bs_shift.min(63), 1 << new.logical_bs_shift),
        (
            "whether it is read-only",
            flag(old.attrs, sys::UBLK_ATTR_READ_ONLY),
            flag(new.attrs, sys::UBLK_ATTR_READ_ONLY),
        ),
        // A device without a cache gets no flushes, so it must not get one. The other way round costs
        // nothing.
        ("whether it has a volatile cache", flag(old.attrs, cache), flag(old.attrs | new.attrs, cache)),
    ];
    for (what, was, wanted) in properties {
        if was != wanted {
            return Err(UblkError::Changed { device_id: device.device_id, what, was, wanted });
        }
    }
    Ok(Spec {
        device_id: Some(device.device_id),
        queues: device.queues,
        depth: device.depth,
        max_io_bytes: device.max_io_bytes,
        ..wanted.clone()
    })
}

fn flag(attrs: u32, bit: u32) -> u64 {
    u64::from(attrs & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;
    use crate::{Engine, Geometry, SectorSize};

    fn wanted() -> Spec {
        let region = pm_core::Region::anonymous(1 << 20).unwrap();
        let engine = Engine::new(region, Geometry::new(0, 1 << 20, SectorSize::B512).unwrap()).unwrap();
        Spec::new(&engine, &Options { queues: 4, depth: 8, ..Options::default() }, DeviceIdentity::new("p"))
    }

    fn waiting() -> DeviceInfo {
        DeviceInfo {
            device_id: 3,
            state: DeviceState::Quiesced,
            pid: 1,
            queues: 1,
            depth: 32,
            max_io_bytes: 1 << 16,
            features: Features::WANTED,
            identity: Some(DeviceIdentity::new("p")),
        }
    }

    #[test]
    fn the_devices_counts_win_over_the_options() {
        let wanted = wanted();
        let spec = compatible(&waiting(), &wanted.params, &wanted).unwrap();
        assert_eq!((spec.device_id, spec.queues, spec.depth, spec.max_io_bytes), (Some(3), 1, 32, 1 << 16));
    }

    #[test]
    fn what_a_client_would_see_change_is_refused() {
        let wanted = wanted();
        let refused = |change: fn(&mut sys::ublk_param_basic)| {
            let mut has = wanted.params;
            change(&mut has.basic);
            match compatible(&waiting(), &has, &wanted) {
                Err(UblkError::Changed { what, .. }) => Some(what),
                other => other.map(|_| None).unwrap(),
            }
        };
        assert_eq!(refused(|has| has.dev_sectors -= 1), Some("its capacity in bytes"));
        assert_eq!(refused(|has| has.logical_bs_shift = 12), Some("its logical sector in bytes"));
        assert_eq!(refused(|has| has.attrs = sys::UBLK_ATTR_READ_ONLY), Some("whether it is read-only"));
        assert_eq!(refused(|has| has.logical_bs_shift = 255), Some("its logical sector in bytes"));
        assert_eq!(refused(|has| has.attrs = sys::UBLK_ATTR_VOLATILE_CACHE), None, "a cache may go");
        assert_eq!(refused(|_| ()), None);
    }

    #[test]
    fn a_device_without_a_cache_does_not_get_one() {
        let mut wanted = wanted();
        let has = wanted.params;
        wanted.params.basic.attrs |= sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
        let refused = compatible(&waiting(), &has, &wanted).unwrap_err();
        assert!(
            matches!(refused, UblkError::Changed { what: "whether it has a volatile cache", .. }),
            "{refused}"
        );
    }

    #[test]
    fn every_device_that_is_not_dead_may_wait() {
        for (state, expected) in [
            (DeviceState::Quiesced, true),
            (DeviceState::FailIo, true),
            (DeviceState::Live, true),
            (DeviceState::Unknown(9), true),
            (DeviceState::Dead, false),
        ] {
            // Of a process that is alive, and of one that is not.
            for pid in [1, i32::MAX] {
                assert_eq!(may_wait(&DeviceInfo { state, pid, ..waiting() }), expected, "{state:?}");
            }
        }
    }

    #[test]
    fn the_dead_are_told_from_the_living() {
        assert!(has_ended("12 (a) Z b) Z 1 2"));
        assert!(!has_ended("12 (a) Z b) S 1 2"));
        assert!(has_ended(""));
        assert!(is_alive(1));
        assert!(!is_alive(i32::MAX));
    }
}
