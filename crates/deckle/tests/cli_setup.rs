//! What is made for who installs deckle: packages, pages, and what `deckle setup` does and prints.

use crate::accept::{deckle_path, have, root as is_root, turn};
use crate::common::*;
use crate::skipped::not_here;
use crate::source;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn script(name: &str) -> Command {
    let mut c = Command::new(source::root().join("scripts").join(name));
    c.env_remove("container").env_remove("SOURCE_DATE_EPOCH");
    c
}

/// Makes both packages in the folder; the paths of the Debian package and of the tarball.
fn make_packages(to: &Path) -> [PathBuf; 2] {
    let built = Path::new(deckle_path()).parent().unwrap();
    let mut c = script("package");
    c.arg("--built").arg(built).arg("--to").arg(to);
    let (code, out, err) = finish(c.output().unwrap());
    assert_eq!(code, 0, "{out}{err}");
    let made: Vec<PathBuf> = out.lines().map(PathBuf::from).collect();
    made.try_into().expect("two packages")
}

/// Whether packages can be made here; says so if not.
fn can_package(test: &str) -> bool {
    ["dpkg-deb", "strip", "objdump", "git"]
        .iter()
        .all(|program| have(test, program))
}

#[test]
fn packages_have_what_is_needed_and_the_same_bytes_each_time() {
    let test = "packages_have_what_is_needed_and_the_same_bytes_each_time";
    if !can_package(test) {
        return;
    }
    let s = Scratch::new("packages");
    let made = ["a", "b"].map(|dir| make_packages(&s.0.join(dir)));
    let bytes = |file: &PathBuf| std::fs::read(file).unwrap();
    for (a, b) in made[0].iter().zip(&made[1]) {
        assert!(
            bytes(a) == bytes(b),
            "{}: made twice, and not the same",
            a.display()
        );
    }
    let [deb, tar] = &made[0];
    let list = |command: &mut Command| finish(command.output().unwrap()).1;
    let in_deb = list(Command::new("dpkg-deb").arg("-c").arg(deb));
    let in_tar = list(Command::new("tar").arg("-tvzf").arg(tar));
    for file in [
        "bin/deckle",
        "lib/deckle/libdeckle.so",
        "lib/deckle/libdeckle.image",
        "lib/deckle/libdeckle.entry",
        "share/man/man1/deckle.1.gz",
        "share/man/man1/deckle-run.1.gz",
        "share/bash-completion/completions/deckle",
        "share/zsh/vendor-completions/_deckle",
        "share/fish/vendor_completions.d/deckle.fish",
        "share/doc/deckle/copyright",
        "share/doc/deckle/licences.gz",
        "share/doc/deckle/CHANGELOG.md",
        "share/doc/deckle/examples/deckle.conf",
    ] {
        for all in [&in_deb, &in_tar] {
            assert!(
                all.lines().any(|l| l.ends_with(&format!("/{file}"))),
                "no {file} in {all}"
            );
        }
    }
    for file in [
        "./usr/lib/udev/rules.d/60-deckle.rules",
        "./etc/cdi/deckle.json",
    ] {
        assert!(
            in_deb.lines().any(|l| l.ends_with(file)),
            "no {file} in {in_deb}"
        );
    }
    // All is root's, and nobody else may write it.
    for line in in_deb.lines().chain(in_tar.lines()) {
        let others = line.as_bytes()[8];
        let owner = line.split_whitespace().nth(1).unwrap();
        assert!(
            others == b'-' && matches!(owner, "root/root" | "0/0"),
            "{line}"
        );
    }
}

#[test]
fn packages_are_installed_run_by_a_user_of_the_group_and_removed_whole() {
    let test = "packages_are_installed_run_by_a_user_of_the_group_and_removed_whole";
    let programs = ["dpkg", "unshare", "setpriv", "groupadd", "useradd", "gzip"];
    if !can_package(test) || !programs.iter().all(|p| have(test, p)) || !is_root(test) {
        return;
    }
    if !Path::new("/dev/userfaultfd").exists() {
        not_here(format_args!("{test}: no /dev/userfaultfd"));
        return;
    }
    let _turn = turn();
    let s = Scratch::new("try-package");
    make_packages(&s.0);
    let mut c = script("try-package");
    c.arg("--here").env("DECKLE_PACKAGES", &s.0);
    let (code, out, err) = finish(c.output().unwrap());
    assert_eq!(code, 0, "{out}{err}");
    for said in [
        "the package leaves nothing",
        "setup --remove leaves nothing",
        "all is well",
    ] {
        assert!(out.contains(&format!("try-package: {said}")), "{out}{err}");
    }
}

