//! The judge of histories, on histories that were made up: each thing that it is to find, and the neighbour that is
//! right. A judge that never finds anything would make every other test pass.

mod files;
mod leaderless;
mod random;

use serde_json::{Value, json};

use crate::harness::panic_of;
use crate::support::History;
use crate::support::history::{
    Disorder, Overlap, Proven, Report, assert_one_leader_at_a_time, overlaps, violations,
};

// Times are in milliseconds.

/// A reading that took 10 µs.
fn sample(at: u64, token: Option<u64>, prev: Option<u64>) -> Value {
    json!({"event": "sample", "at_us": at * 1000, "done_us": at * 1000 + 10, "leader": token.is_some(),
        "token": token, "prev_us": prev.map(|prev| prev * 1000)})
}

fn gap(at: u64, leader: bool, prev: u64) -> Value {
    json!({"event": "gap", "at_us": at * 1000, "leader": leader, "prev_us": prev * 1000})
}

fn promoted(at: u64, token: u64) -> Value {
    json!({"event": "promoted", "at_us": at * 1000, "token": token})
}

fn demoted(at: u64, token: u64, ended: u64) -> Value {
    demoted_for("expired", at, token, ended)
}

fn demoted_for(reason: &str, at: u64, token: u64, ended: u64) -> Value {
    json!({"event": "demoted", "at_us": at * 1000, "token": token, "reason": reason, "ended_us": ended * 1000})
}

/// A line with nothing more in it.
fn bare(event: &str, at: u64) -> Value {
    json!({"event": event, "at_us": at * 1000})
}

/// The readings of a process that leads from the first to the last of the times, read every millisecond.
fn leading(from: u64, to: u64, token: u64) -> Vec<Value> {
    let mut lines = vec![sample(from - 1, None, None), sample(from, Some(token), Some(from - 1))];
    lines.extend((from..to).skip(90).step_by(90).map(|at| sample(at, Some(token), Some(at - 1))));
    lines.push(sample(to + 1, None, Some(to)));
    lines
}

fn history(name: &str, lines: &[Value]) -> History {
    let history = History::new(name, lines);
    assert!(history.faults().is_empty(), "{:?}", history.faults());
    history
}

fn proven(lines: &[Value]) -> Vec<(u64, u64, u64)> {
    history("a", lines).proven().iter().map(|it| (it.token, it.from_us, it.to_us)).collect()
}

#[test]
fn leadership_is_proven_between_the_true_readings_of_a_term() {
    assert_eq!(proven(&leading(100, 450, 7)), [(7, 100_010, 450_000)]);
    // Two terms without a false reading between them are two.
    let lines = [sample(0, Some(7), None), sample(50, Some(8), Some(45)), sample(60, Some(8), Some(59))];
    assert_eq!(proven(&lines), [(7, 10, 45_000), (8, 50_010, 60_000)]);
    // A lone reading proves one instant of the time it took.
    let lines = [sample(0, None, None), sample(5, Some(7), Some(4)), sample(6, None, Some(5))];
    assert_eq!(proven(&lines), [(7, 5_010, 5_000)]);
    assert_eq!(proven(&[sample(0, None, None), sample(100, None, Some(99))]), []);
}

#[test]
fn lines_out_of_order_are_sorted_by_their_time() {
    let mut lines = leading(100, 450, 7);
    let sorted = proven(&lines);
    lines.reverse();
    assert_eq!(proven(&lines), sorted);
    lines.swap(0, 3);
    assert_eq!(proven(&lines), sorted);
}

