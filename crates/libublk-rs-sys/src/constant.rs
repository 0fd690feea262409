//! Results, limits, flags, states, operations.

constants! {
    /// Bytes that [`UBLK_U_CMD_GET_FEATURES`](crate::UBLK_U_CMD_GET_FEATURES) fills.
    UBLK_FEATURES_LEN: u32 = 8;

    /// A fetch completed: its tag has a request.
    UBLK_IO_RES_OK: u32 = 0;
    /// A fetch completed: its tag has a write whose data must be asked for.
    UBLK_IO_RES_NEED_GET_DATA: u32 = 1;
    /// A fetch completed: the device goes away, and the tag must not be fetched again. This is `-ENODEV`.
    UBLK_IO_RES_ABORT: i32 = -19;

    /// Where in `/dev/ublkcN` the descriptors are mapped.
    UBLKSRV_CMD_BUF_OFFSET: u32 = 0;
    /// Where in `/dev/ublkcN` the requests' data is read and written under [`UBLK_F_USER_COPY`].
    UBLKSRV_IO_BUF_OFFSET: u32 = 0x8000_0000;
    /// Most tags of a queue.
    UBLK_MAX_QUEUE_DEPTH: u32 = 4096;
    /// First bit of the byte offset in a user-copy position.
    UBLK_IO_BUF_OFF: u32 = 0;
    /// Bits of the byte offset: a request has at most 32 MiB.
    UBLK_IO_BUF_BITS: u32 = 25;
    /// Mask of the byte offset.
    UBLK_IO_BUF_BITS_MASK: u32 = (1 << UBLK_IO_BUF_BITS) - 1;
    /// First bit of the tag.
    UBLK_TAG_OFF: u32 = UBLK_IO_BUF_BITS;
    /// Bits of the tag.
    UBLK_TAG_BITS: u32 = 16;
    /// Mask of the tag, shifted down.
    UBLK_TAG_BITS_MASK: u32 = (1 << UBLK_TAG_BITS) - 1;
    /// First bit of the queue.
    UBLK_QID_OFF: u32 = UBLK_TAG_OFF + UBLK_TAG_BITS;
    /// Bits of the queue.
    UBLK_QID_BITS: u32 = 12;
    /// Mask of the queue, shifted down.
    UBLK_QID_BITS_MASK: u32 = (1 << UBLK_QID_BITS) - 1;
    /// Most queues of a device.
    UBLK_MAX_NR_QUEUES: u32 = 1 << UBLK_QID_BITS;
    /// Bits of a user-copy position.
    UBLKSRV_IO_BUF_TOTAL_BITS: u32 = UBLK_QID_OFF + UBLK_QID_BITS;
    /// Positions in the user-copy area.
    UBLKSRV_IO_BUF_TOTAL_SIZE: u64 = 1 << UBLKSRV_IO_BUF_TOTAL_BITS;

    /// Requests' pages can be registered with a ring.
    UBLK_F_SUPPORT_ZERO_COPY: u32 = 1 << 0;
    /// Completes commands in task work always; for measurements.
    UBLK_F_URING_CMD_COMP_IN_TASK: u32 = 1 << 1;
    /// The server asks for a write's data with a command of its own.
    UBLK_F_NEED_GET_DATA: u32 = 1 << 2;
    /// The device outlives its server, quiesced, until another one takes it over.
    UBLK_F_USER_RECOVERY: u32 = 1 << 3;
    /// With [`UBLK_F_USER_RECOVERY`]: requests in flight at the server's death are given to the next one.
    UBLK_F_USER_RECOVERY_REISSUE: u32 = 1 << 4;
    /// Made and owned by a user without privileges.
    UBLK_F_UNPRIVILEGED_DEV: u32 = 1 << 5;
    /// Commands are encoded as ioctls are.
    UBLK_F_CMD_IOCTL_ENCODE: u32 = 1 << 6;
    /// Data is copied by `pread` and `pwrite` on `/dev/ublkcN`.
    UBLK_F_USER_COPY: u32 = 1 << 7;
    /// A zoned device.
    UBLK_F_ZONED: u32 = 1 << 8;
    /// As [`UBLK_F_USER_RECOVERY`], but requests fail while there is no server.
    UBLK_F_USER_RECOVERY_FAIL_IO: u32 = 1 << 9;
    /// Can be resized.
    UBLK_F_UPDATE_SIZE: u32 = 1 << 10;
    /// Requests' pages are registered with the ring that fetched.
    UBLK_F_AUTO_BUF_REG: u32 = 1 << 11;
    /// Can be quiesced.
    UBLK_F_QUIESCE: u32 = 1 << 12;
    /// Tags of one queue may be served by several threads.
    UBLK_F_PER_IO_DAEMON: u32 = 1 << 13;
    /// Buffers may be registered from any thread.
    UBLK_F_BUF_REG_OFF_DAEMON: u32 = 1 << 14;
    /// Commands for many tags at a time.
    UBLK_F_BATCH_IO: u32 = 1 << 15;
    /// Requests can carry integrity data.
    UBLK_F_INTEGRITY: u32 = 1 << 16;
    /// [`UBLK_U_CMD_TRY_STOP_DEV`](crate::UBLK_U_CMD_TRY_STOP_DEV) is there.
    UBLK_F_SAFE_STOP_DEV: u32 = 1 << 17;
    /// Partitions are not looked for at the start.
    UBLK_F_NO_AUTO_PART_SCAN: u32 = 1 << 18;
    /// Registered shared memory is used without a copy.
    UBLK_F_SHMEM_ZC: u32 = 1 << 19;

    /// Added but not started, or stopped.
    UBLK_S_DEV_DEAD: u32 = 0;
    /// Started and served.
    UBLK_S_DEV_LIVE: u32 = 1;
    /// Its server is gone; requests wait for the next one.
    UBLK_S_DEV_QUIESCED: u32 = 2;
    /// Its server is gone; requests fail until the next one.
    UBLK_S_DEV_FAIL_IO: u32 = 3;

    /// Operation: read.
    UBLK_IO_OP_READ: u32 = 0;
    /// Operation: write.
    UBLK_IO_OP_WRITE: u32 = 1;
    /// Operation: make completed writes durable.
    UBLK_IO_OP_FLUSH: u32 = 2;
    /// Operation: the range is no longer needed.
    UBLK_IO_OP_DISCARD: u32 = 3;
    /// Operation: write the same block many times.
    UBLK_IO_OP_WRITE_SAME: u32 = 4;
    /// Operation: zero a range.
    UBLK_IO_OP_WRITE_ZEROES: u32 = 5;
    /// Operation: open a zone.
    UBLK_IO_OP_ZONE_OPEN: u32 = 10;
    /// Operation: close a zone.
    UBLK_IO_OP_ZONE_CLOSE: u32 = 11;
    /// Operation: finish a zone.
    UBLK_IO_OP_ZONE_FINISH: u32 = 12;
    /// Operation: append to a zone.
    UBLK_IO_OP_ZONE_APPEND: u32 = 13;
    /// Operation: reset all zones.
    UBLK_IO_OP_ZONE_RESET_ALL: u32 = 14;
    /// Operation: reset a zone.
    UBLK_IO_OP_ZONE_RESET: u32 = 15;
    /// Operation: report zones.
    UBLK_IO_OP_REPORT_ZONES: u32 = 18;

    /// Do not retry device errors.
    UBLK_IO_F_FAILFAST_DEV: u32 = 1 << 8;
    /// Do not retry transport errors.
    UBLK_IO_F_FAILFAST_TRANSPORT: u32 = 1 << 9;
    /// Do not retry driver errors.
    UBLK_IO_F_FAILFAST_DRIVER: u32 = 1 << 10;
    /// Metadata.
    UBLK_IO_F_META: u32 = 1 << 11;
    /// Durable before it completes.
    UBLK_IO_F_FUA: u32 = 1 << 13;
    /// Do not free the blocks when zeroing.
    UBLK_IO_F_NOUNMAP: u32 = 1 << 15;
    /// Swap.
    UBLK_IO_F_SWAP: u32 = 1 << 16;
    /// The automatic registration of a buffer failed.
    UBLK_IO_F_NEED_REG_BUF: u32 = 1 << 17;
    /// The request has integrity data.
    UBLK_IO_F_INTEGRITY: u32 = 1 << 18;
    /// The data is in registered shared memory.
    UBLK_IO_F_SHMEM_ZC: u32 = 1 << 19;

    /// Complete the command when the automatic registration of its buffer fails.
    UBLK_AUTO_BUF_REG_FALLBACK: u32 = 1 << 0;
    /// All such flags.
    UBLK_AUTO_BUF_REG_F_MASK: u32 = UBLK_AUTO_BUF_REG_FALLBACK;
    /// Elements of a batch have a zone's address.
    UBLK_BATCH_F_HAS_ZONE_LBA: u32 = 1 << 0;
    /// Elements of a batch have a buffer's address.
    UBLK_BATCH_F_HAS_BUF_ADDR: u32 = 1 << 1;
    /// [`UBLK_AUTO_BUF_REG_FALLBACK`] for a batch.
    UBLK_BATCH_F_AUTO_BUF_REG_FALLBACK: u32 = 1 << 2;

    /// The device is read-only.
    UBLK_ATTR_READ_ONLY: u32 = 1 << 0;
    /// The device rotates.
    UBLK_ATTR_ROTATIONAL: u32 = 1 << 1;
    /// A completed write can be lost until the next flush.
    UBLK_ATTR_VOLATILE_CACHE: u32 = 1 << 2;
    /// FUA is understood.
    UBLK_ATTR_FUA: u32 = 1 << 3;
    /// Smallest segment limit.
    UBLK_MIN_SEGMENT_SIZE: u32 = 4096;
    /// [`ublk_params`](crate::ublk_params) has `basic`.
    UBLK_PARAM_TYPE_BASIC: u32 = 1 << 0;
    /// It has `discard`.
    UBLK_PARAM_TYPE_DISCARD: u32 = 1 << 1;
    /// It has `devt`.
    UBLK_PARAM_TYPE_DEVT: u32 = 1 << 2;
    /// It has `zoned`.
    UBLK_PARAM_TYPE_ZONED: u32 = 1 << 3;
    /// It has [`ublk_param_dma_align`](crate::ublk_param_dma_align).
    UBLK_PARAM_TYPE_DMA_ALIGN: u32 = 1 << 4;
    /// It has [`ublk_param_segment`](crate::ublk_param_segment).
    UBLK_PARAM_TYPE_SEGMENT: u32 = 1 << 5;

    /// The server only reads the shared memory.
    UBLK_SHMEM_BUF_READ_ONLY: u32 = 1 << 0;
    /// Mask of the offset in a shared-memory address.
    UBLK_SHMEM_ZC_OFF_MASK: u32 = 0xffff_ffff;
    /// First bit of the buffer's index in it.
    UBLK_SHMEM_ZC_IDX_OFF: u32 = 32;
    /// Mask of the index, shifted down.
    UBLK_SHMEM_ZC_IDX_MASK: u32 = 0xffff;
}
