//! The printed table.

use crate::published;
use crate::shapes::{Cost, Load};

/// The least of the rounds, get and put apart: what others did to this machine meanwhile can
/// only have added to it.
pub fn least_cost(costs: &[Cost]) -> Cost {
    let least = |times: &mut dyn Iterator<Item = f64>| times.fold(f64::INFINITY, f64::min);
    Cost {
        get: least(&mut costs.iter().map(|c| c.get)),
        put: costs[0]
            .put
            .map(|_| least(&mut costs.iter().filter_map(|c| c.put))),
    }
}

/// The heading.
pub fn heading(names: [&str; 2]) -> String {
    format!(
        "{:<7} {:>5} {:>7} {:>6}  {:>15}  {:>23}  {:>11}  {:>13}",
        "shape", "order", "threads", "full", names[0], names[1], "ours/theirs", "LLFree publ."
    )
}

/// One line: nanoseconds of each, and the ratio.
pub fn line(load: &Load, ours: Cost, theirs: Cost) -> String {
    let llfree = if load.level == 0 {
        published::llfree(load.shape, load.order)
    } else {
        None
    };
    let pair = |get: f64, put: Option<f64>| match put {
        Some(put) => format!("{get:.0} / {put:.0} ns"),
        None => format!("{get:.0} ns"),
    };
    let total = |c: Cost| c.get + c.put.unwrap_or(0.0);
    format!(
        "{:<7} {:>5} {:>7} {:>5}%  {:>15}  {:>23}  {:>11.2}  {:>13}",
        load.shape.name(),
        load.order,
        load.threads,
        load.level,
        pair(ours.get, ours.put),
        pair(theirs.get, theirs.put),
        total(ours) / total(theirs),
        llfree.map_or("-".into(), |(get, put)| pair(get, put)),
    )
}
