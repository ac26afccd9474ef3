//! A managed range and its parking range.

use deckle_uffd::{Done, Features, MoveMode, Partial, RegisterMode, Uffd};

use super::mem::{BLOCK, Map};
use super::uffd;

/// A managed range as the pager has it, and the parking range with its own descriptor. Take it
/// apart by naming every field: what `..` leaves out is dropped, and a descriptor thus closed.
pub struct Pair {
    pub uffd: Uffd,
    pub park_uffd: Uffd,
    pub map: Map,
    pub park: Map,
}

/// `blocks` blocks of each.
pub fn pair(blocks: usize) -> Pair {
    let features = Features::MOVE | Features::PAGEFAULT_FLAG_WP | Features::WP_UNPOPULATED;
    let (uffd, park_uffd) = (uffd(features), uffd(Features::MOVE));
    let (map, park) = (Map::blocks(blocks), Map::blocks(blocks));
    park.advise(libc::MADV_HUGEPAGE);
    let mode = RegisterMode::MISSING | RegisterMode::WP;
    uffd.register(map.addr, map.len, mode).expect("register");
    park_uffd
        .register(park.addr, park.len, RegisterMode::WP)
        .expect("register");
    Pair {
        uffd,
        park_uffd,
        map,
        park,
    }
}

/// MOVE between ranges of a test.
pub fn mv(uffd: &Uffd, dst: usize, src: usize, len: usize) -> Result<Done, Partial> {
    // SAFETY: both ranges belong to the test, which reads them by raw address only.
    unsafe { uffd.move_pages(dst, src, len, MoveMode::empty()) }
}

/// A whole block was done.
pub const WHOLE: Result<Done, Partial> = Ok(Done { bytes: BLOCK });
