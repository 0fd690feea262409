//! The durability of a written value, as a type.

use super::link::{Brand, Link};
use core::fmt;
use core::marker::PhantomData;

/// A `T` that has been stored in the pool of `'p` but not flushed: a crash may keep any part of it.
///
/// The states are `Dirty`, [`InFlight`] and [`Durable`]. Each consumes the previous one, so no value is flushed twice, and a value that is changed
/// after its flush is `Dirty` again.
#[must_use = "a stored value is not durable until it is flushed and fenced"]
pub struct Dirty<'p, T> {
    at: TypedOffset<'p, T>,
}

/// A `T` whose lines were flushed, but not fenced: the lines become durable in any order. It is not `Send`, because a fence waits only for the
/// flushes of its own thread.
#[must_use = "a value in flight is not durable until it is fenced"]
pub struct InFlight<'p, T> {
    at: TypedOffset<'p, T>,
    this_thread: PhantomData<*const ()>,
}

/// A `T` that has been flushed and fenced: it survives a crash within the limits of the [domain](crate::Domain).
pub struct Durable<'p, T> {
    at: TypedOffset<'p, T>,
}

/// The permission to write a `T` once, at an offset of the pool, from [`Scope::claim`](super::Scope::claim).
#[must_use = "a place that is never written keeps its old bytes"]
pub struct Place<'p, T> {
    at: TypedOffset<'p, T>,
}

/// An offset, with the brand of its pool and the type of its value.
struct TypedOffset<'p, T> {
    offset: u64,
    brand: Brand<'p>,
    target: PhantomData<fn() -> T>,
}

impl<'p, T> TypedOffset<'p, T> {
    const fn new(offset: u64) -> Self {
        Self { offset, brand: PhantomData, target: PhantomData }
    }
}

/// Implements the constructor, the offset and `Debug` for each state.
macro_rules! states {
    ($($state:ident { $($marker:ident),* })*) => {$(
        impl<T> $state<'_, T> {
            pub(super) const fn at(offset: u64) -> Self {
                Self { at: TypedOffset::new(offset), $($marker: PhantomData),* }
            }

            /// The offset in the region.
            #[must_use]
            pub const fn offset(&self) -> u64 {
                self.at.offset
            }
        }

        impl<T> fmt::Debug for $state<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let target = core::any::type_name::<T>();
                write!(f, "{}<{target}>({:#x})", stringify!($state), self.at.offset)
            }
        }
    )*};
}
states! { Place {} Dirty {} InFlight { this_thread } Durable {} }

impl<'p, T> Durable<'p, T> {
    /// A link to this value. Only `Durable` has this method: otherwise a crash could keep a link and lose its target.
    #[must_use]
    pub const fn link(&self) -> Link<'p, T> {
        Link::from_offset(self.at.offset)
    }
}

mod sealed {
    pub trait Sealed {}

    /// Proof that a fence has returned. It is sealed, because code that can construct one can call `Fenceable::fenced` without a fence.
    #[derive(Debug)]
    pub struct Fenced(());

    impl Fenced {
        /// Issues a fence, and returns the proof of it.
        #[track_caller]
        pub(in crate::typed) fn after_fence<P: crate::Pmem>(pmem: &P) -> Result<Self, crate::FenceError> {
            pmem.fence()?;
            Ok(Self(()))
        }
    }
}
pub(super) use sealed::Fenced;

/// Values that one fence of the pool of `'p` makes durable: an [`InFlight`] value of that pool, or a tuple or array of such values.
pub trait Fenceable<'p>: sealed::Sealed {
    /// The same values in the state [`Durable`].
    type Durable;
    #[doc(hidden)]
    fn fenced(self, fenced: &Fenced) -> Self::Durable;
}

impl<T> sealed::Sealed for InFlight<'_, T> {}
impl<'p, T> Fenceable<'p> for InFlight<'p, T> {
    type Durable = Durable<'p, T>;
    fn fenced(self, _: &Fenced) -> Self::Durable {
        Durable::at(self.at.offset)
    }
}

impl<F: sealed::Sealed, const N: usize> sealed::Sealed for [F; N] {}
impl<'p, F: Fenceable<'p>, const N: usize> Fenceable<'p> for [F; N] {
    type Durable = [F::Durable; N];
    fn fenced(self, fenced: &Fenced) -> Self::Durable {
        self.map(|value| value.fenced(fenced))
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+))*) => {$(
        impl<$($name: sealed::Sealed),+> sealed::Sealed for ($($name,)+) {}
        impl<'p, $($name: Fenceable<'p>),+> Fenceable<'p> for ($($name,)+) {
            type Durable = ($($name::Durable,)+);
            fn fenced(self, fenced: &Fenced) -> Self::Durable { ($(self.$index.fenced(fenced),)+) }
        }
    )*};
}
tuples! { (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) }
