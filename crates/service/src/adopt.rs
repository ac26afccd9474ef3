//! Memory that the program maps by calls that nobody hears of (instructions of its own, its C
//! library's allocator), found by looking at its mappings, and taken under management where it is.
//!
//! The first task glances at how much there is whenever the program has used some milliseconds of
//! CPU time: so never while it sleeps. Only if that has changed the mappings are read, by a task of
//! its own.

use crate::account::DONATION;
use crate::own::{Kind, Mapping, Size};
use crate::process::{Process, process};
use crate::serve::{Calls, pages, vpn};
use crate::sys::PAGE;
use crate::{door, end, heap};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::time::Duration;
use deckle_door::Op;
use deckle_live::pager::Role;
use deckle_mm::platform::Stop;
use deckle_mm::units::bytes_to_pages;
use deckle_mm::{Charge, Machine, MapError, Prot, Store, Work};
use deckle_sys::clock::CpuClock;
use deckle_sys::signal;
use std::time::Instant;

/// CPU time of the program between two looks.
const TURN: Duration = Duration::from_millis(5);
/// Pages that have come since the mappings were read last, from which on they are read again.
const NEWS: u64 = 64;
/// Bytes of a mapping that are there, from which on it is taken. Less is left to the kernel: stacks
/// of threads, of which there may be many, and what is soon gone.
const LEAST: usize = 256 << 10;
/// Reading the mappings in vain takes at most one part in so many of the time.
const SHARE: u32 = 50;
/// No longer than that is it not looked after a look in vain.
const REST: Duration = Duration::from_millis(100);

/// Milliseconds that a reclaiming task waits at most until unseen memory is adopted.
const TURNS: u32 = 200;

/// What was seen at the last glance at how much there is.
#[derive(Default)]
pub struct Glimpse {
    size: Size,
    /// What there was when it was charged last.
    charged: Size,
    /// No look in vain before that.
    until: Option<Instant>,
}

/// What is done with what is found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It is taken if memory is not far from short.
    IfShort,
    /// It is taken: before a fork, or to be reclaimed.
    Always,
    /// It is taken, also what is not there yet: to be locked, which brings it in.
    ToLock,
}

/// What of a mapping is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// What it has grown by since it was taken.
    Grown,
    /// A block or heap in it, which the program does not move together with what is beside it.
    Some,
}

/// How long memory stays the kernel's that could not be taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The program moves memory at this moment.
    ForNow,
    /// The kernel refuses, or it is another mapping.
    ForGood,
}

impl Found {
    /// From the argument of [`Op::Adopt`].
    pub fn of(word: usize) -> Found {
        match word {
            0 => Found::IfShort,
            _ => Found::Always,
        }
    }
}

/// Whether the program has used CPU time since that was asked last.
static RUNG: AtomicBool = AtomicBool::new(false);

extern "C" fn ring(_: i32) {
    RUNG.store(true, Release);
    if let Some(process) = process() {
        process.pager.crew().call();
    }
}

/// Has the calling task, the first, [glance](Process::glance) at the program whenever that has used
/// some CPU time. False: it cannot be, and what comes unseen stays the kernel's.
pub fn watch(process: &Process) -> bool {
    let may = |number| door().may(number);
    let calls = [
        libc::SYS_timer_create,
        libc::SYS_timer_settime,
        libc::SYS_rt_sigaction,
    ];
    process.pager.crew().is_on_demand()
        && calls.into_iter().all(may)
        && signal::catch(libc::SIGVTALRM, ring).is_ok()
        && CpuClock::of(process.pid)
            .ring(TURN, libc::SIGVTALRM)
            .is_ok()
}

/// Looks whenever that is wanted.
pub fn looker(process: &'static Process) {
    let (pager, role) = (&process.pager, Role::LOOKER);
    loop {
        process.look();
        let is_leaving = !pager.wait_for_look();
        if is_leaving && pager.crew().leave(role, || pager.is_look_wanted()) {
            return;
        }
    }
}

