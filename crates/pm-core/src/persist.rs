//! The types that may be stored in persistent memory.

use core::mem::{MaybeUninit, size_of};

/// A type whose bytes have the same meaning after a restart, in another process, and at another address.
///
/// Derive the trait, together with `Clone` and `Copy`, for `#[repr(C)]` structs:
///
/// ```
/// use pm_core::{Link, Persist};
///
/// #[derive(Clone, Copy, Persist)]
/// #[repr(C)]
/// struct Order<'p> {
///     id: u64,
///     quantity: u32,
///     reserved: u32, // without this field the struct would have padding, and would not compile
///     previous: Link<'p, Order<'p>>,
/// }
/// ```
///
/// Integers of up to 64 bits, floats, [`Link`](crate::Link) and arrays of `Persist` types are `Persist`. These types are not: references, boxes and
/// strings, because their addresses are invalid after a restart; `usize` and `isize`, because their size depends on the host; and `bool`, `char` and
/// enums, because a corrupted medium may hold bit patterns that are invalid for them.
///
/// # Safety
/// The type has no padding and no invalid bit pattern, holds no address of this process, and has a fixed layout (`repr(C)` or a primitive). The
/// derive checks all of this.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot live in persistent memory",
    label = "has no meaning after a restart, or has invalid bit patterns",
    note = "integers, floats, arrays of them, `Link`, and structs with `#[derive(Persist)]` can; for text use `[u8; N]`"
)]
pub unsafe trait Persist: Copy {
    /// The fields of a struct, in order; empty for all other types.
    const FIELDS: &'static [FieldLayout] = &[];

    /// A fingerprint of the layout: a hash of the struct's name and of the name, offset, size and fingerprint of each field. A link's fingerprint
    /// covers its target's, through up to three links. A typed root holds its type's fingerprint, so that another definition of the type is an error.
    const LAYOUT: u64 = Self::LAYOUT_THROUGH_3;

    /// The fingerprint that does not depend on the targets of links.
    #[doc(hidden)]
    const LAYOUT_THROUGH_0: u64;
    /// The fingerprint that follows one link. (Each number of links has a constant of its own. So the fingerprint of a type that links to itself
    /// depends on a lower-numbered constant of the type and not on itself, and the compiler accepts the recursion.)
    #[doc(hidden)]
    const LAYOUT_THROUGH_1: u64 = Self::LAYOUT_THROUGH_0;
    /// The fingerprint that follows two links.
    #[doc(hidden)]
    const LAYOUT_THROUGH_2: u64 = Self::LAYOUT_THROUGH_1;
    /// The fingerprint that follows three links.
    #[doc(hidden)]
    const LAYOUT_THROUGH_3: u64 = Self::LAYOUT_THROUGH_2;

    /// Its evaluation fails at compile time if the type has padding.
    const CHECK: () = ();
}

/// A [`Persist`] type whose links all belong to the pool of `'p`. The derive implements it for the lifetime of the struct, or for every `'p` if the
/// struct has no lifetime.
///
/// Without this trait the lifetime of a struct would be unconstrained, and links in a value read from one pool could be stored in another pool.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not belong to this pool",
    label = "its links carry the brand of another pool, or it is not `Persist`"
)]
pub trait InPool<'p>: Persist {}

/// One field of a [`Persist`] struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLayout {
    /// The field's name.
    pub name: &'static str,
    /// The field's offset in the struct.
    pub offset_bytes: usize,
    /// The field's length.
    pub size_bytes: usize,
    /// The fingerprint of the field's type, independent of the targets of links.
    pub layout: u64,
}

