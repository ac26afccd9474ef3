//! Settings as the kernel shows them, and what they come to.

use std::fs;
use std::path::PathBuf;

use deckle_inspect::Knobs;
use deckle_inspect::verdict::verdict;

struct Root(PathBuf);

impl Root {
    fn new(files: &[(&str, &str)]) -> Root {
        let root = std::env::temp_dir().join(format!("deckle-inspect-{}", std::process::id()));
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Root(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn settings_are_read_as_the_kernel_shows_them() {
    const DIR: &str = "sys/kernel/mm/transparent_hugepage";
    let at = |name: &str| format!("{DIR}/{name}");
    let files = [
        (at("enabled"), "[always] madvise never\n"),
        (at("defrag"), "always defer defer+madvise [madvise] never\n"),
        (at("shrink_underused"), "1\n"),
        (at("khugepaged/max_ptes_none"), "511\n"),
        (at("khugepaged/defrag"), "1\n"),
        (at("khugepaged/pages_to_scan"), "4096\n"),
        (at("khugepaged/scan_sleep_millisecs"), "10000\n"),
        (at("khugepaged/pages_collapsed"), "12\n"),
        (
            at("hugepages-64kB/enabled"),
            "always inherit [madvise] never\n",
        ),
        (
            at("hugepages-32kB/enabled"),
            "always inherit madvise [never]\n",
        ),
        (
            at("hugepages-2048kB/enabled"),
            "always [inherit] madvise never\n",
        ),
        (at("hugepages-2048kB/stats/nr_anon"), "77\n"),
        (at("hugepages-2048kB/stats/nr_anon_partially_mapped"), "3\n"),
        (
            "proc/vmstat".into(),
            "thp_split_page 5\nthp_split_page_failed 6\n",
        ),
        (
            "proc/swaps".into(),
            "Filename Type Size Used Priority\n/dev/zram0 partition 1024 0 1\n",
        ),
        ("proc/sys/kernel/osrelease".into(), "6.18.1\n"),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, *text)).collect();
    let root = Root::new(&files);
    let knobs = Knobs::read_in(&root.0);
    assert_eq!(
        (knobs.kernel.as_str(), knobs.defrag.as_str()),
        ("6.18.1", "madvise")
    );
    assert_eq!(knobs.enabled.as_deref(), Some("always"));
    assert_eq!(
        (knobs.shrink_underused, knobs.max_ptes_none),
        (Some(true), Some(511))
    );
    assert_eq!(knobs.threshold(), None);
    assert_eq!(
        (knobs.pages_to_scan, knobs.scan_sleep_millisecs),
        (4096, 10000)
    );
    assert_eq!(knobs.sizes, [(64, "madvise".to_owned())].into());
    assert_eq!((knobs.swap, knobs.counter("thp_split_page")), (1 << 20, 5));
    let said: Vec<String> = verdict(&knobs, None).into_iter().map(|f| f.text).collect();
    assert_eq!(
        said[0],
        "the shrinker is on and does nothing: max_ptes_none is 511"
    );
    assert!(said[1].starts_with("khugepaged re-creates"), "{said:?}");
    assert!(
        said[1].contains("has made 12 huge pages since boot"),
        "{said:?}"
    );
    assert!(
        said[2].starts_with("of 3 huge pages a part was given back"),
        "{said:?}"
    );
}
