//! The kernel's ublk interface, written by hand: constants, command numbers and structures of
//! `<linux/ublk_cmd.h>`.
//!
//! `libublk` depends on the crates.io package `libublk-rs-sys`, which generates the same items from the
//! header at build time, and so needs bindgen and a libclang on every machine that builds it. An interface
//! between kernel and user space never changes once released, so it can as well be written down once. This
//! package has the same name and version and takes that one's place by `[patch.crates-io]` in the workspace's
//! `Cargo.toml`: everything here builds with rustup and a linker alone.
//!
//! # What is promised
//! Names, types and values are those that bindgen gives, for everything that `libublk` 0.4.8 uses and for the
//! rest of the header too. Left out are the structures of `<linux/blkzoned.h>`, which only a zoned device
//! needs. Sizes and offsets are asserted at compile time; a test compares every constant and structure with
//! the header of the machine it runs on, as far as that header goes (an older kernel's knows fewer), and
//! names what it could not compare.
//!
//! # Limitations
//! A `[patch]` counts in the workspace that states it. Whoever installs a published package that depends on
//! `libublk` gets the generated crate from crates.io, and needs libclang for that (`libclang1` in Debian).
//!
//! ```
//! use libublk_rs_sys as sys;
//! assert_eq!(size_of::<sys::ublksrv_io_desc>(), 24);
//! assert_eq!(sys::UBLK_U_IO_FETCH_REQ, 0xc010_7520); // read and write, 16 bytes, 'u', number 0x20
//! ```
#![forbid(unsafe_code)]

#[macro_use]
mod table;

mod command;
mod constant;
mod structure;

#[cfg(test)]
mod tests;

pub use command::*;
pub use constant::*;
pub use structure::*;

/// Unpacks what travels in the `addr` field of a submission when buffers are registered automatically: the
/// index in bits 0 to 15, the flags in bits 16 to 23. The reserved fields come out as zero.
#[inline]
#[must_use]
pub const fn ublk_sqe_addr_to_auto_buf_reg(sqe_addr: u64) -> ublk_auto_buf_reg {
    let [index_low, index_high, flags, ..] = sqe_addr.to_le_bytes();
    ublk_auto_buf_reg {
        index: u16::from_le_bytes([index_low, index_high]),
        flags,
        reserved0: 0,
        reserved1: 0,
    }
}

/// Packs for the `addr` field of a submission what [`ublk_sqe_addr_to_auto_buf_reg`] unpacks, reserved fields
/// included.
#[inline]
#[must_use]
pub const fn ublk_auto_buf_reg_to_sqe_addr(buf: &ublk_auto_buf_reg) -> u64 {
    (buf.index as u64)
        | (buf.flags as u64) << 16
        | (buf.reserved0 as u64) << 24
        | (buf.reserved1 as u64) << 32
}
