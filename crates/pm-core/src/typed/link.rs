//! Links: offsets with the brand of their pool and the type of their target.

use crate::persist::{FieldLayout, InPool, Persist, link_layout, primitive_layout};
use core::fmt;
use core::marker::PhantomData;
use core::mem::size_of;

/// The brand of one scope: invariant in `'p`, so that the compiler distinguishes scopes.
pub(crate) type Brand<'p> = PhantomData<fn(&'p ()) -> &'p ()>;

/// A persistent pointer: the offset of a durable `T` in the pool branded `'p`; zero is null.
///
/// A link is obtained from a [`Durable`](super::Durable) value, or read from the pool. So a value is durable before a link to it is published. An
/// allocator makes both durable in one commit, and creates links with [`new_unchecked`](Self::new_unchecked). The brand `'p` ends with the scope, and
/// links into two pools have different types.
#[repr(transparent)]
pub struct Link<'p, T> {
    offset: u64,
    brand: Brand<'p>,
    target: PhantomData<fn() -> T>,
}

impl<'p, T> Link<'p, T> {
    /// The null link.
    pub const NULL: Self = Self::from_offset(0);

    pub(crate) const fn from_offset(offset: u64) -> Self {
        Self { offset, brand: PhantomData, target: PhantomData }
    }

    /// A link to `offset`, for allocators and transactions. Other code gets links from [`Durable`](super::Durable).
    ///
    /// # Safety
    /// In the pool of `'p`, `offset` is zero or the offset of a `T`. The `T` becomes durable no later than any link to it that is stored in the pool.
    ///
    /// Other code relies on this contract for the contents of the pool. A link that violates it reaches no other memory of the process: if its target
    /// does not fit in the data area, following the link is an error; otherwise a read returns bytes of another value, and a write overwrites them.
    #[must_use]
    pub const unsafe fn new_unchecked(offset: u64) -> Self {
        Self::from_offset(offset)
    }

    /// The offset in the pool, 0 for [`NULL`](Self::NULL).
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Whether the link is null.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.offset == 0
    }

    /// A link to a field of the target of this link; for a null link, the null link. [`field!`](crate::field) creates the argument.
    #[must_use]
    pub const fn field<F>(self, field: Field<T, F>) -> Link<'p, F> {
        // A corrupted link may hold any offset. The sum saturates: following a link past the data area is an error.
        Link::from_offset(if self.is_null() { 0 } else { self.offset.saturating_add(field.offset_bytes) })
    }
}

impl<'p, T: Persist, const N: usize> Link<'p, [T; N]> {
    /// A link to the element at `index` of the array that is this link's target; for a null link, the null link. `None` if `index` is past the end.
    ///
    /// ```
    /// # use pm_core::{Pool, PoolOptions, Region};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = Pool::format(Region::anonymous(1 << 20)?, &PoolOptions::new())?;
    /// pool.scope(|pm| {
    ///     let squares = pm.write(pm.claim(pool.data().start)?, &[0_u64, 1, 4, 9]);
    ///     let squares = pm.fence(pm.flush(squares))?.link();
    ///     assert_eq!(pm.read(squares.get(3).expect("there are four"))?, 9);
    ///     assert_eq!(squares.get(4), None);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    #[must_use]
    pub const fn get(self, index: u64) -> Option<Link<'p, T>> {
        if index >= N as u64 {
            return None;
        }
        Some(Link::<T>::from_offset(self.offset).element(index))
    }
}

impl<T: Persist> Link<'_, T> {
    /// A link to the `T` that lies `index` values after this link's target, in an array; for a null link, the null link. If the target of this link
    /// is itself an array type, use [`get`](Link::get), which checks the index.
    ///
    /// A link does not hold the number of values. The caller ensures that there is a value at `index`, and that it is durable if this link's target
    /// is. If the target of a link past the end does not fit in the data area, following the link is an error. Otherwise a read returns bytes of
    /// another value, which are not necessarily durable, and a write overwrites them: another block of an allocator, or its header. No memory outside
    /// the pool is read or written.
    #[must_use]
    pub const fn element(self, index: u64) -> Self {
        let bytes = index.saturating_mul(size_of::<T>() as u64);
        Self::from_offset(if self.is_null() { 0 } else { self.offset.saturating_add(bytes) })
    }
}

impl<T> Clone for Link<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Link<'_, T> {}

impl<T> PartialEq for Link<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.offset == other.offset
    }
}

impl<T> Eq for Link<'_, T> {}

impl<T> fmt::Debug for Link<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({:#x})", self.offset)
    }
}

// SAFETY: `Link` is transparent over a u64. Every bit pattern is a value, because a link is checked when it is followed.
unsafe impl<T: Persist> Persist for Link<'_, T> {
    const FIELDS: &'static [FieldLayout] = &[];
    const LAYOUT_THROUGH_0: u64 = primitive_layout("Link");
    const LAYOUT_THROUGH_1: u64 = link_layout(T::LAYOUT_THROUGH_0);
    const LAYOUT_THROUGH_2: u64 = link_layout(T::LAYOUT_THROUGH_1);
    const LAYOUT_THROUGH_3: u64 = link_layout(T::LAYOUT_THROUGH_2);
}

impl<'p, T: Persist> InPool<'p> for Link<'p, T> {}

/// The offset and type of a field of a [`Persist`] struct, from [`field!`](crate::field).
pub struct Field<T, F> {
    offset_bytes: u64,
    types: PhantomData<fn(T) -> F>,
}

impl<T, F> Field<T, F> {
    /// For [`field!`](crate::field) only. `_select` determines the types and is never called. A wrong offset reads the wrong bytes of the pool, which
    /// is a bug but not undefined behaviour, because every bit pattern is a value. `_select` returns a raw pointer, because a reference to the field
    /// could be deref-coerced to a reference of another type.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(offset_bytes: usize, _select: fn(&T) -> *const F) -> Self {
        Self { offset_bytes: offset_bytes as u64, types: PhantomData }
    }
}

impl<T, F> Clone for Field<T, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, F> Copy for Field<T, F> {}

impl<T, F> fmt::Debug for Field<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Field(+{})", self.offset_bytes)
    }
}

/// Names a field of a [`Persist`](crate::Persist) struct, for [`Link::field`].
///
/// ```
/// # use pm_core::{Persist, field};
/// #[derive(Clone, Copy, Persist)]
/// #[repr(C)]
/// struct Shop { opened: u64, sold: u64 }
/// let sold = field!(Shop, sold);
/// ```
#[macro_export]
macro_rules! field {
    ($ty:ty, $field:ident) => {
        $crate::Field::<$ty, _>::new(::core::mem::offset_of!($ty, $field), |whole| &raw const whole.$field)
    };
}
