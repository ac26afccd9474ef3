//! Where cold pages go, as it is said: `zram:lz4,file:/var/tmp:8G`.

use std::fmt;
use std::path::{Path, PathBuf};

use deckle_group::{SwapFile, SwapKind};
use deckle_mm::memparse;

use crate::size;

/// Share of a process's memory that compressed RAM may have before it goes on to a file, percent.
pub const MAX_POOL_PERCENT: u32 = 50;

/// Least size of all files: some segments of a few processes.
const LEAST: u64 = 16 << 20;

/// Least bytes a second: a segment is written in two.
const LEAST_WBPS: u64 = 1 << 20;

/// The words for compressed memory. Of several for one, the last is its name.
const KINDS: [(&str, SwapKind); 4] = [
    ("none", SwapKind::None),
    ("zram", SwapKind::Lz4),
    ("zram:lz4", SwapKind::Lz4),
    ("zram:zstd", SwapKind::Zstd),
];

/// Where cold pages go.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Swap {
    /// First.
    pub kind: SwapKind,
    /// And on from there.
    pub file: Option<FileTier>,
}

/// A file for each process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTier {
    /// The directory that they are in, without names.
    pub dir: PathBuf,
    /// Most bytes of all of them; `None`: what the disk has.
    pub bytes: Option<u64>,
    /// Nothing stays in RAM but what waits to be written.
    pub alone: bool,
    /// What is written is encrypted.
    pub encrypt: bool,
    /// Most bytes a second that are written.
    pub wbps: Option<u64>,
}

impl Swap {
    /// What `text` says.
    ///
    /// # Errors
    /// What is wrong with it and what to write instead.
    pub fn parse(text: &str) -> Result<Swap, String> {
        let (first, rest) = match text.split_once(',') {
            Some((first, rest)) => (first, Some(rest)),
            None => (text, None),
        };
        if first.starts_with("file:") {
            return Ok(Swap {
                kind: SwapKind::Lz4,
                file: Some(FileTier::parse(text, "file:DIR", true)?),
            });
        }
        let kind = KINDS.iter().find(|(word, _)| *word == first);
        let &(_, kind) = kind.ok_or_else(|| {
            let words = KINDS.map(|(word, _)| word).join(", ");
            format!("`{first}` is not one of {words}, file:DIR[:SIZE]")
        })?;
        let file = match rest {
            None => None,
            Some(_) if kind == SwapKind::None => {
                return Err(format!(
                    "`{text}`: after none there is nothing: write file:DIR"
                ));
            }
            Some(rest) => {
                let model = format!("{first},file:DIR");
                Some(FileTier::parse(rest, &model, false)?)
            }
        };
        Ok(Swap { kind, file })
    }

    /// What the processes are told, with this share for compressed RAM.
    pub fn for_group(&self, percent: u32) -> Option<SwapFile> {
        self.file.as_ref().map(|file| SwapFile {
            bytes: file.bytes.unwrap_or(u64::MAX),
            ram_percent: if file.alone { 0 } else { percent },
            encrypt: file.encrypt,
            wbps: file.wbps.unwrap_or(0),
        })
    }
}

impl FileTier {
    /// `file:DIR[:SIZE][,encrypt][,wbps=SIZE]`, to be written as `model` says. What has a slash is
    /// part of the directory: a wrong size is told, and one whose name has a colon can be said, as
    /// `DIR/`.
    fn parse(text: &str, model: &str, alone: bool) -> Result<FileTier, String> {
        let mut words = text.split(',');
        let place = words.next().and_then(|place| place.strip_prefix("file:"));
        let place =
            place.ok_or_else(|| format!("`{text}` is no file: write {model} or {model}:SIZE"))?;
        let (dir, bytes) = match place.rsplit_once(':') {
            Some((dir, bytes)) if !bytes.contains('/') => {
                (dir, Some(at_least(bytes, LEAST, "a file")?))
            }
            _ => (place, None),
        };
        if dir.is_empty() {
            return Err("file: names no directory: write file:DIR, such as file:/var/tmp".into());
        }
        let mut file = FileTier {
            dir: Path::new(dir).to_owned(),
            bytes,
            alone,
            encrypt: false,
            wbps: None,
        };
        for word in words {
            match word.strip_prefix("wbps=") {
                Some(bytes) => file.wbps = Some(at_least(bytes, LEAST_WBPS, "wbps")?),
                None if word == "encrypt" => file.encrypt = true,
                None => {
                    return Err(format!(
                        "`{word}` says nothing of a file: write {model},encrypt or \
                         {model},wbps=50M, or both"
                    ));
                }
            }
        }
        Ok(file)
    }
}

