//! Forks.
//!
//! All of them end in one system call without CLONE_VM: libc's `fork` and `_Fork`, what libc
//! forks by itself (`daemon`, `forkpty`), `clone`, and calls by number. It is caught by a
//! [`window`] and made here, with everything standing still: the service is asked to, the call is
//! made, and in the child, before any code of the program runs there, the image starts anew. The
//! parent's service goes on when the child's has taken over, and the thread that forks when the
//! child runs. A child that cannot run ends, and the fork fails with EAGAIN.
//!
//! From the request on nothing of the program is touched but by the kernel: we run on a stack of
//! our own, since in the child the thread's may be write-protected and served by nobody yet.

use crate::child::{self, Child, Pending, STAGES, Shared, Stage};
use crate::words::Words;
use crate::{DOOR, brk, gate, host, limits, load, pointers, rights, sys};
use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicUsize};
use deckle_door::link::Link;
use deckle_door::{Lock, Mode, Op, spin};

/// The kernel's `struct clone_args`, as far as Linux 5.7 knows it.
type CloneArgs = [u64; 11];
/// Its words: where the child's descriptor goes, its id in the child and in the parent; the new
/// stack, address and bytes; and the ids that the child shall have, address and count.
pub const PIDFD: usize = 1;
const CHILD: usize = 2;
pub const PARENT: usize = 3;
pub const STACK: [usize; 2] = [5, 6];
pub const IDS: [usize; 2] = [8, 9];

/// A call that makes a process with a copy of the memory.
#[derive(core::clone::Clone, Copy)]
pub enum Clone {
    /// `clone`, and `fork` as one: flags, parent's word, child's word, thread area; and the
    /// child's stack (0: the parent's).
    Old([usize; 4], usize),
    /// `clone3`: its structure without a stack, bytes of it, and the child's stack.
    New(CloneArgs, usize, usize),
}

impl Clone {
    /// The call, if it is one of these.
    pub fn of(number: libc::c_long, args: [usize; 6]) -> Option<Clone> {
        const VM: usize = libc::CLONE_VM as usize;
        // A parent that sleeps until its child executes a program would let everything stand
        // still for so long. Without the child in its memory it need not.
        const VFORK: usize = libc::CLONE_VFORK as usize;
        match number {
            libc::SYS_fork => Some(Clone::Old([libc::SIGCHLD as usize, 0, 0, 0], 0)),
            libc::SYS_clone if args[0] & VM == 0 => {
                let [flags, stack, parent, child, area, _] = args;
                Some(Clone::Old([flags & !VFORK, parent, child, area], stack))
            }
            libc::SYS_clone3 => {
                let bytes = args[1].min(size_of::<CloneArgs>());
                let last = args[0].checked_add(bytes)?.checked_sub(1)?;
                if ![args[0], last].into_iter().all(pointers::can_read) {
                    // The kernel refuses it.
                    return None;
                }
                let mut words: CloneArgs = [0; 11];
                // SAFETY: the caller's promise to the kernel: a structure of so many bytes.
                unsafe {
                    let to = words.as_mut_ptr().cast::<u8>();
                    core::ptr::copy_nonoverlapping(args[0] as *const u8, to, bytes);
                }
                if words[0] as usize & VM != 0 || args[1] > bytes {
                    return None;
                }
                words[0] &= !(VFORK as u64);
                let stack = words[STACK[0]] as usize + words[STACK[1]] as usize;
                for at in STACK {
                    words[at] = 0;
                }
                Some(Clone::New(words, bytes, stack))
            }
            _ => None,
        }
    }

    /// The stack that the child asks for.
    pub fn stack(&self) -> Option<usize> {
        let (Clone::Old(_, stack) | Clone::New(_, _, stack)) = self;
        Some(*stack).filter(|stack| *stack != 0)
    }

    /// Whether one of these flags is given.
    pub fn has(&self, any: i32) -> bool {
        let flags = match self {
            Clone::Old([flags, ..], _) => *flags,
            Clone::New(words, ..) => words[0] as usize,
        };
        flags & any as usize != 0
    }

    /// Whether the child may be where nobody can connect.
    fn leaves(&self) -> bool {
        const NEW: i32 =
            libc::CLONE_NEWNS | libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNET;
        self.has(NEW)
    }

    /// The word in the child that the kernel writes as it begins and ends, and its service looks at
    /// before that serves a fault; 0: none.
    fn word_of_child(&self) -> usize {
        match self {
            _ if !self.has(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) => 0,
            Clone::Old([_, _, child, _], _) => *child,
            Clone::New(words, ..) => words[CHILD] as usize,
        }
    }

