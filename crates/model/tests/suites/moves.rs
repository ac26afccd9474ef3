//! mremap and what it makes of mappings.

use super::common::Rig;
use super::common::hand::BLOCK;
use deckle_mm::space::remap::Remap;
use deckle_mm::{MapError, Profile, Prot, SizeMode, Sizes, Tunables, Vpn};

fn rig() -> Rig {
    let t = Tunables {
        sizes: Sizes::NEVER.with(4, SizeMode::Always),
        ..Tunables::of_profile(Profile::Linux)
    };
    Rig::new(64, 1, 1, true, t)
}

impl Rig {
    fn remap(&self, old: Vpn, pages: u64, new: u64, how: Remap) -> Result<Vpn, MapError> {
        self.mm.mremap(self.space, old, pages, new, how)
    }
}

#[test]
fn what_was_moved_is_a_mapping_of_its_own_until_it_is_back() {
    let rig = rig();
    let start = rig.mmap(0, 4 * BLOCK);
    let (from, to) = (start.add(3 * BLOCK), start.add(BLOCK + 8));
    rig.write(start, 1);
    rig.write(from.add(3), 3);
    rig.munmap(to, 100);
    assert_eq!(rig.remap(from, 100, 100, Remap::Fixed(to)).unwrap(), to);
    assert!(rig.holds(to.add(3), 3));
    // The offsets of its pages do not fit the neighbours': no call goes over the seam, and no
    // folio does.
    let over = rig.remap(start.add(BLOCK), 20, 30, Remap::InPlace);
    assert!(matches!(over, Err(MapError::Hole(_))), "{over:?}");
    rig.write(start.add(BLOCK + 4), 4);
    assert_eq!(rig.folio(start.add(BLOCK + 4)).order, 0);
    assert_eq!(rig.mm.mappings(rig.space), 4);
    rig.mm
        .mprotect(rig.space, start, 3 * BLOCK, Prot::R)
        .unwrap();
    rig.mm
        .mprotect(rig.space, start, 3 * BLOCK, Prot::RW)
        .unwrap();
    assert_eq!(rig.mm.mappings(rig.space), 4);
    // At its old place they fit.
    rig.remap(to, 100, 100, Remap::Fixed(from)).unwrap();
    assert_eq!(rig.mm.mappings(rig.space), 2);
    rig.verify(&"a move and back");
}

#[test]
fn what_nobody_has_written_fits_wherever_it_is_moved_to() {
    let rig = rig();
    let start = rig.mmap(0, 4 * BLOCK);
    let (from, to) = (start.add(3 * BLOCK), start.add(BLOCK + 8));
    rig.munmap(to, 100);
    rig.remap(from, 100, 100, Remap::Fixed(to)).unwrap();
    assert_eq!(rig.mm.mappings(rig.space), 2);
    // In place of 30 there is no room, which is another refusal.
    let over = rig.remap(start.add(BLOCK), 20, 30, Remap::InPlace);
    assert!(matches!(over, Err(MapError::NoRoom(_))), "{over:?}");
    rig.write(start.add(BLOCK + 4), 4);
    assert_eq!(rig.folio(start.add(BLOCK + 4)).order, 4);
    rig.verify(&"a move of nothing");
}
