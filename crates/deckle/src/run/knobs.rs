//! The knobs that are in force, in the shape and with the names of the settings file.

use deckle_group::Group;
use deckle_mm::{PAGE_SIZE, Tunables, knob};
use serde_json::{Value, json};

/// What every process of the group reads, sizes in bytes; null: no limit. The group's page
/// holding what nobody wrote there: null.
pub fn json(group: &Group, swap: &str) -> Value {
    let Ok(t) = group.knobs() else {
        return Value::Null;
    };
    let limits = group.limits();
    let pages = |n: u64| (n != u64::MAX).then(|| n.saturating_mul(PAGE_SIZE as u64));
    let mut all = json!({
        "swap": swap,
        "strict": group.strict(),
        "memory": {
            "max": pages(limits.max),
            "high": pages(limits.high),
            "swap": { "max": pages(limits.swap_max) },
        },
        "transparent_hugepage": { "align_mappings": group.align_mappings() },
        "zswap": { "max_pool_percent": group.swap_file().map(|file| file.ram_percent) },
    });
    for knob in Tunables::KNOBS {
        let place = knob.key.split('.').fold(&mut all, |at, name| &mut at[name]);
        *place = match knob.value(&t) {
            knob::Value::Flag(on) => json!(on),
            knob::Value::Number(n) => json!(n),
            knob::Value::Word(word) => json!(word),
            knob::Value::NoLimit => Value::Null,
        };
    }
    all
}