#[test]
fn a_gap_ends_what_is_proven() {
    // The gap begins at the last reading before it, printed or not, and its line may come late.
    for gap_line in [gap(1000, true, 30), gap(1001, true, 30)] {
        let lines = [
            sample(0, Some(7), None),
            gap_line,
            sample(1000, Some(7), Some(30)),
            sample(1090, Some(7), Some(1089)),
        ];
        assert_eq!(proven(&lines), [(7, 10, 30_000), (7, 1_000_010, 1_090_000)]);
    }
    let lines = [sample(0, Some(7), None), gap(1000, true, 0), sample(1000, None, Some(0))];
    assert_eq!(proven(&lines), [(7, 10, 0)]);
    let lines = [sample(0, Some(7), None), gap(80, true, 30), sample(80, Some(7), Some(30))];
    assert_eq!(proven(&lines), [(7, 10, 30_000), (7, 80_010, 80_000)]);
    // Without its line a hole shows in the readings.
    let lines = [sample(0, Some(7), None), sample(150, Some(7), Some(30)), sample(200, Some(7), Some(199))];
    assert_eq!(proven(&lines), [(7, 10, 0), (7, 150_010, 200_000)]);
    let lines = [sample(0, Some(7), None), sample(500, Some(7), Some(30)), sample(550, Some(7), Some(549))];
    assert_eq!(proven(&lines), [(7, 10, 0), (7, 500_010, 550_000)]);
    // So does a printed reading that is missing.
    let lines = [sample(0, Some(7), None), sample(500, Some(7), Some(499)), sample(550, Some(7), Some(549))];
    assert_eq!(proven(&lines), [(7, 10, 0), (7, 500_010, 550_000)]);
}

#[test]
fn an_overlap_of_a_millisecond_is_found() {
    let a = history("a", &leading(100, 1000, 1));
    let b = history("b", &leading(998, 2000, 2));
    let c = history("c", &leading(3000, 4000, 3));
    let overlap = Overlap {
        a: "a".to_owned(),
        b: "b".to_owned(),
        from_us: 998_010,
        to_us: 1_000_000,
        tokens: (1, 2),
        read: true,
    };
    let histories = [a, b, c];
    assert_eq!(overlaps(&histories), [overlap]);
    let message = panic_of(|| assert_one_leader_at_a_time(&histories));
    assert!(message.contains("a (token 1) and b (token 2) both led for 1990 µs"), "{message}");
    let same = [history("a", &leading(100, 1000, 1)), history("b", &leading(100, 1000, 2))];
    assert_eq!(overlaps(&same).len(), 1, "one within the other");
}

#[test]
fn leaderships_that_touch_do_not_overlap() {
    let a = history("a", &leading(100, 1000, 1));
    for from in [1000, 1001] {
        let b = history("b", &leading(from, 2000, 2));
        assert_eq!(overlaps(&[a.clone(), b.clone()]), []);
        assert_one_leader_at_a_time(&[a.clone(), b]);
    }
    // To the microsecond.
    let at = |at_us: u64, token: Option<u64>, prev_us: Option<u64>| {
        json!({"event": "sample", "at_us": at_us, "done_us": at_us, "leader": token.is_some(), "token": token,
            "prev_us": prev_us})
    };
    let term = |from: u64, to: u64, token: u64| {
        [at(from, Some(token), None), at(to, Some(token), Some(from)), at(to + 1, None, Some(to))]
    };
    for (from, found) in [(50_000, 0), (49_999, 1)] {
        let histories = [history("a", &term(1, 50_000, 1)), history("b", &term(from, 90_000, 2))];
        assert_eq!(overlaps(&histories).len(), found, "from {from}");
    }
    // One process alone never overlaps with itself, whatever it says.
    assert_eq!(overlaps(&[a]), []);
    let missed = |at| bare("missed", at);
    let lines = [promoted(100, 1), missed(150), promoted(200, 2), missed(250), demoted(500, 1, 500)];
    let lines = [&lines[..], &[missed(550), demoted(600, 2, 600)]].concat();
    assert_eq!(overlaps(&[history("a", &lines)]), []);
    assert_eq!(
        overlaps(&[history("a", &lines), history("b", &[promoted(700, 3), demoted(800, 3, 800)])]),
        []
    );
    assert_eq!(
        overlaps(&[history("a", &lines), history("b", &[promoted(550, 3), demoted(800, 3, 800)])]).len(),
        1
    );
}

