//! Limits on the address space (RLIMIT_AS) and on data (RLIMIT_DATA) mean what the program has
//! mapped by itself.
//!
//! In the same memory lies what the service reserves, and the kernel counts that, too. So of a
//! managed program the kernel's limits are higher than its own, by as much and some more; the
//! service refuses calls that would take the program over its own on addresses; and the program
//! reads back what it has set. Programs that it executes have its own limits: the soft ones are
//! put in force before the call, and the hard ones, which could not be raised again if that fails,
//! by the next program's door, which is told both ([`rights::told`]).

use crate::{DOOR, gate, rights, sys};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use deckle_door::{Lock, Op};
use libc::c_long;

const NONE: u64 = libc::RLIM_INFINITY;

/// Soft and hard limit.
type Limit = [u64; 2];

/// A limit of which the kernel may have another than the program.
struct Kept {
    /// The kernel's number of it.
    what: usize,
    /// How much more than what is reserved the soft limit is raised: the service may grow so much
    /// before it follows; and the hard one, which can be raised but by the mighty.
    more: [u64; 2],
    /// The program's own, if the kernel has another.
    own: [AtomicU64; 2],
    /// What the kernel has been told instead.
    raised: [AtomicU64; 2],
    /// What was reserved when the kernel was told.
    reserved: AtomicUsize,
}

static SPACE: Kept = Kept::new(libc::RLIMIT_AS as usize, [16 << 20, 64 << 30]);
static DATA: Kept = Kept::new(libc::RLIMIT_DATA as usize, [1 << 30, 64 << 30]);
static ALL: [&Kept; 2] = [&SPACE, &DATA];
/// Of who changes them; and of who forks, or a child would find it taken for ever.
pub static CHANGING: Lock<()> = Lock::new(());

fn load(words: &[AtomicU64; 2]) -> Limit {
    words.each_ref().map(|word| word.load(Acquire))
}

fn store(words: &[AtomicU64; 2], limit: Limit) {
    words[0].store(limit[0], Release);
    words[1].store(limit[1], Release);
}

fn is_mighty() -> bool {
    const SYS_RESOURCE: u32 = 24;
    sys::has_capability(SYS_RESOURCE)
}

impl Kept {
    const fn new(what: usize, more: [u64; 2]) -> Kept {
        Kept {
            what,
            more,
            own: [const { AtomicU64::new(NONE) }; 2],
            raised: [const { AtomicU64::new(NONE) }; 2],
            reserved: AtomicUsize::new(0),
        }
    }

    /// Whether the kernel has another limit than the program.
    #[inline]
    fn is_raised(&self) -> bool {
        self.own[0].load(Relaxed) != NONE || self.own[1].load(Relaxed) != NONE
    }

    /// The kernel's limit, and a new one in its place.
    fn kernel(&self, new: Option<Limit>) -> Result<Limit, i32> {
        sys::limit(self.what, new)
    }

    /// The program's limit. If somebody else has changed what the kernel has, that is the
    /// program's.
    fn get(&self) -> Result<Limit, i32> {
        let now = self.kernel(None)?;
        Ok(match self.is_raised() && now == load(&self.raised) {
            true => load(&self.own),
            false => now,
        })
    }

    /// The kernel's limit for one of the program's; `most`: the hard limit that the kernel has.
    fn raised(&self, own: Limit, most: u64) -> Limit {
        let reserved = DOOR.reserved.load(Relaxed);
        self.reserved.store(reserved, Relaxed);
        let add = |limit: u64, more: u64| match limit {
            NONE => NONE,
            limit => limit.saturating_add(reserved as u64).saturating_add(more),
        };
        let hard = match is_mighty() {
            true => add(own[1], self.more[1]),
            false => add(own[1], self.more[1]).min(most),
        };
        let soft = match own[0] {
            NONE => hard,
            // No whole number of pages, and so none that anybody else would set: see `get`.
            own => (add(own, self.more[0]) | 1).min(hard.saturating_sub(1)),
        };
        [soft, hard]
    }

    /// Puts a limit of the program's in force. Its kernel's rules are kept by the caller.
    fn apply(&self, own: Limit) -> Result<(), i32> {
        if gate::is_managed() {
            let reserved = gate::request(Op::Limit, [0; 6])?;
            DOOR.reserved.store(reserved, Relaxed);
        }
        let new = self.raised(own, self.kernel(None)?[1]);
        self.kernel(Some(new))?;
        store(&self.raised, new);
        store(&self.own, own);
        if self.what == SPACE.what {
            DOOR.limit.store(own[0] as usize, Release);
        }
        Ok(())
    }

    fn set(&self, new: Limit) -> Result<(), i32> {
        if self.what == DATA.what && new[0] != NONE {
            // What it reserves is data: it could not later.
            rights::provide(true);
        }
        // A child that is still in its parent's memory has limits of its own.
        if !gate::is_managed() && !self.is_raised() || !sys::is_owner() {
            return self.kernel(Some(new)).map(drop);
        }
        sys::alone(&CHANGING, || {
            let own = self.get()?;
            if new[0] > new[1] {
                return Err(libc::EINVAL);
            }
            if new[1] > own[1] && !is_mighty() {
                return Err(libc::EPERM);
            }
            self.apply(new)
        })
    }

