//! The comparison finds what is planted.

use super::*;
use crate::program::oracle::plan::{Advice, Step};

#[test]
fn report_has_the_promised_shape() {
    let row = Difference {
        seed: 3,
        step: "7".into(),
        kind: Kind::Bytes,
        what: "other bytes".into(),
        cause: None,
    };
    let report = Report {
        options: Oracle {
            sides: vec![Side::Live, Side::Kernel],
            seeds: 1,
            first: 3,
            set: Vec::new(),
        },
        rows: vec![row],
        more: Totals {
            programs: 1,
            steps: 9,
            agree: 8,
            ..Totals::default()
        },
    };
    let json = report.to_json();
    let begin = r#"{"schema":1,"experiment":"oracle","programs":1,"steps":9,"agree":8,"#.to_owned()
        + r#""differ":[{"seed":3,"step":"7","kind":"bytes","what":"other bytes"}]"#;
    assert!(json.starts_with(&begin), "{json}");
    assert!(report.failed());
    let text = report.to_text();
    assert!(text.contains("seed 3 step 7: other bytes"), "{text}");
}

/// What a program of two steps prints: with this error, sum and memory after the first.
fn told(errno: i32, sum: &str, classes: &str) -> Run {
    let text = format!("step 0 {errno} {sum} {classes}\nstep end 0 5 {classes}\n");
    Run::parse(&text, None).unwrap()
}

fn plan(step: Step) -> Plan {
    let mut plan = Plan::new(0);
    (plan.steps, plan.pages) = (vec![step], 512);
    plan
}

