//! Calls are answered, each with its own answer, however service and callers sleep: nothing here
//! waits with a time limit, so a wake-up that is lost is a hang.

use deckle_door::Op;
use deckle_door::request::Requests;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Calls that one thread makes.
const CALLS: usize = 400;
/// A hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Does nothing for so long, awake.
fn pause(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        core::hint::spin_loop();
    }
}

/// All answers are right when so many threads ask, with pauses of theirs and the service's around
/// the times for which both wait awake.
fn all_are_answered(threads: usize) {
    let requests: &'static Requests = Box::leak(Box::new(Requests::new()));
    let served: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
    // It ends with the test's process.
    thread::spawn(move || {
        requests.serve(|request| {
            let [what, ..] = request.args();
            let number = served.fetch_add(1, Relaxed);
            if number % 64 < 2 {
                pause(Duration::from_micros(30));
            }
            match what % 7 {
                0 => request.answer(Err(what as i32 % 4000 + 1)),
                _ => request.answer(Ok(what * 3)),
            }
        })
    });
    let (tell, told) = channel();
    for thread in 0..threads {
        let tell = tell.clone();
        thread::spawn(move || {
            for call in 0..CALLS {
                let what = thread * CALLS + call;
                let wanted = match what % 7 {
                    0 => Err(what as i32 % 4000 + 1),
                    _ => Ok(what * 3),
                };
                let got = requests.ask(Op::Look, [what, 0, 0, 0, 0, 0]);
                assert_eq!(got, wanted);
                match call % 16 {
                    0 => thread::sleep(Duration::from_micros(100)),
                    n @ 1..=4 => pause(Duration::from_micros(30 * n as u64)),
                    _ => {}
                }
            }
            tell.send(()).expect("the test");
        });
    }
    for _ in 0..threads {
        told.recv_timeout(LIMIT).expect("all calls are answered");
    }
    assert_eq!(served.load(Relaxed) as usize, threads * CALLS);
}

#[test]
fn one_caller_and_a_service_that_sleeps_and_wakes() {
    all_are_answered(1);
}

#[test]
fn callers_at_once() {
    all_are_answered(8);
}

/// Some have to wait for a slot.
#[test]
fn more_callers_than_slots() {
    all_are_answered(deckle_door::request::SLOTS + 40);
}
