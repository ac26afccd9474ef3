//! Write faults on holes and zero entries (F1 and F2): a new folio of zeros.

use crate::beyond::Beyond;
use crate::engine::folio::AllocError;
use crate::engine::lru::Which;
use crate::engine::open::OPEN_ORDER;
use crate::engine::space::Space;
use crate::engine::step::{Access, FaultMode, Served};
use crate::env::Env;
use crate::fault::{Fault, FaultError};
use crate::frames::Frames;
use crate::mm::Mm;
use crate::order::{self, Beside, Window};
use crate::platform::{Content, Stop};
use crate::reclaim::contig::Want;
use crate::stat::{Item, SizeItem};
use crate::table::block::{BlockState, HugeMap, Presence};
use crate::table::entry::{Entry, Kind};
use crate::table::marks::Marks;
use crate::table::vma::Vma;
use crate::tunables::{Stages, Tunables};
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, PageMask, PageRun, Pfn, order_pages};

impl Fault<'_> {
    /// What is tracked of the page that is to come in the place of entry `e`. `None`: that is not
    /// for a new page to take. A hole may be the program's own to fill; what is no hole never is.
    fn marks_of_fresh(&self, vma: &Vma, e: Entry) -> Option<Marks> {
        match e.kind() {
            Kind::Zero { .. } => {}
            Kind::None if !vma.uffd_missing => {}
            _ => return None,
        }
        match self.access {
            Access::Write if e.marks().uffd_wp => None,
            Access::Write => Some(Marks::default()),
            _ => Some(e.marks()),
        }
    }

    /// Whether one page alone comes in the place of entry `e`.
    fn is_single(&self, t: &Tunables, e: Entry) -> bool {
        let zero = matches!(e.kind(), Kind::Zero { .. });
        self.access != Access::Write && e.marks().any() || zero && t.stages < Stages::Zero
    }
}

