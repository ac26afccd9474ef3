//! A write to a page that others may hold, where no kernel copies: the page gets a copy (F3).

use crate::engine::folio::{AllocError, first_page, order_of};
use crate::engine::lru::Which;
use crate::engine::step::{Access, FaultMode, Served};
use crate::env::Env;
use crate::fault::{Fault, FaultError};
use crate::mm::Mm;
use crate::order::{self, Window};
use crate::platform::Content;
use crate::sizes::LEAST_ORDER;
use crate::stat::Item;
use crate::table::block::{BlockState, Table};
use crate::table::entry::Kind;
use crate::table::vma::Vma;
use crate::tunables::{Stages, Tunables};
use crate::units::{BLOCK_ORDER, FrameRun, PageRun, Pfn, Vpn, order_pages};

/// What a copy came to.
enum Copied {
    /// The window is the space's own.
    Done,
    /// Try a smaller window.
    Smaller,
    /// The world changed: start over.
    Changed,
    /// No folio was to be had.
    NoFolio(AllocError),
}

/// What is copied: a window of pages, the frame of its first, and the head of its folio.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Source {
    window: Window,
    frame: Pfn,
    head: Pfn,
}

impl<E: Env> Mm<E> {
    /// Serves a write to (or the unsharing of) a page that others may hold, by a copy. `None`:
    /// the world changed, start over.
    pub(super) fn fault_copy(
        &self,
        f: Fault<'_>,
        vma: &Vma,
        seq: u64,
    ) -> Result<Option<Served>, FaultError> {
        let Fault {
            space, block, page, ..
        } = f;
        let t = self.tunables();
        let (mut cap, mut tried) = (BLOCK_ORDER, 0);
        loop {
            let found = {
                let mut state = block.lock(self);
                let found = state
                    .table()
                    .filter(|_| !space.changed(seq))
                    .and_then(|table| self.copy_window(&t, vma, page, table, cap));
                // With a reference more nobody takes the folio for his own while it is read (R81).
                if let Some(source) = &found {
                    self.meta(source.head).add_refs(1);
                }
                found
            };
            let Some(source) = found else { return Ok(None) };
            let copied = self.copy_folio(f, vma, seq, source);
            self.put_folio(source.head, 1);
            let order = source.window.order;
            match copied? {
                Copied::Done => return Ok(Some(Served::Mapped(order_pages(order)))),
                Copied::Changed => return Ok(None),
                Copied::Smaller => cap = order.saturating_sub(1),
                Copied::NoFolio(_) if order > 0 => {
                    self.stats().add(Item::AnonFaultFallback, 1);
                    tried += 1;
                    cap = order::lower(&t, vma, order, tried);
                }
                Copied::NoFolio(_) if f.mode == FaultMode::NoWait => {
                    return Err(FaultError::NeedReclaim);
                }
                Copied::NoFolio(e) => {
                    self.make_room(e).map_err(FaultError::Oom)?;
                    return Ok(None);
                }
            }
        }
    }

    /// The largest window around `page` that may be copied as one. `None`: it is not shared.
    fn copy_window(
        &self,
        t: &Tunables,
        vma: &Vma,
        page: Vpn,
        table: &Table,
        cap: u8,
    ) -> Option<Source> {
        let i = page.index();
        let e = table.get(i);
        let Kind::Mapped(pfn) = e.kind() else {
            return None;
        };
        if !e.shared() {
            return None;
        }
        let head = self.head_of(pfn);
        let source = order_of(self.meta(head));
        let end = head.0 + order_pages(source);
        let fits = |w: &Window| {
            let first = w.start.index();
            w.start >= vma.start
                && w.start.0 + u64::from(order_pages(w.order)) <= vma.end().0
                && (first..first + order_pages(w.order)).all(|k| {
                    let next = table.get(k);
                    let frame = pfn.0.wrapping_add(k).wrapping_sub(i);
                    (head.0..end).contains(&frame)
                        && next.kind() == Kind::Mapped(Pfn(frame))
                        && next.shared()
                        && next.prot() == e.prot()
                })
        };
        let cap = match t.stages {
            Stages::Alloc | Stages::Reuse => 0,
            _ => cap.min(source).min(order::cap_below_huge(t, vma)),
        };
        let window = (LEAST_ORDER..=cap)
            .rev()
            .filter(|&o| order::enabled(t, vma, o))
            .map(|o| Window::around(page, o))
            .find(fits)
            .unwrap_or(Window::around(page, 0));
        let frame = Pfn(pfn.0 - (i - window.start.index()));
        let source = Source {
            window,
            frame,
            head,
        };
        Some(source)
    }

