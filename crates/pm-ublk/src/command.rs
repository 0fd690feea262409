//! Commands as bytes of a submission.

use crate::sys;

/// The kind of a command for a queue. It has another number in kernels before 6.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoCommand {
    /// Offers a tag.
    Fetch,
    /// Answers a tag's request, and offers the tag again.
    CommitAndFetch,
}

impl IoCommand {
    /// The command's number for a device with `features`: that of an ioctl where the driver knows those.
    pub(crate) const fn number(self, features: u64) -> u32 {
        let number = match self {
            Self::Fetch => sys::UBLK_U_IO_FETCH_REQ,
            Self::CommitAndFetch => sys::UBLK_U_IO_COMMIT_AND_FETCH_REQ,
        };
        if features & sys::UBLK_F_CMD_IOCTL_ENCODE as u64 != 0 { number } else { legacy(number) }
    }
}

/// The number that the command `number` had before kernel 6.4.
pub(crate) const fn legacy(number: u32) -> u32 {
    number & 0xff
}

/// A command for a queue in its 16 bytes.
#[expect(clippy::host_endian_bytes, reason = "for the kernel of this host")]
pub(crate) const fn io_payload(command: sys::ublksrv_io_cmd) -> [u8; 16] {
    let (queue, tag) = (command.q_id.to_ne_bytes(), command.tag.to_ne_bytes());
    let (result, address) = (command.result.to_ne_bytes(), command.addr.to_ne_bytes());
    let [r0, r1, r2, r3] = result;
    let [a0, a1, a2, a3, a4, a5, a6, a7] = address;
    [queue[0], queue[1], tag[0], tag[1], r0, r1, r2, r3, a0, a1, a2, a3, a4, a5, a6, a7]
}

/// A control command in its 80 bytes.
#[expect(clippy::host_endian_bytes, reason = "for the kernel of this host")]
pub(crate) fn control_payload(command: &sys::ublksrv_ctrl_cmd) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&command.dev_id.to_ne_bytes());
    bytes[4..6].copy_from_slice(&command.queue_id.to_ne_bytes());
    bytes[6..8].copy_from_slice(&command.len.to_ne_bytes());
    bytes[8..16].copy_from_slice(&command.addr.to_ne_bytes());
    bytes[16..24].copy_from_slice(&command.data[0].to_ne_bytes());
    bytes[24..26].copy_from_slice(&command.dev_path_len.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_features() {
        let ioctls = u64::from(sys::UBLK_F_CMD_IOCTL_ENCODE);
        assert_eq!(IoCommand::Fetch.number(ioctls), 0xc010_7520);
        assert_eq!(IoCommand::CommitAndFetch.number(u64::MAX), 0xc010_7521);
        assert_eq!(IoCommand::Fetch.number(0), 0x20);
        assert_eq!(IoCommand::CommitAndFetch.number(!ioctls), 0x21);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn io_payload_matches_kernel_structure() {
        let command = sys::ublksrv_io_cmd {
            q_id: 0x0201,
            tag: 0x0403,
            result: 0x0807_0605,
            addr: 0x100f_0e0d_0c0b_0a09,
        };
        assert!(io_payload(command).into_iter().eq(1..=16));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn control_payload_matches_kernel_structure() {
        let command = sys::ublksrv_ctrl_cmd {
            dev_id: 0x0403_0201,
            queue_id: 0x0605,
            len: 0x0807,
            addr: 0x100f_0e0d_0c0b_0a09,
            data: [0x1817_1615_1413_1211],
            dev_path_len: 0x1a19,
            pad: 0,
            reserved: 0,
        };
        let bytes = control_payload(&command);
        assert!(bytes[..26].iter().copied().eq(1..=26));
        assert!(bytes[26..].iter().all(|b| *b == 0));
    }
}
