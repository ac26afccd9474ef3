//! The rooms of the core, and that nothing in one of them names or calls what is in a higher one.

use crate::source::{File, files};
use std::collections::BTreeMap;

const CORE: &str = "crates/mm/src/";

/// The rooms, the lowest first. A file beside them is the ground that all stand on, but for
/// those of [`ROOF`].
const ROOMS: [&str; 13] = [
    GROUND,
    "frame",
    "table",
    "order",
    "engine",
    "sharing",
    "shrink",
    "compact",
    "reclaim",
    "fault",
    "khugepaged",
    "space",
    "roof",
];
const GROUND: &str = "ground";
/// Files that stand on all rooms.
const ROOF: [&str; 6] = [
    "env.rs",
    "frames.rs",
    "inspect.rs",
    "lib.rs",
    "mm.rs",
    "verify.rs",
];
/// What rooms from the one named on may name and call although it is on the roof: the set of
/// strategies, and the type whose methods policy writes, which the engine knows nothing of.
const FREE: [(&str, &str); 3] = [("env", GROUND), ("frames", GROUND), ("mm", "shrink")];

/// Methods of the standard library that have namesakes in the core: who calls one cannot be told.
const NAMESAKES: [&str; 13] = [
    "any", "entries", "find", "is_none", "iter", "last", "len", "load", "map", "pop", "push",
    "remove", "yields",
];

/// How high a file of the core is.
fn height(file: &str) -> usize {
    let room = match file.split_once('/') {
        Some((room, _)) => room,
        None if ROOF.contains(&file) => "roof",
        None => GROUND,
    };
    level(room).unwrap_or_else(|| panic!("{file} is in no room of the list"))
}

fn level(room: &str) -> Option<usize> {
    ROOMS.iter().position(|r| *r == room)
}

/// From which room on a file of the roof may be named, if not by the roof alone.
fn seen_from(file: &str) -> Option<usize> {
    let (_, room) = FREE
        .iter()
        .find(|(free, _)| file.strip_suffix(".rs") == Some(free))?;
    level(room)
}

/// A text without its comments and its unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
    let bare = |line: &str| line.split("//").next().unwrap_or("").to_owned();
    text.lines().map(bare).collect::<Vec<_>>().join("\n")
}

/// The words of a text, each with what is before and behind it.
fn words(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut at = 0;
    std::iter::from_fn(move || {
        let begin = at + text[at..].find(inner)?;
        let rest = &text[begin..];
        let end = begin + rest.find(|c| !inner(c)).unwrap_or(rest.len());
        at = end;
        Some((&text[..begin], &text[begin..end], &text[end..]))
    })
}

/// What is named or called upwards, one line each.
fn upwards(core: &[(&str, String)]) -> Vec<String> {
    // The lowest room where a function of that name is.
    let mut lowest: BTreeMap<&str, usize> = BTreeMap::new();
    for (file, text) in core {
        for (before, word, _) in words(text) {
            if before.ends_with("fn ") {
                let room = lowest.entry(word).or_insert(usize::MAX);
                *room = seen_from(file).unwrap_or(height(file)).min(*room);
            }
        }
    }
    let mut found = Vec::new();
    for (file, text) in core {
        let here = height(file);
        for (before, word, behind) in words(text) {
            let path = before.ends_with("crate::");
            let named = level(word).filter(|_| path && behind.starts_with("::"));
            let file_of = format!("{word}.rs");
            let on_roof = path && ROOF.contains(&file_of.as_str());
            let from = seen_from(&file_of).unwrap_or(ROOMS.len() - 1);
            if named.is_some_and(|room| room > here) || on_roof && here < from {
                found.push(format!("{file} names {word}"));
            }
            let called = behind.starts_with('(') || behind.starts_with("::<");
            let known = !NAMESAKES.contains(&word);
            if called && known && lowest.get(word).is_some_and(|room| *room > here) {
                found.push(format!("{file} calls {word}"));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn core(all: &[File]) -> Vec<(&str, String)> {
    let is_test = |file: &str| file.contains("tests/") || file.ends_with("tests.rs");
    let core = all
        .iter()
        .filter_map(|f| f.path.strip_prefix(CORE).map(|p| (p, f)));
    let core = core.filter(|(path, _)| !is_test(path));
    core.map(|(path, f)| (path, code(&f.text))).collect()
}

#[test]
fn no_room_of_the_core_names_or_calls_a_higher_one() {
    let all = files("rs");
    let core = core(&all);
    assert!(core.len() > 80, "only {} files", core.len());
    for room in &ROOMS {
        assert!(
            core.iter().any(|(f, _)| ROOMS[height(f)] == *room),
            "{room} is empty"
        );
    }
    let found = upwards(&core);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Files of the core that name the platform's operations, but for the engine's, which alone calls
/// them: who is not there cannot reach the manager's platform, only its handle.
fn users_of_the_platform<'a>(core: &[(&'a str, String)]) -> Vec<&'a str> {
    let outside = |file: &str| {
        !file.starts_with("engine/") && !["env.rs", "lib.rs", "platform.rs"].contains(&file)
    };
    let imports = |text: &str| {
        let uses = text.split("use crate::platform::").skip(1);
        uses.filter_map(|rest| rest.split(';').next())
            .any(|names| words(names).any(|(_, word, _)| word == "Platform"))
    };
    let found = core
        .iter()
        .filter(|(file, text)| outside(file) && imports(text));
    found.map(|(file, _)| *file).collect()
}

#[test]
fn the_engine_alone_calls_the_platform() {
    let all = files("rs");
    assert_eq!(users_of_the_platform(&core(&all)), Vec::<&str>::new());
    let bad = (
        "space/a.rs",
        "use crate::platform::{Platform, Prot};".to_owned(),
    );
    let good = ("engine/a.rs", bad.1.clone());
    assert_eq!(users_of_the_platform(&[bad, good]), ["space/a.rs"]);
}

/// Constants by which a strategy could be asked which one it is.
const KINDS: [&str; 3] = ["COW", "CONTIGUITY", "SPARSE"];

#[test]
fn nobody_asks_a_strategy_which_one_it_is() {
    let all = files("rs");
    for (file, text) in core(&all) {
        let asked = words(&text).find(|(_, word, _)| KINDS.contains(word));
        assert!(asked.is_none(), "{file} asks for {:?}", asked.map(|w| w.1));
    }
}

#[test]
fn each_way_upwards_is_seen() {
    let fault = ("fault/mod.rs", "fn serve() { reclaim_some(); }".to_owned());
    let reclaim = |text: &str| {
        (
            "reclaim/direct.rs",
            format!("fn reclaim_some() {{}}\n{text}"),
        )
    };
    let see = |text: &str| upwards(&[fault.clone(), reclaim(text)]).len();
    assert_eq!(see("use crate::engine::lru; use crate::mm::Mm;"), 0);
    assert_eq!(see("use crate::fault::Served;"), 1);
    assert_eq!(see("use crate::verify::walk;"), 1);
    let names_mm = |file| upwards(&[(file, "use crate::mm::Mm;".to_owned())]).len();
    assert_eq!(
        [names_mm("engine/lru.rs"), names_mm("shrink/trim.rs")],
        [1, 0]
    );
    assert_eq!(see("fn f() { mm.serve(); }"), 1);
    assert_eq!(see("fn f() { mm.serve::<u8>(); reclaim_some(); }"), 1);
    assert_eq!(
        code("a // serve()\n#[cfg(test)]\nmod tests { serve() }"),
        "a "
    );
}