#[test]
fn a_pause_hides_no_other_leader() {
    // The first stands still from 500 on; the second leads from 800 on; awake at 2000, the first is read true.
    let mut lines = leading(100, 500, 1);
    lines.pop();
    lines.extend([gap(2000, true, 500), sample(2000, Some(1), Some(500)), sample(2001, None, Some(2000))]);
    let (a, b) = (history("a", &lines), history("b", &leading(800, 3000, 2)));
    assert_eq!(a.proven().len(), 2);
    assert_eq!(overlaps(&[a.clone(), b.clone()]).len(), 1, "a lone reading within another's term");
    assert_eq!(overlaps(&[b, a]).len(), 1);
    // Had it not been read true, there would be no overlap.
    let mut lines = leading(100, 500, 1);
    lines.pop();
    lines.extend([gap(2000, true, 500), sample(2000, None, Some(500))]);
    assert_eq!(overlaps(&[history("a", &lines), history("b", &leading(800, 3000, 2))]), []);
}

#[test]
fn a_lone_reading_overlaps_only_what_holds_all_of_it() {
    let lone = |at: u64| {
        [sample(at - 1, None, None), sample(at, Some(1), Some(at - 1)), sample(at + 1, None, Some(at))]
    };
    let b = history("b", &leading(500, 1000, 2));
    for (at, found) in [(499, 0), (500, 0), (501, 1), (999, 1), (1000, 0), (1001, 0)] {
        let a = history("a", &lone(at));
        assert_eq!(a.proven(), [Proven { token: 1, from_us: at * 1000 + 10, to_us: at * 1000 }]);
        assert_eq!(overlaps(&[a.clone(), b.clone()]).len(), found, "at {at}");
        assert_eq!(overlaps(&[b.clone(), a]).len(), found, "at {at}");
    }
}

/// The readings of `leading`, with the events of the term.
fn term(from: u64, to: u64, token: u64) -> Vec<Value> {
    let mut lines = leading(from, to, token);
    lines.extend([promoted(from, token), demoted(to + 1, token, to)]);
    lines
}

#[test]
fn events_show_an_overlap_that_falls_between_readings() {
    // Both are read every 5 ms. The first leads until 1000 and is read last at 995, the second from 995 on.
    let term = |from: u64, to: u64, token: u64, first_read: u64, last_read: u64| {
        [
            sample(first_read, Some(token), None),
            promoted(from, token),
            sample(first_read + 90, Some(token), Some(first_read + 85)),
            sample(last_read + 5, None, Some(last_read)),
            demoted(to, token, to),
        ]
    };
    let a = || history("a", &term(900, 1000, 1, 901, 995));
    let b = |from, first_read| history("b", &term(from, 1100, 2, first_read, 1098));
    let expected = Overlap {
        a: "a".to_owned(),
        b: "b".to_owned(),
        from_us: 996_000,
        to_us: 999_000,
        tokens: (1, 2),
        read: false,
    };
    assert_eq!(overlaps(&[a(), b(996, 998)]), [expected]);
    // One clock's millisecond is not enough, and it is not seen twice where readings see it, too.
    assert_eq!(overlaps(&[a(), b(999, 1001)]), []);
    let found = overlaps(&[a(), b(992, 993)]);
    assert!(found.len() == 1 && found[0].read, "{found:?}");
    // Of a term whose end was not told, what lies between its promotion and its first reading.
    let open = || [promoted(996, 2), sample(1001, Some(2), Some(996)), sample(1090, Some(2), Some(1085))];
    assert_eq!(overlaps(&[a(), history("b", &open())]).len(), 1);
    // Of a term whose begin was not told, what lies between its last reading and its end.
    let mut missed = term(900, 1000, 1, 901, 995).to_vec();
    missed[1] = bare("missed", 900);
    assert_eq!(overlaps(&[history("a", &missed), b(996, 998)]).len(), 1);
    // Events that readings deny prove nothing.
    let mut denied = open().to_vec();
    denied.extend([sample(1095, None, Some(1090)), demoted(1200, 2, 1200)]);
    let b = History::new("b", &denied);
    assert_eq!(b.faults(), ["read false at 1095000, within the term of token 2"]);
    assert_eq!(overlaps(&[a(), b]), []);
}

