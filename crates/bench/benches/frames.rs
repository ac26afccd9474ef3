//! `cargo bench -p deckle-bench [-- FILTER] [--rounds N] [--memory-mib N]`: the zone beside
//! `buddy_system_allocator`. FILTER is the beginning of a line, e.g. `repeat` or `bulk 9`.

use deckle_bench::shapes::{Cost, Load, Shape, run};
use deckle_bench::subject::{BuddySystem, Deckle, Own, Subject};
use deckle_bench::table::{heading, least_cost, line};

/// Memory managed, unless asked otherwise.
const MEMORY_MIB: u32 = 4096;
const ROUNDS: usize = 5;
const PAIRS: usize = 200_000;

fn main() {
    let mut filter: Vec<String> = Vec::new();
    let (mut rounds, mut mib) = (ROUNDS, MEMORY_MIB);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        match arg.as_str() {
            // Cargo's own.
            "--bench" => {}
            "--rounds" => rounds = number().unwrap_or_else(|| usage("--rounds N")) as usize,
            "--memory-mib" => mib = number().unwrap_or_else(|| usage("--memory-mib N")),
            word if word.starts_with('-') => usage("[FILTER] [--rounds N] [--memory-mib N]"),
            word => filter.push(word.to_owned()),
        }
    }
    let frames = mib * 256;
    let (ours, theirs) = (Deckle::new(frames, 2), BuddySystem::new(frames));
    let subjects: [&dyn Subject; 2] = [&ours, &theirs];
    let own = Own::new(frames, 2);
    println!(
        "{mib} MiB managed; the best of {rounds} rounds that alternate, after one that is not \
         counted;\nns of get / put of one thread, or of get + put where they alternate\n"
    );
    println!("{}", heading(subjects.map(|s| s.name())));
    let mut scaling = Vec::new();
    for shape in [Shape::Bulk, Shape::Random, Shape::Repeat] {
        for order in [0, 4, 9] {
            for level in [0, 50, 90, 99] {
                let mut alone = None;
                for threads in [1, 2] {
                    let load = Load {
                        shape,
                        order,
                        threads,
                        level,
                        frames,
                        pairs: PAIRS,
                    };
                    let start = format!("{} {order} {threads} {level}", shape.name());
                    if !start.starts_with(&filter.join(" ")) {
                        continue;
                    }
                    let mut costs = [Vec::new(), Vec::new()];
                    let mut apart = Vec::new();
                    for round in 0..=rounds {
                        for (subject, costs) in subjects.iter().zip(&mut costs) {
                            let cost = run(*subject, &load);
                            if round > 0 {
                                costs.push(cost);
                            }
                        }
                        if threads > 1 && level == 0 {
                            apart.push(run(&own, &load));
                        }
                    }
                    let [ours, theirs] = costs.map(|c| least_cost(&c));
                    println!("{}", line(&load, ours, theirs));
                    let total = |c: Cost| c.get + c.put.unwrap_or(0.0);
                    match (threads, alone) {
                        (1, _) => alone = Some(total(ours)),
                        (_, Some(one)) => {
                            let apart = (!apart.is_empty()).then(|| total(least_cost(&apart)));
                            scaling.push((start, one, total(ours), apart));
                        }
                        (_, None) => {}
                    }
                }
            }
        }
    }
    if !scaling.is_empty() {
        println!(
            "\nwork of two threads (deckle), of one = 1; of two that share nothing, each with a \
             zone of its own:"
        );
    }
    for (start, one, two, apart) in scaling {
        let apart = apart.map_or("-".into(), |apart| format!("{:.2}", 2.0 * one / apart));
        println!("  {start}: {:.2}; {apart}", 2.0 * one / two);
    }
    if "head".starts_with(&filter.join(" ")) {
        println!("\nhead_of, ns for each frame of folios of an order, in order and at random:");
        for order in [0, 2, 4, 9] {
            let least = |random| {
                let rounds = (0..rounds).map(|_| ours.time_head_of(order, PAIRS, random));
                rounds.fold(f64::INFINITY, f64::min)
            };
            println!("  order {order}: {:.1} / {:.1}", least(false), least(true));
        }
    }
}

fn usage(what: &str) -> ! {
    eprintln!("usage: cargo bench -p deckle-bench -- {what}");
    std::process::exit(2)
}
