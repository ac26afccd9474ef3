//! Managed memory that the program has unmapped, or put something else in the place of, by calls
//! that nobody saw, found by looking at its mappings.

use crate::door;
use crate::own::{Kind, Mapping};
use crate::process::Process;
use crate::serve::{pages, vpn};
use crate::sys::PAGE;
use core::time::Duration;
use deckle_mm::Vpn;
use std::time::Instant;

/// How long a call waits until its mappings can be looked at.
const LONGEST: Duration = Duration::from_secs(1);

/// What a look at mappings says of managed ranges.
#[derive(Default)]
struct Seen {
    /// Where nothing is mapped any more, or something else is (start, bytes).
    gone: Vec<(usize, usize)>,
    /// Of so many mappings it cannot be told: they change at this moment.
    unclear: usize,
}

impl Process {
    /// Forgets what of a range is managed and has gone: before a call of the program's is carried
    /// out there, which is on what is there now.
    ///
    /// # Errors
    /// `ENOMEM`: the program has changed its mappings all the time for as long as [`LONGEST`], and
    /// the call might be done to what is not there any more.
    pub fn forget_gone(&self, start: usize, bytes: usize) -> Result<(), i32> {
        let (pager, begin) = (&self.pager, Instant::now());
        let (from, end) = (start & !(PAGE - 1), start.saturating_add(bytes.max(1)));
        let Some(end) = end.checked_next_multiple_of(PAGE) else {
            // No address of the program's.
            return Ok(());
        };
        loop {
            let platform = pager.platform();
            let managed = platform.managed().parts(from, end - from).into_iter();
            let managed: Vec<_> = managed.filter(|part| !part.2).map(|p| (p.0, p.1)).collect();
            let is_there = |&(at, len): &(usize, usize)| platform.registered(at, len) == Some(true);
            if managed.iter().all(is_there) {
                return Ok(());
            }
            let mut seen = Seen::default();
            let look = || self.own.within(&managed);
            let is_done = pager.forget(look, |all| {
                seen = all
                    .as_ref()
                    .map_or_else(Seen::default, |all| self.seen(&managed, all));
                seen.gone.clone()
            });
            if is_done.is_some() {
                // What cannot be looked at is taken for what it was.
                self.forget_notes_of(&seen.gone);
                if seen.unclear == 0 {
                    return Ok(());
                }
            }
            if begin.elapsed() > LONGEST {
                return Err(libc::ENOMEM);
            }
            pager.settle_moves();
        }
    }

    /// Of what is managed the parts (start, bytes) where nothing is mapped any more, and those
    /// where something else is.
    pub fn gone(&self, all: &[Mapping]) -> Vec<(usize, usize)> {
        let managed = self.pager.platform().managed().ranges();
        self.seen(&managed, all).gone
    }

    /// What was noted of ranges that have gone is of them no more.
    pub fn forget_notes_of(&self, gone: &[(usize, usize)]) {
        if !gone.is_empty() {
            door().known.forget();
        }
        for (start, len) in gone {
            self.forget_notes(*start, *len);
        }
    }

    /// What is seen of managed ranges, by all mappings that lie in them, both by their addresses.
    fn seen(&self, managed: &[(usize, usize)], all: &[Mapping]) -> Seen {
        let (mut gone, mut unclear) = (Vec::new(), 0);
        let mut at = 0;
        for &(start, len) in managed {
            let (mut from, end) = (start, start + len);
            while all.get(at).is_some_and(|one| one.end <= start) {
                at += 1;
            }
            for one in all[at..].iter().take_while(|one| one.start < end) {
                let part = (one.start.max(from), one.end.min(end));
                if part.0 > from {
                    gone.push((from, part.0));
                }
                from = part.1;
                match one.kind {
                    Kind::Other => gone.push(part),
                    _ if !self.is_lost(part) => {}
                    // It was not served when it was asked; if it is one mapping still, no part of
                    // it was.
                    _ if self.is_same(one) => gone.push(part),
                    _ => unclear += 1,
                }
            }
            if from < end {
                gone.push((from, end));
            }
        }
        let gone = gone.iter().map(|(from, to)| (*from, to - from)).collect();
        Seen { gone, unclear }
    }

    fn is_same(&self, one: &Mapping) -> bool {
        let now = self.own.at(one.start);
        now.is_some_and(|now| (now.start, now.end) == (one.start, one.end))
    }

    /// How many ranges are not what they were when that was looked at last: while all stands still
    /// for a fork, what the child has may be that.
    pub fn changed(&self) -> usize {
        let moves = usize::from(self.pager.has_moved());
        let managed = self.pager.platform().managed().ranges();
        let seen = |all: Vec<Mapping>| self.seen(&managed, &all);
        let seen = self.own.mappings().map(seen);
        seen.map_or(1, |seen| seen.gone.len() + seen.unclear + moves)
    }

    /// Keeps from children what they may not inherit but while a fork is made, as far as it is
    /// there still: what the program has put in its place they inherit.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn bequeath_no_more(&self) -> Result<(), deckle_uffd::Errno> {
        let platform = self.pager.platform();
        for (start, len) in platform.managed().ranges() {
            let before = self.served_parts(start, len);
            for &(at, len, _) in before.iter().filter(|part| part.2) {
                platform.inherit_no_more(at, len)?;
            }
            let now = self.served_parts(start, len);
            if now != before {
                let lost = now.into_iter().filter(|part| !part.2);
                lost.for_each(|(at, len, _)| platform.let_inherit(at, len));
            }
        }
        Ok(())
    }

    /// What is mapped of a managed range, in parts: start, bytes, and whether it is managed still.
    fn served_parts(&self, start: usize, len: usize) -> Vec<(usize, usize, bool)> {
        if self.pager.platform().registered(start, len) == Some(true) {
            return vec![(start, len, true)];
        }
        let Some(all) = self.own.within(&[(start, len)]) else {
            return vec![(start, len, true)];
        };
        let mut parts: Vec<(usize, usize, bool)> = Vec::new();
        for one in all {
            let (from, to) = (one.start.max(start), one.end.min(start + len));
            let is_served = one.kind != Kind::Other && !self.is_lost((from, to));
            match parts.last_mut() {
                Some(last) if last.2 == is_served && last.0 + last.1 == from => last.1 += to - from,
                _ => parts.push((from, to - from, is_served)),
            }
        }
        parts
    }

    /// Whether faults of a managed range, which lies in one mapping, are not served.
    pub fn is_lost(&self, (from, to): (usize, usize)) -> bool {
        let ((mm, space), pager) = (self.memory(), &self.pager);
        let serves = |page: Vpn| pager.platform().serves(page.addr() as usize);
        mm.is_lost(space, vpn(from), pages(to - from), &serves)
    }
}