impl<E: Env> Mm<E> {
    /// Serves a write on a hole or a zero entry. `None`: the world changed, start over. A zero
    /// entry that only a pin wants to read keeps what is tracked of it (R68).
    pub(super) fn fault_fresh(
        &self,
        f: Fault<'_>,
        vma: &Vma,
        seq: u64,
    ) -> Result<Option<Served>, FaultError> {
        let Fault {
            space, block, page, ..
        } = f;
        let t = self.tunables();
        let adapts = order::adapts(&t, vma);
        let look = |state: &BlockState, cap, most| self.fresh_window(f, &t, vma, state, cap, most);
        let mut most = BLOCK_ORDER;
        loop {
            // Estimate with the lock, then let go of it to allocate.
            let mut state = block.lock(self);
            let e = state.entry(page.index());
            if f.is_single(&t, e) {
                most = 0;
            }
            let (mut cap, mut beside) = (most, Beside::default());
            if adapts {
                beside = Beside::of(&state, page);
                cap = cap.min(space.adapt.cap(vma.start, page, beside));
            }
            let estimate = look(&state, cap, most);
            if (cap < OPEN_ORDER || estimate.order == 0)
                && let Some(served) = self.open_instead(f, &mut state, vma, seq, beside)
            {
                return Ok(Some(served));
            }
            drop(state);
            let Some(marks) = f.marks_of_fresh(vma, e) else {
                return Ok(None);
            };
            let Some((pfn, got)) = self.alloc_fresh(f, vma, estimate)? else {
                return Ok(None);
            };
            let mut state = block.lock(self);
            let want = look(&state, got.order, got.order);
            let stale = space.changed(seq) || state.entry(page.index()) != e;
            if stale || want != got {
                drop(state);
                self.free_unused(pfn);
                most = want.order;
                match stale {
                    true => return Ok(None),
                    false => continue,
                }
            }
            match self.map_fresh(space, &mut state, vma, got, pfn, marks) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                // A place beside it is not ours any more.
                Err(FaultError::Platform(e)) if e.why == Stop::Gone && got.order > 0 => {
                    most = 0;
                    continue;
                }
                Err(e) => return Err(e),
            }
            let dropped = matches!(e.kind(), Kind::Zero { dropped: true, .. });
            self.came_back(block, got.order, dropped);
            if adapts {
                space.adapt.note(vma.start, page, got, beside);
            }
            return Ok(Some(Served::Mapped(order_pages(got.order))));
        }
    }

    /// The window of a new folio of order `cap` at most; of `most` in a block whose pages come back
    /// after it was taken apart (profile `deckle`). What takes the place of a huge page of zeros is
    /// huge, too, whatever the knobs say by now. Block locked.
    fn fresh_window(
        &self,
        f: Fault<'_>,
        t: &Tunables,
        vma: &Vma,
        state: &BlockState,
        cap: u8,
        most: u8,
    ) -> Window {
        let whole = order::whole_block(vma, f.page);
        if cap == BLOCK_ORDER
            && let Some(w) = whole
            && f.block.has_huge_zero(state)
        {
            return w;
        }
        let w = order::window(t, vma, state, f.page, cap);
        let back = match t.beyond(Beyond::ComeBack) {
            true => self.comes_back(f.block).min(most),
            false => 0,
        };
        match back > w.order {
            true => order::window_back(t, vma, state, f.page, back),
            false => w,
        }
    }

    /// Leaves the holes around a small write to the system, if that may be. Block locked.
    fn open_instead(
        &self,
        f: Fault<'_>,
        state: &mut BlockState,
        vma: &Vma,
        seq: u64,
        beside: Beside,
    ) -> Option<Served> {
        let hole = state.entry(f.page.index()).is_none();
        if !hole || f.access != Access::Write || f.space.changed(seq) {
            return None;
        }
        let n = self.try_open(f, state, vma, &self.tunables())?;
        // A whole window goes on a stream, as a folio of its size does.
        let whole = n == order_pages(OPEN_ORDER);
        let w = Window::around(f.page, if whole { OPEN_ORDER } else { 0 });
        f.space.adapt.note(vma.start, f.page, w, beside);
        Some(Served::Mapped(n))
    }

    /// A charged folio for the estimated window, or for a smaller one around the page.
    fn alloc_fresh(
        &self,
        f: Fault<'_>,
        vma: &Vma,
        estimate: Window,
    ) -> Result<Option<(Pfn, Window)>, FaultError> {
        let Fault {
            space, page, mode, ..
        } = f;
        let t = self.tunables();
        let mut w = estimate;
        let mut tried = 0;
        loop {
            let refs = if w.order == BLOCK_ORDER {
                1
            } else {
                order_pages(w.order)
            };
            let owner = (space.id, w.start);
            let got = self.alloc_folio(w.order, refs, owner);
            let want = Want { vma, mode, owner };
            match got.or_else(|e| E::Frames::alloc_huge(self, e, want)) {
                Ok(pfn) => {
                    if w.order == BLOCK_ORDER {
                        self.stats().add(Item::ThpFaultAlloc, 1);
                    } else if w.order > 0 {
                        self.stats().add(Item::AnonFaultAlloc, 1);
                    }
                    self.stats().add_size(w.order, SizeItem::AnonFaultAlloc, 1);
                    return Ok(Some((pfn, w)));
                }
                Err(e) if w.order > 0 => {
                    let stats = self.stats();
                    stats.add_size(w.order, SizeItem::AnonFaultFallback, 1);
                    if let AllocError::Charge(_) = e {
                        stats.add_size(w.order, SizeItem::AnonFaultFallbackCharge, 1);
                    }
                    if w.order == BLOCK_ORDER {
                        self.stats().add(Item::ThpFaultFallback, 1);
                        if let AllocError::Charge(_) = e {
                            self.stats().add(Item::ThpFaultFallbackCharge, 1);
                        }
                    } else {
                        self.stats().add(Item::AnonFaultFallback, 1);
                    }
                    tried += 1;
                    w = Window::around(page, order::lower(&t, vma, w.order, tried));
                }
                Err(_) if mode == FaultMode::NoWait => return Err(FaultError::NeedReclaim),
                Err(e) => {
                    self.make_room(e).map_err(FaultError::Oom)?;
                    return Ok(None);
                }
            }
        }
    }

    /// Maps a new folio over a window that was just validated; false: not all of it, start
    /// over. Block locked.
    fn map_fresh(
        &self,
        space: &Space,
        state: &mut BlockState,
        vma: &Vma,
        w: Window,
        pfn: Pfn,
        marks: Marks,
    ) -> Result<bool, FaultError> {
        let run = PageRun::new(space.id, w.start, order_pages(w.order));
        self.drop_zeros(space, state, run);
        if let Err(e) = self.map_as(run, pfn, Content::Zero, vma.prot, marks.any()) {
            if e.at == 0 {
                state.tidy();
                self.free_unused(pfn);
            } else {
                self.book_part(state, vma, w, pfn, e.at);
            }
            // The range is changing under us: look again.
            return match e.why {
                Stop::Exists | Stop::Retry => Ok(false),
                _ => Err(FaultError::Platform(e)),
            };
        }
        if w.order == BLOCK_ORDER {
            let (prot, locked) = (vma.prot, vma.locked);
            *state = BlockState::Huge(HugeMap {
                pfn,
                has: Presence::Mapped,
                prot,
                locked,
                marks,
            });
        } else if let Some(table) = state.table() {
            for k in 0..run.pages {
                let kind = Kind::Mapped(pfn.add(k));
                let e = Entry::new(kind, vma.prot, vma.locked).marked(marks);
                table.set(run.start.index() + k, e.shown(pfn.add(k), marks.any()));
            }
        }
        // Counted with the block locked, so that nobody can take the pages off the gauge first.
        self.stats().add(Item::NrAnon, run.pages as u64);
        self.lru_add(pfn, Which::Active);
        if w.order == BLOCK_ORDER {
            self.queue_new(pfn);
        }
        Ok(true)
    }

    /// Books a new folio of which only the first `n` pages could be mapped. Block locked.
    fn book_part(&self, state: &mut BlockState, vma: &Vma, w: Window, pfn: Pfn, n: u32) {
        self.stats().add(Item::NrAnon, n as u64);
        self.lru_add(pfn, Which::Active);
        if w.order == BLOCK_ORDER {
            self.split_owned(pfn, PageMask::first(n), 1, None);
        } else {
            self.part_of_folio(pfn, order_pages(w.order) - n);
        }
        let Some(table) = state.table() else { return };
        for k in 0..n {
            let e = Entry::new(Kind::Mapped(pfn.add(k)), vma.prot, vma.locked);
            table.set(w.start.index() + k, e);
        }
    }

    /// Makes holes of the zero entries of a run. Block locked.
    fn drop_zeros(&self, space: &Space, state: &mut BlockState, run: PageRun) {
        if matches!(state, BlockState::Empty) {
            return;
        }
        let Some(table) = state.table() else { return };
        let first = run.start.index();
        let mut shown = PageMask::EMPTY;
        for k in first..(first + run.pages).min(BLOCK_PAGES) {
            if let Kind::Zero { mapped, dropped } = table.get(k).kind() {
                if mapped {
                    shown.set(k);
                }
                if dropped {
                    self.stats().sub(Item::NrZero, 1);
                    self.stats().add(Item::SwpinZero, 1);
                }
                table.set(k, Entry::NONE);
            }
        }
        self.drop_zero_pages(space.id, run.start.block(), &shown);
    }
}
