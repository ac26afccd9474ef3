//! The shapes of load: bulk, random and repeat, over memory filled to a level.

use crate::machine::set_cpu;
use crate::subject::Subject;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Order of the blocks that memory is filled with up to the level.
const FILL_ORDER: u8 = 9;

/// A shape of load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Get all there is above the level, then put all of it.
    Bulk,
    /// Put a random block of those held, get another.
    Random,
    /// Get a block and put it, again and again.
    Repeat,
}

impl Shape {
    /// Name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Bulk => "bulk",
            Shape::Random => "random",
            Shape::Repeat => "repeat",
        }
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The shape.
    pub shape: Shape,
    /// Order of the blocks.
    pub order: u8,
    /// Threads at once.
    pub threads: usize,
    /// Percent of memory in use before.
    pub level: u32,
    /// Frames of all memory.
    pub frames: u32,
    /// Pairs of get and put of each thread, for random and repeat.
    pub pairs: usize,
}

/// Nanoseconds of one operation of one thread: of get, and of put; where they alternate, of
/// the pair, and nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// Get, or get and put.
    pub get: f64,
    /// Put.
    pub put: Option<f64>,
}

/// Runs one round of `load` on `subject`, which is empty before and after.
pub fn run(subject: &dyn Subject, load: &Load) -> Cost {
    let fill = (u64::from(load.frames >> FILL_ORDER) * u64::from(load.level) / 100) as usize;
    let filled: Vec<u32> = (0..fill).map_while(|_| subject.get(FILL_ORDER)).collect();
    assert_eq!(filled.len(), fill, "{}: no memory to fill", subject.name());
    subject.settle();
    let left = (load.frames as usize - (fill << FILL_ORDER)) >> load.order;
    // What is kept for one CPU cannot be had by the other: leave each a margin.
    let margin = if load.threads > 1 { left / 16 } else { 0 };
    let each = (left - margin) / load.threads;
    let barrier = Barrier::new(load.threads);
    let costs: Vec<Cost> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|cpu| {
                let barrier = &barrier;
                scope.spawn(move || {
                    set_cpu(cpu);
                    one_thread(subject, load, each, cpu as u64, barrier)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("a thread of the load"))
            .collect()
    });
    for frame in filled {
        subject.put(frame, FILL_ORDER);
    }
    subject.settle();
    let mean = |f: &dyn Fn(&Cost) -> f64| costs.iter().map(f).sum::<f64>() / costs.len() as f64;
    Cost {
        get: mean(&|c| c.get),
        put: (costs[0].put.is_some()).then(|| mean(&|c| c.put.unwrap_or(0.0))),
    }
}

fn one_thread(
    subject: &dyn Subject,
    load: &Load,
    each: usize,
    seed: u64,
    barrier: &Barrier,
) -> Cost {
    let order = load.order;
    match load.shape {
        Shape::Bulk => {
            let mut held = Vec::with_capacity(each);
            let get = timed(barrier, || {
                held.extend((0..each).map_while(|_| subject.get(order)));
            });
            assert_eq!(held.len(), each, "{}: memory ran out", subject.name());
            let put = timed(barrier, || {
                for &frame in &held {
                    subject.put(frame, order);
                }
            });
            Cost {
                get: per(get, each),
                put: Some(per(put, each)),
            }
        }
        Shape::Random => {
            // Half of what is left is held, so that most gets find another block than the last.
            let mut held: Vec<u32> = (0..each / 2).map_while(|_| subject.get(order)).collect();
            assert!(!held.is_empty(), "{}: memory ran out", subject.name());
            let mut random = seed ^ 0x9e37_79b9_7f4a_7c15;
            let pairs = load.pairs;
            let time = timed(barrier, || {
                for _ in 0..pairs {
                    random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
                    let i = ((random >> 32) as usize * held.len()) >> 32;
                    subject.put(held[i], order);
                    held[i] = subject.get(order).expect("the block put before");
                }
            });
            for frame in held {
                subject.put(frame, order);
            }
            Cost {
                get: per(time, pairs),
                put: None,
            }
        }
        Shape::Repeat => {
            let time = timed(barrier, || {
                for _ in 0..load.pairs {
                    let frame = subject.get(order).expect("memory below the level");
                    subject.put(black_box(frame), order);
                }
            });
            Cost {
                get: per(time, load.pairs),
                put: None,
            }
        }
    }
}

/// Time of `work`, which all threads begin together.
fn timed(barrier: &Barrier, work: impl FnOnce()) -> Duration {
    barrier.wait();
    let start = Instant::now();
    work();
    start.elapsed()
}

fn per(time: Duration, ops: usize) -> f64 {
    time.as_secs_f64() * 1e9 / ops as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{BuddySystem, Deckle};

    #[test]
    fn every_shape_gives_back_all_that_it_took() {
        const FRAMES: u32 = 16 << 10;
        let subjects: [&dyn Subject; 2] = [&Deckle::new(FRAMES, 2), &BuddySystem::new(FRAMES)];
        for subject in subjects {
            for shape in [Shape::Bulk, Shape::Random, Shape::Repeat] {
                for (order, threads, level) in [(0, 1, 0), (4, 2, 50), (9, 2, 50)] {
                    let pairs = 100;
                    let load = Load {
                        shape,
                        order,
                        threads,
                        level,
                        frames: FRAMES,
                        pairs,
                    };
                    let cost = run(subject, &load);
                    assert!(cost.get > 0.0, "{load:?}");
                    assert_eq!(cost.put.is_some(), shape == Shape::Bulk);
                }
            }
            let all: Vec<u32> = (0..FRAMES >> 10).map_while(|_| subject.get(10)).collect();
            assert_eq!(all.len(), 16, "{} lost memory", subject.name());
        }
    }
}
