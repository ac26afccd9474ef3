//! What `deckle run` has told.

use crate::DOOR;
use core::ffi::CStr;
use deckle_door::Text;
use deckle_door::entry::Entry;

static IMAGE: Text<2048> = Text::new();

/// Keeps what was told.
pub fn keep(entry: &Entry) {
    DOOR.group.set(Entry::text(&entry.group));
    DOOR.fault.set(Entry::text(&entry.fault));
    IMAGE.set_all(&[Entry::text(&entry.image), b"\0"]);
}

/// Nobody is here who was not put in.
pub fn is_managed() -> bool {
    true
}

/// The name of the group.
pub fn group_name() -> Option<&'static [u8]> {
    Some(DOOR.group.get())
}

/// Calls `work` with the path of the service image.
pub fn with_image_path<T>(work: impl FnOnce(&CStr) -> T) -> Option<T> {
    CStr::from_bytes_with_nul(IMAGE.get()).ok().map(work)
}
