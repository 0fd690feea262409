//! The part of the kernel's ublk interface (`<linux/ublk_cmd.h>`) that servers with copied data use: constants, command numbers and structures, under the
//! names of the header.
//!
//! They are written by hand, because the interface between kernel and user space never changes once released, and a generator needs libclang on every
//! machine that builds the crate. Sizes and offsets are asserted at compile time. A test compares every constant and structure with the header of the
//! machine, as far as that header knows them. Meanings are documented in the header and in `Documentation/block/ublk.rst` of the kernel.
//!
//! ```
//! use pm_ublk::sys;
//! assert_eq!(size_of::<sys::ublksrv_io_desc>(), 24);
//! assert_eq!(sys::UBLK_U_IO_FETCH_REQ, 0xc010_7520); // read and write, 16 bytes, 'u', number 0x20
//! ```
#![expect(missing_docs, reason = "the kernel documents its interface")]

#[cfg(test)]
mod tests;

/// Declares constants, and for the tests a table of `(name, value)`.
macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*

        #[cfg(test)]
        const CONSTANTS: &[(&str, i128)] = &[$((stringify!($name), $name as i128),)*];
    };
}

/// Declares a `repr(C)` structure with its size and the offset of each field, asserts them at compile time, and leaves a table of them for the tests.
macro_rules! structures {
    ($($name:ident[$size:literal] { $($offset:literal $field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Debug, Default, Copy, Clone)]
            pub struct $name { $(pub $field: $type,)* }

            const _: () = assert!(size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
            $(const _: () = assert!(
                core::mem::offset_of!($name, $field) == $offset,
                concat!("offset of ", stringify!($name), ".", stringify!($field)),
            );)*
        )*

        #[cfg(test)]
        const STRUCTURES: &[tests::Layout] = &[$((
            stringify!($name),
            size_of::<$name>(),
            &[$((stringify!($field), core::mem::offset_of!($name, $field)),)*],
        ),)*];
    };
}

/// The direction of an ioctl number: the kernel hands data back.
const READ: u32 = 2;
/// The kernel takes data and hands data back.
const READ_WRITE: u32 = 3;

/// The kernel's `_IOC` for the letter 'u': direction in bits 30 and 31, argument size from bit 16, letter from bit 8. Some architectures
/// have another layout; there this crate does not build.
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

constants! {
    // Commands to /dev/ublk-control. The first is a legacy number, which kernels before 6.4 know alone.
    UBLK_CMD_GET_DEV_INFO2: u32 = 0x12;
    UBLK_U_CMD_GET_QUEUE_AFFINITY: u32 = control(READ, 0x01);
    UBLK_U_CMD_GET_DEV_INFO: u32 = control(READ, 0x02);
    UBLK_U_CMD_ADD_DEV: u32 = control(READ_WRITE, 0x04);
    UBLK_U_CMD_DEL_DEV: u32 = control(READ_WRITE, 0x05);
    UBLK_U_CMD_START_DEV: u32 = control(READ_WRITE, 0x06);
    UBLK_U_CMD_STOP_DEV: u32 = control(READ_WRITE, 0x07);
    UBLK_U_CMD_SET_PARAMS: u32 = control(READ_WRITE, 0x08);
    UBLK_U_CMD_GET_PARAMS: u32 = control(READ, 0x09);
    UBLK_U_CMD_START_USER_RECOVERY: u32 = control(READ_WRITE, 0x10);
    UBLK_U_CMD_END_USER_RECOVERY: u32 = control(READ_WRITE, 0x11);
    UBLK_U_CMD_GET_DEV_INFO2: u32 = control(READ, UBLK_CMD_GET_DEV_INFO2);
    UBLK_U_CMD_GET_FEATURES: u32 = control(READ, 0x13);

    // Commands to /dev/ublkcN, and their results.
    UBLK_U_IO_FETCH_REQ: u32 = io(0x20);
    UBLK_U_IO_COMMIT_AND_FETCH_REQ: u32 = io(0x21);
    UBLK_IO_RES_OK: u32 = 0;
    UBLK_IO_RES_ABORT: i32 = -19; // -ENODEV

    // Positions in /dev/ublkcN, and limits.
    UBLKSRV_CMD_BUF_OFFSET: u32 = 0;
    UBLK_MAX_QUEUE_DEPTH: u32 = 4096;
    UBLK_MAX_NR_QUEUES: u32 = 1 << 12;

    // Features of the driver and of a device.
    UBLK_F_SUPPORT_ZERO_COPY: u32 = 1 << 0;
    UBLK_F_URING_CMD_COMP_IN_TASK: u32 = 1 << 1;
    UBLK_F_NEED_GET_DATA: u32 = 1 << 2;
    UBLK_F_USER_RECOVERY: u32 = 1 << 3;
    UBLK_F_USER_RECOVERY_REISSUE: u32 = 1 << 4;
    UBLK_F_UNPRIVILEGED_DEV: u32 = 1 << 5;
    UBLK_F_CMD_IOCTL_ENCODE: u32 = 1 << 6;
    UBLK_F_USER_COPY: u32 = 1 << 7;
    UBLK_F_ZONED: u32 = 1 << 8;
    UBLK_F_UPDATE_SIZE: u32 = 1 << 10;
    UBLK_F_AUTO_BUF_REG: u32 = 1 << 11;
    UBLK_F_QUIESCE: u32 = 1 << 12;
    UBLK_F_PER_IO_DAEMON: u32 = 1 << 13;
    UBLK_F_BATCH_IO: u32 = 1 << 15;

    // States of a device.
    UBLK_S_DEV_DEAD: u32 = 0;
    UBLK_S_DEV_LIVE: u32 = 1;
    UBLK_S_DEV_QUIESCED: u32 = 2;
    UBLK_S_DEV_FAIL_IO: u32 = 3;

    // Operations and flags of a request.
    UBLK_IO_OP_READ: u32 = 0;
    UBLK_IO_OP_WRITE: u32 = 1;
    UBLK_IO_OP_FLUSH: u32 = 2;
    UBLK_IO_OP_DISCARD: u32 = 3;
    UBLK_IO_OP_WRITE_SAME: u32 = 4;
    UBLK_IO_OP_WRITE_ZEROES: u32 = 5;
    UBLK_IO_OP_ZONE_APPEND: u32 = 13;
    UBLK_IO_F_FUA: u32 = 1 << 13;

    // Parameters of a device.
    UBLK_ATTR_READ_ONLY: u32 = 1 << 0;
    UBLK_ATTR_VOLATILE_CACHE: u32 = 1 << 2;
    UBLK_ATTR_FUA: u32 = 1 << 3;
    UBLK_PARAM_TYPE_BASIC: u32 = 1 << 0;
    UBLK_PARAM_TYPE_DISCARD: u32 = 1 << 1;
}

structures! {
    ublksrv_ctrl_cmd[32] {
        0 dev_id: u32,
        4 queue_id: u16,
        6 len: u16,
        8 addr: u64,
        16 data: [u64; 1],
        24 dev_path_len: u16,
        26 pad: u16,
        28 reserved: u32,
    }

    ublksrv_ctrl_dev_info[64] {
        0 nr_hw_queues: u16,
        2 queue_depth: u16,
        4 state: u16,
        6 pad0: u16,
        8 max_io_buf_bytes: u32,
        12 dev_id: u32,
        16 ublksrv_pid: i32,
        20 pad1: u32,
        24 flags: u64,
        32 ublksrv_flags: u64,
        40 owner_uid: u32,
        44 owner_gid: u32,
        48 reserved1: u64,
        56 reserved2: u64,
    }

    ublksrv_io_desc[24] {
        0 op_flags: u32,
        4 nr_sectors: u32,
        8 start_sector: u64,
        16 addr: u64,
    }

    ublksrv_io_cmd[16] {
        0 q_id: u16,
        2 tag: u16,
        4 result: i32,
        8 addr: u64,
    }

    ublk_param_basic[32] {
        0 attrs: u32,
        4 logical_bs_shift: u8,
        5 physical_bs_shift: u8,
        6 io_opt_shift: u8,
        7 io_min_shift: u8,
        8 max_sectors: u32,
        12 chunk_sectors: u32,
        16 dev_sectors: u64,
        24 virt_boundary_mask: u64,
    }

    ublk_param_discard[20] {
        0 discard_alignment: u32,
        4 discard_granularity: u32,
        8 max_discard_sectors: u32,
        12 max_write_zeroes_sectors: u32,
        16 max_discard_segments: u16,
        18 reserved0: u16,
    }

    ublk_param_devt[16] {
        0 char_major: u32,
        4 char_minor: u32,
        8 disk_major: u32,
        12 disk_minor: u32,
    }

    ublk_param_zoned[32] {
        0 max_open_zones: u32,
        4 max_active_zones: u32,
        8 max_zone_append_sectors: u32,
        12 reserved: [u8; 20],
    }

    ublk_params[112] {
        0 len: u32,
        4 types: u32,
        8 basic: ublk_param_basic,
        40 discard: ublk_param_discard,
        60 devt: ublk_param_devt,
        76 zoned: ublk_param_zoned,
    }
}
