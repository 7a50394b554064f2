//! Times without a leader, and what they are put down to.

use serde_json::Value;

use super::{bare, demoted, demoted_for, gap, history, leading, promoted, sample, term};
use crate::support::History;
use crate::support::history::{Cause, Fault, Leaderless, Place, Report};

fn spans(histories: &[History], faults: &[Fault]) -> Vec<Leaderless> {
    let report = Report::new(histories, faults);
    assert!(report.is_clean(), "{report}");
    report.leaderless
}

/// The only time without a leader between two terms: its begin and end in ms, and its cause.
#[track_caller]
fn between(histories: &[History]) -> (u64, u64, Cause) {
    let mut spans = spans(histories, &[]);
    spans.retain(|span| span.place == Place::Between);
    assert_eq!(spans.len(), 1, "{spans:?}");
    (spans[0].from_us / 1000, spans[0].to_us / 1000, spans[0].cause().expect("there is a term before"))
}

/// The next leader's term.
fn next(from: u64) -> History {
    history("next", &term(from, from + 1000, 9))
}

#[test]
fn every_cause_is_told_from_the_lines_of_the_leader_before() {
    let ended = |reason: &str| {
        let mut lines = leading(100, 500, 1);
        lines.extend([promoted(101, 1), demoted_for(reason, 501, 1, 500)]);
        lines
    };
    let told = [
        ("stopped", Cause::Handover),
        ("stepped_down", Cause::Handover),
        ("lead_ended", Cause::Handover),
        ("expired", Cause::Expired),
        ("renew_error", Cause::RenewError),
        ("lost", Cause::Lost),
    ];
    for (reason, cause) in told {
        assert_eq!(between(&[history("a", &ended(reason)), next(800)]), (500, 800, cause), "{reason}");
    }
    // It stood still when the term ended, or just before; long before is another matter.
    let with_gap = |reason: &str, gap_to: u64| {
        let mut lines = vec![sample(99, None, None), promoted(100, 1), sample(100, Some(1), Some(99))];
        lines.extend([gap(gap_to, true, 150), sample(gap_to, Some(1).filter(|_| gap_to < 500), Some(150))]);
        lines.push(demoted_for(reason, 1001, 1, 500));
        lines
    };
    for (reason, gap_to, cause) in [
        ("expired", 1000, Cause::Paused),
        ("lost", 450, Cause::Paused),
        ("expired", 399, Cause::Expired),
        ("stopped", 450, Cause::Handover),
    ] {
        assert_eq!(between(&[history("a", &with_gap(reason, gap_to)), next(800)]), (500, 800, cause));
    }
}

#[test]
fn lines_that_end_are_a_crash_and_lines_that_go_on_are_not() {
    let crashed = vec![sample(99, None, None), promoted(100, 1), sample(100, Some(1), Some(99))];
    assert_eq!(between(&[history("a", &crashed), next(800)]), (100, 800, Cause::Crash));
    let with = |line: Value| {
        let mut lines = crashed.clone();
        lines.push(line);
        history("a", &lines)
    };
    assert_eq!(between(&[with(sample(180, Some(1), Some(175))), next(800)]), (180, 800, Cause::Crash));
    assert_eq!(between(&[with(bare("leader", 190)), next(800)]), (190, 800, Cause::Crash));
    assert_eq!(between(&[with(sample(180, None, Some(170))), next(800)]), (170, 800, Cause::Untold));
    // Without any reading, too.
    let lines = [promoted(100, 1), bare("leader", 101)];
    assert_eq!(between(&[history("a", &lines), next(800)]), (101, 800, Cause::Crash));
    // So is a promotion that no reading came after.
    let lines = [sample(99, None, None), promoted(100, 1)];
    assert_eq!(between(&[history("a", &lines), next(800)]), (100, 800, Cause::Crash));
    let lines = [promoted(100, 1), bare("missed", 150), promoted(300, 2)];
    assert_eq!(between(&[history("a", &lines)]), (100, 300, Cause::Untold));
    let lines = [promoted(100, 1), bare("missed", 150), bare("stopped", 300)];
    assert_eq!(between(&[history("a", &lines), next(800)]), (100, 800, Cause::Untold));
    // A promotion that was missed is told by the end of the term.
    let lines = [bare("missed", 90), demoted(200, 1, 150)];
    assert_eq!(between(&[history("a", &lines), next(800)]), (150, 800, Cause::Expired));
}

#[test]
fn a_term_that_was_over_when_it_was_told_covers_nothing() {
    let lines = [
        sample(0, None, None),
        gap(2000, false, 10),
        sample(2000, None, Some(10)),
        promoted(2001, 2),
        demoted(2002, 2, 900),
    ];
    let histories = [history("first", &term(100, 500, 1)), history("late", &lines), next(1200)];
    let found: Vec<_> = spans(&histories, &[])
        .into_iter()
        .filter(|span| span.place == Place::Between)
        .map(|span| (span.from_us, span.to_us, span.cause()))
        .collect();
    assert_eq!(
        found,
        [(500_000, 900_000, Some(Cause::Expired)), (900_000, 1_200_000, Some(Cause::Paused))],
        "the first term ended by itself, and the second while its process stood still"
    );
}

