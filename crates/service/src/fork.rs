//! Forks.
//!
//! The fork is made while the service stands still ([`deckle_live::Pager::freeze`]), by a thread
//! of the program that holds all locks which it will need: nothing waits for anybody then but
//! the fork. What is resident is where the kernel copies it, the rest is in the store, whose
//! memory is copied with all the service's.
//!
//! In the child nothing of the program runs before its own service does: the thread that has
//! forked starts the image anew (its statics as the file has them) on the copied heap. That
//! service opens a userfaultfd of the child's own, registers what is managed, protects what is
//! shared, and lets the parent go on.

use crate::account::DONATION;
use crate::process::{self, Process};
use crate::swapfile::Files;
use crate::tables::FIXED;
use crate::tasks::{self, Found};
use crate::{heap, sys};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32};
use core::time::Duration;
use deckle_door::{Door, STALE};
use deckle_group::LineId;
use deckle_group::proto::Link;
use deckle_live::{LiveError, PagerError, Place};
use deckle_mm::table::vma::{OnFork, Vma};
use deckle_mm::{Advice, Charge, Item, MapError, Stop};
use deckle_sys::futex::{self, Scope};
use std::time::Instant;

impl Process {
    /// Before a fork: everything stands still when this is answered. `alone`: no service will be
    /// had in the child, which gets all of its memory at once and is outside of the limit;
    /// `refused` tells the call, plus one, that a filter of the program's refuses. `word`, if it is
    /// not 0, is written by the kernel in the child before that has a service.
    pub fn fork_begin(&self, alone: bool, refused: usize, word: usize) -> Result<(), i32> {
        match alone {
            true if self.account.group().strict() => return Err(libc::EAGAIN),
            true => {}
            false => self.reserve_line()?,
        }
        let begun = self.stand_still(alone, refused, word);
        if begun.is_err() {
            self.cancel_line();
        }
        begun
    }

    /// Keeps a line in the group for the child, before anything is done for it.
    fn reserve_line(&self) -> Result<(), i32> {
        static SAID: AtomicBool = AtomicBool::new(false);
        match self.account.group().reserve() {
            Ok(line) => {
                *self.reserved.lock() = Some(line);
                Ok(())
            }
            Err(full) => {
                if !SAID.swap(true, Relaxed) {
                    let text = format!("deckle: process {}: a fork has failed: {full}", self.pid);
                    let _ = self.link.say(text.as_bytes());
                }
                Err(libc::EAGAIN)
            }
        }
    }

    fn cancel_line(&self) {
        if let Some(line) = self.reserved.lock().take() {
            self.account.group().cancel(line);
        }
    }

    fn stand_still(&self, alone: bool, refused: usize, word: usize) -> Result<(), i32> {
        self.begun.lock().drain(..).for_each(|thread| thread.wait());
        // Or the end of the program would take away what is reclaimed here.
        let inside = self.pager.gate().enter();
        let ahead = self.make_room_for_fork();
        if !alone && !self.has_room_for_child() || !self.keep_word(word) {
            return Err(libc::ENOMEM);
        }
        drop(inside);
        let frozen = match alone {
            true => self.pager.freeze_whole(),
            false => self.pager.freeze(ahead),
        };
        if let Err(error) = frozen {
            self.let_word_go();
            return Err(match error {
                MapError::Platform(e) if matches!(e.why, Stop::Gone | Stop::Retry) => CHANGED,
                _ => libc::ENOMEM,
            });
        }
        if !alone {
            self.account.lend(self.pager.mm());
        }
        (self.account).note_lent(self.pager.mm(), self.most_tables());
        if alone {
            let why = match refused {
                0 => "its parent can make no connection to deckle run".to_owned(),
                n => format!("its parent's own filter refuses system call {}", n - 1),
            };
            let _ = self.link.unmanaged(b"a forked process", why.as_bytes());
        }
        let wiped = match alone {
            true => self.wipe(libc::MADV_WIPEONFORK),
            false => Ok(()),
        };
        if wiped.and_then(|()| self.bequeath()).is_err() {
            let _ = self.bequeath_nothing();
            self.pager.thaw();
            self.let_word_go();
            return Err(libc::ENOMEM);
        }
        Ok(())
    }

