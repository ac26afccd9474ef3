//! The knobs that are in force, in the shape and with the names of the settings file.

use deckle_group::Group;
use deckle_mm::{PAGE_SIZE, SIZE_ORDERS, Tunables};
use serde_json::{Map, Value, json};

use crate::config::size_name;
use crate::swap::Swap;
use crate::words::Word;

/// What every process of the group reads, sizes in bytes; null: no limit. The group's page
/// holding what nobody wrote there: null.
pub fn json(group: &Group, swap: &Swap) -> Value {
    let Ok(t) = group.knobs() else {
        return Value::Null;
    };
    let limits = group.limits();
    let pages = |n: u64| (n != u64::MAX).then(|| n.saturating_mul(PAGE_SIZE as u64));
    json!({
        "profile": t.profile.word(),
        "swap": swap.to_string(),
        "strict": group.strict(),
        "memory": {
            "max": pages(limits.max),
            "high": pages(limits.high),
            "swap": { "max": pages(limits.swap_max) },
        },
        "transparent_hugepage": transparent_hugepage(&t, group.align_mappings()),
        "zswap": { "max_pool_percent": group.swap_file().map(|file| file.ram_percent) },
        "vm": {
            "page-cluster": t.page_cluster,
            "swap_cache": t.swap_cache,
            "vma_ra_enabled": t.vma_ra_enabled,
        },
    })
}

fn transparent_hugepage(t: &Tunables, align_mappings: bool) -> Value {
    let millisecs = |ticks: u32| u64::from(ticks) * u64::from(Tunables::TICK_MILLISECS);
    let mut all = Map::new();
    let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
    put("enabled", json!(t.thp.word()));
    put("shrink_underused", json!(t.shrink_underused));
    let waste = (t.thp_waste_max != u64::MAX).then_some(t.thp_waste_max);
    put("thp_waste_max", json!(waste));
    put("oom_zero_drop", json!(t.oom_zero_drop));
    put("fault_order", json!(t.fault_order.word()));
    put("fault_max", json!(t.fault_max));
    put("fault_max_advised", json!(t.fault_max_advised));
    put("fault_attempts", json!(t.fault_attempts));
    put("fault_open_ratio", json!(t.fault_open_ratio));
    put("align_mappings", json!(align_mappings));
    put(
        "khugepaged",
        json!({
            "max_ptes_none": t.max_ptes_none,
            "max_ptes_swap": t.max_ptes_swap,
            "max_ptes_shared": t.max_ptes_shared,
            "pages_to_scan": t.khugepaged_pages_to_scan,
            "scan_sleep_millisecs": millisecs(t.khugepaged_scan_sleep),
            "alloc_sleep_millisecs": millisecs(t.khugepaged_alloc_sleep),
            "defrag": t.khugepaged_defrag,
        }),
    );
    for order in SIZE_ORDERS {
        let enabled = t.sizes.get(order).word();
        put(&size_name(order), json!({ "enabled": enabled }));
    }
    Value::Object(all)
}
