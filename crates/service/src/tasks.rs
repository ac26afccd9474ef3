//! What the tasks of the service run.
//!
//! | task | work |
//! |---|---|
//! | `main` | sets the service up, then watches the program and `deckle run` |
//! | `handler` | reads faults, serves what needs no waiting |
//! | `caller` | the program's calls (mmap and its family, fork) |
//! | `handler`, more | one for each of a few CPUs |
//! | `worker` | serves the other faults |
//! | `background` | kswapd's part |
//! | `filler` | makes huge pages ahead of need |
//! | `donor` | reclaims for other processes of the group |
//!
//! The first three are always there, the others when there is something for them (`crew.rs`).

use crate::account::{Account, DONATION};
use crate::adopt::Glimpse;
use crate::crew::DONOR;
use crate::end::{self, Last};
use crate::own::Own;
use crate::process::{self, Process};
use crate::serve;
use crate::swap::Swap;
use crate::swapfile::Files;
use crate::sys::{self, PAGE};
use crate::watch::{State, Watch};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use core::time::Duration;
use deckle_door::{Door, Lock};
use deckle_group::proto::Link;
use deckle_group::{Group, LineId, Name, Reservation, droppable};
use deckle_live::{Capabilities, Forcing, LiveConfig, Opened, Pager};
use deckle_store::Encrypted;
use deckle_sys::Fd;
use deckle_uffd::Uffd;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use crate::look::{self, Rest};
use crate::{crew, shed, threads};

/// The first task.
pub fn main(door: &Door) -> ! {
    end::on_panic();
    match set_up(door) {
        Ok(process) => {
            process::publish(core::ptr::from_ref(process).cast_mut());
            run(process)
        }
        Err(why) => give_up(door, &why),
    }
}

/// There is no service, for a reason.
pub fn give_up(door: &Door, why: &str) -> ! {
    shed::make_unreadable();
    door.fail(why);
    sys::exit_all(1)
}

/// Starts the other tasks, tells the program that it can go on, and looks after it.
pub fn run(process: &'static Process) -> ! {
    let ready = hello(process)
        .and_then(|()| {
            // Threads have what the first task has.
            shed::capabilities();
            process.pager.watch(process.link.fd().raw());
            (process.pager).run_on_demand(crew::may_come_on_demand(process));
            threads::spawn_all(process)
        })
        .and_then(|()| shed::calls(process));
    match ready {
        Ok(()) => {
            process.charge_seen();
            crate::door().tell();
            look::after(process)
        }
        Err(why) => {
            process.account.group().leave(process.account.line());
            // The program is told; this end is not news to `deckle run`.
            let _ = process.link.bye();
            give_up(crate::door(), &why)
        }
    }
}

/// What a service needs of its system: opened here, or where the program's credentials or a filter
/// do not give that, by `deckle run`.
pub struct Found {
    pub group: Group,
    pub own: Own,
    pub watch: Watch,
    /// What the manager cannot open.
    pub opened: Opened,
}

/// Joins the group, which may be known already, by the line that is reserved, if one is, and
/// connects to `deckle run`.
pub fn announce(
    door: &Door,
    group: Option<Group>,
    reserved: Option<Reservation>,
) -> Result<(Found, Link, LineId), String> {
    let name = Name::new(door.group.get()).map_err(|e| e.to_string())?;
    let link = match door.link.load(Relaxed) {
        -1 => Link::connect(name.as_bytes())
            .map_err(|e| format!("no connection to deckle run: {e}"))?,
        // SAFETY: the program's side has made it for us, in this descriptor table.
        made => Link::of(unsafe { Fd::own(made) }),
    };
    // A call that a filter refuses may be the end of who makes it: not even tried.
    let free = OPENING.iter().all(|number| door.may(*number));
    let found = match free.then(|| open(door, name, group)).flatten() {
        Some(found) => found,
        None => get(door, name, group, &link, free)?,
    };
    let (pid, service) = (door.pid.load(Relaxed) as u32, std::process::id());
    let line = match reserved {
        Some(line) => found.group.join_reserved(line, pid, service),
        None => found.group.join(pid, service),
    };
    Ok((found, link, line.map_err(|e| e.to_string())?))
}