#[test]
fn many_processes_are_compared_in_one_sweep() {
    // Short terms in turns, and one that lasts: it is found with each of them, and nothing else is.
    const TERMS: u64 = 2000;
    let mut lines = vec![Vec::new(); 10];
    for turn in 0..TERMS {
        lines[turn as usize % 10].extend(term(10 + 20 * turn, 29 + 20 * turn, 1 + turn));
    }
    let mut histories: Vec<_> =
        lines.iter().enumerate().map(|(index, lines)| history(&index.to_string(), lines)).collect();
    assert_one_leader_at_a_time(&histories);
    histories.push(history("long", &leading(5, 20 * TERMS + 20, 9_999)));
    assert_eq!(overlaps(&histories).len(), TERMS as usize);
}

// Tokens.

/// Who has a token that is out of order, and which.
fn disorder(histories: &[History]) -> Vec<(String, u64, Disorder)> {
    let report = Report::new(histories, &[]);
    assert_eq!(report.violations().len(), report.tokens.len(), "{report}");
    report.tokens.into_iter().map(|it| (it.who, it.token, it.disorder)).collect()
}

#[test]
fn tokens_have_to_increase_over_all_processes() {
    let a = |token| history("a", &[promoted(100, token), demoted(200, token, 200)]);
    let b = |token| history("b", &[promoted(300, token)]);
    let smaller = |than, other: &str| Disorder::Smaller { than, other: other.to_owned() };
    let twice = |other: &str| Disorder::Twice { other: other.to_owned() };
    let name = |name: &str| name.to_owned();
    assert_one_leader_at_a_time(&[a(1), b(2)]);
    assert_eq!(disorder(&[a(2), b(1)]), [(name("b"), 1, smaller(2, "a"))]);
    assert_eq!(violations(&[a(2), b(1)]), ["token 1 of b came after token 2 of a, at 300000"]);
    assert_eq!(disorder(&[a(2), b(2)]), [(name("b"), 2, twice("a"))]);
    assert_eq!(violations(&[a(2), b(2)]), ["token 2 was given twice, to a and to b, at 300000"]);
    // Within one process, too.
    let again = |token| history("a", &[promoted(100, 2), demoted(200, 2, 200), promoted(300, token)]);
    assert_eq!(disorder(&[again(3)]), []);
    assert_eq!(disorder(&[again(2)]), [(name("a"), 2, twice("a"))]);
    assert_eq!(disorder(&[again(1)]), [(name("a"), 1, smaller(2, "a"))]);
    // Every later term that is behind the largest one is told, not only the next.
    let c = history("c", &[promoted(400, 3)]);
    assert_eq!(
        disorder(&[a(4), b(2), c]),
        [(name("b"), 2, smaller(4, "a")), (name("c"), 3, smaller(4, "a"))]
    );
    // Readings show it, too, and are not told again if promotions do.
    let read = |name, from, token| history(name, &leading(from, from + 100, token));
    assert_eq!(disorder(&[read("a", 100, 1), read("b", 300, 2)]), []);
    assert_eq!(disorder(&[read("a", 100, 2), read("b", 300, 1)]), [(name("b"), 1, smaller(2, "a"))]);
    assert_eq!(disorder(&[read("a", 100, 2), read("b", 300, 2)]), [(name("b"), 2, twice("a"))]);
    let both = |name, from, token| history(name, &term(from, from + 100, token));
    assert_eq!(disorder(&[both("a", 100, 2), both("b", 300, 1)]), [(name("b"), 1, smaller(2, "a"))]);
    assert_eq!(disorder(&[both("a", 100, 2), both("b", 300, 2)]), [(name("b"), 2, twice("a"))]);
}