impl Process {
    /// Reads how much there is, after CPU time of the program's. While usage is high and that has
    /// changed, the looker looks at the mappings.
    pub fn glance(&self) {
        if !RUNG.load(Relaxed) {
            return;
        }
        // Outside the gate a fork might copy a lock that this task holds.
        let Some(_inside) = self.pager.gate().try_enter() else {
            return;
        };
        RUNG.store(false, Relaxed);
        let mut glimpse = self.glimpse.lock();
        let Some(now) = self.own.size() else { return };
        self.charge_left(now, false);
        if self.room() > 0 {
            // What comes is left to the kernel, and what has gone is looked for when it matters.
            return;
        }
        let seen = glimpse.size;
        let has_come = now.mapped != seen.mapped || now.resident.abs_diff(seen.resident) >= NEWS;
        let may_look = glimpse.until.is_none_or(|until| Instant::now() >= until);
        if has_come && may_look {
            glimpse.size = now;
            self.pager.want_look();
        } else if self.left.load(Relaxed) > 0 || self.account.usage() > self.account.max() {
            self.pager.want_look();
        }
    }

    /// Charges what is there, and not charged, while memory is far from short, and what the program
    /// may map without asking. Where it is short, less may be charged `at_rest`.
    fn charge_left(&self, now: Size, at_rest: bool) {
        let own = (self.account.own()).saturating_sub(self.left.load(Relaxed));
        let stored = bytes_to_pages(self.pager.mm().store().ram_bytes());
        let known = self.resident() + own + stored;
        let unmanaged = now.resident.saturating_sub(known);
        self.unmanaged.store(unmanaged, Relaxed);
        let is_far = self.room() > 0;
        self.tell_room();
        let left = unmanaged + door().room();
        if is_far || at_rest && left < self.left.load(Relaxed) {
            self.left.store(left, Relaxed);
            self.settle_tables();
        }
    }

    /// The same ten times a second, as long as what there is changes, and once more: so at rest all
    /// is charged that is there, and nothing else. Whether it has changed.
    pub fn charge_seen(&self) -> bool {
        let Some(now) = self.own.size() else {
            return false;
        };
        let mut glimpse = self.glimpse.lock();
        let has_changed = core::mem::replace(&mut glimpse.charged, now) != now;
        if !has_changed {
            door().end_room();
        }
        self.charge_left(now, !has_changed);
        has_changed
    }

    /// Pages that may be mapped unseen before new memory is adopted at once. Memory that cannot be
    /// adopted counts even while it is not charged: else the answer would alternate, since it is
    /// charged only while there is room.
    pub fn room(&self) -> u64 {
        let left = self.left.load(Relaxed);
        let more = self.unmanaged.load(Relaxed).saturating_sub(left);
        self.pager.mm().room_for_holes().saturating_sub(more)
    }

    /// Charges `pages` that the program is about to have unseen, and some more, which it may have
    /// then without asking. False: memory is not far from short, or no task looks for it later.
    pub fn grant(&self, pages: u64) -> bool {
        /// What it may have more, of what it has already; at least and at most.
        const SHARE: u64 = 4;
        const LEAST: u64 = 256;
        const MOST: u64 = 4096;
        let glimpse = self.glimpse.lock();
        let room = self.room();
        let is_watched = door().adopts.load(Relaxed) && self.own.finds();
        if !is_watched || pages > room {
            return false;
        }
        let most = (self.left.load(Relaxed) / SHARE).clamp(LEAST, MOST);
        let more = most.min(room - pages);
        self.left.fetch_add(pages + more, Relaxed);
        self.settle_tables();
        door().add_room(more);
        drop(glimpse);
        self.rest.stir();
        true
    }

    /// Tells the program whether memory is far from short; what it may map without asking ends with
    /// that.
    fn tell_room(&self) {
        let far = self.pager.mm().room_for_holes() > 0;
        door().far.store(far, Relaxed);
        if self.room() == 0 {
            door().end_room();
        }
    }

    /// Has the memory adopted that is left to the kernel, for reclaim, and waits at most [`TURNS`]
    /// ms for that: the adopting task may itself be waiting for another process. If that was in
    /// vain, since the system may have no task for it, the next caller does not wait.
    pub fn take_left(&self) {
        const TURN: Duration = Duration::from_millis(1);
        if self.left.load(Relaxed) < bytes_to_pages(LEAST as u64) {
            // No mapping of it is worth it.
            return;
        }
        let before = self.taken_all.load(Relaxed);
        let is_first = !self.wants_all.swap(true, Relaxed);
        self.pager.want_look();
        let turns = if is_first { TURNS } else { 0 };
        (0..turns)
            .take_while(|_| self.taken_all.load(Relaxed) == before)
            .for_each(|_| end::sleep(TURN));
    }

