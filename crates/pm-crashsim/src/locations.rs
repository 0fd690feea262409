//! The places in the source that traces speak of, numbered, so that an event names its place in four bytes.

use crate::SourceLocation;
use crate::lines::LineMap;
use crate::trace::LocationId;
use std::collections::HashMap;
use std::panic::Location;

/// The places in the source that a trace speaks of, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locations {
    list: Vec<SourceLocation>,
    numbers: HashMap<SourceLocation, LocationId>,
    /// The same by address of the compiler's record, which is what every store and flush asks for.
    by_address: LineMap<LocationId>,
}

impl Locations {
    /// The number of a place in this program.
    pub(crate) fn of_caller(&mut self, location: &'static Location<'static>) -> LocationId {
        if let Some(known) = self.known(location) {
            return known;
        }
        let id = self.intern(location.into());
        self.by_address.insert(address(location), id);
        id
    }

    /// The same, of a place that was asked for before.
    pub(crate) fn known(&self, location: &'static Location<'static>) -> Option<LocationId> {
        self.by_address.get(&address(location)).copied()
    }

    /// The number of a place.
    ///
    /// # Panics
    /// When there are more places than 32 bits can count.
    pub(crate) fn intern(&mut self, location: SourceLocation) -> LocationId {
        let next = u32::try_from(self.list.len()).expect("fewer places than 32 bits can count");
        *self.numbers.entry(location).or_insert_with_key(|location| {
            self.list.push(location.clone());
            LocationId(next)
        })
    }

    pub(crate) fn get(&self, id: LocationId) -> &SourceLocation {
        &self.list[id.index()]
    }

    pub(crate) fn all(&self) -> &[SourceLocation] {
        &self.list
    }
}

fn address(location: &'static Location<'static>) -> u64 {
    core::ptr::from_ref(location).addr() as u64
}