/// What is found between the kernel's run and deckle's.
fn found(step: Step, kernel: &Run, live: &Run) -> (Vec<(Kind, Option<&'static str>)>, Totals) {
    let (mut rows, mut totals) = (Vec::new(), Totals::default());
    compare::compare(1, &plan(step), kernel, live, &mut rows, &mut totals);
    (
        rows.iter().map(|row| (row.kind, row.cause)).collect(),
        totals,
    )
}

#[test]
fn a_planted_difference_of_each_kind_is_found() {
    let write = || Step::Touch(0..512, 1, Some(1));
    let right = told(0, "7", "r4.508");
    let (rows, totals) = found(write(), &right, &right);
    assert_eq!((rows.len(), totals.steps, totals.agree), (0, 2, 2));
    for (live, kind, steps) in [
        (told(12, "7", "r4.508"), Kind::Error, 1),
        (told(0, "8", "r4.508"), Kind::Bytes, 1),
        (told(0, "7", "r3.509"), Kind::Memory, 2),
        (told(0, "7", "r5.507"), Kind::Memory, 2),
    ] {
        let (rows, totals) = found(write(), &right, &live);
        assert_eq!(rows, [(kind, None)]);
        // What differs from a step on is one difference, not one of each step that follows.
        assert_eq!((totals.steps, totals.agree), (steps, steps - 1));
    }
    let (huge, small) = (told(0, "7", "h512"), told(0, "7", "r512"));
    assert_eq!(found(write(), &huge, &small).0, [(Kind::Memory, None)]);
    assert_eq!(found(write(), &small, &huge).0, [(Kind::Memory, None)]);
    let killed = Run::parse("step 0 0 7 r4.508\n", Some("killed".into())).unwrap();
    assert_eq!(found(write(), &right, &killed).0, [(Kind::End, None)]);
    assert!(Run::parse("step 0 0 7 r4.\n", None).is_none());
}

#[test]
fn what_differs_by_nature_is_counted_apart() {
    let cold = Step::Advise(0..512, Advice::Cold);
    let (there, aside) = (told(0, "7", "r4.508"), told(0, "7", ".512"));
    let (rows, totals) = found(cold, &there, &aside);
    assert_eq!((rows.len(), totals.agree), (0, 1));
    assert_eq!(totals.by_nature.get("aside"), Some(&1));
    let read = Step::Touch(0..1, 1, None);
    let (rows, totals) = found(read, &told(0, "7", "z1.511"), &told(0, "7", "z16.496"));
    assert_eq!(
        (rows.len(), totals.by_nature.get("zero page")),
        (0, Some(&1))
    );
    let free = Step::Advise(0..4, Advice::Free);
    let (rows, _) = found(free.clone(), &there, &told(0, "7", "h512"));
    assert_eq!(rows, [(Kind::Memory, None)]);
    // What is left of a huge page is single pages on one side, one folio on the other.
    let mut plan = plan(free);
    let (cold, write) = (
        Step::Advise(0..4, Advice::Cold),
        Step::Touch(0..1, 1, Some(1)),
    );
    plan.steps = vec![write, Step::Unmap(500..512), cold];
    let run = |last: &str| {
        let text = format!("step 0 0 7 h512\nstep 1 0 7 r500.12\nstep 2 0 7 {last}\n");
        Run::parse(&text, None).unwrap()
    };
    let (mut rows, mut totals) = (Vec::new(), Totals::default());
    let (kernel, live) = (run("r9z491.12"), run("r500.12"));
    compare::compare(1, &plan, &kernel, &live, &mut rows, &mut totals);
    assert_eq!((rows.len(), rows[0].cause), (1, Some("torn")));
}

/// What is found of a program of these steps, of each of which the sides tell this.
fn found_in(steps: &[(&str, &str, &str)], of: Plan) -> (Vec<Option<&'static str>>, Totals) {
    let run = |live: bool| {
        let line = |(name, kernel, deckle): &(&str, &str, &str)| {
            format!("step {name} 0 7 {}\n", if live { deckle } else { kernel })
        };
        Run::parse(&steps.iter().map(line).collect::<String>(), None).unwrap()
    };
    let (mut rows, mut totals) = (Vec::new(), Totals::default());
    compare::compare(1, &of, &run(false), &run(true), &mut rows, &mut totals);
    (rows.iter().map(|row| row.cause).collect(), totals)
}

#[test]
fn what_was_taken_apart_explains_what_advice_finds_at_its_new_place() {
    let write = Step::Touch(0..512, 1, Some(1));
    let cold = Step::Advise(500..600, Advice::Cold);
    let mut of = plan(write);
    of.pages = 1024;
    of.knobs.limit = None;
    let told = [
        ("0", "h512.512", "h512.512"),
        ("1", "r16.500r496.12", "r16.500r496.12"),
        ("2", "r16.500r9z487.12", "r16.500r496.12"),
    ];
    of.steps.extend([Step::Move(16..512, 516), cold.clone()]);
    assert_eq!(found_in(&told, of.clone()).0, [Some("torn")]);
    // Of what nobody has cut it explains nothing.
    let told = [
        ("0", "h512.512", "h512.512"),
        ("1", "h512r496.16", "h512r496.16"),
        ("2", "h512r9z487.16", "h512r496.16"),
    ];
    of.steps[1] = Step::Touch(512..1008, 1, Some(1));
    assert_eq!(found_in(&told, of.clone()).0, [None]);
    // After a fork it is what the kernel knows and deckle does not.
    of.steps[1] = Step::Fork(vec![cold], Vec::new(), false);
    let told = [
        ("0", "h512.512", "h512.512"),
        ("1c0", "h1r499.524", "h512.512"),
        ("1", "h512.512", "h512.512"),
    ];
    assert_eq!(found_in(&told, of).0, [Some("forked")]);
}

#[test]
fn at_the_limit_is_who_was_there_in_the_middle_of_a_step_or_in_a_child() {
    let fill = Step::Advise(0..1024, Advice::PopulateWrite);
    let told = [("0", "r512.512", "r500.524")];
    let mut of = plan(fill.clone());
    of.pages = 1024;
    for (pages, found) in [(1024 + 768, 0), (1024 + 769, 1)] {
        of.knobs.limit = Some(pages * crate::size::PAGE);
        let (rows, totals) = found_in(&told, of.clone());
        let by_order = totals.by_nature.get("order").copied().unwrap_or(0);
        assert_eq!((rows.len(), by_order), (found, 1 - found as u64), "{pages}");
    }
    of.knobs.limit = Some((1024 + 768) * crate::size::PAGE);
    of.steps = vec![Step::Fork(vec![fill], Vec::new(), false)];
    let told = [
        ("0c0", "r600.424", "r600.424"),
        ("0", "r512.512", "r500.524"),
        ("end", "r512.512", "r512.512"),
    ];
    assert_eq!(found_in(&told, of.clone()).0, []);
    let told = [
        told[0],
        ("0", "r512.512", "r512.512"),
        ("end", "r512.512", "r500.524"),
    ];
    assert_eq!(found_in(&told, of).0, [None], "no longer");
}

#[test]
fn a_call_that_is_refused_is_an_error_but_where_the_kernel_had_just_room() {
    let fill = || Step::Advise(0..512, Advice::PopulateWrite);
    let kernel = told(0, "7", "r512");
    let of = |limit_pages: Option<usize>, step: Step, errno: i32| {
        let mut plan = plan(step);
        plan.knobs.limit = limit_pages.map(|pages| pages * crate::size::PAGE);
        let (mut rows, mut totals) = (Vec::new(), Totals::default());
        let live = told(errno, "7", "r500.12");
        compare::compare(1, &plan, &kernel, &live, &mut rows, &mut totals);
        (rows.len(), totals.by_nature.get("margin").copied())
    };
    let enomem = libc::ENOMEM;
    assert_eq!(of(Some(600), fill(), enomem), (0, Some(1)));
    assert_eq!(of(Some(4096), fill(), enomem), (1, None), "there was room");
    assert_eq!(of(None, fill(), enomem), (1, None), "there is no limit");
    assert_eq!(of(Some(600), fill(), libc::EFAULT), (1, None));
    let read = Step::Advise(0..512, Advice::PopulateRead);
    assert_eq!(of(Some(600), read, enomem), (1, None));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        oracle: Oracle,
    }
    let options = |words: &str| {
        let words = ["oracle"].into_iter().chain(words.split_whitespace());
        <Options as clap::Parser>::try_parse_from(words)
    };
    assert!(options("--on kernel,live --seeds 3 --first 9").is_ok());
    for bad in ["--seeds 0", "--seeds -1", "--on", "--on all", "--first x"] {
        assert!(options(bad).is_err(), "{bad}");
    }
    for bad in [
        "--on live",
        "--on live,live",
        "--on live,kernel,model",
        "--set pages",
    ] {
        let refused = options(bad).unwrap().oracle.run(&Lab::default());
        assert!(matches!(refused, Err(LabError::Option(_))), "{bad}");
    }
}