#[test]
fn a_process_that_stood_still_may_hear_of_its_promotion_late() {
    let late = [
        sample(0, None, None),
        gap(2000, false, 10),
        sample(2000, None, Some(10)),
        promoted(2001, 1),
        demoted(2002, 1, 900),
    ];
    let b = history("b", &[promoted(1000, 2)]);
    assert_one_leader_at_a_time(&[history("a", &late), b.clone()]);
    let awake = [promoted(2001, 1), demoted(2002, 1, 900)];
    assert_eq!(violations(&[history("a", &awake), b]).len(), 1);
}

// Events.

#[test]
fn lines_that_contradict_each_other_are_faults() {
    let (stopped, missed, error) = (|| bare("stopped", 9000), || bare("missed", 250), || bare("error", 99));
    let read = |at, token| sample(at, token, None);
    // What is right, beside what is not, and how that is told.
    let cases: &[(&[Value], &[Value], &str)] = &[
        (
            &[bare("started", 1), promoted(100, 1), demoted(200, 1, 200), promoted(300, 2)],
            &[bare("started", 1), promoted(100, 1), promoted(300, 2)],
            "promoted twice in a row",
        ),
        (&[promoted(100, 1), missed(), promoted(300, 3)], &[promoted(100, 1), promoted(300, 3)], "twice in"),
        (
            &[promoted(100, 1), missed(), demoted(300, 2, 300)],
            &[missed(), stopped(), bare("error", 9001)],
            "after stopped",
        ),
        (&[promoted(50, 1), demoted(100, 1, 100)], &[demoted(100, 1, 100)], "a term it did not have"),
        (&[missed(), demoted(300, 1, 300)], &[demoted(100, 1, 100), missed()], "a term it did not have"),
        (
            &[promoted(100, 1), demoted(200, 1, 200)],
            &[promoted(100, 1), demoted(200, 2, 200)],
            "did not have",
        ),
        (
            &[promoted(100, 1), demoted(200, 1, 200), stopped()],
            &[promoted(100, 1), demoted(200, 1, 200), demoted(300, 1, 200)],
            "demoted from token 1, a term it did not have",
        ),
        (&[promoted(100, 1), missed(), stopped()], &[promoted(100, 1), stopped()], "stopped while leading"),
        // What was missed excuses the next event, and no more.
        (
            &[missed(), demoted(300, 1, 300), promoted(310, 2)],
            &[missed(), demoted(300, 1, 300), demoted(310, 2, 310)],
            "demoted from token 2, a term it did not have",
        ),
        (
            &[missed(), promoted(300, 1), demoted(310, 1, 310)],
            &[missed(), promoted(300, 1), promoted(310, 2)],
            "promoted twice in a row, to token 2 from 1",
        ),
        (&[promoted(100, 1)], &[stopped(), promoted(9001, 1)], "a line after stopped"),
        (&[stopped()], &[stopped(), stopped()], "a line after stopped"),
        (&[stopped()], &[stopped(), read(1, None)], "a line after stopped"),
        (&[bare("started", 1), error()], &[error(), bare("started", 99)], "started after"),
        // The events are in the order in which they were heard; readings need not be.
        (&[error(), bare("leader", 98)], &[error(), bare("leader", 97)], "an event of an earlier time"),
        (&[promoted(100, 1), error()], &[error(), promoted(90, 1)], "an event of an earlier time"),
        (&[error(), read(50, None), read(20, None)], &[error(), bare("error", 50)], "an earlier time"),
        (&[promoted(100, 1), demoted(200, 1, 201)], &[promoted(100, 1), demoted(200, 1, 202)], "ahead of"),
        (
            &[promoted(100, 1), demoted(200, 1, 150), read(151, Some(1))],
            &[promoted(100, 1), demoted(200, 1, 150), read(152, Some(1))],
            "read true at 152000, after the end at 150000, under token 1",
        ),
        (
            &[promoted(100, 1), demoted(200, 1, 150), read(99, None), read(149, None)],
            &[promoted(100, 1), demoted(200, 1, 150), read(148, None)],
            "read false at 148000, within the term of token 1",
        ),
        (
            &[promoted(100, 1), demoted(200, 1, 150), read(160, Some(2))],
            &[promoted(100, 1), demoted(200, 1, 150), read(140, Some(2))],
            "read true of token 2 at 140000, within the term of token 1",
        ),
        (
            // The line of a promotion may come after the reading, and the process may be killed between them.
            &[promoted(100, 1), demoted(200, 1, 200), read(300, Some(2))],
            &[promoted(100, 1), demoted(200, 1, 200), read(300, Some(2)), stopped()],
            "without any event of token 2",
        ),
        (&[missed(), read(300, Some(2)), stopped()], &[read(300, Some(2)), stopped()], "without any event"),
        (
            &[promoted(400, 2), read(300, Some(3))],
            &[promoted(400, 2), read(300, Some(1))],
            "without any event",
        ),
    ];
    for (good, bad, told) in cases {
        assert_eq!(History::new("a", *good).faults(), [""; 0], "{good:?}");
        let history = History::new("a", *bad);
        let found = history.faults();
        assert!(found.len() == 1 && found[0].contains(told), "{told}: {found:?} in {bad:?}");
        let report = Report::new(&[history], &[]);
        assert_eq!((report.events.len(), report.violations().len()), (1, 1), "{report}");
    }
}

