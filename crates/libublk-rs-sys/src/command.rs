//! The numbers of the commands, to `/dev/ublk-control` and to `/dev/ublkcN`.

use crate::{ublk_batch_io, ublksrv_ctrl_cmd, ublksrv_io_cmd};

/// The kernel hands data back.
const READ: u32 = 2;
/// The kernel takes data and hands data back.
const READ_WRITE: u32 = 3;

/// The kernel's `_IOC` for the letter 'u': direction in bits 30 and 31, argument size from bit 16, letter
/// from bit 8. Some architectures have another layout; there this crate does not build.
#[cfg(not(any(
    target_arch = "mips",
    target_arch = "mips64",
    target_arch = "powerpc",
    target_arch = "powerpc64",
    target_arch = "sparc64"
)))]
const fn ioc<Argument>(direction: u32, number: u32) -> u32 {
    let size_bytes = size_of::<Argument>();
    assert!(size_bytes < 1 << 14, "fourteen bits of size");
    #[expect(clippy::cast_possible_truncation, reason = "below 1 << 14")]
    let size_bytes = size_bytes as u32;
    direction << 30 | size_bytes << 16 | (b'u' as u32) << 8 | number
}

const fn control(direction: u32, number: u32) -> u32 {
    ioc::<ublksrv_ctrl_cmd>(direction, number)
}

const fn io(number: u32) -> u32 {
    ioc::<ublksrv_io_cmd>(READ_WRITE, number)
}

const fn batch(number: u32) -> u32 {
    ioc::<ublk_batch_io>(READ_WRITE, number)
}

