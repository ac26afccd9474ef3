//! Enums whose variants have names.

/// An enum of names: the same in options, in tables and, with `_` for `-`, in JSON.
macro_rules! named {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Name:ident {
            $($(#[doc = $doc:literal])* $Variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        $vis enum $Name {
            $($(#[doc = $doc])* $Variant,)+
        }

        impl $Name {
            /// All of them, in the order of reports.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// The name in options and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl serde::Serialize for $Name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.name().replace('-', "_"))
            }
        }

        impl clap::ValueEnum for $Name {
            fn value_variants<'a>() -> &'a [Self] {
                &Self::ALL
            }

            fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
                let help = match self {
                    $(Self::$Variant => concat!($($doc),*),)+
                };
                let help = help.trim().trim_end_matches('.');
                Some(clap::builder::PossibleValue::new(self.name()).help(help))
            }
        }
    };
}
