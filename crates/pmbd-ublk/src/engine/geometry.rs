//! The geometry of a device.

use super::error::GeometryError;

/// The logical sector: the unit in which a client addresses the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SectorSize {
    /// 512 bytes, supported by every client.
    #[default]
    B512,
    /// 4,096 bytes.
    B4096,
}

impl SectorSize {
    /// In bytes: 512 or 4,096.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes_u32() as u64
    }

    /// The same, for formats and protocols with 32 bits.
    #[must_use]
    pub const fn bytes_u32(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }

    /// From a number of bytes.
    ///
    /// # Errors
    /// For anything but 512 and 4,096.
    pub const fn from_bytes(bytes: u64) -> Result<Self, GeometryError> {
        match bytes {
            512 => Ok(Self::B512),
            4096 => Ok(Self::B4096),
            other => Err(GeometryError::SectorSize(other)),
        }
    }
}

/// The range of a region that is the device, and its sectors. [`Geometry::new`] checks the capacity; [`Engine::new`](super::Engine::new) checks the
/// range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    start_bytes: u64,
    capacity_bytes: u64,
    sector: SectorSize,
}

impl Geometry {
    /// A device of `capacity_bytes` at `start_bytes` of its region.
    ///
    /// # Errors
    /// When the capacity is zero or not a whole number of sectors.
    pub const fn new(
        start_bytes: u64,
        capacity_bytes: u64,
        sector: SectorSize,
    ) -> Result<Self, GeometryError> {
        if capacity_bytes == 0 {
            return Err(GeometryError::ZeroCapacity);
        }
        if !capacity_bytes.is_multiple_of(sector.bytes()) {
            return Err(GeometryError::CapacityNotMultiple { capacity_bytes, sector_bytes: sector.bytes() });
        }
        Ok(Self { start_bytes, capacity_bytes, sector })
    }

    /// The offset in the region of the device's first byte.
    #[must_use]
    pub const fn start_bytes(&self) -> u64 {
        self.start_bytes
    }

    /// The device's size in bytes, a whole number of sectors.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// The logical sector.
    #[must_use]
    pub const fn sector(&self) -> SectorSize {
        self.sector
    }
}
