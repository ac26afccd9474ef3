//! The program's calls, as the service carries them out.

use crate::adopt::Found;
use crate::advise;
use crate::cover::Covered;
use crate::fork::CHANGED;
use crate::heap;
use crate::locks::is_room;
use crate::mappings::Mappings;
use crate::process::{Manager, Process};
use crate::sys::{self, PAGE};
use core::ffi::c_int;
use core::time::Duration;
use deckle_door::Op;
use deckle_door::request::{FOREIGN, Request, SLOTS};
use deckle_live::Place;
use deckle_live::platform::rights;
use deckle_mm::{Advice, MapError, PlatformError, Prot, Stop, Vpn};
use libc::c_long;
use std::time::Instant;

/// How long a fork is begun again while other threads of the program unmap memory unseen.
const AGAIN: Duration = Duration::from_secs(3);

/// The state of the calls.
pub struct Calls {
    pub process: &'static Process,
    /// Calls of other threads that came while everything stands still for a fork. With room
    /// for all there can be: nothing is allocated meanwhile.
    waiting: Vec<Request<'static>>,
    still: bool,
    /// Nobody allocates: a copy of the heap is made.
    is_heap_held: bool,
    /// What is mapped from now on is locked (mlockall); true: as it comes, not at once.
    pub lock_future: Option<bool>,
    /// MADV_DONTDUMP was given at some time.
    pub undumped: bool,
    pub mappings: Mappings,
}

pub fn vpn(addr: usize) -> Vpn {
    Vpn::of_addr(addr as u64)
}

pub fn pages(bytes: usize) -> u64 {
    (bytes / PAGE) as u64
}

/// Whether an advice populates, which ends at the first hole.
fn populates(advice: usize) -> bool {
    let advice = advice as c_int;
    matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE)
}

/// Whether these are rights that managed memory can have.
fn is_right(word: usize) -> bool {
    // Has no meaning, and is allowed.
    const SEM: c_int = 8;
    let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | SEM;
    word as c_int & !rights == 0
}

/// Whether a mapping is refused for its size: more than any system has, and not said to be room
/// that is never filled.
fn is_too_much(bytes: usize, rights: usize, flags: usize) -> bool {
    let filled = rights as c_int & libc::PROT_WRITE != 0;
    bytes > 1 << 40 && filled && flags as c_int & libc::MAP_NORESERVE == 0
}

/// Whether a call is on a range, its first two arguments, and concerns managed memory alone.
fn is_on_a_range(op: Op) -> bool {
    use Op::{Advise, Forget, Leave, Lock, Look, Protect, Surrender, Unlock, Unmap};
    let all = [
        Unmap, Protect, Advise, Lock, Unlock, Leave, Forget, Surrender, Look,
    ];
    all.contains(&op)
}

fn prot(word: usize) -> Prot {
    let has = |flag: c_int| word as c_int & flag != 0;
    let write = has(libc::PROT_WRITE);
    let exec = has(libc::PROT_EXEC);
    Prot {
        // The hardware cannot withhold reading alone.
        read: has(libc::PROT_READ) || write || exec,
        write,
        exec,
    }
}

/// The answer to a call on a range without managed memory. What may be adopted before the program
/// itself makes the call, and would have other bytes or rights then, is done here, where nothing is
/// adopted meanwhile.
fn foreign(op: Op, args: [usize; 6]) -> Result<usize, i32> {
    let [start, bytes, word, ..] = args;
    let drops = [libc::MADV_DONTNEED, libc::MADV_FREE].contains(&(word as c_int));
    match op {
        Op::Protect => raw(libc::SYS_mprotect, [start, bytes, word]),
        Op::Advise if drops => raw(libc::SYS_madvise, [start, bytes, word]),
        _ => Err(FOREIGN),
    }
}

/// A call of the program that is the kernel's to answer, made by the service in its name.
pub fn raw<const N: usize>(number: c_long, args: [usize; N]) -> Result<usize, i32> {
    // SAFETY: what the program asked for, on memory of its own.
    unsafe { sys::call(number, args) }
}

