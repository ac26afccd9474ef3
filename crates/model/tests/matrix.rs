//! Which suite of the core runs on which profile of the model. One that every profile is to run is
//! in `suites`; another has a room whose first lines say why it is for some alone.

use deckle_model::{Profile, RamCoreCow, RamKernelCow, SparseKernelCow};
use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// The profiles, and the module of each.
const PROFILES: [(&str, &str); 3] = [
    (SparseKernelCow::NAME, "sparse"),
    (RamKernelCow::NAME, "ram"),
    (RamCoreCow::NAME, "bare"),
];

/// Rooms of suites for some profiles.
const ROOMS: [(&str, &[&str]); 4] = [
    ("suites", &["sparse", "ram", "bare"]),
    ("below", &["sparse", "ram"]),
    ("scarce", &["ram", "bare"]),
    ("slots", &["sparse"]),
];

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// The modules that a file declares.
fn modules(file: &Path) -> BTreeSet<String> {
    let text = read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    (text.lines())
        .filter_map(|line| {
            let name = line.strip_prefix("pub ").unwrap_or(line);
            Some(name.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
        })
        .collect()
}

#[test]
fn r148_every_suite_runs_on_every_profile_or_its_room_says_why_not() {
    println!("{:<14} {:<44} suites", "profile", "rooms");
    let all = modules(&tests().join("main.rs"));
    for (profile, module) in PROFILES {
        assert!(all.contains(module), "{module} is not run");
        let root = tests().join(module).with_extension("rs");
        let named = modules(&root);
        let text = read_to_string(&root).unwrap();
        assert!(text.contains(&format!("\ntype P = {profile};")), "{module}");
        let mut suites = 0;
        for (room, profiles) in ROOMS {
            let wanted = profiles.contains(&module);
            assert_eq!(named.contains(room), wanted, "{room} on {profile}");
            if wanted {
                suites += modules(&tests().join(room).join("mod.rs")).len().max(1);
            }
        }
        println!("{profile:<14} {:<44} {suites}", format!("{named:?}"));
    }
    // A file that no room knows of would be run by nobody.
    for (room, _) in ROOMS {
        let known = modules(&tests().join(room).join("mod.rs"));
        for file in read_dir(tests().join(room)).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(name == "mod" || known.contains(&name), "{}", path.display());
        }
    }
}
