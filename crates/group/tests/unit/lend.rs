//! Who pays for what is shared, in every order.

use super::*;
use std::cell::Cell;

/// A borrower of 100 pages, and what it is charged.
struct Borrower {
    shared: AtomicU64,
    charged: Cell<i64>,
    /// Of the 100 it has made its own.
    own: Cell<i64>,
}

impl Borrower {
    /// Nobody is charged for too little: what is its own always is paid for, and all is
    /// once nobody else pays.
    fn check(&self) {
        let paid = match self.shared.load(SeqCst) {
            SETTLED => 100,
            left => 100 - left as i64,
        };
        assert!(self.charged.get() >= paid.max(self.own.get()));
    }
    fn charge(&self, pages: i64, between: &dyn Fn()) {
        self.charged.set(self.charged.get() + pages);
        self.check();
        between();
        self.check();
    }
    fn write(&self, pages: u64, between: &dyn Fn()) {
        self.charge(pages as i64, between);
        if !take_off(&self.shared, pages) {
            self.charged.set(self.charged.get() - pages as i64);
        }
        self.own.set(self.own.get() + pages as i64);
        self.check();
    }
    fn settle(&self, between: &dyn Fn()) {
        settle(&self.shared, |pages| self.charge(pages, between));
        self.check();
    }
    fn step(&self, what: usize, between: &dyn Fn()) {
        match what {
            0 => self.write(7, between),
            1 => self.settle(between),
            _ => {}
        }
    }
}

#[test]
fn p20_every_order_of_writing_and_settling_charges_each_page_once() {
    // The second and the third each in the moment between charge and word of the one before
    // it, the others after it.
    for plan in 0..3usize.pow(5) {
        let what = |n: u32| plan / 3usize.pow(n) % 3;
        let b = Borrower {
            shared: AtomicU64::new(100),
            charged: Cell::new(0),
            own: Cell::new(0),
        };
        let once = [Cell::new(true), Cell::new(true)];
        let third = || {
            if once[1].replace(false) {
                b.step(what(2), &|| ());
            }
        };
        let second = || {
            if once[0].replace(false) {
                b.step(what(1), &third);
            }
        };
        b.step(what(0), &second);
        b.step(what(3), &|| ());
        b.step(what(4), &|| ());
        let before = b.shared.load(SeqCst);
        if before != SETTLED {
            assert_eq!(b.charged.get(), 100 - before as i64, "plan {plan}");
        }
        b.settle(&|| ());
        assert_eq!(b.charged.get(), 100, "plan {plan}");
    }
}
