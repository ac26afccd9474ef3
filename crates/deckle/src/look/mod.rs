//! What runs under deckle, looked at from outside: `deckle stat`, `deckle set`, `deckle reclaim`.
//!
//! A tree is found by its page in /dev/shm. Whose it is decides the file (`deckle_group::look`),
//! whether it runs its `deckle run`; a name is only what a user calls it.

mod json;
pub mod openmetrics;
pub mod reclaim;
pub mod set;
pub mod stat;
mod table;
pub mod top;
mod waits;

use std::time::Duration;

use deckle_group::proc::proc_stat;
use deckle_group::{Alias, AttachError, Group, Look, Name, SwapKind, look};
use deckle_sys::Errno;

use crate::fail::Fail;
use crate::run::report::Report;
use crate::run::tree::age;

/// A tree that runs.
pub struct Tree {
    look: Look,
}

impl Tree {
    /// What is known of it, as of the last look.
    pub fn group(&self) -> Group {
        self.look.group()
    }

    /// Looks again; false: it has ended.
    pub fn again(&self) -> bool {
        self.look.is_alive() && self.look.again().is_ok()
    }

    /// What it is called: its name, or the pid of its `deckle run`.
    pub fn called(&self) -> String {
        called(&self.group())
    }

    fn is_named(&self, word: &str) -> bool {
        let alias = self.group().alias();
        alias.is_some_and(|(alias, _)| alias.as_str() == word)
    }

    /// Whether `pid` is of it: its `deckle run`, or a process in it.
    fn has(&self, pid: u32) -> bool {
        let group = self.group();
        [group.front(), group.supervisor()].contains(&pid)
            || (group.processes()).any(|p| [p.pid, p.service].contains(&pid))
    }

    /// Its processes, of which there is one at least.
    ///
    /// # Errors
    /// None is managed, by now or ever.
    pub fn pids(&self) -> Result<Vec<u32>, Fail> {
        let pids: Vec<u32> = self.group().processes().map(|p| p.pid).collect();
        match pids.is_empty() {
            true => Err(Fail::own(format!(
                "{}: no process of this tree is managed now: see `deckle stat {0}`",
                self.called()
            ))),
            false => Ok(pids),
        }
    }

    /// All of it.
    pub fn report(&self) -> Report {
        let group = self.group();
        Report::gather(&group, swap(&group), Err(self.age()))
    }

    fn age(&self) -> Duration {
        age(self.group().supervisor_start())
    }
}

fn called(group: &Group) -> String {
    let alias = group.alias().map(|(alias, _)| alias.as_str().to_owned());
    alias.unwrap_or_else(|| group.front().to_string())
}

/// Where cold pages go, as far as the page says: the directory is not told.
fn swap(group: &Group) -> String {
    let ram = match group.swap_kind() {
        SwapKind::None => "none",
        SwapKind::Lz4 => "zram:lz4",
        SwapKind::Zstd => "zram:zstd",
    };
    let Some(file) = group.swap_file() else {
        return ram.to_owned();
    };
    let encrypt = if file.encrypt { ",encrypt" } else { "" };
    match file.ram_percent {
        0 => format!("file{encrypt}"),
        _ => format!("{ram},file{encrypt}"),
    }
}

/// The trees that run and may be looked at, the oldest first.
#[derive(Default)]
pub struct Trees {
    trees: Vec<Tree>,
    /// Pages that are no such tree, by now: each is looked at once.
    ignored: Vec<Name>,
    /// How many of them are of other users, and of other versions of deckle.
    others: [usize; 2],
    /// No other tree is wanted.
    closed: bool,
}

impl Trees {
    /// As they are now. What killed ones have left is removed.
    pub fn now() -> Trees {
        look::sweep();
        let mut trees = Trees::default();
        trees.renew();
        trees
    }

    /// This one, while it runs.
    pub fn only(tree: Tree) -> Trees {
        Trees {
            trees: vec![tree],
            closed: true,
            ..Trees::default()
        }
    }

    /// Those of the last look.
    pub fn all(&self) -> &[Tree] {
        &self.trees
    }

    /// Looks at all again, and for new ones.
    pub fn renew(&mut self) {
        self.trees.retain(Tree::again);
        if self.closed {
            return;
        }
        for name in look::names() {
            let known = |tree: &Tree| tree.group().name() == name;
            if !self.trees.iter().any(known) && !self.ignored.contains(&name) {
                self.add(name);
            }
        }
        self.trees
            .sort_by_key(|tree| (tree.group().supervisor_start(), tree.group().front()));
    }

    fn add(&mut self, name: Name) {
        use AttachError::{Call, Foreign, Magic, Size, Version};
        let kind = match Look::open(name) {
            Ok(look) if look.is_alive() => return self.trees.push(Tree { look }),
            Err(Foreign | Call(_, Errno(libc::EACCES))) => Some(0),
            Err(Version { .. }) => Some(1),
            // It is not ready yet, or was never one of ours.
            Err(Magic | Size { .. }) => return,
            _ => None,
        };
        self.ignored.push(name);
        if let Some(kind) = kind {
            self.others[kind] += 1;
        }
    }
}