#[test]
fn a_slewed_clock_is_allowed_a_thousandth() {
    // The end was told 5 s later, by which time the wall clock may be a few milliseconds off.
    let lines = |at| [promoted(100, 1), demoted(5200, 1, 200), sample(at, Some(1), None)];
    assert_eq!(History::new("a", &lines(206)).faults().len(), 0);
    assert_eq!(History::new("a", &lines(207)).faults().len(), 1);
}

#[test]
fn lines_that_are_none_are_malformed() {
    let cases = [
        json!({"event": "promoted", "at_us": 1}),
        json!({"event": "promoted", "at_us": 1, "token": "7"}),
        json!({"event": "demoted", "at_us": 1, "token": null, "reason": "lost", "ended_us": 1}),
        json!({"event": "demoted", "at_us": 1, "token": 7, "reason": "bored", "ended_us": 1}),
        json!({"event": "demoted", "at_us": 1, "token": 7, "reason": "lost"}),
        json!({"event": "sample", "at_us": 1, "done_us": 2, "leader": true, "token": null}),
        json!({"event": "sample", "at_us": 1, "done_us": 2, "leader": false, "token": 7}),
        json!({"event": "sample", "at_us": 1, "done_us": 2, "token": null}),
        json!({"event": "sample", "at_us": 2, "done_us": 1, "leader": false, "token": null}),
        json!({"event": "sample", "at_us": 2, "leader": false, "token": null}),
        json!({"event": "sample", "at_us": 2, "done_us": 2, "leader": false, "token": null, "prev_us": 3}),
        json!({"event": "gap", "at_us": 2, "leader": false}),
        json!({"event": "gap", "at_us": 2, "prev_us": 1}),
        json!({"event": "demotion", "at_us": 2}),
        json!({"at_us": 2}),
        json!({"event": "stopped"}),
        json!(7),
    ];
    for bad in cases {
        let report = Report::new(&[History::new("a", [&bare("started", 1), &bad])], &[]);
        assert_eq!((report.malformed.len(), report.violations().len()), (1, 1), "{report}");
        assert!(report.malformed[0].starts_with("a: line 2: "), "{report}");
        assert!(!report.is_clean() && report.to_string().contains("wrong: 1"), "{report}");
    }
}
