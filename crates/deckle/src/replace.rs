//! A whole file in the place of another: who reads it never sees half of it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use deckle_sys::file::set_flags;
use deckle_sys::process::effective_user;

/// Opens and empties the file at `path`, or makes it; `None`: a pipe that no process reads, whose
/// opening would wait for one.
///
/// # Errors
/// It cannot be written.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    match options.custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => {
            set_flags(&file, 0).map_err(|e| io::Error::from_raw_os_error(e.0))?;
            Ok(Some(file))
        }
        Err(_) if fs::metadata(path).is_ok_and(|of| of.file_type().is_fifo()) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The place of a file that nothing is lost by replacing.
pub struct Place {
    /// Where it is, also where a symbolic link led there.
    at: PathBuf,
    /// The name of the next one until that is whole.
    next: PathBuf,
}

impl Place {
    /// That of `file`, which is open by `path`. `unique` is a word that no other `deckle run` has
    /// now. `None`: it is no regular file of ours with one name, or its directory cannot be told.
    ///
    /// # Errors
    /// Nothing can be told of the file.
    pub fn of(file: &File, path: &Path, unique: &str) -> io::Result<Option<Place>> {
        let of = file.metadata()?;
        let ours = of.is_file() && of.nlink() == 1 && of.uid() == effective_user();
        let at = ours.then(|| path.canonicalize().ok()).flatten();
        Ok(at.and_then(|at| {
            let mut name = OsString::from(".");
            name.push(at.file_name()?);
            name.push(format!(".{unique}"));
            let next = at.with_file_name(name);
            Some(Place { at, next })
        }))
    }

    /// Puts a new file with these bytes and the rights of `old` there; that file, open.
    ///
    /// # Errors
    /// It cannot be made; the old one is still there then.
    pub fn put(&self, old: &File, bytes: &[u8]) -> io::Result<File> {
        let mode = old.metadata()?.permissions();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&self.next)?;
        let done = (file.set_permissions(mode))
            .and_then(|()| file.write_all(bytes))
            .and_then(|()| fs::rename(&self.next, &self.at));
        if let Err(e) = done {
            let _ = fs::remove_file(&self.next);
            return Err(e);
        }
        Ok(file)
    }
}
