//! The one form of a setting.

/// Defines a method for each field, which returns the options with that field set. Settings with a message must not be zero.
macro_rules! setters {
    ($($(#[$attribute:meta])* $name:ident($value:ident: $type:ty) => $($field:tt).+ $(, $message:literal)?;)*) => {$(
        $(#[$attribute])*
        $(#[doc = concat!("\n# Panics\nFor zero: ", $message, ".")])?
        #[must_use]
        pub const fn $name(mut self, $value: $type) -> Self {
            $(assert!($value > 0, $message);)?
            self.$($field).+ = $value;
            self
        }
    )*};
}
pub(crate) use setters;