/// What [`open`] and the manager need for opening.
const OPENING: [libc::c_long; 5] = [
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_stat,
    libc::SYS_pidfd_open,
    libc::SYS_userfaultfd,
];

/// Opens all by itself, if that can be.
fn open(door: &Door, name: Name, group: Option<Group>) -> Option<Found> {
    let (pid, left) = (door.pid.load(Relaxed), door.left.load(Relaxed));
    let pidfd = deckle_sys::pidfd::open(pid as u32).ok()?;
    let stat = CString::new(format!("/proc/{pid}/stat")).ok()?;
    let stat = Fd::open(&stat, libc::O_RDONLY, 0).ok();
    let group = group.map_or_else(|| Group::attach(name), Ok).ok()?;
    Uffd::open_any(false).ok()?;
    let own = Own::open().ok()?;
    Some(Found {
        group,
        own,
        watch: Watch::of(pid, left, pidfd, stat),
        opened: Opened::default(),
    })
}

/// Has `deckle run` open all; what it may not, only we may, if that is `free`.
fn get(
    door: &Door,
    name: Name,
    group: Option<Group>,
    link: &Link,
    free: bool,
) -> Result<Found, String> {
    let given = link.ask();
    let given = given.map_err(|e| format!("deckle run gives no descriptors: {e}"))?;
    if !free {
        deckle_group::proc::leave_namespaces_unknown();
    }
    let group = match group {
        Some(group) => group,
        // The calls by which the page is looked at.
        None if !door.may(libc::SYS_fstat) => return Err("its filter hinders it".to_owned()),
        None => {
            let page = given.page.ok_or("it has no page of the group")?;
            Group::attach_by(&page, name).map_err(|e| e.to_string())?
        }
    };
    let (pid, left) = (door.pid.load(Relaxed), door.left.load(Relaxed));
    let pidfd = given.program.ok_or("deckle run does not see its program")?;
    let owned = |fd: Option<Fd>| fd.map(OwnedFd::from);
    let file = |fd: Option<Fd>| owned(fd).map(std::fs::File::from);
    let own = match (file(given.maps), file(given.status)) {
        (Some(maps), Some(status)) => {
            let more = file(given.smaps).zip(file(given.statm));
            Own::of([maps, status], more.map(<[_; 2]>::from))
        }
        _ if free => Own::open().map_err(|e| format!("no /proc: {e}"))?,
        _ => return Err("deckle run may not read its /proc".to_owned()),
    };
    let opened = Opened {
        device: owned(given.device),
        pagemap: owned(given.pagemap),
        memory: owned(given.memory),
    };
    if !free && (opened.device.is_none() || opened.pagemap.is_none() || opened.memory.is_none()) {
        return Err("deckle run has no device or /proc for it".to_owned());
    }
    Ok(Found {
        group,
        own,
        watch: Watch::of(pid, left, pidfd, given.stat),
        opened,
    })
}

/// Hands `deckle run` the descriptor that must not be lost.
fn hello(process: &Process) -> Result<(), String> {
    let uffd = process.pager.platform().program_uffd().as_raw_fd();
    let who = (process.pid as u32, std::process::id());
    let told = process.link.hello(who, process.account.line(), &[uffd]);
    told.map_err(|e| format!("no word to deckle run: {e}"))
}

fn set_up(door: &Door) -> Result<&'static Process, String> {
    let (found, link, line) = announce(door, None, None)?;
    let group = found.group;
    let made = manage(door, found, link, line);
    if made.is_err() {
        // Nobody shall wait for an answer of ours.
        group.leave(line);
    }
    made
}

