//! What the driver tells of itself and of a device.

use pm_ublk::sys;
use std::fmt;

bitflags::bitflags! {
    /// A set of the driver's feature flags, `UBLK_F_*`. Flags without a name here are shown as a number.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Features: u64 {
        /// The device outlives its server and waits for the next one.
        const USER_RECOVERY = sys::UBLK_F_USER_RECOVERY as u64;
        /// Requests that were in flight when the server died are given to the next one.
        const USER_RECOVERY_REISSUE = sys::UBLK_F_USER_RECOVERY_REISSUE as u64;
        /// Users other than root may add devices.
        const UNPRIVILEGED_DEV = sys::UBLK_F_UNPRIVILEGED_DEV as u64;
        /// Commands have the numbers of ioctls.
        const CMD_IOCTL_ENCODE = sys::UBLK_F_CMD_IOCTL_ENCODE as u64;
        /// The server copies the data of requests.
        const USER_COPY = sys::UBLK_F_USER_COPY as u64;
        /// Zoned devices.
        const ZONED = sys::UBLK_F_ZONED as u64;
        /// Devices can be resized.
        const UPDATE_SIZE = sys::UBLK_F_UPDATE_SIZE as u64;
        /// Devices can be quiesced.
        const QUIESCE = sys::UBLK_F_QUIESCE as u64;
    }
}

impl Features {
    /// The flags that `serve` requests: a device that survives its server without an I/O error.
    pub(super) const WANTED: Self = Self::USER_RECOVERY.union(Self::USER_RECOVERY_REISSUE);
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named = self.iter_names();
        let mut names: Vec<_> =
            named.by_ref().map(|(name, _)| name.to_lowercase().replace('_', "-")).collect();
        match named.remaining().bits() {
            0 if names.is_empty() => names.push("none".to_owned()),
            0 => {}
            rest => names.push(format!("{rest:#x}")),
        }
        f.write_str(&names.join(" "))
    }
}

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceState {
    /// Not started yet, or stopped.
    Dead,
    /// Served.
    Live,
    /// Its server died, and requests wait for the next one.
    Quiesced,
    /// Its server died, and requests fail until the next one.
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

/// The driver's record of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// N of `/dev/ublkbN`.
    pub device_id: u32,
    /// Its state.
    pub state: DeviceState,
    /// The process of its present or last server.
    pub pid: i32,
    /// Queues.
    pub queues: u16,
    /// Requests in flight in each.
    pub depth: u16,
    /// Longest read or write.
    pub max_io_bytes: u32,
    /// The features that the driver granted when the device was added.
    pub features: Features,
    /// The pool that the device belongs to, if it belongs to this program.
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
            features: Features::from_bits_retain(info.flags),
            identity: DeviceIdentity::of_mark(info.ublksrv_flags),
        }
    }
}

/// Identifies the device of a pool after its server died: a mark that the driver keeps with the device.
///
/// The mark lives in the kernel, next to the device itself. There is no state file that could be stale, unwritable or forged, and a device
/// of another program under the same number does not have the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceIdentity(u64);

impl DeviceIdentity {
    /// "pm" in the highest two bytes: a device of this program.
    const OURS: u64 = 0x706d << 48;

    /// From bytes that identify the pool: its UUID, or its path if it has none.
    #[must_use]
    pub fn new(unique: impl AsRef<[u8]>) -> Self {
        // FNV-1a, folded to the 48 free bits: enough to tell the pools of one machine apart.
        let hash = unique.as_ref().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self(Self::OURS | (hash ^ hash >> 48) & 0xffff_ffff_ffff)
    }

    /// The identity in the mark of a device, if the device belongs to this program.
    #[must_use]
    pub const fn of_mark(mark: u64) -> Option<Self> {
        if mark >> 48 == Self::OURS >> 48 { Some(Self(mark)) } else { None }
    }

    pub(super) const fn mark(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named() {
        assert_eq!(Features::WANTED.to_string(), "user-recovery user-recovery-reissue");
        assert_eq!(Features::from_bits_retain(0).to_string(), "none");
        assert_eq!(Features::from_bits_retain(1 << 40 | 1 << 7).to_string(), "user-copy 0x10000000000");
    }

    #[test]
    fn dropped_features_are_difference() {
        let granted = Features::USER_RECOVERY;
        assert_eq!(Features::WANTED.difference(granted), Features::USER_RECOVERY_REISSUE);
        assert!(!granted.contains(Features::WANTED));
        assert!(Features::WANTED.difference(Features::WANTED).is_empty());
    }

    #[test]
    fn driver_record_is_decoded() {
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
        let features = Features::from_bits_retain(0x58);
        let (state, identity) = (DeviceState::Quiesced, Some(identity));
        let (device_id, pid, queues, depth, max_io_bytes) = (7, 42, 2, 64, 1 << 19);
        let expected = DeviceInfo { device_id, state, pid, queues, depth, max_io_bytes, features, identity };
        assert_eq!(info, expected);
        assert!(features.contains(Features::WANTED));
    }

    #[test]
    fn unknown_states_are_preserved() {
        assert_eq!(DeviceState::from(0), DeviceState::Dead);
        assert_eq!(DeviceState::from(1), DeviceState::Live);
        assert_eq!(DeviceState::from(3), DeviceState::FailIo);
        assert_eq!(DeviceState::from(9), DeviceState::Unknown(9));
    }

    #[test]
    fn identity_is_recognized_and_others_are_not() {
        let identity = DeviceIdentity::new("/pool/a");
        assert_eq!(DeviceIdentity::new("/pool/a"), identity);
        assert_ne!(DeviceIdentity::new("/pool/b"), identity);
        assert_eq!(DeviceIdentity::of_mark(identity.mark()), Some(identity));
        for foreign in [0, 1, u64::MAX, 0x706c << 48] {
            assert_eq!(DeviceIdentity::of_mark(foreign), None);
        }
    }
}
