//! What a knob is: how it is written, what it may be, when it may change. Which there are is the
//! table in `tunables`.

use crate::memparse::memparse;
use crate::tunables::Tunables;
use alloc::string::String;
use alloc::{borrow::ToOwned, format};
use core::fmt;

/// What the value of a knob is and how it is written. Each is a `u64`, too: on and off 1 and 0, a
/// word its place among the others, no limit `u64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `true` or `on`, `false` or `off`.
    Flag,
    /// One word of these.
    Word(&'static [&'static str]),
    /// From 0 to so many; of what.
    Number(u64, &'static str),
    /// A size such as `64K`, up to so many bytes.
    Bytes(u64),
    /// A size, or `max`: no limit.
    Limit,
}

impl Kind {
    /// The largest value.
    pub(crate) fn max(self) -> u64 {
        match self {
            Kind::Flag => 1,
            Kind::Word(words) => words.len() as u64 - 1,
            Kind::Number(max, _) | Kind::Bytes(max) => max,
            Kind::Limit => u64::MAX,
        }
    }

    /// How `value` is written.
    pub(crate) fn show(self, value: u64) -> Value {
        match self {
            Kind::Flag if value <= 1 => Value::Flag(value == 1),
            Kind::Word(words) if value <= self.max() => Value::Word(words[value as usize]),
            Kind::Limit if value == u64::MAX => Value::NoLimit,
            _ => Value::Number(value),
        }
    }

    /// What `text` says.
    ///
    /// # Errors
    /// Why it may not be that, and what may be written.
    pub fn parse(self, text: &str) -> Result<u64, String> {
        let value = match self {
            Kind::Flag => match text {
                "true" | "on" => Some(1),
                "false" | "off" => Some(0),
                _ => None,
            },
            Kind::Word(words) => words.iter().position(|w| *w == text).map(|n| n as u64),
            Kind::Number(..) => text.parse().ok(),
            Kind::Limit if text == "max" => Some(u64::MAX),
            Kind::Bytes(_) | Kind::Limit => Some(memparse(text)?),
        };
        let value = value.filter(|n| *n <= self.max());
        value.ok_or_else(|| self.refusal(text))
    }

    pub(crate) fn refusal(self, text: impl fmt::Display) -> String {
        format!("`{text}` is not {self}")
    }

    /// The word of the group's page for `value`, or the value of such a word. No limit is 0, so
    /// that a page that nobody wrote to has none.
    pub(crate) fn shared(self, word: u64) -> u64 {
        match self {
            Kind::Limit => !word,
            _ => word,
        }
    }
}

/// What may be written.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Flag => f.write_str("one of true, false, on, off"),
            Kind::Word(words) => words.iter().enumerate().try_for_each(|(i, word)| {
                f.write_str(if i == 0 { "one of " } else { ", " })?;
                f.write_str(word)
            }),
            Kind::Number(max, of) => write!(f, "in 0 to {max} ({of})"),
            Kind::Bytes(max) => write!(f, "in 0 to {max} (bytes, or a size such as 64K)"),
            Kind::Limit => f.write_str("a size such as 64M, or max for no limit"),
        }
    }
}

/// The value of a knob, as it is written; [`Tunables::set`] takes what `Display` makes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// `true` or `false`.
    Flag(bool),
    /// A number, of bytes if it is a size.
    Number(u64),
    /// One word of a few.
    Word(&'static str),
    /// `max`.
    NoLimit,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(on) => on.fmt(f),
            Value::Number(n) => n.fmt(f),
            Value::Word(word) => f.write_str(word),
            Value::NoLimit => f.write_str("max"),
        }
    }
}

/// When a knob may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Before the first page: what was done by its old value would be wrong by the new one.
    Start,
    /// At any time.
    Live,
}

/// A knob that users may set.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Its name: the kernel's path of it, if the kernel has it, with dots.
    pub key: &'static str,
    /// What it does, for people: a few lines.
    pub about: &'static str,
    /// How its value is written, and what it may be.
    pub kind: Kind,
    /// When it may change.
    pub when: When,
    pub(crate) get: fn(&Tunables) -> u64,
    /// Takes what `kind` allows.
    pub(crate) put: fn(&mut Tunables, u64),
}

impl Knob {
    /// Its value among these.
    pub fn value(&self, of: &Tunables) -> Value {
        self.kind.show((self.get)(of))
    }

    /// The knob that is meant by a key that is none: one whose last part is the same, or that
    /// begins with it.
    pub fn like(key: &str) -> Option<&'static Knob> {
        let last = |key: &str| key.rsplit(['.', '/']).next().unwrap_or("").to_owned();
        let like = |known: &&Knob| last(known.key) == last(key) || known.key.starts_with(key);
        Tunables::KNOBS.iter().find(like)
    }

    /// The knob of this key, or what to say where there is none.
    pub(crate) fn find(key: &str) -> Result<&'static Knob, String> {
        if let Some(knob) = Tunables::KNOBS.iter().find(|knob| knob.key == key) {
            return Ok(knob);
        }
        let why = "there is no such setting".to_owned();
        Err(match Knob::like(key) {
            Some(knob) => format!("{why}: did you mean `{}`?", knob.key),
            None => why,
        })
    }
}