impl FieldLayout {
    /// The fingerprint of a struct with this name and these fields, whose types have the fingerprints `layouts`.
    ///
    /// # Panics
    /// When the two slices have different lengths.
    #[doc(hidden)]
    #[must_use]
    pub const fn fingerprint_with(name: &str, fields: &[Self], layouts: &[u64]) -> u64 {
        assert!(fields.len() == layouts.len());
        let mut hash = fnv1a(FNV_OFFSET, name.as_bytes());
        let mut i = 0;
        while i < fields.len() {
            let field = &fields[i];
            hash = fnv1a(hash, field.name.as_bytes());
            hash = fnv1a(hash, &(field.offset_bytes as u64).to_le_bytes());
            hash = fnv1a(hash, &(field.size_bytes as u64).to_le_bytes());
            hash = fnv1a(hash, &layouts[i].to_le_bytes());
            i += 1;
        }
        hash
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a, 64 bits: small, stable, and computed at compile time. It distinguishes layouts; it does not detect forgeries.
const fn fnv1a(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(FNV_PRIME);
        i += 1;
    }
    // A separator, so that ("ab", "c") and ("a", "bc") differ.
    (hash ^ 0xff).wrapping_mul(FNV_PRIME)
}

pub(crate) const fn primitive_layout(name: &str) -> u64 {
    fnv1a(FNV_OFFSET, name.as_bytes())
}

/// The fingerprint of a link whose target has the fingerprint `target`.
pub(crate) const fn link_layout(target: u64) -> u64 {
    fnv1a(primitive_layout("Link"), &target.to_le_bytes())
}

const fn array_layout(element: u64, len: usize) -> u64 {
    fnv1a(element, &(len as u64).to_le_bytes())
}

macro_rules! primitives {
    ($($ty:ty),*) => {$(
        // SAFETY: the type has no padding and holds no address; every bit pattern is a value, and the layout is the same on every little-endian host.
        unsafe impl Persist for $ty {
            const LAYOUT_THROUGH_0: u64 = primitive_layout(stringify!($ty));
        }
        impl InPool<'_> for $ty {}
    )*};
}
primitives!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

// SAFETY: elements of an array have no padding between them, and each is Persist.
unsafe impl<T: Persist, const N: usize> Persist for [T; N] {
    const LAYOUT_THROUGH_0: u64 = array_layout(T::LAYOUT_THROUGH_0, N);
    const LAYOUT_THROUGH_1: u64 = array_layout(T::LAYOUT_THROUGH_1, N);
    const LAYOUT_THROUGH_2: u64 = array_layout(T::LAYOUT_THROUGH_2, N);
    const LAYOUT_THROUGH_3: u64 = array_layout(T::LAYOUT_THROUGH_3, N);
    const CHECK: () = T::CHECK;
}

impl<'p, T: InPool<'p>, const N: usize> InPool<'p> for [T; N] {}

/// The bytes of a value, as they are stored on the medium.
pub const fn bytes_of<T: Persist>(value: &T) -> &[u8] {
    const { T::CHECK };
    // SAFETY: the value is initialised, has no padding, and the slice borrows it.
    #[expect(clippy::disallowed_methods, reason = "an ordinary borrowed value, not persistent memory")]
    unsafe {
        core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), size_of::<T>())
    }
}

/// The bytes of several values, one after the other, as they are stored on the medium.
#[must_use]
pub fn bytes_of_slice<T: Persist>(values: &[T]) -> &[u8] {
    const { T::CHECK };
    // SAFETY: the values are initialised, have no padding in or between them, and the slice borrows them.
    #[expect(clippy::disallowed_methods, reason = "ordinary borrowed values, not persistent memory")]
    unsafe {
        core::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values))
    }
}

/// The bytes of several values, one after the other, to be overwritten with bytes from a medium. The type must have no links, as for [`from_bytes`].
///
/// ```
/// let mut values = [0_u32; 2];
/// pm_core::bytes_of_slice_mut(&mut values)[4] = 7;
/// assert_eq!(values, [0, 7]);
/// ```
#[must_use]
pub fn bytes_of_slice_mut<T: for<'p> InPool<'p>>(values: &mut [T]) -> &mut [u8] {
    const { T::CHECK };
    // SAFETY: the slice borrows the values, which have no padding, and any bytes that are stored to it are values of a Persist type.
    #[expect(clippy::disallowed_methods, reason = "ordinary borrowed values, not persistent memory")]
    unsafe {
        core::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values))
    }
}

/// Builds a value from the bytes that `fill` writes into a zeroed buffer of the value's size. The type must have no links, because the bytes could
/// come from another pool.
///
/// ```
/// let value: u32 = pm_core::from_bytes(|bytes| bytes[0] = 7);
/// assert_eq!(value, 7);
/// ```
pub fn from_bytes<T: for<'p> InPool<'p>>(fill: impl FnOnce(&mut [u8])) -> T {
    // SAFETY: a type that belongs to every pool has no links.
    unsafe { from_bytes_unchecked(fill) }
}

/// Like [`from_bytes`], but the value may have links: for transactions, which read a pool without a [`Scope`](crate::Scope).
///
/// # Safety
/// Either the bytes come from the pool whose brand the value's links carry, or each link in the bytes meets the contract of
/// [`Link::new_unchecked`](crate::Link::new_unchecked).
pub unsafe fn from_bytes_unchecked<T: Persist>(fill: impl FnOnce(&mut [u8])) -> T {
    const { T::CHECK };
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the local is initialised to zeroes, and the slice is not used after `fill` returns.
    #[expect(clippy::disallowed_methods, reason = "a local value, not persistent memory")]
    fill(unsafe { core::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) });
    // SAFETY: all bytes are initialised, and every bit pattern is a value of a Persist type.
    unsafe { value.assume_init() }
}