    /// Keeps the page of a word resident over the fork, as far as it is managed: the kernel writes
    /// it in the child before that has a service, and a page that is away would be zeros there for
    /// good. False: there is no room for it.
    fn keep_word(&self, word: usize) -> bool {
        let last = word.saturating_add(size_of::<u32>() - 1);
        let mut kept = Vec::new();
        let ends = [word, last].map(|at| at & !(sys::PAGE - 1));
        let done = word == 0
            || ends.iter().all(|&at| {
                let (mm, space) = self.memory();
                self.mapped_parts(at, sys::PAGE).iter().all(|v| {
                    if v.locked {
                        // As it comes, perhaps: it may not be there.
                        let write = Advice::PopulateWrite;
                        return mm.madvise(space, v.start, v.pages, write).is_ok();
                    }
                    kept.push(v.start);
                    mm.mlock(space, v.start, v.pages).is_ok()
                })
            });
        *self.kept.lock() = kept;
        if !done {
            self.let_word_go();
        }
        done
    }

    /// Ends that.
    fn let_word_go(&self) {
        let (mm, space) = self.memory();
        for page in self.kept.lock().drain(..) {
            let _ = mm.munlock(space, page, 1);
        }
    }

    /// Lets a child inherit what the program wants it to.
    fn bequeath(&self) -> Result<(), deckle_uffd::Errno> {
        let mut all = self.all_mapped();
        let copied = |v: &Vma| v.on_fork == OnFork::Copy;
        for pair in all.windows(2) {
            let (one, next) = (&pair[0], &pair[1]);
            let is_edge = one.end() == next.start && copied(one) != copied(next);
            if is_edge && next.start.index() != 0 {
                (self.pager.platform()).part_at(next.start.addr() as usize);
            }
        }
        all.retain(copied);
        for run in all.chunk_by(|one, next| one.end() == next.start) {
            let start = run[0].start.addr() as usize;
            let bytes = run.iter().map(|v| v.pages as usize * sys::PAGE).sum();
            self.pager.platform().inherit(start, bytes)?;
        }
        Ok(())
    }

    /// For a child without a service: what the program wants wiped there the kernel wipes.
    fn wipe(&self, advice: i32) -> Result<(), deckle_uffd::Errno> {
        let all = self.all_mapped();
        for v in all.iter().filter(|v| v.on_fork == OnFork::Wipe) {
            let (start, bytes) = (v.start.addr() as usize, v.pages as usize * sys::PAGE);
            let words = [start, bytes, advice as usize];
            // SAFETY: says what a fork does; no byte of this process changes.
            unsafe { sys::call(libc::SYS_madvise, words) }.map_err(deckle_uffd::Errno)?;
            self.pager.platform().inherit(start, bytes)?;
        }
        Ok(())
    }

    fn bequeath_nothing(&self) -> Result<(), deckle_uffd::Errno> {
        self.wipe(libc::MADV_KEEPONFORK)?;
        self.bequeath_no_more()
    }

    /// In a child: drops what the program does not want it to have. Of what is wiped the mapping
    /// stays.
    fn disinherit(&self) -> Result<(), MapError> {
        let (mm, space) = self.memory();
        for v in self.all_mapped() {
            let place = Place::At(v.start.addr() as usize);
            match v.on_fork {
                OnFork::Copy => {}
                OnFork::Leave => {
                    // SAFETY: no byte of the range is here, and nothing of the program runs yet.
                    unsafe { self.pager.unmap(v.start, v.pages) }?;
                }
                OnFork::Wipe => {
                    // SAFETY: as above.
                    unsafe { self.pager.map(place, v.pages, v.prot) }?;
                    mm.advise_fork(space, v.start, v.pages, OnFork::Wipe)?;
                }
            }
        }
        Ok(())
    }

