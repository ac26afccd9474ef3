//! Memory that the program has mapped by calls that nobody saw.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use deckle_mm::{Charge, FaultError, MapError, PAGE_SIZE, PageRun, Prot, Store, Vpn};
use deckle_sys::futex;
use deckle_uffd::Msg;

use super::Pager;
use super::crew::Role;
use super::handler::{fault_of, moved_by};
use super::machine::{LiveMachine, MESSAGES};
use super::queue::Fault;
use crate::platform::{LivePlatform, Move, Noted, RETRY, Unread, refused};

/// What is known of the program's calls that nobody saw.
#[derive(Default)]
pub(super) struct Heard {
    /// Had by the task that reads messages.
    pub(super) reading: Mutex<()>,
    /// Had while such a move is followed, or what is not there any more is forgotten.
    books: Mutex<()>,
    /// Futex word: somebody shall look at what the program has mapped.
    look: AtomicU32,
    /// Of faults that found nothing mapped to serve: the page, how many there were in a row, and
    /// when the last was; of the pages with the same remainder the last.
    gone: Mutex<[Option<(Vpn, u32, Instant)>; 16]>,
}

/// Faults in a row of one page that find nothing mapped there, before that is an error: it may be
/// unmapped and mapped again all the time.
const GONE: u32 = 10_000;
/// What is longer apart is no row.
const APART: Duration = Duration::from_millis(100);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the task that reads a message and has the lock until that is noted.
pub(super) fn noted_by(heard: &Arc<Heard>) -> Noted {
    let heard = heard.clone();
    Box::new(move || drop(lock(&heard.reading)))
}

/// Reads messages in the place of the tasks that should, where moves are followed; and has the
/// background follow them, or read.
pub(super) fn unread_by(heard: &Arc<Heard>, machine: &LiveMachine) -> Unread {
    let (heard, work) = (heard.clone(), machine.work.clone());
    Box::new(move |platform| {
        if platform.adopts() {
            heard.read_here(platform);
        }
        work.raise(MESSAGES);
    })
}

impl Heard {
    /// Notes the moves that the next messages tell of, and has the threads of faults try again, for
    /// a task that may have locks. The kernel hands out moves behind all faults: so many messages
    /// are read at once, before a thread can fault again.
    fn read_here(&self, platform: &LivePlatform) {
        /// Messages at once.
        const MOST: usize = 16;
        let _reading = match self.reading.try_lock() {
            Err(TryLockError::WouldBlock) => return,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Ok(reading) => reading,
        };
        let mut all = [const { Msg::empty() }; MOST];
        let read = platform.program_uffd().read_events(&mut all);
        for msg in all.iter_mut().take(read.unwrap_or(0)) {
            if let Some(moved) = moved_by(msg) {
                platform.note_move(moved);
            } else if let Some(fault) = fault_of(msg) {
                platform.wake(fault.page, 1);
            }
        }
    }
}

impl<C: Charge + 'static, S: Store + 'static> Pager<C, S> {
    /// Takes a private anonymous mapping, with these rights, under management where it is, with
    /// what it holds. Its pages are charged, whatever the limit. `grown`: it is what a managed
    /// mapping has grown by. `around` tells what is mapped there and beside it, before and after
    /// the kernel has registered it: if that differs, or is `None`, a part of another mapping may
    /// have been registered.
    ///
    /// # Errors
    /// [`MapError::Platform`]: it is none any more, the program moves memory at this moment (the
    /// reason is `Retry`), or the kernel refuses; the manager's. It is as it was then.
    pub fn adopt<T: PartialEq>(
        &self,
        (start, len): (usize, usize),
        (prot, grown): (Prot, bool),
        around: impl Fn() -> Option<T>,
    ) -> Result<(), MapError> {
        let (mm, platform, space) = (self.mm(), self.platform(), self.space());
        // What a move brings to the range the books have at another place until they follow.
        let _books = lock(&self.heard.books);
        let before = self.quiet().ok_or(MapError::Platform(RETRY))?;
        let found = platform.adopt(start, len, around);
        let found = found.map_err(|errno| MapError::Platform(refused(0, errno)))?;
        let vpn = |at: usize| Vpn::of_addr(at as u64);
        let run = |at, len| PageRun::new(space, vpn(at), (len / PAGE_SIZE) as u32);
        let there: Vec<_> = found
            .into_iter()
            .map(|(at, len, made)| (run(at, len), made))
            .collect();
        let adopted = mm.adopt(
            space,
            (vpn(start), (len / PAGE_SIZE) as u64),
            (prot, grown),
            &there,
        );
        if adopted.is_err() {
            // SAFETY: nothing was taken out.
            let _ = unsafe { platform.leave(start, len) };
        } else if platform.moves_so_far() != before {
            // It has come meanwhile: forgotten before anything of it is taken out.
            let pages = (len / PAGE_SIZE) as u64;
            let moved = platform.first_move();
            if let Some(moved) = moved.filter(|_| mm.is_any_away(space, vpn(start), pages)) {
                self.end_by(moved);
            }
            self.follow_all();
        }
        adopted
    }

