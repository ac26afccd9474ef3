use super::*;

fn seen(swap: SwapKind) -> Seen {
    Seen {
        max: 100 * MIB,
        usage: 100 * MIB,
        resident: 36 * MIB,
        store: 60 * MIB,
        swapped: 180 * MIB,
        filed: 0,
        swap_max: u64::MAX,
        swap,
        file: None,
    }
}

fn report(seen: Seen, stored: [u64; 2], refused: [u64; 2]) -> String {
    let means = |[lz4, zstd]: [u64; 2]| Means {
        lz4: Some(lz4),
        zstd: Some(zstd),
    };
    let sample = Sample {
        pages: 96,
        stored: means(stored),
        refused: means(refused),
    };
    Remedies { seen, sample }.to_string()
}

#[test]
fn each_way_out_is_told_with_the_least_limit_for_it() {
    let text = report(seen(SwapKind::Lz4), [1365, 1024], [4096, 2048]);
    // Tables and spare are 8 MiB.
    for line in [
        "ratio: 180M in 60M (3.0:1)",
        "(96 pages tried)",
        "  --memory-max 224M: nothing is swapped then",
        // 45 + 18 MiB, and a twelfth; 2.25 for a page of the sample.
        "  --swap zram:zstd: fits, 79M or more of 100M",
        // 60 + 36 MiB, and a twelfth.
        "  --swap zram:lz4,file:DIR with 104M of a disk: fits, 8M or more of 100M",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert_eq!(text.lines().count(), 5, "{text}");
    let zstd = report(seen(SwapKind::Zstd), [1365, 1364], [4096; 2]);
    assert!(!zstd.contains("--swap zram:zstd:"), "{zstd}");
    assert!(
        zstd.contains("--swap zram:zstd,file:DIR with 104M"),
        "{zstd}"
    );
}

#[test]
fn without_swap_what_is_resident_is_what_would_be_stored() {
    let off = Seen {
        resident: 96 * MIB,
        store: 0,
        swapped: 0,
        ..seen(SwapKind::None)
    };
    let text = report(off, [0; 2], [2048, 4096]);
    for line in [
        "  --memory-max 104M: nothing",
        "  --swap zram:lz4: fits, 61M or more of 100M",
        "  --swap zram:zstd: too little, 113M or more of 100M",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("ratio"), "{text}");
    // 98.4 and 99.9 MiB, and one for a page of the sample.
    let text = report(off, [0; 2], [3560, 3618]);
    for line in [
        "  --swap zram:lz4: fits, 100M or more of 100M",
        "  --swap zram:zstd: too little, 101M or more of 100M",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn limits_that_are_reached_are_told() {
    let file = SwapFile {
        bytes: 64 * MIB,
        ram_percent: 50,
        ..SwapFile::default()
    };
    let full = Seen {
        swap_max: 181 * MIB,
        file: Some((file, 62 * MIB)),
        ..seen(SwapKind::Lz4)
    };
    let text = report(full, [1365, 1024], [4096; 2]);
    for line in [
        "  --swap-max, larger: all of 181M is used",
        "  file:DIR:SIZE, larger: all of 64M is used",
        // 45 + 36 MiB and a twelfth, less what is in the file; 2.25 for a page of the sample.
        "  --swap zram:zstd: fits, 36M or more of 100M",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("DIR with"), "{text}");
}

#[test]
fn what_is_unknown_is_left_out_and_no_figure_overflows() {
    let nothing = Remedies {
        seen: seen(SwapKind::Lz4),
        sample: Sample::default(),
    };
    let text = nothing.to_string();
    assert!(
        !text.contains("zstd") && text.contains("--memory-max"),
        "{text}"
    );
    let absurd = Seen {
        max: u64::MAX,
        usage: u64::MAX,
        resident: u64::MAX,
        store: 0,
        swapped: u64::MAX,
        ..seen(SwapKind::Lz4)
    };
    report(absurd, [u64::MAX; 2], [u64::MAX; 2]);
}
