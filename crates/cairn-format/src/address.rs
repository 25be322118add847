//! Addresses, typed by the place where they are valid.
//!
//! A number alone does not say whether it is valid in the watched process, inside one module, or
//! inside a file. Mixing these up is the classic error of a symbolizer, so each has its own type
//! and only `Module` and `Mapping` convert.

use core::fmt;

/// Declares one address type: a transparent `u64` with hexadecimal output and checked arithmetic.
macro_rules! address_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a raw number.
            #[must_use]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// Returns the raw number.
            #[must_use]
            pub const fn value(self) -> u64 {
                self.0
            }

            /// This address moved up by `bytes`, or `None` past the end of the address space.
            #[must_use]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }

            /// This address moved down by `bytes`, or `None` below zero.
            #[must_use]
            pub const fn checked_sub(self, bytes: u64) -> Option<Self> {
                match self.0.checked_sub(bytes) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }
        }

        impl From<u64> for $name {
            fn from(value: u64) -> Self {
                Self(value)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:#x})", stringify!($name), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address_type! {
    /// An address in the watched process, as the processor sees it.
    AbsoluteAddress
}
address_type! {
    /// The distance from a module's base address. This is what recordings keep, because it survives
    /// relocation.
    ModuleOffset
}
address_type! {
    /// An address as written inside an ELF, Mach-O or PE file and its debug information.
    StatedAddress
}
address_type! {
    /// A distance from the first byte of a file.
    FileOffset
}
