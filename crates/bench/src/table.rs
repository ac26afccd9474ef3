//! The printed table.

use crate::published;
use crate::shapes::{Cost, Load};

/// Median of a set that is not empty.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median of costs, get and put apart.
pub fn median_cost(costs: &[Cost]) -> Cost {
    Cost {
        get: median(costs.iter().map(|c| c.get).collect()),
        put: (costs[0].put.is_some())
            .then(|| median(costs.iter().map(|c| c.put.unwrap_or(0.0)).collect())),
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
