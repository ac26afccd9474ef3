//! The service image: who manages a program's memory, from within that memory.
//!
//! A static, position-independent program with a C library, a heap and thread-local storage of
//! its own. libdeckle.so maps it into the program and starts it at its entry point in a task
//! that shares the memory and nothing else: no descriptor, no signal, no directory, no lock of
//! the program's C library or loader. For itself it is an ordinary program with threads.
//!
//! In a child of fork the image begins anew on the copy of what its parent's knew; see [`fork`].

#![no_main]

mod account;
mod adopt;
mod advise;
mod cover;
mod crew;
mod end;
mod foreign;
mod fork;
mod giving;
mod gone;
mod heap;
mod limit;
mod locks;
mod look;
mod mappings;
mod own;
mod process;
mod refused;
mod remap;
mod segments;
mod serve;
mod settings;
mod shed;
mod slab;
mod swap;
mod swapfile;
mod tables;
mod tasks;
mod threads;
mod watch;

use core::ffi::{c_char, c_int};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use deckle_door::{Door, Mode};
use deckle_sys as sys;

#[global_allocator]
static GLOBAL: heap::Internal = heap::Internal;

static DOOR: AtomicPtr<Door> = AtomicPtr::new(core::ptr::null_mut());

/// What the program's side knows of us.
fn door() -> &'static Door {
    // SAFETY: set by `main` to a static of the program's side.
    unsafe { &*DOOR.load(Acquire) }
}

/// The defect that a test asks for (`DECKLE_FAULT`): in builds with assertions alone. Who forces
/// splits and collapses finds defects of programs, and may do so with any.
fn defect() -> &'static [u8] {
    match cfg!(debug_assertions) {
        true => door().fault.get(),
        false => b"",
    }
}

/// The image's entry. The second argument is the address of the [`Door`].
///
/// # Safety
/// Called by the C library's start code, which libdeckle.so has jumped to with these arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn main(_count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: two arguments, of which the second is a live door.
    unsafe { DOOR.store((*arguments.add(1)).cast_mut().cast(), Release) };
    let door = door();
    if let Err(why) = begin(door) {
        door.fail(why);
        return 1;
    }
    match door.mode.load(Relaxed) == Mode::Child as u32 {
        true => fork::first_in_child(door),
        false => tasks::main(door),
    }
}

/// Leaves all that is the program's.
fn begin(door: &Door) -> Result<(), &'static str> {
    heap::attach(door).map_err(|_| "no memory for its service")?;
    // The starting thread blocked all signals before it made us: no handler ever runs here.
    // SAFETY: calls on numbers and a string; the descriptor table and the directory are this
    // task's own. Out of the program's process group, since job control and kill(0) mean the
    // program; that cannot fail, as no group has the id of a new task.
    unsafe {
        if door.may(libc::SYS_prctl) {
            libc::prctl(libc::PR_SET_NAME, c"deckle".as_ptr());
        }
        if door.may(libc::SYS_setsid) {
            libc::setsid();
        }
        if !close_all_but(door.link.load(Relaxed)) {
            return Err("its service cannot leave the program's descriptors");
        }
        if door.may(libc::SYS_chdir) {
            // Out of the program's directory, if there is another: its root may be an empty one
            // that is gone.
            libc::chdir(c"/".as_ptr());
        }
    }
    if !door.may(libc::SYS_process_madvise) {
        deckle_live::drop_apart();
    }
    shed::lift_limits();
    shed::make_readable();
    Ok(())
}

/// Closes every descriptor of this task but `keep`. The table is a copy, so the program's record
/// locks, which belong to its table, stay.
fn close_all_but(keep: i32) -> bool {
    let close = |from: u32, to: u32| {
        let args = [from as usize, to as usize];
        // SAFETY: descriptors of this task alone, none of which anybody uses.
        from > to || unsafe { sys::call(libc::SYS_close_range, args) }.is_ok()
    };
    match u32::try_from(keep) {
        Ok(0) => close(1, u32::MAX),
        Ok(keep) => close(0, keep - 1) && close(keep + 1, u32::MAX),
        Err(_) => close(0, u32::MAX),
    }
}