    /// Copies a window into a new folio and puts that in its place. The caller holds a
    /// reference to the source, and drops it.
    fn copy_folio(
        &self,
        f: Fault<'_>,
        vma: &Vma,
        seq: u64,
        source: Source,
    ) -> Result<Copied, FaultError> {
        let Fault {
            space, block, page, ..
        } = f;
        let w = source.window;
        let n = order_pages(w.order);
        let new = match self.alloc_folio(w.order, n, (space.id, w.start)) {
            Ok(pfn) => pfn,
            Err(e) => return Ok(Copied::NoFolio(e)),
        };
        let drop_new = || {
            self.release(FrameRun::new(new, n));
            self.free_unused(new);
        };
        if let Some(bad) = self.bad_frame(FrameRun::new(source.frame, n)) {
            drop_new();
            return match w.order {
                0 => Err(FaultError::Poisoned(bad)),
                _ => Ok(Copied::Smaller),
            };
        }
        if let Err(e) = self.copy_frames(FrameRun::new(new, n), source.frame) {
            drop_new();
            return Err(FaultError::Platform(e));
        }
        let mut state = block.lock(self);
        let t = self.tunables();
        let stale = space.changed(seq);
        let found = match &*state {
            BlockState::Table(table) if !stale => self.copy_window(&t, vma, page, table, w.order),
            _ => None,
        };
        match &mut *state {
            BlockState::Table(table) if found == Some(source) => {
                self.show_copy(f, table, source, new)?;
                Ok(Copied::Done)
            }
            _ => {
                drop(state);
                drop_new();
                // The page itself is as it was: others have taken a part of the window.
                match found {
                    Some(found) if found.head == source.head && w.order > 0 => Ok(Copied::Smaller),
                    _ => Ok(Copied::Changed),
                }
            }
        }
    }

    /// Puts a copy, which rests in its frames, in the place of a window, on which the caller holds
    /// a reference besides. Block locked.
    fn show_copy(
        &self,
        f: Fault<'_>,
        table: &mut Table,
        source: Source,
        new: Pfn,
    ) -> Result<(), FaultError> {
        let w = source.window;
        let (first, n, i) = (w.start.index(), order_pages(w.order), f.page.index());
        let run = PageRun::new(f.space.id, w.start, n);
        // The old pages go, and no CPU has them any more, before a new one can be seen (R66).
        self.discard_run(run);
        let prot = table.get(i).prot();
        // Of a neighbour that is tracked no write may go unheard. The page itself is dirty by
        // the write that comes; with others it is left to that, which finds it exclusive.
        let alone = n == 1 && f.access == Access::Write && !table.get(i).marks().uffd_wp;
        let marked = !alone && (first..first + n).any(|k| table.get(k).marks().any());
        let guarded = f.access == Access::Unshare || marked;
        if alone {
            table.set(i, table.get(i).dirtied());
        }
        let shown = self.map_as(run, new, Content::Parked, prot, guarded);
        for k in 0..n {
            let (old, p) = (table.get(first + k), new.add(k));
            let e = match &shown {
                Ok(()) => old.shown(p, guarded),
                // The next touch brings it.
                Err(_) => old.with(Kind::Inactive(p)),
            };
            table.set(first + k, e);
        }
        if shown.is_err() {
            self.moved_out(n);
        }
        self.lru_add(new, Which::Active);
        if w.order > 0 {
            self.stats().add(Item::AnonFaultAlloc, 1);
        }
        self.stats().add(Item::Pgcopy, u64::from(n));
        let first = first_page(w.start, source.frame, source.head);
        // The caller's reference keeps the folio.
        let freed = self.put_mapped(f.space.id, first, source.head, n);
        debug_assert_eq!(freed, 0);
        shown.map_err(FaultError::Platform)
    }
}