/// As the kernel would say it.
pub fn errno(error: &MapError) -> i32 {
    match error {
        MapError::BadRange(..) => libc::EINVAL,
        MapError::Hole(_) | MapError::NoRoom(_) | MapError::Limit | MapError::NoSpace(_) => {
            libc::ENOMEM
        }
        MapError::Platform(PlatformError {
            why: Stop::Refused(errno @ (libc::EEXIST | libc::EPERM | libc::EACCES)),
            ..
        }) => *errno,
        MapError::Platform(_) | MapError::Fault(_) => libc::ENOMEM,
    }
}

/// What the place of a mapping without one of its own is a multiple of.
///
/// As with the kernel, what is made of whole huge pages lies on them, and (allocators ask for
/// that by asking for more and giving the rest back) 32 MiB and more on a multiple of 32 MiB.
/// Other mappings lie side by side, where they are one mapping for the kernel, unless `all`
/// large ones are to lie on huge pages.
fn alignment(bytes: usize, all: bool) -> usize {
    match bytes {
        _ if bytes < 2 << 20 || !all && !bytes.is_multiple_of(2 << 20) => PAGE,
        _ if bytes >= 32 << 20 => 32 << 20,
        _ => 2 << 20,
    }
}

/// From how many bytes on a mapping is made by the service even while the kernel may have it: where
/// it has room for a whole huge page, wherever it begins, or is to lie on huge pages.
pub fn large(all: bool) -> usize {
    if all { 2 << 20 } else { 4 << 20 }
}

impl Calls {
    /// No foreign ranges yet.
    pub fn new(process: &'static Process) -> Calls {
        Calls {
            process,
            waiting: Vec::with_capacity(SLOTS),
            still: false,
            is_heap_held: false,
            lock_future: None,
            undumped: false,
            mappings: Mappings::new(process.most_mappings),
        }
    }

    /// Carries a call out and answers it; keeps it for later while a fork is on its way.
    pub fn serve(&mut self, request: Request<'static>) {
        if self.still && !matches!(request.op(), Op::ForkEnd | Op::ForkLook) {
            self.waiting.push(request);
            return;
        }
        self.carry_out(request);
        while !self.still && !self.waiting.is_empty() {
            let request = self.waiting.remove(0);
            self.carry_out(request);
        }
    }

    fn carry_out(&mut self, request: Request<'static>) {
        let (op, args) = (request.op(), request.args());
        if !self.still {
            let _inside = self.process.pager.gate().enter();
            self.process.pager.settle_moves();
            if let Err(errno) = self.forget_gone_of(op, args) {
                return request.answer(Err(errno));
            }
        }
        let managed = self.process.pager.platform().managed();
        let is_kept = op == Op::Advise && advise::is_kept(args[2]);
        if is_on_a_range(op) && !is_kept && !managed.touches(args[0], args[1]) {
            return request.answer(foreign(op, args));
        }
        if let Err(errno) = self.may_grow(op, args) {
            return request.answer(Err(errno));
        }
        // The end of the program waits for what is done to its memory. A fork closes the gate.
        let is_fork = matches!(op, Op::ForkBegin | Op::ForkEnd | Op::ForkLook);
        let inside = (!is_fork).then(|| self.process.pager.gate().enter());
        let result = match op {
            Op::Map => self.map(args),
            Op::MapFixed => self.map_fixed(args),
            Op::Unmap => self.unmap(args[0], args[1]),
            Op::Protect => self.protect(args),
            Op::Advise => self.advise(args),
            Op::Lock => self.lock(args),
            Op::Unlock => self.on(libc::SYS_munlock, args, |mm, space, start, n| {
                mm.munlock(space, start, n)
            }),
            Op::LockAll => self.lock_all(args[0] as c_int, args[1]),
            Op::UnlockAll => self.unlock_all(),
            Op::Surrender => self.surrender(args[0], args[1]),
            Op::Look => Ok(0),
            Op::Adopt => self.adopt_all(Found::of(args[0])),
            Op::Cover => self.cover(args[0], args[1], Covered::of(args[2])),
            Op::Remap => self.remap(args),
            Op::Leave => self.leave(args[0], args[1]),
            Op::Forget => self.forget(args[0], args[1]),
            Op::Hold => self.process.hold(args[0], args[1]),
            Op::ForkBegin => self.begin_fork(args).map(|()| 0),
            Op::ForkLook => {
                self.let_heap_go();
                Ok(self.process.changed())
            }
            Op::ForkEnd => {
                self.let_heap_go();
                self.still = false;
                self.process.fork_end()
            }
            Op::Limit => Ok(self.process.reserved()),
        };
        self.note_reserved(op);
        drop(inside);
        request.answer(result);
    }

