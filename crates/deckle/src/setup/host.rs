//! What there is on this system, and the steps.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::access::{self, DEVICE, GROUP};
use crate::accounts::{self, Group};
use crate::fail::plain;

/// The rule, as a package has it.
const RULE: &str = include_str!("../../../../packaging/60-deckle.rules");
/// Where it is written to.
const RULE_FILE: &str = "/etc/udev/rules.d/60-deckle.rules";
/// Where packages have theirs.
const PACKAGED: [&str; 2] = [
    "/usr/lib/udev/rules.d/60-deckle.rules",
    "/lib/udev/rules.d/60-deckle.rules",
];
/// There where udev is installed; packages have rules also where it is not.
const UDEV: &str = "/etc/udev";

/// What there is.
#[derive(Debug)]
pub struct Found {
    /// The group.
    pub group: Option<Group>,
    /// The udev rule.
    pub rule: Rule,
    /// udev is installed.
    pub udev: bool,
    /// Group and mode of the device.
    pub device: Option<(u32, u32)>,
    /// The kernel has the device, here or not.
    pub kernel_has: bool,
}

/// A udev rule of that name.
#[derive(Debug, PartialEq, Eq)]
pub enum Rule {
    /// There is none.
    None,
    /// It was written here.
    Own,
    /// A package has brought it.
    Package,
    /// Somebody has changed it.
    Other(PathBuf),
}

impl Found {
    /// Looks.
    pub fn gather() -> Found {
        let is_there = |path: &str| Path::new(path).exists();
        let rule = match fs::read_to_string(RULE_FILE) {
            Ok(text) if text == RULE => Rule::Own,
            Ok(_) => Rule::Other(RULE_FILE.into()),
            Err(_) if PACKAGED.into_iter().any(is_there) => Rule::Package,
            Err(_) => Rule::None,
        };
        Found {
            group: accounts::group(GROUP),
            rule,
            udev: is_there(UDEV),
            device: access::device(),
            kernel_has: access::kernel_has_device(),
        }
    }
}

/// A step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes the group.
    MakeGroup,
    /// Writes the udev rule.
    WriteRule,
    /// Gives the device to the group.
    GiveDevice,
    /// Puts a user into the group.
    AddUser(String),
    /// Removes the rule.
    RemoveRule,
    /// Gives the device back to root alone.
    TakeDevice,
    /// Removes the group.
    RemoveGroup,
}

impl Step {
    /// What it does.
    pub fn text(&self) -> String {
        match self {
            Step::MakeGroup => format!("make the group {GROUP}"),
            Step::WriteRule => format!("write the udev rule {RULE_FILE}"),
            Step::GiveDevice => format!("give {DEVICE} to the group {GROUP}"),
            Step::AddUser(user) => format!("put {user} into the group {GROUP}"),
            Step::RemoveRule => format!("remove the udev rule {RULE_FILE}"),
            Step::TakeDevice => format!("give {DEVICE} back to root alone"),
            Step::RemoveGroup => format!("remove the group {GROUP}"),
        }
    }

    /// How to do it by hand.
    pub fn command(&self) -> String {
        match self {
            Step::WriteRule => {
                let rule = RULE.lines().last().unwrap_or("");
                format!("echo '{rule}' >{RULE_FILE}")
            }
            Step::GiveDevice => format!("chgrp {GROUP} {DEVICE} && chmod 660 {DEVICE}"),
            Step::RemoveRule => format!("rm {RULE_FILE}"),
            Step::TakeDevice => format!("chgrp 0 {DEVICE} && chmod 600 {DEVICE}"),
            Step::MakeGroup | Step::AddUser(_) | Step::RemoveGroup => self.programs()[0].join(" "),
        }
    }

    /// Does it.
    pub fn take(&self) -> Result<(), String> {
        let done = match self {
            Step::WriteRule => write_rule(),
            Step::GiveDevice => {
                let Some(group) = accounts::group(GROUP) else {
                    return Err("there is no such group".to_owned());
                };
                give_device(group.id, 0o660)
            }
            Step::RemoveRule => fs::remove_file(RULE_FILE),
            Step::TakeDevice => give_device(0, 0o600),
            Step::MakeGroup | Step::AddUser(_) | Step::RemoveGroup => {
                return run_first(&self.programs());
            }
        };
        done.map_err(|e| plain(&e))
    }

    /// What does it, as most systems have it and as small ones do.
    fn programs(&self) -> [Vec<&str>; 2] {
        match self {
            Step::MakeGroup => [
                vec!["groupadd", "--system", GROUP],
                vec!["addgroup", "-S", GROUP],
            ],
            Step::AddUser(user) => [
                vec!["usermod", "-aG", GROUP, user],
                vec!["addgroup", user, GROUP],
            ],
            Step::RemoveGroup => [vec!["groupdel", GROUP], vec!["delgroup", GROUP]],
            _ => [vec![], vec![]],
        }
    }
}

/// Runs the first of these programs that is there.
fn run_first(programs: &[Vec<&str>]) -> Result<(), String> {
    for words in programs {
        let Some((program, args)) = words.split_first() else {
            continue;
        };
        match Command::new(program).args(args).output() {
            Ok(o) if o.status.success() => return Ok(()),
            Ok(o) => return Err(String::from_utf8_lossy(&o.stderr).trim().to_owned()),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(format!("{program}: {}", plain(&e))),
        }
    }
    let names: Vec<&str> = programs.iter().filter_map(|p| p.first().copied()).collect();
    Err(format!("neither {} is here", names.join(" nor ")))
}

/// Writes the rule, whole or not at all.
fn write_rule() -> io::Result<()> {
    let file = Path::new(RULE_FILE);
    fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
    let draft = file.with_extension("new");
    fs::write(&draft, RULE)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o644))?;
    fs::rename(&draft, file)
}

/// The device's rights: by the name of a device, and nothing that a link leads to.
fn give_device(group: u32, mode: u32) -> io::Result<()> {
    if fs::symlink_metadata(DEVICE)?.rdev() == 0 {
        return Err(io::Error::other("is no device"));
    }
    chown(DEVICE, None, Some(group))?;
    fs::set_permissions(DEVICE, fs::Permissions::from_mode(mode))
}
