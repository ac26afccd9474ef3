//! The words of settings: what the command line and the file may say, and the statistics do.

use deckle_group::SwapKind;
use deckle_mm::{FaultOrder, Profile, SizeMode, ThpMode};

/// What is said by one word of a few.
pub trait Word: Copy + PartialEq + 'static {
    /// Every word. Of several for one value, the last is its name.
    const WORDS: &'static [(&'static str, Self)];

    /// The value that `text` stands for. The error names every word.
    fn parse(text: &str) -> Result<Self, String> {
        if let Some((_, value)) = Self::WORDS.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let words: Vec<&str> = Self::WORDS.iter().map(|(word, _)| *word).collect();
        Err(format!("`{text}` is not one of {}", words.join(", ")))
    }

    /// Its name.
    fn word(self) -> &'static str {
        let named = Self::WORDS.iter().rfind(|(_, value)| *value == self);
        named.map_or("", |(word, _)| word)
    }
}

impl Word for bool {
    const WORDS: &'static [(&'static str, bool)] = &[("on", true), ("off", false)];
}

impl Word for Profile {
    const WORDS: &'static [(&'static str, Profile)] =
        &[("deckle", Profile::Deckle), ("linux", Profile::Linux)];
}

impl Word for SwapKind {
    const WORDS: &'static [(&'static str, SwapKind)] = &[
        ("none", SwapKind::None),
        ("zram", SwapKind::Lz4),
        ("zram:lz4", SwapKind::Lz4),
        ("zram:zstd", SwapKind::Zstd),
    ];
}

impl Word for ThpMode {
    const WORDS: &'static [(&'static str, ThpMode)] = &[
        ("always", ThpMode::Always),
        ("madvise", ThpMode::Madvise),
        ("never", ThpMode::Never),
    ];
}

impl Word for SizeMode {
    const WORDS: &'static [(&'static str, SizeMode)] = &[
        ("always", SizeMode::Always),
        ("madvise", SizeMode::Madvise),
        ("inherit", SizeMode::Inherit),
        ("never", SizeMode::Never),
    ];
}

impl Word for FaultOrder {
    const WORDS: &'static [(&'static str, FaultOrder)] =
        &[("fixed", FaultOrder::Fixed), ("auto", FaultOrder::Auto)];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_is_read_as_it_is_written<T: Word + std::fmt::Debug>(all: &[T]) {
        for value in all {
            assert_eq!(T::parse(value.word()), Ok(*value));
        }
    }

    #[test]
    fn every_value_has_a_word_and_the_error_names_them_all() {
        each_is_read_as_it_is_written(&[true, false]);
        each_is_read_as_it_is_written(&[Profile::Deckle, Profile::Linux]);
        each_is_read_as_it_is_written(&[SwapKind::None, SwapKind::Lz4, SwapKind::Zstd]);
        each_is_read_as_it_is_written(&[ThpMode::Always, ThpMode::Madvise, ThpMode::Never]);
        use SizeMode::{Always, Inherit, Madvise, Never};
        each_is_read_as_it_is_written(&[Always, Inherit, Madvise, Never]);
        each_is_read_as_it_is_written(&[FaultOrder::Fixed, FaultOrder::Auto]);
        assert_eq!(SwapKind::parse("zram"), Ok(SwapKind::Lz4));
        assert_eq!(SwapKind::Lz4.word(), "zram:lz4");
        let error = FaultOrder::parse("x").unwrap_err();
        assert_eq!(error, "`x` is not one of fixed, auto");
    }
}