/// A size of `what`.
fn at_least(text: &str, least: u64, what: &str) -> Result<u64, String> {
    let bytes = memparse(text)?;
    match bytes < least {
        true => Err(format!(
            "`{text}` is too small for {what}: give at least {}",
            size::show(least)
        )),
        false => Ok(bytes),
    }
}

impl fmt::Display for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = KINDS.iter().rfind(|(_, kind)| *kind == self.kind);
        let word = named.map_or("", |(word, _)| word);
        let Some(file) = &self.file else {
            return f.write_str(word);
        };
        if !file.alone {
            write!(f, "{word},")?;
        }
        write!(f, "file:{}", file.dir.display())?;
        if let Some(bytes) = file.bytes {
            write!(f, ":{bytes}")?;
        }
        if file.encrypt {
            f.write_str(",encrypt")?;
        }
        match file.wbps {
            Some(bytes) => write!(f, ",wbps={bytes}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_and_said_again_the_same() {
        for text in [
            "none",
            "zram:lz4",
            "zram:zstd",
            "zram:zstd,file:/var/tmp",
            "zram:lz4,file:/a:b:104857600",
            "zram:lz4,file:/a:1024/",
            "file:/a:b/c",
            "file:/var/tmp",
            "file:rel/dir:16777216",
            "file:/var/tmp,encrypt",
            "zram:lz4,file:/var/tmp:16777216,encrypt,wbps=1048576",
        ] {
            assert_eq!(Swap::parse(text).unwrap().to_string(), text);
        }
        let swap = Swap::parse("zram,file:/d:2G").unwrap();
        assert_eq!(
            (swap.kind, swap.to_string()),
            (SwapKind::Lz4, "zram:lz4,file:/d:2147483648".into())
        );
        let told = swap.for_group(30).unwrap();
        assert_eq!((told.bytes, told.ram_percent), (2 << 30, 30));
        let told = Swap::parse("file:/d").unwrap().for_group(30).unwrap();
        assert_eq!((told.bytes, told.ram_percent), (u64::MAX, 0));
        assert!(!told.encrypt && told.wbps == 0);
        let told = Swap::parse("zram,file:/d,wbps=2M,encrypt").unwrap();
        let told = told.for_group(30).unwrap();
        assert!(told.encrypt && told.wbps == 2 << 20);
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_write() {
        for (text, part) in [
            ("", "is not one of"),
            ("file:", "names no directory"),
            ("zram,file::1G", "names no directory"),
            ("none,file:/d", "write file:DIR"),
            ("file:/d,zram", "write file:DIR,encrypt"),
            ("zram,file:/d,wbps=much", "`much` is not a size"),
            ("zram,file:/d,wbps=1000", "`1000` is too small for wbps"),
            ("zram,file:/d,encrypted", "zram,file:DIR,encrypt or"),
            ("zram,", "is no file"),
            ("zram,zram", "is no file"),
            ("zram,zram,file:/d", "is no file"),
            ("zram,file:/d,file:/e", "write zram,file:DIR,encrypt"),
            ("zram,file:/d:1G,", "`` says nothing of a file"),
            ("zram:lz4,file:/d:much", "`much` is not a size"),
            ("zram:lz4,file:/d:0", "`0` is too small"),
            ("file:/d:1M", "`1M` is too small"),
            ("disk", "file:DIR"),
        ] {
            let error = Swap::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
