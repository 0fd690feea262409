//! What a device is to be.

use super::error::UblkError;
use super::info::{DeviceIdentity, DeviceInfo, Features};
use super::options::Options;
use crate::engine::{Engine, WriteCache};
use pm_core::Pmem;
use pm_ublk::sys;

/// What a device is to be.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) device_id: Option<u32>,
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) max_io_bytes: u32,
    pub(super) features: Features,
    pub(super) identity: DeviceIdentity,
    pub(super) params: sys::ublk_params,
}

impl Spec {
    /// The device that serves `engine` by `options`.
    pub(super) fn new<P: Pmem>(engine: &Engine<P>, options: &Options, identity: DeviceIdentity) -> Self {
        Self {
            device_id: options.device_id,
            queues: options.queues,
            depth: options.depth,
            max_io_bytes: options.max_io_bytes,
            features: Features::WANTED,
            identity,
            params: params(engine, options),
        }
    }

    /// The specification for taking over `device`, which has the parameters `has`: with the device's counts.
    ///
    /// # Errors
    /// [`UblkError::Changed`] for the first property that a client would see change.
    pub(super) fn for_takeover(
        &self,
        device: &DeviceInfo,
        has: &sys::ublk_params,
    ) -> Result<Self, UblkError> {
        let (old, new) = (&has.basic, &self.params.basic);
        let (read_only, cache) = (sys::UBLK_ATTR_READ_ONLY, sys::UBLK_ATTR_VOLATILE_CACHE);
        let flag = |attrs: u32, bit: u32| u64::from(attrs & bit != 0);
        let properties = [
            ("its capacity in bytes", old.dev_sectors << 9, new.dev_sectors << 9),
            ("its logical sector in bytes", 1 << old.logical_bs_shift.min(63), 1 << new.logical_bs_shift),
            ("whether it is read-only", flag(old.attrs, read_only), flag(new.attrs, read_only)),
            // A device without a cache receives no flushes, so it must not get a cache. Losing one is harmless.
            ("whether it has a volatile cache", flag(old.attrs, cache), flag(old.attrs | new.attrs, cache)),
        ];
        for (what, was, wanted) in properties {
            if was != wanted {
                return Err(UblkError::Changed { device_id: device.device_id, what, was, wanted });
            }
        }
        Ok(Self {
            device_id: Some(device.device_id),
            queues: device.queues,
            depth: device.depth,
            max_io_bytes: device.max_io_bytes,
            ..self.clone()
        })
    }
}

/// Power of two of the physical sector: the page in which memory is mapped.
const PHYSICAL_SHIFT: u8 = 12;

/// The parameters that the kernel is given.
fn params<P: Pmem>(engine: &Engine<P>, options: &Options) -> sys::ublk_params {
    let geometry = engine.geometry();
    let mut attrs = 0;
    if engine.is_read_only() {
        attrs |= sys::UBLK_ATTR_READ_ONLY;
    }
    if engine.write_cache() == WriteCache::WriteBack {
        // Without these the kernel sends neither FLUSH nor FUA.
        attrs |= sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
    }
    let zero_sectors = if engine.is_read_only() { 0 } else { options.max_zero_bytes >> 9 };
    sys::ublk_params {
        len: 0, // set by the sender
        types: sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD,
        basic: sys::ublk_param_basic {
            attrs,
            logical_bs_shift: if geometry.sector().bytes() == 4096 { 12 } else { 9 },
            physical_bs_shift: PHYSICAL_SHIFT,
            // As small as the smallest: mkfs takes a larger optimum for a stripe.
            io_opt_shift: PHYSICAL_SHIFT,
            io_min_shift: PHYSICAL_SHIFT,
            max_sectors: options.max_io_bytes >> 9,
            dev_sectors: geometry.capacity_bytes() >> 9,
            ..Default::default()
        },
        discard: sys::ublk_param_discard {
            discard_granularity: 1 << PHYSICAL_SHIFT,
            max_discard_sectors: zero_sectors,
            max_write_zeroes_sectors: zero_sectors,
            max_discard_segments: 1,
            ..Default::default()
        },
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::info::DeviceState;
    use super::*;
    use crate::engine::{Geometry, SectorSize};
    use pm_core::Region;
    use pm_crashsim::{Image, Model, SimPmem};

    fn region() -> Region {
        Region::anonymous(1 << 20).unwrap()
    }

    fn geometry() -> Geometry {
        Geometry::new(0, 1 << 20, SectorSize::B512).unwrap()
    }

    fn wanted() -> Spec {
        let options = Options { queues: 4, depth: 8, ..Options::default() };
        Spec::new(&Engine::new(region(), geometry()).unwrap(), &options, DeviceIdentity::new("p"))
    }

    fn waiting() -> DeviceInfo {
        let (queues, depth, max_io_bytes) = (1, 32, 1 << 16);
        let (state, features, identity) =
            (DeviceState::Quiesced, Features::WANTED, Some(DeviceIdentity::new("p")));
        DeviceInfo { device_id: 3, state, pid: 1, queues, depth, max_io_bytes, features, identity }
    }

    #[test]
    fn cache_is_announced_only_where_it_exists() {
        let options = Options::default();
        let through = params(&Engine::new(region(), geometry()).unwrap(), &options);
        assert_eq!(through.basic.attrs, 0);
        let paged = SimPmem::from_image(&Image::zeroed(1 << 20), Model::Page);
        let back = params(&Engine::new(paged, geometry()).unwrap(), &options);
        assert_eq!(back.basic.attrs, sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA);
    }

    #[test]
    fn sizes_become_sectors_and_shifts() {
        let geometry = Geometry::new(4096, 1 << 19, SectorSize::B4096).unwrap();
        let engine = Engine::new(region(), geometry).unwrap();
        let options = Options { max_io_bytes: 1 << 16, max_zero_bytes: 1 << 20, ..Options::default() };
        let writable = params(&engine, &options);
        let (basic, discard) = (writable.basic, writable.discard);
        assert_eq!((basic.logical_bs_shift, basic.physical_bs_shift), (12, 12));
        assert_eq!((basic.dev_sectors, basic.max_sectors), (1 << 10, 1 << 7));
        assert_eq!((discard.max_discard_sectors, discard.max_discard_segments), (1 << 11, 1));
        let read_only = params(&engine.read_only(), &options);
        assert_eq!(read_only.basic.attrs, sys::UBLK_ATTR_READ_ONLY);
        assert_eq!(read_only.discard.max_write_zeroes_sectors, 0);
    }

    #[test]
    fn takeover_keeps_counts_of_device() {
        let wanted = wanted();
        let spec = wanted.for_takeover(&waiting(), &wanted.params).unwrap();
        assert_eq!((spec.device_id, spec.queues, spec.depth, spec.max_io_bytes), (Some(3), 1, 32, 1 << 16));
    }

    #[test]
    fn takeover_refuses_visible_changes() {
        let wanted = wanted();
        let refused = |change: fn(&mut sys::ublk_param_basic)| {
            let mut has = wanted.params;
            change(&mut has.basic);
            match wanted.for_takeover(&waiting(), &has) {
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
    fn takeover_adds_no_cache() {
        let mut wanted = wanted();
        let has = wanted.params;
        wanted.params.basic.attrs |= sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
        let refused = wanted.for_takeover(&waiting(), &has).unwrap_err();
        let what = "whether it has a volatile cache";
        assert!(matches!(refused, UblkError::Changed { what: found, .. } if found == what), "{refused}");
    }
}