    /// What both sides of a fork share can be reclaimed by neither until it is over, while each
    /// page that either writes takes memory: so that they need not wait for each other at once,
    /// there is room for the first of them below `memory.high`, for the child's metadata, with
    /// which it is charged whatever there is, and for what this process borrows itself: a child
    /// borrows from its parent alone, so that this is charged here before the fork. What there is
    /// no room for is taken over and reclaimed before that.
    ///
    /// Where memory is short and children live, or was when one of them was forked, the next child
    /// would give up what is shared as they do: so this process does, as far as both sides would
    /// not fit if one wrote all of it. Whether what is left had better be stored, too.
    fn make_room_for_fork(&self) -> bool {
        let (account, mm) = (&self.account, self.pager.mm());
        let first = (self.resident() / 8).min(ROOM) + account.own();
        let over = |more: u64| (account.usage() + more).saturating_sub(account.high());
        let lacks = over(first);
        let has_children = account.has_borrowers();
        let was_short = self.short_of_room.load(Relaxed) && has_children;
        let is_short = was_short || lacks > 0;
        self.short_of_room.store(is_short, Relaxed);
        let is_family = is_short && has_children && over(self.resident()) > 0;
        if lacks > 0 {
            mm.reclaim(lacks);
        }
        if is_family {
            account.give_up_lent(mm, over(self.resident()).div_ceil(2));
        }
        // Again and again: others may take meanwhile what room there was.
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            let borrows = account.borrows(mm);
            let lacks = over(first + borrows);
            // What is borrowed is charged whatever there is: for that others have to give.
            let may_ask = borrows > 0 && begin.elapsed() < PATIENCE;
            let has_reclaimed = || {
                account.give_up_shared(mm, lacks) > 0
                    || mm.reclaim(lacks) > 0
                    || may_ask && account.reclaim_elsewhere(lacks)
            };
            if lacks == 0 || !has_reclaimed() {
                break;
            }
        }
        account.stop_borrowing(mm, true);
        is_family && account.pays_to_give(mm, account.group().shared_with(account.line()))
    }

    /// A child is charged with what a service has for itself alone whatever there is: where nobody
    /// gives room for that, memory is out as for a fault. False: still, after a while.
    fn has_room_for_child(&self) -> bool {
        let (account, mm, begin) = (&self.account, self.pager.mm(), Instant::now());
        loop {
            let lacks = (account.usage() + FIXED).saturating_sub(account.max());
            if lacks == 0 {
                return true;
            }
            if begin.elapsed() > LONGEST {
                return false;
            }
            let enough = lacks.max(DONATION);
            if mm.reclaim_hard(enough) == 0 && !account.reclaim_elsewhere(enough) {
                crate::end::refuses_fork(self, FIXED);
            }
        }
    }

    /// Pages that are charged as the program's and in memory, or may come to be without asking.
    pub fn resident(&self) -> u64 {
        let stats = self.pager.mm().stats();
        let each = [Item::NrAnon, Item::NrOpen, Item::NrInactive].map(|item| stats.get(item));
        each.iter().sum()
    }

    /// After it, in the parent, when the child has a service of its own, or will never have one.
    pub fn fork_end(&self) -> Result<usize, i32> {
        self.cancel_line();
        if self.bequeath_nothing().is_err() {
            self.kill("after a fork: the kernel refuses to keep its memory to itself");
        }
        self.pager.thaw();
        let _inside = self.pager.gate().enter();
        self.let_word_go();
        Ok(0)
    }
}

/// An errno that no fork returns: memory has gone or was moved as all was to stand still.
pub const CHANGED: i32 = libc::ESTALE;
/// Most times that a fork makes room, which others may take.
const ROUNDS: u32 = 16;
/// How long a fork, under which the program stands still, asks others for room.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a fork waits for room for its child before it fails.
const LONGEST: Duration = Duration::from_secs(10);
/// Most pages that are made free below `memory.high` before a fork.
const ROOM: u64 = 2048;

/// The first task of the child's service: gives the copied state what is the child's own.
pub fn first_in_child(door: &Door) -> ! {
    // SAFETY: the address of a leaked value, kept by the parent's service, of which this memory
    // is a copy made while it stood still; no other task of the child runs yet, and the
    // program's thread waits for this one.
    let Some(process) = (unsafe { heap::kept().cast::<Process>().as_mut() }) else {
        door.fail("its parent had no service");
        sys::exit_all(1)
    };
    REBUILDING.store(true, Relaxed);
    crate::end::on_panic();
    let rebuilt = rebuild(process, door);
    REBUILDING.store(false, Relaxed);
    match rebuilt {
        Ok(()) => {
            process::publish(process);
            tasks::run(process)
        }
        Err(why) => tasks::give_up(door, &why),
    }
}

