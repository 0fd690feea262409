//! Structs as values.

use super::value::{Value, fits_word, word};
use crate::error::{DecodeError, EncodeError};
use core::fmt::Debug;
use core::marker::PhantomData;
use pm_core::{InPool, bytes_of, from_bytes};

/// A value whose encoding is the bytes of a `T` in memory: a struct with `#[derive(Persist)]`, a number or an array of them. The
/// [`View`](Value::View) is a `T`.
///
/// ```
/// use pm_btree::{Plain, Value};
/// use pm_core::Persist;
///
/// #[derive(Clone, Copy, Debug, PartialEq, Persist)]
/// #[repr(C)]
/// struct Point { x: f32, y: f32 }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut bytes = Vec::new();
/// Plain::<Point>::encode(Point { x: 1.0, y: 2.0 }, &mut bytes)?;
/// assert_eq!(Plain::<Point>::decode(&bytes)?, Point { x: 1.0, y: 2.0 });
/// # Ok(())
/// # }
/// ```
///
/// The [name of the type](Value::type_name) has the [fingerprint of the layout](pm_core::Persist::LAYOUT), which depends on the names, the order and
/// the types of all fields. So after a change of the struct, a table of it does not open, and its values must be copied to a new table.
///
/// The struct has no [links](pm_core::Link): it must belong to every pool, and the decoded bytes could be those of another pool.
///
/// ```compile_fail
/// use pm_btree::{Plain, Value};
/// use pm_core::{Link, Persist};
///
/// #[derive(Clone, Copy, Debug, Persist)]
/// #[repr(C)]
/// struct Order<'p> { previous: Link<'p, Order<'p>> }
///
/// fn is_value<V: Value>() {}
/// is_value::<Plain<Order<'static>>>(); // error: implementation of `InPool` is not general enough
/// ```
///
/// A plain struct is no key: its bytes are not ordered like its fields. Use a tuple.
#[derive(Clone, Copy, Debug)]
pub struct Plain<T>(PhantomData<fn() -> T>);

impl<T: for<'p> InPool<'p> + Debug> Value for Plain<T> {
    type View<'a> = T;
    const FIXED_WIDTH: Option<usize> = Some(size_of::<T>());

    fn encode(view: T, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(bytes_of(&view));
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<T, DecodeError> {
        if bytes.len() != size_of::<T>() {
            return Err(DecodeError::Width { expected: size_of::<T>(), found: bytes.len() });
        }
        Ok(from_bytes(|value| value.copy_from_slice(bytes)))
    }

    /// Without the struct's own name, which no stable interface of the language provides. The layout depends on it.
    fn type_name() -> String {
        format!("struct of {} bytes with layout {:016x}", size_of::<T>(), T::LAYOUT)
    }

    fn encode_word(view: T) -> Option<u64> {
        fits_word(Self::FIXED_WIDTH).then(|| word(bytes_of(&view)))
    }
}
