//! A seccomp profile for containers: the one that an engine has by default, and what deckle needs.
//!
//! The profile stays as it is, byte for byte, but for a rule at the front that lets the calls
//! through, and their names, which no other rule has any more: so the difference between the two
//! files is what a reviewer reads.

use serde_json::{Value, json};

/// What is refused by default, and needed where a container does not have `/dev/userfaultfd`.
const CALLS: [&str; 1] = ["userfaultfd"];

/// The profile with what deckle needs.
///
/// # Errors
/// It is no profile, and why.
pub fn merge(profile: &str) -> Result<String, String> {
    let before: Value = serde_json::from_str(profile)
        .map_err(|e| format!("not JSON, as a seccomp profile is: {e}"))?;
    let rules = before["syscalls"].as_array();
    let rules = rules.ok_or("no seccomp profile: it has no list `syscalls`")?;
    if rules.iter().any(lets_all_through) {
        return Ok(profile.to_owned());
    }
    let after = insert(&without_calls(profile)).ok_or("`syscalls` is not where it is expected")?;
    // What has been done to the text is what should be done to the rules.
    match serde_json::from_str::<Value>(&after) {
        Ok(done) if done == merged(before.clone()) => Ok(after),
        _ => Err("this form of a profile is not understood: write it as Docker's is".to_owned()),
    }
}

/// Whether Kubernetes would read the profile otherwise than Docker and Podman, which know
/// conditions: there, such a rule has none.
pub fn has_conditions(profile: &str) -> bool {
    let conditions = ["includes", "excludes"];
    let is_set = |v: &Value| v.as_object().is_some_and(|o| !o.is_empty());
    let profile: Value = serde_json::from_str(profile).unwrap_or_default();
    let rules = profile["syscalls"].as_array().map_or(&[][..], |r| r);
    let has = |rule: &Value| conditions.iter().any(|c| is_set(&rule[*c]));
    rules.iter().any(has)
}

fn rule() -> Value {
    json!({
        "names": CALLS,
        "action": "SCMP_ACT_ALLOW",
        "comment": "deckle: see its docs/install.md",
    })
}