constants! {
    /// Which CPUs the block layer maps to a queue; legacy number.
    UBLK_CMD_GET_QUEUE_AFFINITY: u32 = 0x01;
    /// Reads [`ublksrv_ctrl_dev_info`](crate::ublksrv_ctrl_dev_info); legacy number.
    UBLK_CMD_GET_DEV_INFO: u32 = 0x02;
    /// Makes `/dev/ublkcN`; legacy number.
    UBLK_CMD_ADD_DEV: u32 = 0x04;
    /// Deletes the device and waits until its number is free; legacy number.
    UBLK_CMD_DEL_DEV: u32 = 0x05;
    /// Makes `/dev/ublkbN` when every queue has fetched; legacy number.
    UBLK_CMD_START_DEV: u32 = 0x06;
    /// Takes `/dev/ublkbN` away; legacy number.
    UBLK_CMD_STOP_DEV: u32 = 0x07;
    /// Sets [`ublk_params`](crate::ublk_params) before the start; legacy number.
    UBLK_CMD_SET_PARAMS: u32 = 0x08;
    /// Reads [`ublk_params`](crate::ublk_params); legacy number.
    UBLK_CMD_GET_PARAMS: u32 = 0x09;
    /// Readies a quiesced device for another server; legacy number.
    UBLK_CMD_START_USER_RECOVERY: u32 = 0x10;
    /// Sets a quiesced device going again; legacy number.
    UBLK_CMD_END_USER_RECOVERY: u32 = 0x11;
    /// As [`UBLK_CMD_GET_DEV_INFO`], with the device's path for an unprivileged caller; legacy number.
    UBLK_CMD_GET_DEV_INFO2: u32 = 0x12;

    /// [`UBLK_CMD_GET_QUEUE_AFFINITY`], encoded.
    UBLK_U_CMD_GET_QUEUE_AFFINITY: u32 = control(READ, UBLK_CMD_GET_QUEUE_AFFINITY);
    /// [`UBLK_CMD_GET_DEV_INFO`], encoded.
    UBLK_U_CMD_GET_DEV_INFO: u32 = control(READ, UBLK_CMD_GET_DEV_INFO);
    /// [`UBLK_CMD_ADD_DEV`], encoded.
    UBLK_U_CMD_ADD_DEV: u32 = control(READ_WRITE, UBLK_CMD_ADD_DEV);
    /// [`UBLK_CMD_DEL_DEV`], encoded.
    UBLK_U_CMD_DEL_DEV: u32 = control(READ_WRITE, UBLK_CMD_DEL_DEV);
    /// [`UBLK_CMD_START_DEV`], encoded.
    UBLK_U_CMD_START_DEV: u32 = control(READ_WRITE, UBLK_CMD_START_DEV);
    /// [`UBLK_CMD_STOP_DEV`], encoded.
    UBLK_U_CMD_STOP_DEV: u32 = control(READ_WRITE, UBLK_CMD_STOP_DEV);
    /// [`UBLK_CMD_SET_PARAMS`], encoded.
    UBLK_U_CMD_SET_PARAMS: u32 = control(READ_WRITE, UBLK_CMD_SET_PARAMS);
    /// [`UBLK_CMD_GET_PARAMS`], encoded.
    UBLK_U_CMD_GET_PARAMS: u32 = control(READ, UBLK_CMD_GET_PARAMS);
    /// [`UBLK_CMD_START_USER_RECOVERY`], encoded.
    UBLK_U_CMD_START_USER_RECOVERY: u32 = control(READ_WRITE, UBLK_CMD_START_USER_RECOVERY);
    /// [`UBLK_CMD_END_USER_RECOVERY`], encoded.
    UBLK_U_CMD_END_USER_RECOVERY: u32 = control(READ_WRITE, UBLK_CMD_END_USER_RECOVERY);
    /// [`UBLK_CMD_GET_DEV_INFO2`], encoded.
    UBLK_U_CMD_GET_DEV_INFO2: u32 = control(READ, UBLK_CMD_GET_DEV_INFO2);
    /// Reads the driver's feature flags, `UBLK_F_*`.
    UBLK_U_CMD_GET_FEATURES: u32 = control(READ, 0x13);
    /// As [`UBLK_CMD_DEL_DEV`], without the wait.
    UBLK_U_CMD_DEL_DEV_ASYNC: u32 = control(READ, 0x14);
    /// Resizes a started device; the size travels in sectors.
    UBLK_U_CMD_UPDATE_SIZE: u32 = control(READ_WRITE, 0x15);
    /// Quiesces a started device, for its server to be replaced.
    UBLK_U_CMD_QUIESCE_DEV: u32 = control(READ_WRITE, 0x16);
    /// As [`UBLK_CMD_STOP_DEV`], but refused while the device is open.
    UBLK_U_CMD_TRY_STOP_DEV: u32 = control(READ_WRITE, 0x17);
    /// Registers shared memory, described by [`ublk_shmem_buf_reg`](crate::ublk_shmem_buf_reg).
    UBLK_U_CMD_REG_BUF: u32 = control(READ_WRITE, 0x18);
    /// Unregisters it.
    UBLK_U_CMD_UNREG_BUF: u32 = control(READ_WRITE, 0x19);

    /// Offers a tag and its buffer to the driver for the first time; legacy number.
    UBLK_IO_FETCH_REQ: u32 = 0x20;
    /// Completes a tag's request and offers the tag again; legacy number.
    UBLK_IO_COMMIT_AND_FETCH_REQ: u32 = 0x21;
    /// Asks for a write's data; legacy number.
    UBLK_IO_NEED_GET_DATA: u32 = 0x22;
    /// [`UBLK_IO_FETCH_REQ`], encoded.
    UBLK_U_IO_FETCH_REQ: u32 = io(UBLK_IO_FETCH_REQ);
    /// [`UBLK_IO_COMMIT_AND_FETCH_REQ`], encoded.
    UBLK_U_IO_COMMIT_AND_FETCH_REQ: u32 = io(UBLK_IO_COMMIT_AND_FETCH_REQ);
    /// [`UBLK_IO_NEED_GET_DATA`], encoded.
    UBLK_U_IO_NEED_GET_DATA: u32 = io(UBLK_IO_NEED_GET_DATA);
    /// Puts a request's pages into a ring's buffer table.
    UBLK_U_IO_REGISTER_IO_BUF: u32 = io(0x23);
    /// Takes them out again.
    UBLK_U_IO_UNREGISTER_IO_BUF: u32 = io(0x24);
    /// [`UBLK_IO_FETCH_REQ`] for many tags.
    UBLK_U_IO_PREP_IO_CMDS: u32 = batch(0x25);
    /// Completes many tags.
    UBLK_U_IO_COMMIT_IO_CMDS: u32 = batch(0x26);
    /// Waits for requests, many at a time.
    UBLK_U_IO_FETCH_IO_CMDS: u32 = batch(0x27);
}
