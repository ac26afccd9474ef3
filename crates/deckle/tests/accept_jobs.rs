//! The jobs that the README promises, as a user runs them.

use crate::accept::*;
use crate::common;
use std::sync::atomic::Ordering::Relaxed;

/// What a run may use beyond its limit.
const SLACK: u64 = 16 << 20;

#[test]
fn r110_r131_a_gibibyte_in_a_quarter_of_it_is_right() {
    let _turn = turn();
    let ran = lab("--memory-max 256M", "fill 1G --ratio 6");
    ran.tell("1 GiB at 6:1 in 256M");
    ran.expect("checked: 262144 pages, every byte right");
    assert!(ran.peak("memory_bytes") <= (256 << 20) + SLACK);
    assert!(ran.peak("swapped_bytes") > 512 << 20);
}

#[test]
fn r150_what_does_not_fit_is_killed_with_a_report() {
    let _turn = turn();
    let ran = lab("--memory-max 256M", "fill 1G --ratio 2");
    ran.tell("1 GiB at 2:1 in 256M");
    ran.out_of_memory();
    assert!(!ran.out.contains("every byte right"));
}

#[test]
fn r150_growth_far_above_memory_high_reclaims_for_itself_and_waits_are_told() {
    let _turn = turn();
    // The reserve above memory.high is 4 MiB.
    let ran = lab("--memory-high 64M --memory-max 1G", "fill 256M --ratio 12");
    ran.tell("256 MiB at 12:1 above memory.high of 64M");
    ran.ended(0);
    assert!(ran.out.contains("every byte right"), "{}", ran.out);
    assert!(ran.peak("memory_bytes") <= (68 << 20) + SLACK);
    let told = |what: &str| ran.stats["pressure"][what].as_u64().unwrap();
    let (some, full) = (told("some_us"), told("full_us"));
    assert!(0 < full && full <= some, "some {some} us, full {full} us");
    assert!(
        some <= ran.wall.as_micros() as u64,
        "{some} us of {:?}",
        ran.wall
    );
    assert!(ran.err.contains("deckle: pressure"), "{}", ran.err);
}

#[test]
fn p13_read_zeros_then_written_ones_are_charged() {
    let _turn = turn();
    let ran = lab("--memory-max 64M --swap none", "readzero-then-write 1G");
    ran.tell("1 GiB read, then written, in 64M without swap");
    assert!(ran.out.contains("read: 1 GiB of zeros"), "{}", ran.out);
    ran.out_of_memory();
    assert!(ran.peak("memory_bytes") <= (64 << 20) + SLACK);
}

#[test]
fn the_limit_of_swap_ends_the_job_never_a_hang() {
    let _turn = turn();
    let ran = lab("--memory-max 64M --swap-max 64M", "fill 1G --ratio 20");
    ran.out_of_memory();
    assert!(ran.peak("swapped_bytes") <= 64 << 20);
}

const PYTHON: &str = "
import random
N = 262144
b = bytearray(N * 4096)
r = random.Random(7)
for i in range(N): b[i*4096:i*4096+682] = r.randbytes(682)
r = random.Random(7)
zeros = bytes(4096 - 682)
m = memoryview(b)
for i in range(N): assert m[i*4096:(i+1)*4096] == r.randbytes(682) + zeros, i
print('right')
";

#[test]
fn r111_python_stays_inside_its_limit_by_both_gauges() {
    let test = "r111_python_stays_inside_its_limit_by_both_gauges";
    let _turn = turn();
    if !root(test) || !have(test, "python3") {
        return;
    }
    let program = ["python3", "-c", PYTHON];
    let (ran, peaks) = gauges::measure("accept", |enter, root| {
        run_with(
            "--memory-max 256M",
            &program,
            |c| enter(c),
            |pid| root.store(pid, Relaxed),
        )
    });
    ran.tell("python3, 1 GiB in 256M");
    let mib = |n: u64| n as f64 / f64::from(1 << 20);
    eprintln!(
        "peak of anonymous memory: {:.1} MiB by cgroup, {:.1} MiB by Pss_Anon; {} samples",
        mib(peaks.cgroup_anon),
        mib(peaks.pss_anon),
        peaks.samples
    );
    ran.expect("right");
    assert!(peaks.samples > 100);
    assert!(peaks.cgroup_anon > 128 << 20 && peaks.pss_anon > 128 << 20);
    assert!(peaks.cgroup_anon <= (256 << 20) + SLACK);
    assert!(peaks.pss_anon <= (256 << 20) + SLACK);
}