/// Whether a rule lets all the calls through, without a condition.
fn lets_all_through(rule: &Value) -> bool {
    let empty = |v: &Value| match v {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let names = rule["names"].as_array().map_or(&[][..], |n| n);
    rule["action"] == "SCMP_ACT_ALLOW"
        && ["args", "includes", "excludes"]
            .iter()
            .all(|k| empty(&rule[*k]))
        && CALLS.iter().all(|call| names.iter().any(|n| n == call))
}

/// What the text's changes must come to.
fn merged(mut profile: Value) -> Value {
    let Some(rules) = profile["syscalls"].as_array_mut() else {
        return profile;
    };
    for rule in rules.iter_mut() {
        if let Some(names) = rule["names"].as_array_mut() {
            names.retain(|name| CALLS.iter().all(|call| name != call));
        }
    }
    rules.insert(0, rule());
    profile
}

/// The text without the calls in any list.
fn without_calls(text: &str) -> String {
    let mut text = text.to_owned();
    for word in CALLS.map(|call| format!("\"{call}\"")) {
        while let Some(at) = text.find(&word) {
            let (front, back) = (&text[..at], &text[at + word.len()..]);
            // With the comma and the space behind it; the last of a list with those before it.
            text = match back.trim_start().strip_prefix(',') {
                Some(rest) => format!("{front}{}", rest.trim_start()),
                None => {
                    let front = front.trim_end();
                    format!("{}{back}", front.strip_suffix(',').unwrap_or(front))
                }
            };
        }
    }
    text
}

/// The text with the rule in front of the others, indented as they are.
fn insert(text: &str) -> Option<String> {
    let key = text.find("\"syscalls\"")?;
    let list = key + text[key..].find('[')? + 1;
    let (front, back) = text.split_at(list);
    let first = back.trim_start();
    let space = &back[..back.len() - first.len()];
    let rule = match space.rsplit_once('\n') {
        None => rule().to_string(),
        Some((_, indent)) => {
            let step = if indent.contains('\t') {
                "\t"
            } else {
                &indent[..indent.len() / 2]
            };
            let line = |line: &str| {
                let inner = line.trim_start();
                let deep = (line.len() - inner.len()) / 2;
                format!("{}{inner}", step.repeat(deep))
            };
            let lines: Vec<String> = format!("{:#}", rule()).lines().map(line).collect();
            lines.join(&format!("\n{indent}"))
        }
    };
    let comma = if first.starts_with(']') { "" } else { "," };
    let end = if comma.is_empty() { "" } else { space };
    Some(format!("{front}{space}{rule}{comma}{end}{first}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As engines write it, with a tab for each two spaces.
    const PROFILE: &str = r#"{
  "defaultAction": "SCMP_ACT_ERRNO",
  "syscalls": [
    {
      "names": [
        "uselib",
        "userfaultfd",
        "ustat"
      ],
      "action": "SCMP_ACT_ERRNO"
    },
    {
      "names": [
        "kcmp"
      ],
      "action": "SCMP_ACT_ALLOW",
      "includes": {
        "caps": [
          "CAP_SYS_PTRACE"
        ]
      }
    }
  ]
}
"#;

    fn profile() -> String {
        PROFILE.replace("  ", "\t")
    }

    fn lines(text: &str) -> Vec<&str> {
        text.lines().collect()
    }

    #[test]
    fn the_profile_stays_as_it_is_but_for_a_rule_and_a_name() {
        let profile = profile();
        let merged = merge(&profile).unwrap();
        let (before, after) = (lines(&profile), lines(&merged));
        assert_eq!(after[..3], before[..3]);
        let added = 3..3 + after.len() - (before.len() - 1);
        assert_eq!(added.len(), 7, "{merged}");
        let mut rest = after[added.end..].to_vec();
        rest.insert(3, "\t\t\t\t\"userfaultfd\",");
        assert_eq!(rest, before[3..]);
        assert_eq!(after[3], "\t\t{", "{merged}");
        assert!(
            after[added].contains(&"\t\t\t\t\"userfaultfd\""),
            "{merged}"
        );
    }

    #[test]
    fn what_has_it_stays_as_it_is() {
        let merged = merge(&profile()).unwrap();
        assert_eq!(merge(&merged), Ok(merged.clone()));
        // Not where a condition is on it.
        let some = merged.replace("\"comment\"", "\"args\": [{\"index\": 0}], \"comment\"");
        assert_ne!(merge(&some), Ok(some.clone()));
    }

    #[test]
    fn profiles_of_other_forms_are_merged_or_refused() {
        for profile in [
            r#"{"syscalls":[{"names":["read","userfaultfd"],"action":"SCMP_ACT_KILL"}]}"#,
            r#"{"syscalls": [{"names": ["userfaultfd"], "action": "SCMP_ACT_ERRNO"}]}"#,
            "{\"syscalls\": [\n  {\n    \"names\": [\n      \"a\"\n    ]\n  }\n]}",
            r#"{"syscalls": []}"#,
        ] {
            let merged: Value = serde_json::from_str(&merge(profile).unwrap()).unwrap();
            let rules = merged["syscalls"].as_array().unwrap();
            assert!(lets_all_through(&rules[0]), "{profile}");
            let others = rules[1..].iter().map(Value::to_string);
            assert!(
                !others.collect::<String>().contains("userfaultfd"),
                "{profile}"
            );
        }
        for no_profile in ["", "[]", "{}", r#"{"syscalls": {}}"#] {
            assert!(merge(no_profile).is_err(), "{no_profile}");
        }
        // A word that is no name of a call.
        let comment = r#"{"about": "userfaultfd", "syscalls": []}"#;
        assert!(merge(comment).is_err());
    }

    #[test]
    fn conditions_are_seen() {
        assert!(has_conditions(&profile()));
        assert!(!has_conditions(&profile().replace("includes", "comment")));
    }
}
