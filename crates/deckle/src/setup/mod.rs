//! `deckle setup`: lets ordinary users use deckle on this system, or takes that back.
//!
//! A package's script calls it, too, so that both come to the same. What is missing is found out
//! first, and nothing else is done: so it may be called at any time.

mod cdi;
mod host;
mod seccomp;

use std::io::Write;
use std::path::Path;

use crate::access::{self, GROUP};
use crate::args::setup::SetupArgs;
use crate::fail::{Fail, plain, read_text};
use crate::{accounts, print, run, say};
use host::{Found, Rule, Step};

/// Most bytes of a seccomp profile: a hundred times what engines have.
const PROFILE_BYTES: u64 = 4 << 20;

/// Does, or says, what is to be done; the exit status of `deckle`.
pub fn setup(args: &SetupArgs) -> Result<i32, Fail> {
    if args.cdi {
        return print_cdi();
    }
    if let Some(file) = &args.seccomp {
        return print_seccomp(file);
    }
    if !args.dry_run && deckle_sys::process::effective_user() != 0 {
        let me = access::me();
        return Err(Fail::own(format!(
            "setup needs root: sudo {me} setup; what it would do: {me} setup --dry-run"
        )));
    }
    if let Some(nobody) = args.user.iter().find(|user| !accounts::is_user(user)) {
        return Err(Fail::own(format!(
            "{nobody}: there is no such user: check the name"
        )));
    }
    let found = Found::gather();
    let (steps, notes) = match args.remove {
        false => (plan(&found, &args.user), notes(&found, &args.user)),
        true if found.rule == Rule::Package => {
            return Err(Fail::own(
                "the udev rule is a package's, and so are group and device: remove the package",
            ));
        }
        true => undo(&found),
    };
    let mut failed = 0;
    for step in &steps {
        let text = step.text();
        if args.dry_run {
            print(&format!("would {text}: {}", step.command()))?;
        } else if let Err(why) = step.take() {
            say(format_args!(
                "cannot {text}: {why}; by hand: {}",
                step.command()
            ));
            failed += 1;
        } else {
            print(&format!("done: {text}"))?;
        }
    }
    if steps.is_empty() {
        print("nothing is to be done")?;
    }
    for note in notes {
        print(&note)?;
    }
    Ok(if failed == 0 { 0 } else { 125 })
}

/// What is missing.
fn plan(found: &Found, users: &[String]) -> Vec<Step> {
    let mut steps = Vec::new();
    if found.group.is_none() {
        steps.push(Step::MakeGroup);
    }
    if found.rule == Rule::None && found.udev {
        steps.push(Step::WriteRule);
    }
    let is_given = |(group, mode): (u32, u32)| {
        let of_group = found.group.as_ref().is_some_and(|g| g.id == group);
        mode & 0o006 == 0o006 || of_group && mode & 0o060 == 0o060
    };
    if found.device.is_some_and(|device| !is_given(device)) {
        steps.push(Step::GiveDevice);
    }
    let is_member = |user: &String| {
        let members = found.group.as_ref().map_or(&[][..], |g| &g.members);
        members.contains(user)
    };
    let missing = users.iter().filter(|user| !is_member(user));
    steps.extend(missing.cloned().map(Step::AddUser));
    steps
}

/// What is to be said beside that.
fn notes(found: &Found, users: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    match (&found.device, found.kernel_has) {
        (None, false) => notes.push(
            "this kernel has no /dev/userfaultfd (Linux 6.1 has it): instead, as root, \
             sysctl vm.unprivileged_userfaultfd=1"
                .to_owned(),
        ),
        (None, true) => {
            notes.push("there is no /dev/userfaultfd here: it is made where udev runs".to_owned());
        }
        (Some((_, mode)), _) if mode & 0o006 == 0o006 => {
            notes.push("/dev/userfaultfd is open to everybody until the next boot".to_owned());
        }
        _ => {}
    }
    if let Rule::Other(path) = &found.rule {
        notes.push(format!(
            "{}: is not deckle's, and is left as it is",
            path.display()
        ));
    }
    if found.rule == Rule::None && !found.udev {
        notes.push(format!(
            "no udev here: after each boot, chgrp {GROUP} and chmod 660 /dev/userfaultfd"
        ));
    }
    if users.is_empty() && found.group.as_ref().is_none_or(|g| g.members.is_empty()) {
        let user = std::env::var("SUDO_USER")
            .ok()
            .filter(|user| user != "root");
        let user = user.unwrap_or_else(|| "USER".to_owned());
        notes.push(format!(
            "nobody is in the group yet: as root, usermod -aG {GROUP} {user}; then log in again"
        ));
    } else if !users.is_empty() {
        notes.push("who was put into the group now must log in again".to_owned());
    }
    notes
}

