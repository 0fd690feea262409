//! What placement is told of an object.

/// The media on which chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Frames in DRAM, beside the chunk's place on one of the others.
    Dram,
    /// The pool.
    Pool,
    /// The file beside it.
    File,
}

/// How an object is going to be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locality {
    /// Not known: chunks go where their use shows that they belong.
    #[default]
    Unknown,
    /// Often: a chunk is copied to DRAM when it is loaded for the first time.
    Hot,
    /// Rarely: its chunks are the first that move to the file, and are not copied to DRAM.
    Cold,
}

/// What placement is told of an object: [`create_with`](crate::Objects::create_with). They are part of the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    locality: Locality,
    pin: Option<Tier>,
}

/// The bits of the flags.
const LOCALITY: u32 = 0b11;
const PIN_SHIFT: u32 = 2;

impl Hints {
    /// No hints.
    #[must_use]
    pub const fn new() -> Self {
        Self { locality: Locality::Unknown, pin: None }
    }

    /// How the object is going to be used.
    #[must_use]
    pub const fn locality(mut self, locality: Locality) -> Self {
        self.locality = locality;
        self
    }

    /// The tier to which the object is [pinned](crate::Object::pin).
    #[must_use]
    pub const fn pinned(&self) -> Option<Tier> {
        self.pin
    }

    /// How the object is said to be used.
    #[must_use]
    pub const fn expected(&self) -> Locality {
        self.locality
    }

    pub(crate) const fn with_pin(mut self, pin: Option<Tier>) -> Self {
        self.pin = pin;
        self
    }

    /// Whether its chunks are copied to DRAM at their first load.
    #[inline]
    pub(crate) const fn is_eager(self) -> bool {
        matches!((self.pin, self.locality), (Some(Tier::Dram), _) | (None, Locality::Hot))
    }

    /// Whether its chunks may be copied to DRAM.
    pub(crate) const fn may_enter_dram(self) -> bool {
        matches!((self.pin, self.locality), (Some(Tier::Dram), _) | (None, Locality::Hot | Locality::Unknown))
    }

    /// Whether its chunks may move to the pool by their loads.
    pub(crate) const fn may_move_up(self) -> bool {
        !matches!((self.pin, self.locality), (Some(Tier::File), _) | (None, Locality::Cold))
    }

    /// Whether its chunks are the first that move to the file. `None` if they never do.
    pub(crate) const fn moves_first(self) -> Option<bool> {
        match (self.pin, self.locality) {
            (Some(Tier::Pool), _) => None,
            (Some(Tier::File), _) | (None, Locality::Cold) => Some(true),
            _ => Some(false),
        }
    }

    /// The hints that an object's flags say. Values without a meaning say nothing.
    #[inline]
    pub(crate) const fn of(flags: u32) -> Self {
        let locality = match flags & LOCALITY {
            1 => Locality::Hot,
            2 => Locality::Cold,
            _ => Locality::Unknown,
        };
        let pin = match flags >> PIN_SHIFT & 0b11 {
            1 => Some(Tier::Dram),
            2 => Some(Tier::Pool),
            3 => Some(Tier::File),
            _ => None,
        };
        Self { locality, pin }
    }

    /// The flags that say them.
    pub(crate) const fn flags(self) -> u32 {
        let locality = match self.locality {
            Locality::Unknown => 0,
            Locality::Hot => 1,
            Locality::Cold => 2,
        };
        let pin = match self.pin {
            None => 0,
            Some(Tier::Dram) => 1,
            Some(Tier::Pool) => 2,
            Some(Tier::File) => 3,
        };
        locality | pin << PIN_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_those_of_their_flags() {
        for flags in 0..16 {
            let hints = Hints::of(flags);
            assert_eq!(Hints::of(hints.flags()), hints);
        }
        assert_eq!(Hints::new().flags(), 0);
        assert_eq!(Hints::new().locality(Locality::Cold).with_pin(Some(Tier::File)).flags(), 0b1110);
    }
}
