//! Doubly linked lists of folios whose links are in the folios' metadata.
//!
//! A folio can be on one list of each link pair at a time; its LRU or QUEUED flag says so and
//! is kept by the list. A list belongs to whoever holds the lock it is kept in.

use super::meta::{Flags, FrameMeta, link_get, link_set};
use super::{FrameLookup, Kind};
use crate::atomic::AtomicU32;
use crate::units::{Pfn, order_pages};
use alloc::format;
use alloc::string::String;

/// Which links of the metadata a list uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// The links for the active and inactive lists.
    Lru,
    /// The links for the deferred split queue.
    Queue,
}

/// A list of folios, known by their heads.
#[derive(Debug)]
pub struct List {
    link: Link,
    head: Option<Pfn>,
    tail: Option<Pfn>,
    pages: u64,
    folios: u64,
}

impl List {
    /// An empty list over `link`.
    pub const fn new(link: Link) -> List {
        List {
            link,
            head: None,
            tail: None,
            pages: 0,
            folios: 0,
        }
    }
    /// Pages of the folios on the list.
    pub fn pages(&self) -> u64 {
        self.pages
    }
    /// Folios on the list.
    pub fn folios(&self) -> u64 {
        self.folios
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }
    /// The first folio.
    pub fn head(&self) -> Option<Pfn> {
        self.head
    }
    /// The last folio.
    pub fn tail(&self) -> Option<Pfn> {
        self.tail
    }
    /// The folio before `pfn`, towards the head.
    pub fn before<F: FrameLookup + ?Sized>(&self, frames: &F, pfn: Pfn) -> Option<Pfn> {
        link_get(self.links(frames.get(pfn)?).0)
    }
    /// The folio after `pfn`, towards the tail.
    pub fn after<F: FrameLookup + ?Sized>(&self, frames: &F, pfn: Pfn) -> Option<Pfn> {
        link_get(self.links(frames.get(pfn)?).1)
    }

    /// Adds a folio at the head. False, and nothing changed, if `pfn` is not a folio's head or
    /// is on a list already (debug builds assert).
    pub fn push_head<F: FrameLookup + ?Sized>(&mut self, frames: &F, pfn: Pfn) -> bool {
        self.insert(frames, pfn, None, self.head)
    }

    /// Adds a folio at the tail. As [`List::push_head`].
    pub fn push_tail<F: FrameLookup + ?Sized>(&mut self, frames: &F, pfn: Pfn) -> bool {
        self.insert(frames, pfn, self.tail, None)
    }

    /// Adds a folio behind `place`, which is on this list. As [`List::push_head`].
    pub fn insert_after<F: FrameLookup + ?Sized>(
        &mut self,
        frames: &F,
        pfn: Pfn,
        place: Pfn,
    ) -> bool {
        let on_list = frames.get(place).is_some_and(|m| m.has(self.flag()));
        debug_assert!(on_list, "{place} is not on the list");
        on_list && self.insert(frames, pfn, Some(place), self.after(frames, place))
    }

    /// Takes a folio off the list; false if it is on no list over these links. Pre: if it is
    /// on one, it is this one, and its order is what it was when it was added.
    pub fn remove<F: FrameLookup + ?Sized>(&mut self, frames: &F, pfn: Pfn) -> bool {
        let Some(meta) = frames.get(pfn).filter(|m| m.has(self.flag())) else {
            return false;
        };
        let (prev, next) = self.links(meta);
        let (before, after) = (link_get(prev), link_get(next));
        debug_assert!(before.is_some() || self.head == Some(pfn), "another list");
        debug_assert!(after.is_some() || self.tail == Some(pfn), "another list");
        link_set(prev, None);
        link_set(next, None);
        meta.clear(self.flag());
        self.join(frames, before, after);
        self.pages -= meta.folio_order().map_or(0, order_pages) as u64;
        self.folios -= 1;
        true
    }

    /// Takes the last folio off the list.
    pub fn pop_tail<F: FrameLookup + ?Sized>(&mut self, frames: &F) -> Option<Pfn> {
        let pfn = self.tail?;
        self.remove(frames, pfn).then_some(pfn)
    }

