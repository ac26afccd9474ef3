//! The live platform's self-test: each ability tried on this system, not read from a version
//! or a feature bit.

use deckle_live::{Capabilities, Capability};
use serde_json::json;

use super::{Finding, State};

const SECTION: &str = "self-test (tried, not inferred)";

/// Runs the test and says what holds, and what the absence of the rest means. Where there is no
/// way to a userfaultfd all of it follows from that, whose remedy is said there.
pub(super) fn findings(has_way: bool) -> Vec<Finding> {
    let mut all = of(deckle_live::self_test());
    if !has_way {
        let missing = all.iter_mut().filter(|f| f.state == State::Missing);
        for finding in missing {
            finding.remedy = Some("as for what is used, above".to_owned());
        }
    }
    all
}

fn of(found: Capabilities) -> Vec<Finding> {
    Capability::ALL
        .into_iter()
        .map(|c| {
            let has = found.has(c);
            let f = Finding::fact(SECTION, name(c), if has { "works" } else { "does not" })
                .value(json!(has));
            f.unless(has, absence(c), c.without())
        })
        .collect()
}

const fn name(c: Capability) -> &'static str {
    match c {
        Capability::Tested => "ran to its end",
        Capability::KernelFaults => "faults of system calls",
        Capability::Move => "pages move, no byte lost",
        Capability::BlockRecipe => "huge pages stay huge",
        Capability::ZeroRuns => "protected zero pages",
        Capability::HugeByFault => "huge page by fault",
        Capability::HugeByCollapse => "huge page by collapse",
        Capability::AsyncProtect => "dirty pages are told",
        Capability::ProcMem => "memory without rights",
    }
}

/// How bad it is to be without.
const fn absence(c: Capability) -> State {
    match c {
        Capability::Tested | Capability::KernelFaults => State::Missing,
        _ => State::Note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ability_is_named_once_and_its_absence_has_a_remedy() {
        let none = of(Capabilities::default());
        assert_eq!(none.len(), Capability::ALL.len());
        for (i, f) in none.iter().enumerate() {
            assert!(f.remedy.as_ref().is_some_and(|r| !r.is_empty()));
            assert!(none[..i].iter().all(|other| other.name != f.name));
        }
        let all = Capability::ALL
            .into_iter()
            .fold(Capabilities::default(), Capabilities::with);
        assert!(of(all).iter().all(|f| f.state == State::Ok));
    }
}