/// Whether what is copied from the parent is not the child's own yet.
static REBUILDING: AtomicBool = AtomicBool::new(false);

/// In a child: whether the process that the state tells of is its parent still.
pub fn is_rebuilding() -> bool {
    REBUILDING.load(Relaxed)
}

fn rebuild(process: &mut Process, door: &Door) -> Result<(), String> {
    match crate::defect() {
        b"child" => panic!("as DECKLE_FAULT asks"),
        b"late" => crate::end::sleep(Duration::from_secs(1)),
        _ => {}
    }
    let platform = process.pager.platform();
    platform.reserve_after_fork().map_err(|e| e.to_string())?;
    for v in process
        .all_mapped()
        .iter()
        .filter(|v| v.on_fork != OnFork::Copy)
    {
        let (start, bytes) = (v.start.addr() as usize, v.pages as usize * sys::PAGE);
        let filled = platform.fill_after_fork(start, bytes);
        filled.map_err(|e| e.to_string())?;
    }
    let group = *process.account.group();
    let reserved = process.reserved.lock().take();
    let (found, link, line) = tasks::announce(door, Some(group), reserved)?;
    let taken_over = take_over(process, door, (found, link, line));
    if taken_over.is_err() {
        group.leave(line);
    }
    taken_over
}

/// Makes the copied state that of the process that has joined the group by `line`.
fn take_over(
    process: &mut Process,
    door: &Door,
    (found, link, line): (Found, Link, LineId),
) -> Result<(), String> {
    let group = *process.account.group();
    let lender = process.account.line();
    // Before the parent may go on: from here on it pays for what both share, and its files are kept
    // while somebody has them.
    let mm = process.pager.mm();
    let (fork, mut opened) = (process.account.forks(), Ok(()));
    mm.store()
        .ram(|ram| opened = Files::begin(ram.file(), &group, &link, (&ram.files(), fork)));
    opened?;
    (process.account).borrow_from(line, lender, mm, process.most_tables());
    // The old descriptors mean nothing here: not closed.
    core::mem::forget(core::mem::replace(&mut process.watch, found.watch));
    core::mem::forget(core::mem::replace(&mut process.link, link));
    core::mem::forget(core::mem::replace(&mut process.own, found.own));
    process.pid = door.pid.load(Relaxed);
    door.end_room();
    process.left.store(0, Relaxed);
    process.unmanaged.store(0, Relaxed);
    process.pager.set_program(process.pid);
    // SAFETY: in a child, by its first task; the parent's pager was frozen over the fork.
    let registered = unsafe { process.pager.after_fork(found.opened) };
    registered.map_err(|e| match e {
        // A part of it is not there any more, or something else is.
        PagerError::Live(LiveError::Managed(_)) => STALE.to_owned(),
        other => other.to_string(),
    })?;
    // Not before what is away is a fault: the parent may look into its child's memory.
    release_parent(door);
    let mm = process.pager.mm();
    // What the parent counted stays its own.
    mm.stats().forget(|item| !deckle_group::is_gauge(item));
    let gauge = |item| mm.stats().get(item);
    // All that it holds but what its parent pays for.
    let shared = gauge(Item::NrShared);
    let pages = (mm.frames_used() + mm.recount_store()).saturating_sub(shared);
    let swapped = gauge(Item::NrSwapped) + gauge(Item::NrSwapcached);
    process.account.move_to(line, pages, swapped);
    process.forget_locks().map_err(|e| e.to_string())?;
    process.hold_again(0, 1 << 47);
    process.disinherit().map_err(|e| e.to_string())?;
    process.publish();
    process.pager.gate().open();
    Ok(())
}

/// Says to the thread that has forked in the parent that its service may go on.
fn release_parent(door: &Door) {
    let word = door.forked.load(Relaxed) as *mut u32;
    // SAFETY: a word of a shared mapping that the program's side made before the fork and keeps.
    let word = unsafe { AtomicU32::from_ptr(word) };
    word.store(door.fork.load(Relaxed), Release);
    futex::wake_in(Scope::Shared, word, u32::MAX);
}