/// Why a knob is not set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunableError {
    /// The key that was given, or that of a knob out of its range.
    pub key: String,
    /// What is wrong, and what may be written.
    pub why: String,
}

impl TunableError {
    pub(crate) fn new(key: &str, why: String) -> TunableError {
        let key = key.to_owned();
        TunableError { key, why }
    }
}

impl fmt::Display for TunableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

impl core::error::Error for TunableError {}

/// The value of a field as one word, and back.
pub(crate) trait Word: Copy {
    fn word(self) -> u64;
    /// What has no word is the last that has one.
    fn of_word(word: u64) -> Self;
}

macro_rules! word {
    ($($t:ty: $from:expr;)*) => {$(
        impl Word for $t {
            fn word(self) -> u64 {
                u64::from(self)
            }

            fn of_word(word: u64) -> $t {
                $from(word)
            }
        }
    )*};
}
word! {
    bool: |word| word != 0;
    u8: |word| u8::try_from(word).unwrap_or(u8::MAX);
    u16: |word| u16::try_from(word).unwrap_or(u16::MAX);
    u32: |word| u32::try_from(word).unwrap_or(u32::MAX);
    u64: |word| word;
}

/// An enum of which each value is one word of a setting; the first is 0.
macro_rules! words {
    ($(#[$doc:meta])* pub enum $t:ident { $($(#[$d:meta])* $v:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[repr(u8)]
        pub enum $t { $($(#[$d])* $v,)* }
        impl $t {
            /// How each is written.
            pub const KIND: $crate::knob::Kind = $crate::knob::Kind::Word(&[$($word,)*]);
        }
        impl $crate::knob::Word for $t {
            fn word(self) -> u64 {
                self as u64
            }

            fn of_word(word: u64) -> $t {
                let all = [$($t::$v,)*];
                all[(all.len() - 1).min(word as usize)]
            }
        }
    };
}
pub(crate) use words;

/// The struct of all knobs, their defaults in each profile, and the list of those for users.
macro_rules! knobs {
    (
        $(#[$doc:meta])*
        pub struct $t:ident;
        users { $(
            $(#[doc = $d:literal])*
            $f:ident: $ty:ty = $key:literal, $kind:expr, $when:ident,
                linux $linux:expr, deckle $deckle:expr;
        )* }
        sizes {
            #[doc = $size_d:literal]
            $size:ident: $size_ty:ty = $size_kind:expr, $size_when:ident,
                linux $size_linux:expr, deckle $size_deckle:expr;
            $($order:literal $size_key:literal)*
        }
        experiments { $(
            $(#[$exp_doc:meta])*
            $exp:ident: $exp_ty:ty = $exp_default:expr;
        )* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $t {
            $(
                $(#[doc = $d])*
                #[doc = concat!("\n\nKey: `", $key, "`.")]
                pub $f: $ty,
            )*
            #[doc = $size_d]
            pub $size: $size_ty,
            $($(#[$exp_doc])* pub $exp: $exp_ty,)*
        }

        impl $t {
            /// The knobs that users may set.
            pub const KNOBS: &'static [Knob] = &[
                $(Knob {
                    key: $key,
                    about: concat!($($d, "\n",)*),
                    kind: $kind,
                    when: When::$when,
                    get: |t| t.$f.word(),
                    put: |t, word| t.$f = Word::of_word(word),
                },)*
                $(Knob {
                    key: $size_key,
                    about: $size_d,
                    kind: $size_kind,
                    when: When::$size_when,
                    get: |t| t.$size.get($order).word(),
                    put: |t, word| t.$size = t.$size.with($order, Word::of_word(word)),
                },)*
            ];

            /// Defaults of a profile. `Linux`: those of Linux 6.18, where the sizes below the
            /// PMD's are off; `Deckle`: huge pages always, 409 (80 %), folios up to 64 KiB
            /// besides. 64 KiB is the cap of the series that brought such folios: about where
            /// more stops to pay. `deckle run` adapts the order of faults in profile `Deckle`.
            pub const fn of_profile(profile: Profile) -> $t {
                match profile {
                    Profile::Linux => $t {
                        $($f: $linux,)*
                        $size: $size_linux,
                        $($exp: $exp_default,)*
                    },
                    Profile::Deckle => $t {
                        $($f: $deckle,)*
                        $size: $size_deckle,
                        $($exp: $exp_default,)*
                    },
                }
            }
        }
    };
}
pub(crate) use knobs;
