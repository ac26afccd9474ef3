//! The anon-folio experiment on the model: what its faults and its memory must come to.

use deckle_lab::anon::{AnonFolio, AnonRow, Policy};
use deckle_lab::program::anon::Workload;
use deckle_lab::{Experiment, Lab, LabError, Report, Side};

fn run(workloads: &[Workload], policies: &[Policy]) -> Result<Report<AnonFolio>, LabError> {
    let experiment = AnonFolio {
        workloads: workloads.to_vec(),
        policies: policies.to_vec(),
        sides: vec![Side::Model],
        runs: 1,
    };
    experiment.run(&Lab::default())
}

fn row(report: &Report<AnonFolio>, workload: Workload, policy: Policy) -> &AnonRow {
    let mut rows = report.rows.iter();
    rows.find(|r| (r.workload, r.policy) == (workload, policy))
        .unwrap_or_else(|| panic!("no row for {workload:?}, {policy:?}"))
}

#[test]
fn r150_r47_r48_every_target_that_the_model_can_tell_holds() {
    use Workload::{Compile, Fill, PageFault1, Sparse};
    let report = run(&[PageFault1, Fill, Sparse, Compile], &Policy::ALL).unwrap();
    let targets = report.targets();
    assert_eq!(targets.len(), 5, "{targets:?}");
    assert!(targets.iter().all(|t| t.holds), "{}", report.to_text());
    // Each workload takes as many faults with base pages as it touches pages.
    assert_eq!(row(&report, Fill, Policy::Base).faults, 65536);
    assert_eq!(row(&report, Fill, Policy::K64).faults, 4096);
    assert_eq!(row(&report, Fill, Policy::Pmd).faults, 128);
    assert_eq!(row(&report, Sparse, Policy::K64).amplification, Some(16.0));
    assert_eq!(row(&report, Sparse, Policy::Pmd).amplification, Some(16.0));
    assert_eq!(
        row(&report, PageFault1, Policy::Base).pages_per_fault,
        Some(1.0)
    );
    let compile = row(&report, Compile, Policy::Adaptive);
    assert!(compile.pages_per_fault >= Some(3.0), "{compile:?}");
}

#[test]
fn r150_malloc_that_touches_a_page_costs_a_page_where_the_order_adapts() {
    let report = run(&[Workload::Malloc1, Workload::TlbFlush], &Policy::ALL).unwrap();
    let malloc = |policy| row(&report, Workload::Malloc1, policy).peak_bytes;
    assert_eq!(malloc(Policy::Base), 4096);
    assert_eq!(malloc(Policy::K64), 64 << 10);
    assert_eq!(malloc(Policy::Adaptive), 4096);
    assert_eq!(malloc(Policy::Pmd), 2 << 20);
    // Read, then written: the zero page, then a page in its place.
    let flush = row(&report, Workload::TlbFlush, Policy::Adaptive);
    assert!(
        flush.faults < 4096 / 16 && flush.amplification == Some(1.0),
        "{flush:?}"
    );
}

#[test]
fn r150_r62_a_server_that_forks_copies_as_much_at_once_as_its_folios_are_large() {
    let report = run(&[Workload::Fork], &Policy::ALL).unwrap();
    assert_eq!(report.rows.len(), 4);
    let fork = |policy| {
        let row = row(&report, Workload::Fork, policy);
        (row.faults, row.pages_per_fault, row.peak_bytes >> 12)
    };
    // Four requests that write 512 of 4096 pages, which the parent has still.
    let single = (4 * 512, Some(1.0), 4096 + 512);
    assert_eq!(fork(Policy::Base), single);
    // Huge pages of the parent are shared as such, and copied page by page.
    assert_eq!(fork(Policy::Pmd), single);
    // A copy of 64 KiB has two of the pages that are written, and fourteen that are not.
    let large = (4 * 256, Some(2.0), 2 * 4096);
    assert_eq!(fork(Policy::K64), large);
    // No cap but the source: what was filled in large folios is copied in large ones.
    let (faults, _, peak) = fork(Policy::Adaptive);
    assert!(faults < large.0 / 4 && peak <= large.2, "{faults} {peak}");
    assert!(report.to_text().contains("fork there is with"));
    assert!(run(&[], &[Policy::Base]).is_err());
}

/// The pages of both are written once each, and by the child every eighth; what that has left is
/// written again.
#[test]
fn r150_each_stage_takes_fewer_faults_and_the_kinds_of_faults_are_told_by_their_pages() {
    let report = run(&[Workload::Mmap1], &[Policy::K64]).unwrap();
    let stages = &report.more;
    let faults: Vec<u64> = stages.iter().map(|r| r.faults).collect();
    assert_eq!(stages.len(), 5);
    assert!(faults.windows(2).all(|w| w[1] < w[0]), "{faults:?}");
    let (pages, half, written) = (4096, 2048, 512);
    let base = &stages[0];
    assert_eq!(base.faults, pages + written + pages);
    // Without reuse of a part of a folio all but its last page are copied.
    assert!(stages[1].copied > stages[2].copied, "{stages:?}");
    let paths = &stages[4].paths;
    let all = |path: &std::collections::BTreeMap<u64, u64>| path.iter().map(|(n, t)| n * t).sum();
    assert_eq!(paths.anonymous.get(&16), Some(&(half / 16)));
    assert_eq!(paths.zero_page.get(&16), Some(&(half / 16)));
    // Each window of 64 KiB is copied once, for the two pages of it that are written.
    assert_eq!(paths.copy.get(&16), Some(&(pages / 16)));
    let (created, copied, reused): (u64, u64, u64) = (
        all(&paths.anonymous) + all(&paths.zero_page),
        all(&paths.copy),
        all(&paths.reuse),
    );
    assert_eq!((created, copied, reused), (pages, pages, pages));
    let text = report.to_text();
    assert!(
        text.contains("zero-alloc") && text.contains("reuse      16:256"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["stages"][4]["paths"]["zero_page"]["16"], 128);
    // What is mapped and not touched costs nothing.
    let mmap = row(&report, Workload::Mmap1, Policy::K64);
    assert_eq!((mmap.faults, mmap.peak_bytes), (0, 0));
}