    /// Forgets what has gone of the memory that a call is on.
    fn forget_gone_of(&self, op: Op, args: [usize; 6]) -> Result<(), i32> {
        let [start, bytes, new, flags, to, _] = args;
        let is_moved_to = op == Op::Remap && flags as c_int & libc::MREMAP_FIXED != 0;
        if is_moved_to {
            self.process.forget_gone(to, new)?;
        }
        let is_on_one = matches!(op, Op::Remap | Op::MapFixed | Op::Hold | Op::Cover);
        match is_on_one || is_on_a_range(op) {
            true => self.process.forget_gone(start, bytes),
            false => Ok(()),
        }
    }

    /// Has everything stand still for a fork. What happens unseen until the child is made is to be
    /// looked for.
    fn begin_fork(&mut self, args: [usize; 6]) -> Result<(), i32> {
        let begin = Instant::now();
        loop {
            let moves = self.process.pager.moves();
            // What has gone unseen cannot be handed to a child.
            let inside = self.process.pager.gate().enter();
            let _ = self.adopt_all(Found::Always);
            drop(inside);
            let done = self.process.fork_begin(args[0] != 0, args[1], args[2]);
            self.still = done.is_ok();
            if self.still {
                heap::hold();
                self.is_heap_held = true;
            }
            // More may have gone since, or have been moved: which is known when it is looked.
            let may_have_changed = || {
                let changed = self.process.changed();
                changed > 0 || self.process.pager.moves() != moves
            };
            let is_again = match done {
                Err(CHANGED) => true,
                Err(libc::ENOMEM) => may_have_changed(),
                _ => false,
            };
            if !is_again || begin.elapsed() >= AGAIN {
                return done.map_err(|errno| match errno {
                    CHANGED => libc::ENOMEM,
                    errno => errno,
                });
            }
        }
    }

    fn let_heap_go(&mut self) {
        if core::mem::take(&mut self.is_heap_held) {
            heap::let_go();
        }
    }

    /// Calls `work` on the managed parts of a range and the system call `number` (its range
    /// first, then the third argument) on the others.
    pub fn on<const N: usize>(
        &self,
        number: c_long,
        args: [usize; N],
        work: impl Fn(&Manager, deckle_mm::SpaceId, Vpn, u64) -> Result<(), MapError>,
    ) -> Result<usize, i32> {
        let (mm, space) = self.process.memory();
        let mut result = Ok(0);
        let [addr, bytes, word, ..] = sys::words(args);
        for (start, bytes, foreign) in self.parts(addr, bytes) {
            if foreign {
                match raw(number, [start, bytes, word]) {
                    // As the kernel: the rest is done, and the hole told; but nothing is populated
                    // behind it.
                    Err(libc::ENOMEM) if number == libc::SYS_madvise && !populates(word) => {
                        result = Err(libc::ENOMEM);
                    }
                    done => drop(done?),
                }
            } else {
                work(mm, space, vpn(start), pages(bytes)).map_err(|e| errno(&e))?;
            }
        }
        result
    }

    fn protect(&mut self, args: [usize; 6]) -> Result<usize, i32> {
        // Managed memory is no stack that grows.
        if !is_right(args[2]) {
            return Err(libc::EINVAL);
        }
        self.may_cut(args[0], args[1])?;
        let wanted = prot(args[2]);
        self.on(libc::SYS_mprotect, args, |mm, space, start, n| {
            let had = mm.mapped_parts(space, start, n);
            mm.mprotect(space, start, n, wanted)?;
            if had.iter().all(|v| v.prot == wanted) {
                // The books have them already. The program may have taken them by a call that no
                // task saw.
                let (at, bytes) = (start.addr() as usize, n as usize * sys::PAGE);
                let _ = raw(libc::SYS_mprotect, [at, bytes, rights(wanted) as usize]);
            }
            Ok(())
        })
    }