/// Makes the manager.
fn manage(door: &Door, found: Found, link: Link, line: LineId) -> Result<&'static Process, String> {
    let Found {
        group,
        own,
        watch,
        opened,
    } = found;
    let tunables = group.knobs().map_err(|e| e.to_string())?;
    let align_mappings = group.align_mappings();
    door.large
        .store(crate::serve::large(align_mappings), Relaxed);
    let account = Arc::new(Account::new(group, line));
    let known = group.capabilities().map(Capabilities::from_bits);
    let capabilities = known.unwrap_or_else(deckle_live::self_test);
    if known.is_none() {
        group.set_capabilities(capabilities.bits());
    }
    let most_mappings = crate::mappings::most();
    let config = LiveConfig {
        mappings: Some(most_mappings as u32),
        capabilities: Some(capabilities),
        opened,
        dont_fork: true,
        adopts: true,
        ..LiveConfig::default()
    };
    let files = Encrypted::new(Files::none());
    Files::begin(&files, &group, &link, (&[], 0))?;
    let store = Swap::new(&group, files);
    let pager = Pager::new(config, account.clone(), store, tunables, Box::new(Last));
    let mut pager = pager.map_err(|e| match deckle_sys::process::address_space_limit() {
        None => e.to_string(),
        Some(_) => format!("{e}: raise the limit on its address space (RLIMIT_AS, ulimit -v)"),
    })?;
    pager.set_forcing(forcing(door));
    pager.set_program(door.pid.load(Relaxed));
    let process = Box::leak(Box::new(Process {
        pid: door.pid.load(Relaxed),
        pager,
        account,
        link,
        watch,
        reserved: Lock::new(None),
        short_of_room: AtomicBool::new(false),
        tables_seen: Lock::new(None),
        begun: Lock::new(Vec::new()),
        rest: Rest::default(),
        glimpse: Lock::new(Glimpse::default()),
        left: AtomicU64::new(0),
        unmanaged: AtomicU64::new(0),
        wants_all: AtomicBool::new(false),
        taken_all: AtomicU32::new(0),
        align_mappings,
        history: Lock::new(Default::default()),
        rooms: Lock::new(Default::default()),
        held: Lock::new(Default::default()),
        kept: Lock::new(Vec::new()),
        most_mappings,
        own,
    }));
    process.settle();
    Ok(process)
}

/// `DECKLE_FAULT=force:SEED:MILLISECS`: what is done to huge pages at random.
fn forcing(door: &Door) -> Option<Forcing> {
    let text = core::str::from_utf8(door.fault.get()).ok()?;
    let (seed, millisecs) = text.strip_prefix("force:")?.split_once(':')?;
    Some(Forcing {
        seed: seed.parse().ok()?,
        every: Duration::from_millis(millisecs.parse().ok()?),
    })
}

/// See the table.
pub fn caller(process: &'static Process) {
    let mut calls = serve::Calls::new(process);
    crate::door().requests.serve(|request| {
        calls.serve(request);
        process.pager.note_change();
        process.rest.stir();
    })
}

/// See the table.
pub fn donor(process: &'static Process) {
    let (crew, group) = (process.pager.crew(), process.account.group());
    let idle = crew.idle();
    let mut before = false;
    loop {
        let asked = donate(process, &mut before, idle.unwrap_or(FOREVER));
        let more = || group.is_asked(process.account.line());
        if !asked && idle.is_some() && crew.leave(DONOR, more) {
            return;
        }
    }
}

/// Long enough.
const FOREVER: Duration = Duration::from_secs(3600);

/// Waits for so long for somebody who asks for memory, and gives some; false: nobody has asked.
/// `before`: whether the last one was out of memory otherwise.
pub fn donate(process: &Process, before: &mut bool, time: Duration) -> bool {
    let (group, me) = (process.account.group(), process.account.line());
    let Some(request) = group.wait_request(me, time) else {
        return false;
    };
    // A word that was written between two rings was taken with the first.
    let last = core::mem::replace(before, request.last);
    if request.lowered {
        process.come_below_max();
        if request.pages == 0 {
            group.answer(me, request, 0);
            return true;
        }
    }
    process.take_left();
    let _inside = process.pager.gate().enter();
    let mm = process.pager.mm();
    // In larger portions than are asked for: the store grows by whole segments, and what a small
    // portion frees may be less than that.
    let pages = match deckle_mm::Store::accepts(mm.store()) {
        true => request.pages.max(DONATION),
        false => request.pages,
    };
    process.account.stop_lending(mm);
    let hard = request.last || last;
    let freed = match hard {
        true => mm.reclaim_hard(pages),
        false => mm.reclaim_gently(pages),
    };
    let mut relented = 0;
    let freed = match freed {
        0 if hard => process.account.give_up_shared(mm, pages),
        0 => {
            relented = process.account.relent(mm, pages);
            relented
        }
        freed => freed,
    };
    process.publish();
    group.answer(me, request, freed);
    // Nothing is gained before all is given up.
    while relented > 0 {
        relented = process.account.relent(mm, pages);
    }
    process.rest.stir();
    true
}