/// What was made, and what of it is not taken back.
fn undo(found: &Found) -> (Vec<Step>, Vec<String>) {
    let mut steps = Vec::new();
    let mut notes = Vec::new();
    match &found.rule {
        Rule::Own => steps.push(Step::RemoveRule),
        Rule::Other(path) => {
            notes.push(format!(
                "{}: is not deckle's, and is left as it is",
                path.display()
            ));
        }
        Rule::None | Rule::Package => {}
    }
    if let Some(group) = &found.group {
        if found.device.is_some_and(|(of, _)| of == group.id) {
            steps.push(Step::TakeDevice);
        }
        steps.push(Step::RemoveGroup);
    }
    (steps, notes)
}

fn print_cdi() -> Result<i32, Fail> {
    let program = std::env::current_exe().map_err(|e| Fail::own(plain(&e)))?;
    let library = run::library()?;
    let libraries = library.parent().unwrap_or(Path::new("/"));
    print(&format!("{:#}", cdi::file(&program, libraries)))?;
    Ok(0)
}

fn print_seccomp(file: &Path) -> Result<i32, Fail> {
    let fail = |why: String| Fail::own(format!("--seccomp: {}: {why}", file.display()));
    let profile = read_text(file, PROFILE_BYTES);
    let profile = profile.map_err(|e| fail(format!("cannot be read: {}", plain(&e))))?;
    let merged = seccomp::merge(&profile).map_err(fail)?;
    // Its last line ends as it did, or does not.
    let written = std::io::stdout().write_all(merged.as_bytes());
    written.map_err(|e| Fail::output(&e))?;
    if seccomp::has_conditions(&profile) {
        say(format_args!(
            "this profile has conditions (includes, excludes), which Docker and Podman know and \
             Kubernetes does not: see docs/install.md"
        ));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Group;

    fn found() -> Found {
        Found {
            group: None,
            rule: Rule::None,
            udev: true,
            device: Some((0, 0o600)),
            kernel_has: true,
        }
    }

    fn done() -> Found {
        let members = vec!["anna".to_owned()];
        Found {
            group: Some(Group { id: 99, members }),
            rule: Rule::Own,
            device: Some((99, 0o660)),
            ..found()
        }
    }

    fn users(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn each_step_is_taken_where_it_is_missing() {
        let all = [Step::MakeGroup, Step::WriteRule, Step::GiveDevice];
        assert_eq!(plan(&found(), &[]), all);
        assert_eq!(plan(&done(), &users(&["anna"])), []);
        let bert = [Step::AddUser("bert".to_owned())];
        assert_eq!(plan(&done(), &users(&["anna", "bert"])), bert);
        // What is open to all stays so; a group of the same number is not enough.
        let open = Found {
            device: Some((0, 0o666)),
            ..done()
        };
        assert_eq!(plan(&open, &[]), []);
        for device in [(99, 0o600), (98, 0o660)] {
            let device = Some(device);
            assert_eq!(plan(&Found { device, ..done() }, &[]), [Step::GiveDevice]);
        }
        let no_udev = Found {
            udev: false,
            device: None,
            ..found()
        };
        assert_eq!(plan(&no_udev, &[]), [Step::MakeGroup]);
        let packaged = Found {
            rule: Rule::Package,
            ..found()
        };
        assert_eq!(plan(&packaged, &[]), [Step::MakeGroup, Step::GiveDevice]);
    }

    #[test]
    fn what_was_made_is_taken_back_and_nothing_else() {
        let (steps, notes) = undo(&done());
        assert_eq!(
            steps,
            [Step::RemoveRule, Step::TakeDevice, Step::RemoveGroup]
        );
        assert!(notes.is_empty());
        assert_eq!(undo(&found()).0, []);
        let other = Found {
            rule: Rule::Other("/etc/udev/rules.d/60-deckle.rules".into()),
            device: Some((0, 0o666)),
            ..done()
        };
        let (steps, notes) = undo(&other);
        assert_eq!(steps, [Step::RemoveGroup]);
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn it_is_said_what_no_step_can_do() {
        let said = |found: &Found, users: &[String]| notes(found, users).join("\n");
        assert!(said(&found(), &[]).contains("usermod -aG deckle"));
        assert_eq!(said(&done(), &[]), "");
        assert!(said(&done(), &users(&["anna"])).contains("log in again"));
        let old = Found {
            device: None,
            kernel_has: false,
            ..done()
        };
        assert!(said(&old, &[]).contains("sysctl"));
        let alpine = Found {
            udev: false,
            ..found()
        };
        assert!(said(&alpine, &[]).contains("after each boot"));
    }
}