#[test]
fn every_verb_has_a_page_and_completions_know_it() {
    let s = Scratch::new("pages");
    let (code, out, err) = output(&["pages", s.0.to_str().unwrap()]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    let read = |file: &str| std::fs::read_to_string(s.0.join(file)).unwrap();
    let (_, help, _) = output(&["--help"]);
    let verbs = help
        .split("Commands:")
        .nth(1)
        .unwrap()
        .split("Options:")
        .next()
        .unwrap();
    let verbs = verbs.lines().filter_map(|l| l.split_whitespace().next());
    let verbs: Vec<&str> = verbs.filter(|v| *v != "help").collect();
    assert!(verbs.contains(&"run") && verbs.contains(&"setup") && !verbs.contains(&"pages"));
    let shells = [
        ("bash", "bash-completion/completions/deckle"),
        ("zsh", "zsh/vendor-completions/_deckle"),
        ("fish", "fish/vendor_completions.d/deckle.fish"),
    ];
    for verb in &verbs {
        let page = read(&format!("man/man1/deckle-{verb}.1"));
        assert!(
            page.contains(".SH NAME") && page.contains(".SH OPTIONS"),
            "{page}"
        );
        for (_, file) in shells {
            assert!(read(file).contains(verb), "{verb} in {file}");
        }
    }
    // A table of the help is there as it is.
    let page = read("man/man1/deckle-run.1").replace("\\-", "-");
    assert!(
        page.contains(".nf\nExamples:\n  deckle run --memory-max 256M"),
        "{page}"
    );
    for (shell, file) in shells {
        assert!(!read(file).contains("Write the manual pages"), "{file}");
        if have("every_verb_has_a_page_and_completions_know_it", shell) {
            let tried = Command::new(shell)
                .arg("-n")
                .arg(s.0.join(file))
                .output()
                .unwrap();
            assert_eq!(finish(tried), (0, String::new(), String::new()), "{shell}");
        }
    }
    if have("every_verb_has_a_page_and_completions_know_it", "groff") {
        for page in std::fs::read_dir(s.0.join("man/man1")).unwrap() {
            let mut c = Command::new("groff");
            c.args(["-man", "-ww", "-Wbreak", "-z", "-Tutf8"])
                .arg(page.unwrap().path());
            assert_eq!(
                finish(c.output().unwrap()),
                (0, String::new(), String::new()),
                "{c:?}"
            );
        }
    }
}

#[test]
fn setup_needs_root_and_says_what_it_would_do_without() {
    let test = "setup_needs_root_and_says_what_it_would_do_without";
    let (code, out, err) = output(&["setup", "--dry-run"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for line in out.lines().filter(|l| l.starts_with("would ")) {
        assert!(line.contains(": "), "no way to do it by hand: {line}");
    }
    let (code, out, err) = output(&["setup", "--dry-run", "--user", "no-such-user"]);
    assert_eq!((code, out.as_str()), (125, ""));
    assert!(err.contains("there is no such user"), "{err}");
    if !is_root(test) {
        return;
    }
    let s = Scratch::new("setup");
    let nobody = |args: &[&str]| {
        let mut c = Command::new(copy_of_deckle(&s));
        finish(c.args(args).uid(65534).gid(65534).output().unwrap())
    };
    for args in [&["setup"][..], &["setup", "--remove"]] {
        let (code, out, err) = nobody(args);
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (125, "", 1),
            "{err}"
        );
        assert!(err.contains("setup needs root: sudo "), "{err}");
    }
    assert_eq!(nobody(&["setup", "--dry-run"]).0, 0);
}

#[test]
fn the_cdi_file_gives_the_device_and_this_deckle() {
    let (code, out, err) = output(&["setup", "--cdi"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let file: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(file["kind"], "deckle.dev/pager");
    assert_eq!(file["devices"][0]["name"], "all");
    let edits = &file["devices"][0]["containerEdits"];
    assert_eq!(edits["deviceNodes"][0]["path"], "/dev/userfaultfd");
    let from = |n: usize| Path::new(edits["mounts"][n]["hostPath"].as_str().unwrap()).to_owned();
    assert_eq!(
        from(0).canonicalize().unwrap(),
        Path::new(deckle_path()).canonicalize().unwrap()
    );
    assert!(from(1).join("libdeckle.image").is_file());
}

#[test]
fn a_seccomp_profile_gets_one_rule_or_is_refused() {
    let s = Scratch::new("seccomp");
    let profile = "{\n \"defaultAction\": \"SCMP_ACT_ERRNO\",\n \"syscalls\": [\n  {\n   \
                   \"names\": [\n    \"read\"\n   ],\n   \"action\": \"SCMP_ACT_ALLOW\",\n   \
                   \"includes\": {\"caps\": [\"CAP_SYS_ADMIN\"]}\n  }\n ]\n}";
    let good = s.file("good.json", profile.as_bytes(), 0o644);
    let (code, out, err) = output(&["setup", "--seccomp", &good]);
    assert_eq!(code, 0, "{err}");
    assert!(
        err.contains("Kubernetes does not") && err.lines().count() == 1,
        "{err}"
    );
    assert!(
        out.ends_with(" ]\n}"),
        "the end of the file is another: {out}"
    );
    let kept: Vec<&str> = profile.lines().collect();
    let got: Vec<&str> = out.lines().collect();
    let added = got.len() - kept.len();
    assert_eq!([&got[..3], &got[3 + added..]].concat(), kept, "{out}");
    assert!(
        got[3..3 + added].concat().contains("\"userfaultfd\""),
        "{out}"
    );
    let bad = s.file("bad.json", b"{}", 0o644);
    for file in [bad.as_str(), "/no/such/file"] {
        let (code, out, err) = output(&["setup", "--seccomp", file]);
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (125, "", 1),
            "{err}"
        );
    }
}

/// What bash offers for the last of these words, sorted, in a directory with a file `file`.
fn offered(s: &Scratch, words: &[&str]) -> Vec<String> {
    let script = r#"
        compopt() { echo "compopt $*"; }
        source "$1" && cd "$2" || exit 1
        shift 2
        f=$(complete -p deckle | sed 's/.*-F \([^ ]*\).*/\1/')
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        "$f" deckle "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let completions = s.path("bash-completion/completions/deckle");
    let dir = s.path("files");
    let mut c = Command::new("bash");
    c.args(["--norc", "-c", script, "bash", &completions, &dir]);
    let (code, out, err) = finish(c.args(words).output().unwrap());
    assert_eq!((code, err.as_str()), (0, ""), "{words:?}: {out}");
    let mut all: Vec<String> = out.lines().map(str::to_owned).collect();
    all.sort();
    all
}

#[test]
fn completions_offer_what_an_argument_may_be_and_no_files_elsewhere() {
    let s = Scratch::new("completions");
    assert_eq!(output(&["pages", s.0.to_str().unwrap()]).0, 0);
    if Command::new("bash").arg("--version").output().is_err() {
        return not_here("no bash to complete in");
    }
    std::fs::create_dir(s.0.join("files")).unwrap();
    s.file("files/file", b"", 0o600);
    let of = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let mut all = offered(&s, &words);
        all.retain(|word| !word.starts_with("compopt"));
        all
    };
    assert_eq!(of("deckle run --thp "), ["always", "madvise", "never"]);
    assert_eq!(of("deckle run --profile "), ["deckle", "linux"]);
    let swaps = ["file:", "none", "zram", "zram:lz4", "zram:zstd"];
    assert_eq!(of("deckle run --swap "), swaps);
    assert_eq!(of("deckle run --set memory.sw"), ["memory.swap.max="]);
    assert_eq!(of("deckle run --set vm.page"), ["vm.page-cluster="]);
    assert_eq!(of("deckle run --name f"), ["f"], "no name is a file's");
    assert_eq!(of("deckle fit --memory-max f"), ["f"]);
    assert!(of("deckle run --config ").contains(&"file".to_owned()));
    let commands = of("deckle run --thp never -- bas");
    assert!(commands.contains(&"bash".to_owned()), "{commands:?}");
    // The shell itself would offer files where there is nothing to offer.
    for words in ["deckle stat f", "deckle top f", "deckle reclaim f"] {
        let all = offered(&s, &words.split(' ').collect::<Vec<_>>());
        assert!(
            all.iter().any(|word| word.contains("+o default")),
            "{words}: {all:?}"
        );
        assert!(!all.contains(&"file".to_owned()), "{words}: {all:?}");
    }
}