    /// The signal that the child's end sends; 0: none.
    pub fn exit_signal(&self) -> u64 {
        const SIGNAL: u64 = 0xff;
        let signal = match self {
            Clone::Old([flags, ..], _) => *flags as u64 & SIGNAL,
            Clone::New(words, ..) => words[4],
        };
        if signal <= 64 { signal } else { 0 }
    }

    /// Where the kernel writes a descriptor of the child.
    pub fn pidfd(&self) -> Option<*const i32> {
        let word = match self {
            Clone::Old([_, parent, ..], _) => *parent,
            Clone::New(words, ..) => words[PIDFD] as usize,
        };
        self.has(libc::CLONE_PIDFD).then_some(word as *const i32)
    }

    /// # Safety
    /// The child goes on from here with a copy of everything.
    unsafe fn make(&self) -> Result<usize, i32> {
        let (number, args) = match self {
            Clone::Old([flags, parent, child, area], _) => {
                (libc::SYS_clone, [*flags, 0, *parent, *child, *area])
            }
            Clone::New(words, bytes, _) => {
                (libc::SYS_clone3, [words.as_ptr() as usize, *bytes, 0, 0, 0])
            }
        };
        // SAFETY: the caller's promise; no stack is given.
        unsafe { sys::call(number, args) }
    }
}

/// A stack of ours.
#[repr(align(4096))]
pub struct Stack<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);
// SAFETY: only used as the stack of one at a time, says who calls a function on it.
unsafe impl<const BYTES: usize> Sync for Stack<BYTES> {}

impl<const BYTES: usize> Stack<BYTES> {
    /// Unused.
    pub const fn new() -> Stack<BYTES> {
        Stack(UnsafeCell::new([0; BYTES]))
    }
}

static OWN_STACK: Stack<{ 64 << 10 }> = Stack::new();
/// One fork at a time, and none while the service is started.
pub static FORKING: Lock<()> = Lock::new(());
/// Number of the last fork.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// Address of a page that parent and child share; 0 before the first fork.
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// How often a fork is tried at least, and for how long, while other threads map, move and unmap
/// memory by calls that are not seen. A thread that does nothing else leaves one try in a hundred.
const TRIES: u32 = 16;
/// Cycles of the time stamp counter: some three seconds. A filter may refuse other clocks.
const TIME: u64 = 8 << 30;
/// An errno that no call of the program's returns: memory has changed while the child was made.
const STALE: i32 = libc::ERESTART;

/// What is to be done on the own stack, and what came of it.
struct Work {
    call: Clone,
    words: Words,
    by: host::Caller,
    managed: bool,
    result: Result<usize, i32>,
}

/// Makes the process, with everything standing still. Returns what the call returns, in the child
/// 0, when its service runs. All signals are blocked.
///
/// # Errors
/// The errno of the call; ENOMEM if the limit has no room for a copy; EAGAIN if the child cannot
/// have a service.
pub fn carry_out(mut call: Clone, by: host::Caller) -> Result<usize, i32> {
    if call.leaves() {
        rights::provide(false);
    }
    // Held by another thread, they would stay held in the child for ever.
    brk::CHANGING.acquire();
    // Nobody starts the service now.
    FORKING.acquire();
    limits::CHANGING.acquire();
    let managed = gate::is_managed();
    let result = Words::take(&mut call).and_then(|words| {
        let sequences = managed.then(host::leave_sequences);
        let mut work = Work {
            call,
            words,
            by,
            managed,
            result: Err(libc::EAGAIN),
        };
        let (mut tries, begin) = (0, spin::now());
        loop {
            // SAFETY: the function returns, in the child on its copy of the stack.
            unsafe { on_own_stack(run, &raw mut work as usize) };
            if work.result != Err(STALE) {
                break;
            }
            work.result = Err(libc::EAGAIN);
            tries += 1;
            if tries >= TRIES && spin::now().wrapping_sub(begin) > TIME {
                break;
            }
        }
        sequences.into_iter().for_each(host::return_to_sequences);
        work.result
    });
    limits::CHANGING.release();
    FORKING.release();
    brk::CHANGING.release();
    result
}

/// Calls a function on our own stack.
///
/// # Safety
/// The caller has [`FORKING`], so nobody else uses the stack.
pub unsafe fn on_own_stack<T>(run: extern "C" fn(T), argument: usize) {
    // SAFETY: the caller's promise.
    unsafe { on_stack(&OWN_STACK, run, argument) }
}