    fn map(&mut self, args: [usize; 6]) -> Result<usize, i32> {
        let [hint, bytes, _, rights, flags, most] = args;
        if self.mappings.is_full(self.process) || is_too_much(bytes, rights, flags) {
            return Err(libc::ENOMEM);
        }
        self.may_map(bytes, flags as c_int, most)?;
        let place = Place::Near {
            hint,
            align: alignment(bytes, self.process.align_mappings),
            offset: 0,
        };
        self.map_at(place, bytes, rights, flags as c_int)
    }

    fn map_fixed(&mut self, args: [usize; 6]) -> Result<usize, i32> {
        let [addr, bytes, _, rights, flags, most] = args;
        let flags = flags as c_int;
        if is_too_much(bytes, rights, args[4]) {
            return Err(libc::ENOMEM);
        }
        self.may_cut(addr, bytes)?;
        self.may_map(bytes, flags, most)?;
        let place = match flags & libc::MAP_FIXED_NOREPLACE != 0 {
            true => Place::Free(addr),
            false => {
                self.process.forget_notes(addr, bytes);
                Place::At(addr)
            }
        };
        // Who knows the address may use it from the first moment on.
        crate::door().places.note(addr, bytes);
        self.map_at(place, bytes, rights, flags)
    }

    fn map_at(
        &mut self,
        place: Place,
        bytes: usize,
        rights: usize,
        flags: c_int,
    ) -> Result<usize, i32> {
        // SAFETY: what the program asked for; its calls come one after the other.
        let start = unsafe { self.process.pager.map(place, pages(bytes), prot(rights)) };
        let addr = start.map_err(|e| errno(&e))?.addr() as usize;
        crate::door().places.note(addr, bytes);
        if self.undumped && matches!(place, Place::At(_)) {
            // What was there before may have been advised; this has not asked for it.
            let advice = libc::MADV_DODUMP as usize;
            let _ = raw(libc::SYS_madvise, [addr, bytes, advice]);
        }
        self.populate(addr, bytes, rights, flags)
    }

    /// MAP_LOCKED, mlockall for what comes, and MAP_POPULATE.
    fn populate(
        &self,
        addr: usize,
        bytes: usize,
        rights: usize,
        flags: c_int,
    ) -> Result<usize, i32> {
        let ((mm, space), at, n) = (self.process.memory(), vpn(addr), pages(bytes));
        let future = self.lock_future;
        if is_room(bytes, flags) {
            self.process.rooms.lock().insert(addr, bytes);
        }
        if flags & libc::MAP_LOCKED != 0 || future.is_some() {
            let on_fault = future == Some(true) && flags & libc::MAP_LOCKED == 0;
            let as_it_comes = on_fault || is_room(bytes, flags);
            let locked = self.lock_so(at, n, as_it_comes && flags & libc::MAP_POPULATE == 0);
            if let Err(error) = locked {
                // SAFETY: known to nobody, or what the program has replaced.
                let _ = unsafe { self.process.pager.unmap(at, n) };
                return Err(match error {
                    MapError::Limit => libc::EAGAIN,
                    error => errno(&error),
                });
            }
        } else if flags & (libc::MAP_POPULATE | libc::MAP_NONBLOCK) == libc::MAP_POPULATE {
            let advice = match prot(rights) {
                Prot { write: true, .. } => Advice::PopulateWrite,
                Prot { read: true, .. } => Advice::PopulateRead,
                _ => return Ok(addr),
            };
            // As with the kernel's: what does not fit is not populated.
            let _ = mm.madvise(space, at, n, advice);
        }
        Ok(addr)
    }

    /// munmap of what is managed and of what lies between, in the order of addresses.
    pub(crate) fn unmap(&mut self, addr: usize, bytes: usize) -> Result<usize, i32> {
        self.may_cut(addr, bytes)?;
        self.process.forget_notes(addr, bytes);
        for (start, len, foreign) in self.parts(addr, bytes) {
            if foreign {
                raw(libc::SYS_munmap, [start, len])?;
            } else {
                // SAFETY: what the program asked for.
                let done = unsafe { self.process.pager.unmap(vpn(start), pages(len)) };
                done.map_err(|e| errno(&e))?;
            }
        }
        Ok(0)
    }
}
