//! Which pages a program has written, as it is told and as it knows.

use super::Program;
use deckle_mm::Vpn;

impl Program<'_> {
    /// No write since the last clear is missing; then, now and then, the next clear.
    pub fn track(&mut self) -> String {
        let (mm, space) = (&self.rig.mm, self.rig.space);
        for &p in &self.dirty {
            if self.known.get(&p).is_some_and(|k| !k.lazy) {
                let info = mm.page_info(space, Vpn(p)).expect("not mapped");
                assert!(info.soft_dirty, "a write to {} is lost", Vpn(p));
            }
        }
        let clear = self.below(3) == 0;
        if clear {
            let (mm, space) = (&self.rig.mm, self.rig.space);
            mm.clear_soft_dirty(space).unwrap();
            self.dirty.clear();
            for p in self.mapped.keys().step_by(41) {
                let info = mm.page_info(space, Vpn(*p)).expect("not mapped");
                assert!(!info.soft_dirty, "{} is dirty after a clear", Vpn(*p));
            }
        }
        format!("track, clear {clear}")
    }
}
