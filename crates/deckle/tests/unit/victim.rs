//! Which process is killed.

use super::*;
use deckle_group::{Group, GroupCharge, Limits, Name, Process, SwapKind};
use deckle_mm::{Charge, Tunables};

struct Unlink(Name);
impl Drop for Unlink {
    fn drop(&mut self) {
        Group::unlink(self.0);
    }
}

/// A group of processes that have charged so much, and their lines.
fn group<const N: usize>(name: &str, charged: [u64; N]) -> (Group, [LineId; N], Unlink) {
    let name = Name::new(format!("{name}-{}", std::process::id()).as_bytes()).unwrap();
    let group = Group::create(name, Limits::NONE, &Tunables::default(), SwapKind::Lz4).unwrap();
    // Pids of no process, which this test does not look at: no two lines are of one.
    let mut pid = 1 << 30;
    let lines = charged.map(|pages| {
        pid += 1;
        let line = group.join(pid, pid).unwrap();
        GroupCharge::new(group, line).force_charge(pages);
        line
    });
    (group, lines, Unlink(name))
}

fn largest(group: &Group, can: &dyn Fn(LineId) -> bool) -> Option<LineId> {
    let all = group.processes().filter(|p| can(p.line));
    all.max_by_key(Process::size).map(|p| p.line)
}

#[test]
fn a_victim_that_does_not_die_is_passed_over_for_the_next_largest() {
    let (group, [small, frozen, large], _unlink) = group("victim-frozen", [10, 30, 20]);
    let known = [small, frozen, large];
    let (mut victims, begin) = (Victims::default(), Instant::now());
    let mut next = |known: &[LineId], at: Duration| {
        let next = victims.next(frozen, known, begin + at, |can| largest(&group, can));
        if let Some(line) = next {
            victims.killed(line, begin + at);
        }
        next
    };
    assert_eq!(next(&known, Duration::ZERO), Some(frozen));
    // It has time to die.
    assert_eq!(next(&known, PATIENCE / 2), None);
    assert_eq!(next(&known, PATIENCE), Some(large));
    // This one dies: services go on naming the frozen one, and the last is taken.
    assert_eq!(next(&[small, frozen], PATIENCE * 3 / 2), Some(small));
    // Nothing is left to be killed.
    assert_eq!(next(&[frozen], PATIENCE * 2), None);
}

#[test]
fn a_victim_that_is_not_known_has_time_to_say_hello() {
    let (group, [stranger, other], _unlink) = group("victim-unknown", [30, 20]);
    let (mut victims, now) = (Victims::default(), Instant::now());
    let mut next =
        |known: &[LineId], at| victims.next(stranger, known, at, |can| largest(&group, can));
    assert_eq!(next(&[other], now), None);
    assert_eq!(next(&[other, stranger], now + PATIENCE), Some(stranger));
    assert_eq!(next(&[other], now + PATIENCE), Some(other));
}