    /// Gives the kernel what is registered and not managed, unless the program moves memory at this
    /// moment: it is looked at again then.
    pub fn let_go(&self, start: usize, len: usize) {
        let _books = lock(&self.heard.books);
        if self.quiet().is_some() {
            self.platform().let_go(start, len);
        }
    }

    /// With the books: how many moves there were so far, unless one is under way.
    fn quiet(&self) -> Option<u32> {
        let _reading = lock(&self.heard.reading);
        let platform = self.platform();
        let is_moving = platform.first_move().is_some() || platform.is_changing();
        (!is_moving).then(|| platform.moves_so_far())
    }

    /// Looks, by `look`, at what the program has mapped, and forgets the ranges (start, bytes)
    /// that `gone` finds in that to be managed and not there any more. What is there is left
    /// alone. `None`: the program moves memory at this moment; nothing has changed.
    pub fn forget<T>(
        &self,
        look: impl FnOnce() -> T,
        gone: impl FnOnce(&T) -> Vec<(usize, usize)>,
    ) -> Option<T> {
        let moves = self.platform().moves_so_far();
        let seen = look();
        // What was moved before the look was read and followed before this, or is not read yet.
        // Nobody waits for the books with the reading in his hands: who follows a move has the
        // books and waits for a block, whose owner may wait until what is being read is noted.
        let _books = lock(&self.heard.books);
        if self.quiet() != Some(moves) {
            return None;
        }
        let gone = gone(&seen);
        // Nor may a move be what it has seen.
        if self.quiet() != Some(moves) {
            return None;
        }
        for (start, len) in gone {
            self.forget_range(start, len);
        }
        Some(seen)
    }

    /// How many moves of managed memory have been heard of so far.
    pub fn moves(&self) -> u32 {
        self.platform().moves_so_far()
    }

    /// While all stands still: whether the program has moved managed memory, which the books do not
    /// follow before that has ended.
    pub fn has_moved(&self) -> bool {
        !self.platform().hear_moves() || self.platform().first_move().is_some()
    }

    /// Forgets what the books have in a range that the kernel has just given away as a new mapping:
    /// what was there has been unmapped or moved by a call that nobody saw. All of the range is
    /// managed then.
    /// `open`: it is left to the kernel.
    pub(super) fn forget_replaced(&self, start: usize, len: usize, open: bool) {
        self.settle_moves();
        let _books = lock(&self.heard.books);
        self.forget_range(start, len);
        self.platform().stay(start, len, open);
    }

    /// Whether a move is noted that the books do not follow yet.
    pub(super) fn follows(&self) -> bool {
        let _reading = lock(&self.heard.reading);
        self.platform().has_moves()
    }

    fn forget_range(&self, start: usize, len: usize) {
        let (mm, platform) = (self.mm(), self.platform());
        platform.lost(start, len);
        let pages = (len / PAGE_SIZE) as u64;
        let forgotten = mm.forget(self.space(), Vpn::of_addr(start as u64), pages);
        debug_assert!(forgotten.is_ok(), "{forgotten:?}");
        platform.lost_is_done();
    }

