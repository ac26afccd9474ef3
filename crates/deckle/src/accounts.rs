//! Users and groups of this system: as getent tells them, which knows more than the files, or else
//! from the files.

use std::process::{Command, Stdio};

/// A group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub id: u32,
    /// The users that are named in it; those whose first group it is are not.
    pub members: Vec<String>,
}

/// The group of this name.
pub fn group(name: &str) -> Option<Group> {
    group_of(&entry("group", name)?)
}

/// The name of the user with this number.
pub fn user_name(id: u32) -> Option<String> {
    let entry = entry("passwd", &id.to_string())?;
    entry.split(':').next().map(str::to_owned)
}

/// Whether there is a user of this name.
pub fn is_user(name: &str) -> bool {
    entry("passwd", name).is_some()
}

fn group_of(entry: &str) -> Option<Group> {
    let mut fields = entry.split(':').skip(2);
    let id = fields.next()?.parse().ok()?;
    let members = fields.next().unwrap_or("").split(',');
    let members = members.filter(|m| !m.is_empty()).map(str::to_owned);
    Some(Group {
        id,
        members: members.collect(),
    })
}

/// The line of a database that has this name, or number.
fn entry(database: &str, key: &str) -> Option<String> {
    let asked = Command::new("getent")
        .args([database, key])
        .stderr(Stdio::null())
        .output();
    let text = match asked {
        Ok(told) => String::from_utf8_lossy(&told.stdout).into_owned(),
        Err(_) => std::fs::read_to_string(format!("/etc/{database}")).ok()?,
    };
    line_of(&text, key).map(str::to_owned)
}

fn line_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let is_it = |line: &&str| {
        let mut fields = line.trim_end().split(':');
        fields.next() == Some(key) || fields.nth(1) == Some(key)
    };
    text.lines().find(is_it).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "root:x:0:\nadm:x:4:syslog,anna\nempty:x:5:\n";

    #[test]
    fn an_entry_is_found_by_name_and_by_number() {
        assert_eq!(line_of(FILE, "adm"), Some("adm:x:4:syslog,anna"));
        assert_eq!(line_of(FILE, "4"), Some("adm:x:4:syslog,anna"));
        assert_eq!(line_of(FILE, "x"), None);
        assert_eq!(line_of(FILE, "anna"), None);
    }

    #[test]
    fn a_group_has_the_members_that_it_names() {
        let group = |name| group_of(line_of(FILE, name).unwrap()).unwrap();
        assert_eq!((group("adm").id, group("adm").members.len()), (4, 2));
        assert!(group("empty").members.is_empty());
        assert_eq!(group_of("no:x:number:"), None);
    }

    #[test]
    fn this_system_has_root() {
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(group("root").map(|g| g.id), Some(0));
        assert!(is_user("root") && !is_user("no-such-user-of-deckle"));
    }
}