/// The tree that is called so, or of which a process has this pid.
pub fn find(word: &str) -> Result<Tree, Fail> {
    let Trees {
        mut trees, others, ..
    } = Trees::now();
    let there = trees.iter().map(Tree::called).collect::<Vec<_>>();
    match word.parse() {
        Ok(pid) => trees.retain(|tree| tree.has(pid)),
        Err(_) => trees.retain(|tree| tree.is_named(word)),
    }
    the_one(word, trees)?.ok_or_else(|| nothing(word, &there, others))
}

/// The tree of this name, if one runs that may be looked at.
pub fn named(word: &str) -> Result<Option<Tree>, Fail> {
    if Alias::new(word).is_none() {
        return Ok(None);
    }
    let mut trees = Trees::now().trees;
    trees.retain(|tree| tree.is_named(word));
    the_one(word, trees)
}

/// The process of this number, or the only one of the tree that is called so.
pub fn process(word: &str) -> Result<u32, Fail> {
    if let Ok(pid) = word.parse() {
        return match (1..1 << 31).contains(&pid) {
            true => Ok(pid),
            false => Err(Fail::own(format!(
                "`{word}` is no PID: give 1 to 2147483647"
            ))),
        };
    }
    match find(word)?.pids()?[..] {
        [pid] => Ok(pid),
        ref several => Err(Fail::own(format!(
            "`{word}` has several processes: give the pid of one: {}",
            several
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

/// The tree that is left, if only one is.
fn the_one(word: &str, mut trees: Vec<Tree>) -> Result<Option<Tree>, Fail> {
    if let [_, _, ..] = &trees[..] {
        let pids: Vec<_> = trees
            .iter()
            .map(|t| t.group().front().to_string())
            .collect();
        return Err(Fail::own(format!(
            "`{word}`: several trees are called so: give the pid of one: {}",
            pids.join(", ")
        )));
    }
    Ok(trees.pop())
}

fn nothing(word: &str, there: &[String], [foreign, version]: [usize; 2]) -> Fail {
    let mut why = match there {
        [] => "nothing runs: start it by `deckle run --name NAME -- PROGRAM`".to_owned(),
        some => format!("there are: {}", some.join(", ")),
    };
    if foreign > 0 {
        why += "; trees of other users are theirs and root's to look at";
    }
    if version > 0 {
        why += "; what another version of deckle runs only that can look at";
    }
    let what = match word.parse::<u32>() {
        Ok(pid) if proc_stat(pid).is_err() => format!("there is no process {pid}"),
        Ok(pid) => format!("process {pid} is in no tree that runs"),
        Err(_) => format!("no tree that runs is called `{word}`"),
    };
    Fail::own(format!("{what}: {why}"))
}

/// The name for a tree that is about to begin.
pub fn alias(name: Option<&str>) -> Result<Option<Alias>, Fail> {
    let Some(name) = name else { return Ok(None) };
    let alias = Alias::new(name).ok_or_else(|| {
        Fail::own(format!(
            "--name: `{name}` cannot be one: give 1 to {} letters, digits, dots, dashes and \
             underscores, and not digits alone",
            Alias::MAX
        ))
    })?;
    match Trees::now().all().iter().find(|tree| tree.is_named(name)) {
        Some(other) => Err(taken(name, &other.group())),
        None => Ok(Some(alias)),
    }
}

fn taken(name: &str, by: &Group) -> Fail {
    Fail::own(format!(
        "--name: `{name}` is the name of the tree of process {}, which runs: give another",
        by.front()
    ))
}

/// Gives the group of this process that name, unless another has it that runs.
///
/// Two that claim it at once see each other, and both step back for a while: not for the same time,
/// since one of them has the smaller pid.
pub fn claim(group: &Group, alias: Alias) -> Result<(), Fail> {
    const TRIES: u32 = 50;
    let other = || {
        let trees = Trees::now();
        let mut others = trees.all().iter().map(Tree::group);
        let named = |other: &Group| other.alias().is_some_and(|(name, _)| name == alias);
        others.find(|other| other.name() != group.name() && named(other))
    };
    let mut last = None;
    for round in 0..TRIES {
        group.claim_alias(alias);
        match other() {
            None => {
                group.confirm_alias();
                return Ok(());
            }
            Some(by) => {
                group.withdraw_alias();
                let waits = by.alias().is_some_and(|(_, claims)| claims);
                last = Some(by);
                if !waits {
                    break;
                }
                let pause = 1 + u64::from((std::process::id() >> (round % 8)) % 8);
                std::thread::sleep(Duration::from_millis(pause));
            }
        }
    }
    let name = alias.as_str();
    let busy = || Fail::own(format!("--name: `{name}`: others want it, too: try again"));
    Err(last.map_or_else(busy, |by| taken(name, &by)))
}