    /// Whether a fault of a page, which found nothing mapped there, has nothing to do with what is
    /// there now: the program has unmapped it meanwhile, and perhaps mapped it again.
    pub(super) fn has_left(&self, page: Vpn) -> bool {
        if !self.platform().adopts() {
            return false;
        }
        let (now, mut gone) = (Instant::now(), lock(&self.heard.gone));
        let slot = &mut gone[page.0 as usize % 16];
        let row = slot.filter(|(of, _, last)| *of == page && now < *last + APART);
        let count = row.map_or(1, |(_, count, _)| count + 1);
        *slot = Some((page, count, now));
        count < GONE || !self.platform().serves(page.addr() as usize)
    }

    /// Has somebody look at what the program has mapped: so it is when a fault has come of which
    /// nobody knows a mapping.
    pub fn want_look(&self) {
        self.heard.look.store(1, SeqCst);
        futex::wake(&self.heard.look, 1);
        self.crew().want(Role::LOOKER);
    }

    /// Whether that is wanted.
    pub fn is_look_wanted(&self) -> bool {
        self.heard.look.load(SeqCst) != 0
    }

    /// Takes it up, if it is wanted.
    pub fn take_look(&self) -> bool {
        self.heard.look.swap(0, SeqCst) != 0
    }

    /// Waits until it is wanted, or who has nothing to do leaves: then false.
    pub fn wait_for_look(&self) -> bool {
        futex::wait(&self.heard.look, 0, self.crew().idle());
        self.is_look_wanted() || self.crew().idle().is_none()
    }

    /// The program has moved managed memory by a call that nobody saw, and what it does unseen is
    /// not followed. What is there has come along, and is the kernel's from now on; what is away
    /// would be zeros.
    pub(super) fn end_unseen(&self, moved: Move) {
        let Move { from, to, len } = moved;
        let (start, pages) = (Vpn::of_addr(from as u64), (len / PAGE_SIZE) as u64);
        if self.mm().is_any_away(self.space(), start, pages) {
            self.end_by(moved);
        } else {
            // Just looked; nothing can be taken out of a place that is empty.
            self.platform().let_go(to, len);
        }
    }

    /// What has come to a new place would be wrong there.
    fn end_by(&self, moved: Move) {
        let page = Vpn::of_addr(moved.to as u64);
        let (write, missing) = (false, true);
        let fault = Fault {
            page,
            write,
            missing,
        };
        self.hooks.fatal(fault, &FaultError::Moved);
    }

    /// Waits until the books follow what the program has moved before this.
    pub fn settle_moves(&self) {
        if self.platform().adopts() {
            self.platform().hear_moves();
            self.follow_moves();
        }
    }

    /// Has the books follow the moves that are noted. What of them is managed stays so.
    pub(super) fn follow_moves(&self) {
        let _books = lock(&self.heard.books);
        self.follow_all();
    }

    /// The same with the books.
    fn follow_all(&self) {
        let (from, to, len) = (0, 0, 0);
        let mut last = Move { from, to, len };
        while let Some(moved) = self.platform().first_move() {
            self.follow(moved);
            self.platform().end_move();
            last = moved;
        }
        if self.platform().is_torn() {
            self.end_by(last);
        }
    }

    fn follow(&self, Move { from, to, len }: Move) {
        let (mm, platform, space) = (self.mm(), self.platform(), self.space());
        if platform.managed().touches(to, len) {
            // It was unmapped for that.
            self.forget_range(to, len);
        }
        platform.clear_move();
        for (start, len, foreign) in platform.managed().parts(from, len) {
            let place = (start, to + (start - from));
            if foreign {
                continue;
            }
            let pages = (len / PAGE_SIZE) as u64;
            let vpns = (Vpn::of_addr(place.0 as u64), Vpn::of_addr(place.1 as u64));
            let followed = platform.move_along(place, len, || mm.moved(space, vpns, pages));
            debug_assert!(followed.is_ok(), "{followed:?}");
        }
    }
}