    /// The folios from head to tail. Ends early, never turns in a circle: at most
    /// [`List::folios`] items.
    pub fn iter<'a, F: FrameLookup + ?Sized>(
        &self,
        frames: &'a F,
    ) -> impl Iterator<Item = Pfn> + 'a {
        let queue = self.link == Link::Queue;
        let (mut at, mut left) = (self.head, self.folios);
        core::iter::from_fn(move || {
            let pfn = at.filter(|_| left > 0)?;
            left -= 1;
            at = frames.get(pfn).and_then(|m| link_get(m.links(queue).1));
            Some(pfn)
        })
    }

    /// Checks links, flags and counts of the whole list.
    pub fn verify<F: FrameLookup + ?Sized>(&self, frames: &F) -> Result<(), String> {
        let (mut folios, mut pages, mut last) = (0, 0, None);
        for pfn in self.iter(frames) {
            let Some(meta) = frames.get(pfn) else {
                return Err(format!("{pfn} is on a list but no frame"));
            };
            let Some(order) = meta.folio_order() else {
                return Err(format!("{pfn} is on a list but {meta:?}"));
            };
            if !meta.has(self.flag()) {
                return Err(format!("{pfn} is on a list without its flag: {meta:?}"));
            }
            if link_get(self.links(meta).0) != last {
                return Err(format!("{pfn} does not lead back to {last:?}"));
            }
            last = Some(pfn);
            folios += 1;
            pages += order_pages(order) as u64;
        }
        let end = last.and_then(|p| self.after(frames, p));
        if (folios, pages, last, end) != (self.folios, self.pages, self.tail, None) {
            return Err(format!(
                "{self:?} has {folios} folios, {pages} pages and ends at {last:?}, {end:?}"
            ));
        }
        Ok(())
    }

    fn flag(&self) -> Flags {
        match self.link {
            Link::Lru => Flags::LRU,
            Link::Queue => Flags::QUEUED,
        }
    }

    fn links<'m>(&self, meta: &'m FrameMeta) -> (&'m AtomicU32, &'m AtomicU32) {
        meta.links(self.link == Link::Queue)
    }

    fn insert<F: FrameLookup + ?Sized>(
        &mut self,
        frames: &F,
        pfn: Pfn,
        before: Option<Pfn>,
        after: Option<Pfn>,
    ) -> bool {
        let Some(meta) = frames.get(pfn).filter(|m| m.kind() == Kind::FolioHead) else {
            debug_assert!(false, "{pfn} is not the head of a folio");
            return false;
        };
        if meta.set(self.flag()).has(self.flag()) {
            debug_assert!(false, "{pfn} is on a list already");
            return false;
        }
        let (prev, next) = self.links(meta);
        link_set(prev, before);
        link_set(next, after);
        self.join(frames, before, Some(pfn));
        self.join(frames, Some(pfn), after);
        self.pages += meta.folio_order().map_or(0, order_pages) as u64;
        self.folios += 1;
        true
    }

    /// Makes `a` and `b` neighbours; `None` is the end of the list on that side.
    fn join<F: FrameLookup + ?Sized>(&mut self, frames: &F, a: Option<Pfn>, b: Option<Pfn>) {
        match a.and_then(|p| frames.get(p)) {
            Some(meta) => link_set(self.links(meta).1, b),
            None => self.head = b,
        }
        match b.and_then(|p| frames.get(p)) {
            Some(meta) => link_set(self.links(meta).0, a),
            None => self.tail = a,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FrameTable, Mobility};
    use super::*;
    use crate::platform::FrameSpan;
    use std::collections::VecDeque;

    fn folios(n: u32) -> FrameTable {
        let table = FrameTable::new(FrameSpan {
            first: Pfn(0),
            frames: n * 4,
        });
        for i in 0..n {
            let order = if i % 3 == 0 { 2 } else { 0 };
            table
                .touch(Pfn(i * 4))
                .unwrap()
                .set_folio_head(order, Mobility::Movable);
        }
        table
    }

    #[test]
    fn list_agrees_with_a_deque_and_links_are_independent() {
        const N: u32 = 40;
        let table = folios(N);
        let mut lists = [List::new(Link::Lru), List::new(Link::Queue)];
        let mut naive: [VecDeque<Pfn>; 2] = Default::default();
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 16) % below
        };
        for _ in 0..5000 {
            let k = random(2) as usize;
            let pfn = Pfn(random(N as u64) as u32 * 4);
            let (list, deque) = (&mut lists[k], &mut naive[k]);
            match deque.iter().position(|p| *p == pfn) {
                Some(i) => {
                    assert!(list.remove(&table, pfn));
                    assert!(!list.remove(&table, pfn), "twice");
                    deque.remove(i);
                }
                None => match random(4) {
                    0 => {
                        assert!(list.push_head(&table, pfn));
                        deque.push_front(pfn);
                    }
                    1 => {
                        assert!(list.push_tail(&table, pfn));
                        deque.push_back(pfn);
                    }
                    2 if !deque.is_empty() => {
                        let i = random(deque.len() as u64) as usize;
                        assert!(list.insert_after(&table, pfn, deque[i]));
                        deque.insert(i + 1, pfn);
                    }
                    _ => assert_eq!(list.pop_tail(&table), deque.pop_back()),
                },
            }
            for (list, deque) in lists.iter().zip(&naive) {
                list.verify(&table).unwrap();
                assert_eq!(list.iter(&table).collect::<VecDeque<_>>(), *deque);
                assert_eq!(list.folios(), deque.len() as u64);
                let pages = |p: &Pfn| if p.0.is_multiple_of(12) { 4 } else { 1 };
                assert_eq!(list.pages(), deque.iter().map(pages).sum::<u64>());
            }
        }
    }

    #[test]
    #[should_panic(expected = "on a list already")]
    #[cfg(debug_assertions)]
    fn adding_a_folio_twice_is_a_bug() {
        let table = folios(4);
        let mut list = List::new(Link::Lru);
        list.push_head(&table, Pfn(4));
        list.push_tail(&table, Pfn(4));
    }
}