    /// Looks, if that is wanted.
    pub fn look(&self) {
        while self.pager.take_look() {
            let begin = Instant::now();
            let all = usize::from(self.wants_all.swap(false, Relaxed));
            let taken = door().requests.ask(Op::Adopt, [all, 0, 0, 0, 0, 0]);
            if all > 0 {
                self.taken_all.fetch_add(1, Relaxed);
            }
            if taken == Ok(0) && self.pager.is_look_wanted() {
                // What moves at this moment is left for the next look.
                end::sleep(Duration::from_millis(1));
            }
            // Others' calls may have been waited for, too.
            let rest = (begin.elapsed() * SHARE).min(REST);
            let until = (taken == Ok(0)).then(|| Instant::now() + rest);
            let _inside = self.pager.gate().enter();
            self.glimpse.lock().until = until;
            self.shrink_back();
        }
    }

    /// Reclaims what is above the limit since it was taken without asking, a part at a time,
    /// between which it is looked for more; has a process killed if nobody has more to give.
    fn shrink_back(&self) {
        let (account, mm) = (&self.account, self.pager.mm());
        if account.usage() > account.high() {
            mm.machine().kick(Work::Reclaim);
        }
        let lacks = account.usage().saturating_sub(account.max());
        if lacks == 0 || account.group().is_lowered() {
            // Whom a lowered limit ends is found out by all together.
            return;
        }
        let pages = lacks.max(DONATION);
        if mm.reclaim_hard(pages) == 0 && !account.reclaim_elsewhere(pages) {
            end::outgrown(self, 0);
        }
        self.rest.stir();
    }
}

impl Calls {
    /// Takes what has come under management, and what has gone out of it; how many mappings it
    /// took.
    pub fn adopt_all(&mut self, how: Found) -> Result<usize, i32> {
        let look = || self.process.own.mappings();
        let (mut grown, mut gone_now) = (Vec::new(), Vec::new());
        let gone = |all: &Option<Vec<Mapping>>| match all {
            Some(all) => {
                grown = self.grown(all);
                gone_now = self.process.gone(all);
                gone_now.clone()
            }
            None => Vec::new(),
        };
        let Some(Some(all)) = self.process.pager.forget(look, gone) else {
            // The next look finds it.
            return Ok(0);
        };
        self.process.forget_notes_of(&gone_now);
        let grown = self.take_grown(&grown);
        if how == Found::IfShort && self.process.room() > 0 {
            return Ok(grown);
        }
        // From here on it is charged as it is found.
        door().end_room();
        let account = &self.process.account;
        account.charge_ahead(self.process.left.swap(0, Relaxed));
        self.process.settle_tables();
        let taken = self.take_new(all, how);
        self.process.account.end_ahead();
        Ok(grown + taken)
    }

    /// Takes of all mappings those that no task manages; how many it took.
    fn take_new(&mut self, all: Vec<Mapping>, how: Found) -> usize {
        let mut new = all;
        new.retain(|one| !self.may_be_ours(one) && self.is_worth_it(one, how));
        if new.is_empty() {
            return 0;
        }
        let plain = self.process.own.plain();
        new.retain(|one| {
            // It may have grown meanwhile.
            let holds = |&(start, end): &(usize, usize)| start <= one.start && one.end <= end;
            !self.is_stack(one) && plain.iter().any(holds) && self.adopt(one, Part::Whole).is_ok()
        });
        new.len()
    }

    /// What has grown out of managed mappings, whose faults come to us and are served by nobody: it
    /// is a part of such a mapping, or one by itself since what is advised for the two differs.
    fn grown(&self, all: &[Mapping]) -> Vec<Mapping> {
        let platform = self.process.pager.platform();
        let may_have = |one: &&Mapping| {
            let is_part = platform.managed().touches(one.start, one.end - one.start);
            one.kind != Kind::Other && (is_part || !self.may_be_ours(one))
        };
        let mut grown = Vec::new();
        for one in all.iter().filter(may_have) {
            let parts = self.parts(one.start, one.end - one.start);
            for (start, len, foreign) in parts {
                if foreign && platform.serves(start) {
                    let (kind, end) = (one.kind, start + len);
                    grown.push(Mapping { start, end, kind });
                }
            }
        }
        grown
    }