const STRESS: [&str; 9] = [
    "stress",
    "--vm",
    "1",
    "--vm-bytes",
    "40M",
    "--vm-stride",
    "50K",
    "--timeout",
    "5",
];

#[test]
fn r137_stress_survives_or_dies_as_on_the_kernel() {
    let _turn = turn();
    if !have("r137_stress_survives_or_dies_as_on_the_kernel", "stress") {
        return;
    }
    let linux = "--profile linux --thp always --memory-max 20M --swap none --max-ptes-none";
    for (more, survives) in [
        ("450", true),
        ("470", true),
        ("490", false),
        ("450 --shrink-underused off", false),
    ] {
        let ran = run(&format!("{linux} {more}"), &STRESS);
        ran.tell(&format!("stress, profile linux, max_ptes_none {more}"));
        assert_eq!(ran.code == 0, survives, "{more}: {}", ran.err);
        let (says, dies) = ("successful run completed", "failed run completed");
        let said = format!("{}{}", ran.out, ran.err);
        assert!(said.contains(if survives { says } else { dies }), "{said}");
        assert_eq!(ran.stats["oom_kills"], u64::from(!survives));
    }
}

#[test]
fn r137_stress_survives_the_default_profile_at_all_thresholds() {
    let test = "r137_stress_survives_the_default_profile_at_all_thresholds";
    let _turn = turn();
    if !have(test, "stress") {
        return;
    }
    let words: Vec<&str> = STRESS[..8].iter().copied().chain(["2"]).collect();
    let limit = "--thp always --memory-max 20M --swap none --max-ptes-none";
    let shrinking = ["450", "470", "471", "490", "510", "511"];
    for more in shrinking.into_iter().chain(["450 --shrink-underused off"]) {
        let ran = run(&format!("{limit} {more}"), &words);
        ran.tell(&format!("stress, profile deckle, max_ptes_none {more}"));
        ran.ended(0);
    }
}

#[test]
fn r137_lab_oom_agrees_on_all_sides() {
    let _turn = turn();
    if !root("r137_lab_oom_agrees_on_all_sides") {
        return;
    }
    deckle_path();
    // The kernel's side brings its own setting, and that of the host is not ours to give then.
    let sides = match common::host::is_set() {
        true => "live,model",
        false => "live,kernel,model",
    };
    let line = ["lab", "oom", "--on", sides, "--format", "json"];
    let (code, out, err) = common::output(&line);
    assert_eq!(code, 0, "{out}{err}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let of = |side: &str| -> Vec<_> {
        let rows = rows.iter().filter(|r| r["on"] == side).cloned();
        rows.map(|mut r| {
            r.as_object_mut().unwrap().remove("on");
            r.to_string()
        })
        .collect()
    };
    let (live, kernel, model) = (of("live"), of("kernel"), of("model"));
    assert!(live.len() >= 9, "{out}");
    assert_eq!(live, model);
    if !common::host::is_set() {
        assert_eq!(live, kernel);
    }
}

#[test]
fn r137_zeros_in_pages_that_were_refused_before_go_before_anybody_is_killed() {
    let _turn = turn();
    let zeros = compile("zeros", &[]);
    let ran = run("--memory-max 32M", &[&zeros, "refused", "24", "20"]);
    ran.tell("24M refused and zeroed, 20M growing, in 32M");
    ran.expect("all right");
    assert_eq!(ran.stats["oom_kills"], 0);
}
