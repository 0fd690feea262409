//! Structures, with the offset of each field before its name.

structures! {
    /// A control command, in the 80 bytes that a long submission entry has for it.
    ublksrv_ctrl_cmd[32] {
        /// Which device; all ones when the kernel is to choose.
        0 dev_id: u32,
        /// All ones if the command is for no queue.
        4 queue_id: u16,
        /// Length of the buffer at `addr`, in bytes.
        6 len: u16,
        /// A buffer to read or to fill.
        8 addr: u64,
        /// An inline argument.
        16 data: [u64; 1],
        /// Length of the device's path before the buffer proper, for unprivileged devices.
        24 dev_path_len: u16,
        /// Zero.
        26 pad: u16,
        /// Zero.
        28 reserved: u32,
    }

    /// What a device is. Asked for when adding it; the driver answers with what it grants.
    ublksrv_ctrl_dev_info[64] {
        /// Queues.
        0 nr_hw_queues: u16,
        /// Tags of each.
        2 queue_depth: u16,
        /// `UBLK_S_*`.
        4 state: u16,
        /// Zero.
        6 pad0: u16,
        /// Longest request, in bytes.
        8 max_io_buf_bytes: u32,
        /// N in `/dev/ublkcN` and `/dev/ublkbN`.
        12 dev_id: u32,
        /// The server's process.
        16 ublksrv_pid: i32,
        /// Zero.
        20 pad1: u32,
        /// `UBLK_F_*`.
        24 flags: u64,
        /// The server's own, kept by the driver as it was.
        32 ublksrv_flags: u64,
        /// Set by the driver.
        40 owner_uid: u32,
        /// Set by the driver.
        44 owner_gid: u32,
        /// Zero.
        48 reserved1: u64,
        /// Zero.
        56 reserved2: u64,
    }

    /// A request, in the memory that the driver shares with the server, one a tag.
    ublksrv_io_desc[24] {
        /// The operation in bits 0 to 7, `UBLK_IO_F_*` above.
        0 op_flags: u32,
        /// Length in sectors of 512 bytes; a count of zones when zones are reported.
        4 nr_sectors: u32,
        /// Where, in sectors of 512 bytes.
        8 start_sector: u64,
        /// The tag's buffer, as fetched.
        16 addr: u64,
    }

    /// The buffer slot of a fetch, packed into its submission's `addr`.
    ublk_auto_buf_reg[8] {
        /// Index in the ring's buffer table.
        0 index: u16,
        /// `UBLK_AUTO_BUF_REG_*`.
        2 flags: u8,
        /// Zero.
        3 reserved0: u8,
        /// Zero.
        4 reserved1: u32,
    }

    /// A fetch, or a completion with a fetch.
    ublksrv_io_cmd[16] {
        /// Which queue.
        0 q_id: u16,
        /// Which tag.
        2 tag: u16,
        /// Bytes done, or a negative errno.
        4 result: i32,
        /// The tag's buffer; a zone's address when appending.
        8 addr: u64,
    }

    /// One element of a batch.
    ublk_elem_header[8] {
        /// Which tag.
        0 tag: u16,
        /// Index in the ring's buffer table.
        2 buf_index: u16,
        /// Bytes done, or a negative errno.
        4 result: i32,
    }

    /// A batch.
    ublk_batch_io[16] {
        /// Which queue.
        0 q_id: u16,
        /// `UBLK_BATCH_F_*`.
        2 flags: u16,
        /// Elements in the buffer.
        4 nr_elem: u16,
        /// Length of one.
        6 elem_bytes: u8,
        /// Zero.
        7 reserved: u8,
        /// Zero.
        8 reserved2: u64,
    }

    /// What every device has. Shifts are powers of two of bytes, sectors have 512 bytes.
    ublk_param_basic[32] {
        /// `UBLK_ATTR_*`.
        0 attrs: u32,
        /// Logical block.
        4 logical_bs_shift: u8,
        /// Physical block.
        5 physical_bs_shift: u8,
        /// Optimal request.
        6 io_opt_shift: u8,
        /// Smallest efficient request.
        7 io_min_shift: u8,
        /// Longest request.
        8 max_sectors: u32,
        /// A request must not cross a multiple of this; 0 for none.
        12 chunk_sectors: u32,
        /// Capacity.
        16 dev_sectors: u64,
        /// Gaps allowed between a request's segments.
        24 virt_boundary_mask: u64,
    }

    /// Discard and write-zeroes.
    ublk_param_discard[20] {
        /// Offset of the first discard unit, in bytes.
        0 discard_alignment: u32,
        /// The discard unit, in bytes.
        4 discard_granularity: u32,
        /// Longest discard; 0 for none.
        8 max_discard_sectors: u32,
        /// Longest zeroing; 0 for none.
        12 max_write_zeroes_sectors: u32,
        /// Ranges in one discard; the driver takes 1 only.
        16 max_discard_segments: u16,
        /// Zero.
        18 reserved0: u16,
    }

    /// Device numbers, filled by the driver.
    ublk_param_devt[16] {
        /// Of `/dev/ublkcN`.
        0 char_major: u32,
        /// Of `/dev/ublkcN`.
        4 char_minor: u32,
        /// Of `/dev/ublkbN`.
        8 disk_major: u32,
        /// Of `/dev/ublkbN`.
        12 disk_minor: u32,
    }

    /// A zoned device's limits.
    ublk_param_zoned[32] {
        /// Zones open at a time.
        0 max_open_zones: u32,
        /// Zones active at a time.
        4 max_active_zones: u32,
        /// Longest append.
        8 max_zone_append_sectors: u32,
        /// Zero.
        12 reserved: [u8; 20],
    }

    /// Alignment of a request's memory.
    ublk_param_dma_align[8] {
        /// A mask.
        0 alignment: u32,
        /// Zero.
        4 pad: [u8; 4],
    }

    /// Limits of a request's segments.
    ublk_param_segment[16] {
        /// A segment must not cross a multiple of this plus one.
        0 seg_boundary_mask: u64,
        /// Longest segment.
        8 max_segment_size: u32,
        /// Most segments.
        12 max_segments: u16,
        /// Zero.
        14 pad: [u8; 2],
    }

    /// A device's parameters.
    ublk_params[112] {
        /// Length of this structure as its sender knows it; the driver takes what it knows.
        0 len: u32,
        /// `UBLK_PARAM_TYPE_*`.
        4 types: u32,
        /// Always there.
        8 basic: ublk_param_basic,
        /// Discard.
        40 discard: ublk_param_discard,
        /// Device numbers.
        60 devt: ublk_param_devt,
        /// Zones.
        76 zoned: ublk_param_zoned,
    }

    /// Shared memory to register.
    ublk_shmem_buf_reg[24] {
        /// Where.
        0 addr: u64,
        /// How long, in bytes.
        8 len: u64,
        /// `UBLK_SHMEM_BUF_*`.
        16 flags: u32,
        /// Zero.
        20 reserved: u32,
    }
}