    /// Takes them; what cannot be taken is given to the kernel. How many it took.
    fn take_grown(&mut self, grown: &[Mapping]) -> usize {
        let mut taken = 0;
        for one in grown {
            let done = match one.kind {
                Kind::Data { .. } => self.adopt(one, Part::Grown),
                _ => Err(Left::ForGood),
            };
            let pager = &self.process.pager;
            match done {
                Ok(()) => taken += 1,
                Err(Left::ForNow) => pager.want_look(),
                Err(Left::ForGood) => pager.let_go(one.start, one.end - one.start),
            }
        }
        taken
    }

    /// Whether no task manages a mapping yet, and it holds enough. What it shares with others since
    /// a fork is not told apart from what it has alone.
    fn is_worth_it(&self, one: &Mapping, how: Found) -> bool {
        let (platform, len) = (self.process.pager.platform(), one.end - one.start);
        let is_new = len >= LEAST && !platform.managed().touches(one.start, len);
        let there = || platform.touched(one.start, one.end);
        matches!(one.kind, Kind::Data { .. })
            && is_new
            && (how == Found::ToLock || there().is_ok_and(|bytes| bytes >= LEAST))
            && !platform.shares(one.start, len)
    }

    /// Whether a mapping is the stack of a thread of the GNU C library's: the thread's record lies
    /// at its end, and the kernel writes there where it cannot wait, as the thread ends. The
    /// record begins with its own address, which it has once more as its third word.
    pub fn is_stack(&self, one: &Mapping) -> bool {
        /// Words of the end, and after how many of them a record may begin.
        const WORDS: usize = 1024;
        const STEP: usize = 8;
        let mut words = [0; WORDS];
        let start = one.end - size_of_val(&words);
        let is_record = |(k, part): (usize, &[u64])| {
            let at = (start + k * STEP * size_of::<u64>()) as u64;
            part[0] == at && part[2] == at
        };
        // What cannot be read is better left alone.
        !self.process.pager.platform().read_words(start, &mut words)
            || words.chunks_exact(STEP).enumerate().any(is_record)
    }

    /// Takes a mapping, or a part of one; what cannot be taken stays the kernel's.
    pub fn adopt(&mut self, one: &Mapping, what: Part) -> Result<(), Left> {
        let (start, bytes) = (one.start, one.end - one.start);
        let held = &door().held;
        if self.mappings.is_full(self.process) || held.is_full() {
            return Err(Left::ForGood);
        }
        door().places.note(start, bytes);
        let exec = one.kind == Kind::Data { exec: true };
        let prot = Prot { exec, ..Prot::RW };
        let own = &self.process.own;
        let around = || match what {
            Part::Whole => own.around(one),
            Part::Grown | Part::Some => Some(Vec::new()),
        };
        let how = (prot, what == Part::Grown);
        let taken = self.process.pager.adopt((start, bytes), how, around);
        taken.map_err(|error| match error {
            MapError::Platform(e) if e.why == Stop::Retry => Left::ForNow,
            _ => Left::ForGood,
        })?;
        for page in held.within(start, bytes) {
            let _ = self.process.hold(page, PAGE);
        }
        self.lock_new(start, bytes);
        Ok(())
    }

    /// Locks an adopted range if the program has called mlockall for future mappings. If the limit
    /// has no room for it, the largest process of the group is killed, as for a fault.
    fn lock_new(&self, start: usize, bytes: usize) {
        let Some(on_fault) = self.lock_future else {
            return;
        };
        let lock = || self.lock_so(vpn(start), pages(bytes), on_fault);
        if lock().is_err() {
            end::outgrown(self.process, pages(bytes));
            let _ = lock();
        }
    }

    /// Whether a mapping may be the service's: all of one that lies where its heap may be is taken
    /// for that.
    pub fn may_be_ours(&self, one: &Mapping) -> bool {
        let platform = self.process.pager.platform();
        let (parking, nursery) = (platform.parking().range(), platform.nursery().range());
        let far = (heap::FAR.start, heap::FAR.end - heap::FAR.start);
        let overlaps = |(start, len): (usize, usize)| one.start < start + len && start < one.end;
        [far, parking, nursery].into_iter().any(overlaps)
    }
}
