//! The two macros that declare the interface. Each item is written once; for the tests they also leave a
//! table of what was declared.

/// Declares constants, and `TABLE` of `(name, value)` beside them for the tests.
macro_rules! constants {
    ($($(#[$meta:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$meta])* pub const $name: $type = $value;)*

        #[cfg(test)]
        pub(crate) const TABLE: &[(&str, i128)] = &[$((stringify!($name), $name as i128),)*];
    };
}

/// Declares a `repr(C)` structure with the size and the offset of each field, asserts them at compile time,
/// and leaves `TABLE` of them for the tests.
macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident[$size:literal] {
        $($(#[$field_meta:meta])* $offset:literal $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Debug, Default, Copy, Clone, serde::Serialize, serde::Deserialize)]
            pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

            const _: () = assert!(size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
            $(const _: () = assert!(
                core::mem::offset_of!($name, $field) == $offset,
                concat!("offset of ", stringify!($name), ".", stringify!($field)),
            );)*
        )*

        #[cfg(test)]
        pub(crate) const TABLE: &[crate::tests::Layout] = &[$((
            stringify!($name),
            size_of::<$name>(),
            &[$((stringify!($field), core::mem::offset_of!($name, $field)),)*],
        ),)*];
    };
}