    /// See [`follow`].
    fn follow(&self) {
        if !self.is_raised() || DOOR.reserved.load(Relaxed) == self.reserved.load(Relaxed) {
            return;
        }
        sys::alone(&CHANGING, || {
            let (own, before) = (load(&self.own), load(&self.raised));
            let new = [self.raised(own, before[1])[0].min(before[1]), before[1]];
            // Not if somebody else has changed it: `get` shall see that.
            if new != before && self.kernel(None) == Ok(before) && self.kernel(Some(new)).is_ok() {
                store(&self.raised, new);
            }
        });
    }

    /// See [`lift`].
    fn lift(&self) -> Option<Limit> {
        let own = self.kernel(None).ok().filter(|own| own[0] != NONE)?;
        if !is_mighty() || self.kernel(Some([NONE; 2])).is_err() {
            let _ = self.kernel(Some([own[1]; 2]));
        }
        Some(own)
    }

    /// Puts the program's own soft limit in force; the one before, if there was another.
    fn lower(&self) -> Option<Limit> {
        let now = self.is_raised().then(|| self.kernel(None).ok()).flatten();
        let before = now.filter(|now| *now == load(&self.raised))?;
        let _ = self.kernel(Some([load(&self.own)[0].min(before[0]), before[1]]));
        Some(before)
    }
}

/// Whether the kernel has another limit than the program.
#[inline]
pub fn is_raised() -> bool {
    ALL.iter().any(|kept| kept.is_raised())
}

/// After a call that may have changed what is reserved: the kernel's soft limits follow.
#[cold]
pub fn follow() {
    if sys::is_owner() {
        ALL.iter().for_each(|kept| kept.follow());
    }
}

/// Makes room for the service, as far as the hard limits allow. The program's own limits.
pub fn lift() -> [Option<Limit>; 2] {
    ALL.map(Kept::lift)
}

/// After [`lift`]: the service runs, or will not.
pub fn settle(own: [Option<Limit>; 2], runs: bool) {
    for (kept, own) in ALL.iter().zip(own) {
        if own.is_some_and(|own| !runs || sys::alone(&CHANGING, || kept.apply(own)).is_err()) {
            let _ = kept.kernel(own);
        }
    }
}

/// Calls what executes a program, with the program's own soft limits in force.
pub fn for_exec<T>(exec: impl FnOnce() -> T) -> T {
    let before = ALL.map(Kept::lower);
    let result = exec();
    for (kept, before) in ALL.iter().zip(before) {
        if before.is_some() {
            let _ = kept.kernel(before);
        }
    }
    result
}

/// What an executed program is told: the limits that the kernel has not.
pub fn told() -> [Limit; 2] {
    ALL.map(|kept| match kept.is_raised().then(|| kept.get()) {
        Some(Ok(limit)) => limit,
        _ => [NONE; 2],
    })
}

/// At the start of a program: what was told is put in force.
pub fn take(told: &[u64]) {
    for (kept, said) in ALL.iter().zip(told.chunks(2)) {
        if let ([soft, hard], Ok(now)) = (said, kept.kernel(None))
            && (*soft != NONE || *hard != NONE)
        {
            // It can only be less than what the kernel has.
            let _ = kept.kernel(Some([(*soft).min(now[1]), (*hard).min(now[1])]));
        }
    }
}

/// prlimit64, setrlimit and getrlimit, of whatever process and whatever limit.
///
/// # Errors
/// The errno of the call.
///
/// # Safety
/// As the call: null, or a readable and a writable structure.
pub unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, i32> {
    let [pid, what, new, old] = match number {
        libc::SYS_setrlimit => [0, args[0], args[1], 0],
        libc::SYS_getrlimit => [0, args[0], 0, args[1]],
        _ => [args[0], args[1], args[2], args[3]],
    };
    let own = pid as i32 == 0 || pid as i32 == sys::getpid() as i32;
    let is = |kept: &&&Kept| own && kept.what == what as u32 as usize;
    // SAFETY: the caller's promise. Before the old one is written, which may be the same structure.
    let wanted = (new != 0).then(|| unsafe { (new as *const Limit).read_unaligned() });
    if own && what as u32 as usize == libc::RLIMIT_NOFILE as usize {
        wanted.into_iter().for_each(rights::limit_files);
    }
    let Some(kept) = ALL.iter().find(is).filter(|_| new | old != 0) else {
        // SAFETY: the caller's promise.
        return unsafe { sys::call(number, args) };
    };
    let before = match kept.is_raised() && sys::is_owner() {
        true => sys::alone(&CHANGING, || kept.get())?,
        false => kept.get()?,
    };
    if let Some(wanted) = wanted {
        kept.set(wanted)?;
    }
    if old != 0 {
        // SAFETY: the caller's promise.
        unsafe { (old as *mut Limit).write_unaligned(before) };
    }
    Ok(0)
}