impl Process {
    /// Publishes gauges and counters.
    pub fn publish(&self) {
        use deckle_mm::Item;
        let mm = self.pager.mm();
        let stats = mm.stats();
        self.note_away();
        let borrowed = self.account.borrows_resident(mm);
        let counts = mm.store().ram(|ram| ram.counts());
        stats.add(Item::SwpinFile, mm.store().ram(|ram| ram.take_file_reads()));
        let mut history = self.history.lock();
        let managed = (stats.get(Item::NrAnon) + stats.get(Item::NrOpen)).saturating_sub(borrowed);
        let gauges = deckle_group::Gauges {
            resident: managed + self.left.load(Relaxed),
            inactive: stats.get(Item::NrInactive),
            droppable: droppable(
                mm.queued(),
                stats.get(Item::ThpSplitUnmap),
                stats.get(Item::ThpUnderusedScan),
            ),
            swapped: stats.get(Item::NrSwapped),
            stored_pages: mm.store_charged(),
            stored_bytes: counts.live_bytes,
            filed: counts.filed_pages,
            file_pages: counts.file_bytes / PAGE as u64,
            oldest_inactive: history.age(
                u64::from(mm.reclaim_rounds()),
                stats.get(Item::Pgdeactivate),
                stats.get(Item::NrInactive),
            ),
            refaults: u64::from(mm.refault_percent()),
            // `deckle run` measures it for the whole tree.
            unmanaged_anon: 0,
        };
        drop(history);
        let line = self.account.line();
        self.account.group().publish(line, &gauges, stats);
    }

    /// Tells who dumps core what is missing there.
    pub fn note_away(&self) {
        use deckle_mm::Item::{NrInactive, NrSwapped};
        let stats = self.pager.mm().stats();
        let away = stats.get(NrSwapped) + stats.get(NrInactive);
        self.pager.platform().note_away(away);
    }

    /// Brings up to date what our own metadata is charged, and what the program's side knows;
    /// returns whether there is more to do of that.
    pub fn settle(&self) -> bool {
        use deckle_mm::Store;
        let has_changed = self.charge_seen();
        let store = self.pager.mm().store();
        self.settle_tables();
        self.account.group().note_settled(self.account.line());
        if self.pager.mm().stats().get(deckle_mm::Item::NrSwapped) > 0 {
            // What it gives back is not charged any more, though nobody faults.
            let moved = store.compact(1 << 20);
            self.pager.mm().settle_store();
            return has_changed || moved > 0;
        }
        has_changed
    }

    /// Ends the program and this service, with one line, if the group has taken them for dead:
    /// what they had charged was given to others, nothing can be charged to them any more, and
    /// each fault that needs a charge would be tried for ever. Returns if all is well, or if the
    /// program has just ended or executed another, which has a line of its own.
    pub fn end_if_lost(&self) {
        let (group, line) = (self.account.group(), self.account.line());
        if group.is_current(line) || !matches!(self.watch.state(), Ok(State::Running)) {
            return;
        }
        self.kill("its place in the group is lost");
        // It has been said: our own end is not news.
        let _ = self.link.bye();
        sys::exit_all(1)
    }

    /// Ends the program, with one line.
    pub fn kill(&self, why: &str) {
        let text = format!("deckle: process {}: {why}; killed\n", self.pid);
        let _ = self.link.say(text.as_bytes());
        if self.link.kill().is_err() {
            end::destroy(self);
        }
    }
}
