//! Zero mappings.

use crate::state::{Place, State};
use crate::table::{Pte, Target};
use crate::translate::{INVALID, stop};
use crate::violation::Broken;
use deckle_mm::{Done, Flush, PageRun, PlatformError, Prot, Stop};

impl State {
    pub fn map_zero(&mut self, at: PageRun) -> Result<Done, PlatformError> {
        let op = "map_zero";
        if !self.check_run(op, at) {
            return Err(stop(0, INVALID));
        }
        if !self.spaces.contains_key(&at.space) {
            return Err(stop(0, Stop::Gone));
        }
        let strike = self.strike(at.pages);
        let written = match self.is_sparse() {
            true => self.inject(self.injection.exists, at.pages),
            false => None,
        };
        for i in 0..at.pages {
            if let Some((n, why)) = strike
                && n == i
            {
                return Err(stop(i, why));
            }
            let vpn = self.place(at, i);
            if self.is_gone(at.space, vpn) {
                return Err(stop(i, Stop::Gone));
            }
            if self.lookup(at.space, vpn).is_some() {
                continue;
            }
            if written == Some(i) && self.make(at.space, vpn, Prot::RW, true).is_some() {
                self.counters.written += 1;
                return Err(stop(i, Stop::Exists));
            }
            if self.stale.contains_key(&(at.space, vpn)) {
                self.broken(op, Broken::UnflushedPage, Place::page(at.space, vpn));
            }
            // The rights are the page's; that nobody writes the zero page is its own rule.
            self.set(op, at.space, vpn, Some(Pte::new(Target::Zero, Prot::RW)));
            self.counters.zero_mapped += 1;
        }
        Ok(Done { pages: at.pages })
    }

    pub fn drop_zero(&mut self, at: PageRun) -> Flush {
        let op = "drop_zero";
        if !self.check_run(op, at) || !self.check_space(op, at.space) {
            return Flush { pending: None };
        }
        let mut any = false;
        for i in 0..at.pages {
            let vpn = self.place(at, i);
            let Some((old, _)) = self.lookup(at.space, vpn) else {
                continue;
            };
            match old.target {
                Target::Zero => {
                    self.set(op, at.space, vpn, None);
                    self.mark_stale(at.space, vpn, old);
                    any = true;
                }
                Target::Frame(pfn) => {
                    let place = Place::page(at.space, vpn).with(pfn);
                    self.broken(op, Broken::NotZeroMapping, place);
                }
            }
        }
        Flush {
            pending: any.then_some(at),
        }
    }
}