#[test]
fn terms_that_touch_leave_no_time_without_a_leader() {
    let of = |from| {
        let spans = spans(&[history("a", &term(100, 500, 1)), history("b", &term(from, 900, 2))], &[]);
        spans.into_iter().filter(|span| span.place == Place::Between).count()
    };
    assert_eq!((of(500), of(501)), (0, 1));
    // Nor does one that lies within another one, wrong as that is.
    let histories = [(100, 900, 1), (300, 400, 2), (1000, 1500, 3)];
    let histories = histories.map(|(from, to, token)| history(&token.to_string(), &term(from, to, token)));
    let spans = Report::new(&histories, &[]).leaderless;
    let spans: Vec<_> = spans.iter().filter(|span| span.place == Place::Between).collect();
    assert_eq!(spans.len(), 1);
    assert_eq!((spans[0].from_us, spans[0].to_us), (900_000, 1_000_000));
}

#[test]
fn the_begin_and_the_end_are_kinds_of_their_own() {
    let lines =
        [bare("started", 50), promoted(100, 1), demoted_for("stopped", 400, 1, 400), bare("stopped", 450)];
    let followed = [bare("started", 70), bare("stopped", 600)];
    let found = spans(&[history("a", &lines), history("b", &followed)], &[]);
    let after = Some(("a".to_owned(), 1, Cause::Handover));
    let span = |from_us, to_us, place, after| Leaderless { from_us, to_us, place, after, faults: vec![] };
    assert_eq!(found, [span(50_000, 100_000, Place::Begin, None), span(400_000, 600_000, Place::End, after)]);
    let found = spans(&[history("b", &followed)], &[]);
    assert_eq!(found, [span(70_000, 600_000, Place::Begin, None)], "nobody ever led");
    assert_eq!(spans(&[history("a", &[])], &[]), []);
}

#[test]
fn a_fault_is_named_where_it_was_under_way() {
    let histories = [
        history("a", &term(100, 500, 1)),
        history("b", &term(800, 1500, 2)),
        history("c", &term(1900, 2500, 3)),
    ];
    let named = |at: u64, until: u64| {
        let kind = "pause".to_owned();
        let fault = Fault { kind, target: Some("a".to_owned()), at_us: at * 1000, until_us: until * 1000 };
        let mut spans = spans(&histories, &[fault]);
        spans.retain(|span| span.place == Place::Between);
        spans.iter().map(|span| span.faults.len()).collect::<Vec<_>>()
    };
    for (at, until, expected) in [
        (200, 399, [0, 0]),
        // What a fault does shows up to 100 ms later.
        (200, 400, [1, 0]),
        (600, 600, [1, 0]),
        (800, 1399, [1, 0]),
        (801, 1399, [0, 0]),
        (801, 1600, [0, 1]),
        (1900, 1900, [0, 1]),
        (1901, 3000, [0, 0]),
        (200, 3000, [1, 1]),
    ] {
        assert_eq!(named(at, until), expected, "from {at} to {until}");
    }
}

#[test]
fn the_figures_are_those_of_the_lines() {
    let mut a = vec![bare("started", 50)];
    a.extend(term(100, 500, 1));
    let histories = [history("a", &a), history("b", &term(800, 1500, 2)), history("c", &term(1502, 2049, 3))];
    let target = Some("a".to_owned());
    let fault = Fault { kind: "kill".to_owned(), target, at_us: 499_000, until_us: 499_000 };
    let report = Report::new(&histories, &[fault]);
    let summary = report.summary;
    assert_eq!((summary.processes, summary.terms), (3, 3));
    let lines = 1 + [400, 700, 547].map(|length| term(100, 100 + length, 1).len()).iter().sum::<usize>();
    assert_eq!((summary.lines, summary.samples), (lines, lines - 7));
    assert_eq!((summary.covered_us, summary.led_us), (2_000_000, 400_000 + 700_000 + 547_000));
    assert_eq!((summary.longest_leaderless_us, summary.worst_overlap_us), (300_000, 0));
    let shown = report.to_string();
    for part in [
        "3 processes, 3 terms, ",
        "2.000 s, with a leader for 82.35 % of it",
        "overlaps: 0",
        "without a leader between terms: 2",
        "expired          2, median 300.0 ms, longest 300.0 ms",
        "300.0 ms from 500000, after a (token 1): expired; meanwhile: kill of a",
        "nothing is wrong",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    // The worst of several overlaps.
    let worse = [history("a", &leading(100, 500, 1)), history("b", &leading(450, 800, 2))];
    let report = Report::new(&[&worse[..], &[history("c", &leading(798, 900, 3))]].concat(), &[]);
    assert_eq!((report.overlaps.len(), report.summary.worst_overlap_us), (2, 49_990));
    assert!(report.to_string().contains("worst: 49990 µs"), "{report}");
}