/// Calls a function on a stack.
///
/// # Safety
/// Nobody else uses the stack.
pub unsafe fn on_stack<T, const BYTES: usize>(
    stack: &Stack<BYTES>,
    run: extern "C" fn(T),
    argument: usize,
) {
    let top = stack.0.get() as usize + BYTES;
    // SAFETY: the stack is unused; the function returns by the address that the call puts there,
    // and the stack pointer comes back from a register that functions keep.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top,
            run = in(reg) run,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

extern "C" fn run(work: &mut Work) {
    // The work lies on the caller's stack: read before everything stands still, written after.
    let (call, words, by) = (work.call, work.words, work.by);
    let number = NUMBER.fetch_add(STAGES, Relaxed).wrapping_add(STAGES);
    let number = number.max(STAGES);
    work.result = make((&call, words), by, work.managed.then_some(number));
}

/// What a fork and its child are told by, and its number.
type Begun = (&'static Shared, u32);

fn make(
    (call, words): (&Clone, Words),
    by: host::Caller,
    number: Option<u32>,
) -> Result<usize, i32> {
    host::hold();
    let mut shared = None;
    let hindrance = number.and_then(|_| rights::hindrance());
    let wanted = number.filter(|_| hindrance.is_none());
    let link = wanted.and_then(|_| rights::connection());
    if let Some(number) = number {
        let begun = shared_words().and_then(|words| {
            DOOR.fork.store(number, Relaxed);
            DOOR.forked
                .store(core::ptr::from_ref(words) as usize, Relaxed);
            let raw = link.as_ref().map_or(-1, |link| link.fd().raw());
            DOOR.link.store(raw, Relaxed);
            let alone = usize::from(link.is_none());
            let why = hindrance.map_or(0, |call| call as usize + 1);
            gate::request(Op::ForkBegin, [alone, why, call.word_of_child()])
                .map(|_| (words, number))
        });
        match begun {
            Ok(begun) => shared = Some(begun),
            Err(errno) => {
                host::let_go(None);
                return Err(errno);
            }
        }
    }
    let pending = Pending::of(call);
    // SAFETY: the child comes back to this line on its copy of this stack, and finds all locks
    // of this library that it will need held by itself.
    let result = unsafe { call.make() };
    match (result, shared) {
        (Ok(0), shared) => {
            host::let_go(Some(by));
            DOOR.pid.store(sys::getpid() as i32, Relaxed);
            let alone = link.is_none();
            if call.has(libc::CLONE_FILES) {
                // The parent closes it: by the time that the child does, the number may be another
                // file's.
                link.map(Link::into_raw);
            }
            if shared.is_some() {
                in_child(alone);
            }
            result
        }
        (result, Some(begun)) => in_parent((call, words), begun, result, link.is_some(), pending),
        (_, None) => {
            host::let_go(None);
            result
        }
    }
}

/// After the call: waits until the child runs, if it is to have a service.
fn in_parent(
    (call, words): (&Clone, Words),
    (shared, number): Begun,
    result: Result<usize, i32>,
    is_served: bool,
    pending: Pending,
) -> Result<usize, i32> {
    let pid = result.ok().filter(|_| is_served);
    let child = pid.map(|pid| Child {
        pid: pid as i32,
        word: &shared.stage,
        number,
    });
    if let Some(child) = &child {
        let seen = gate::request(Op::ForkLook, [0; 6]);
        shared.tell_child(number, seen == Ok(0));
        child.wait_for(Stage::Apart);
    }
    let _ = gate::request(Op::ForkEnd, [0; 6]);
    host::let_go(None);
    let Some(child) = child else {
        if result.is_ok() {
            words.give();
        }
        return result;
    };
    let why = match child.wait_for(Stage::Runs) {
        Stage::Runs => {
            words.give();
            return result;
        }
        Stage::Stale => STALE,
        _ => libc::EAGAIN,
    };
    child.bury(call, pending);
    Err(why)
}

/// The words by which a child and its parent's thread tell each other how far they are.
fn shared_words() -> Result<&'static Shared, i32> {
    if SHARED.load(Relaxed) == 0 {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize;
        // SAFETY: a new mapping, which changes no other.
        let at = unsafe { sys::call(libc::SYS_mmap, [0, sys::PAGE, prot, flags, usize::MAX]) };
        SHARED.store(at.map_err(|_| libc::ENOMEM)?, Relaxed);
    }
    // SAFETY: our own mapping, never undone.
    Ok(unsafe { &*(SHARED.load(Relaxed) as *const Shared) })
}

fn in_child(alone: bool) {
    gate::note_child();
    DOOR.requests.forget();
    // A grandchild's answer is not for our parent.
    SHARED.store(0, Relaxed);
    if alone {
        return gate::be_plain();
    }
    let failure = load::start(Mode::Child).err();
    if !child::tell(failure) {
        sys::exit_all(1)
    }
}
