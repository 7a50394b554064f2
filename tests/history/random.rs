//! Random elections, as `campaign` would print them: nothing is found in them, and in doctored ones exactly what was
//! done to them.

use proptest::prelude::*;
use proptest::sample::{Index, SizeRange};
use serde_json::{Value, json};

use crate::support::History;
use crate::support::history::{Cause, Leaderless, Place, Report};

/// Times are in microseconds from here on, and all candidates start at this one.
const START: u64 = 1_000_000;

/// The longest time from what happened to when its process heard of it.
const LAG: u64 = 2_000;

/// The longest time between readings of one candidate.
const PERIOD: u64 = 5_000;

/// A candidate stands still for so long before and after the end of a term.
const PAUSE: u64 = 80_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Told(&'static str, Cause),
    Crash,
    Paused,
}

#[derive(Debug, Clone)]
struct Term {
    who: usize,
    token: u64,
    from: u64,
    to: u64,
    /// How long it takes until its process hears of a change.
    lag: u64,
    end: End,
    /// Until when readings say that it leads; as long as they should, unless that was doctored.
    read_to: u64,
}

#[derive(Debug, Clone)]
struct Election {
    terms: Vec<Term>,
    /// Of each candidate.
    periods: Vec<u64>,
}

fn ends() -> impl Strategy<Value = End> {
    prop_oneof![
        Just(End::Told("stopped", Cause::Handover)),
        Just(End::Told("stepped_down", Cause::Handover)),
        Just(End::Told("expired", Cause::Expired)),
        Just(End::Told("renew_error", Cause::RenewError)),
        Just(End::Told("lost", Cause::Lost)),
        Just(End::Crash),
        Just(End::Paused),
    ]
}

/// Terms that follow each other after 5 to 300 ms, of candidates that are started again after a crash.
fn elections(count: impl Into<SizeRange>) -> impl Strategy<Value = Election> {
    let term = (0..3_usize, 5_000..300_000_u64, 100_000..500_000_u64, 0..LAG, ends());
    let periods = prop::collection::vec(1_000..PERIOD, 3);
    (prop::collection::vec(term, count), periods).prop_map(|(drawn, periods)| {
        let mut now = START;
        let mut terms = Vec::new();
        for (token, (who, wait, length, lag, end)) in (10_u64..).step_by(3).zip(drawn) {
            let from = now + wait;
            let to = from + length;
            // Nobody is promoted while it stands still: that it hears of late.
            now = if end == End::Paused { to + PAUSE } else { to };
            terms.push(Term { who, token, from, to, lag, end, read_to: to });
        }
        Election { terms, periods }
    })
}

impl Election {
    /// The lines of each process, in the order in which it prints them.
    fn lines(&self) -> Vec<Vec<Value>> {
        let end = self.terms.iter().map(|term| term.to).max().unwrap_or(START) + 300_000;
        let mut processes = Vec::new();
        for (who, period) in self.periods.iter().enumerate() {
            let mut start = START;
            let mut terms = Vec::new();
            for term in self.terms.iter().filter(|term| term.who == who) {
                terms.push(term);
                if term.end == End::Crash {
                    let mut lines = process(&terms, start, term.to, *period);
                    lines.retain(|line| time(line) < term.to);
                    processes.push(lines);
                    start = term.to + 1_000;
                    terms.clear();
                }
            }
            let mut lines = process(&terms, start, end, *period);
            lines.push(json!({"event": "stopped", "at_us": end}));
            processes.push(lines);
        }
        processes
    }

    /// The terms whose end is told, with the place in `lines` of the lines that tell of their begin and their end.
    fn told(&self, lines: &[Vec<Value>]) -> Vec<(usize, usize, usize)> {
        let find = |event: &str, token| {
            let is = |line: &Value| line["event"] == event && line["token"] == token;
            lines.iter().enumerate().find_map(|(process, of)| Some((process, of.iter().position(is)?)))
        };
        let tokens = self.terms.iter().map(|term| term.token);
        tokens
            .filter_map(|token| {
                let (process, demoted) = find("demoted", token)?;
                Some((process, find("promoted", token)?.1, demoted))
            })
            .collect()
    }
}

fn time(line: &Value) -> u64 {
    line["at_us"].as_u64().expect("every line has its time")
}

/// What one process prints between two times.
fn process(terms: &[&Term], start: u64, end: u64, period: u64) -> Vec<Value> {
    let mut lines = vec![json!({"event": "started", "at_us": start})];
    for term in terms {
        lines.push(json!({"event": "promoted", "at_us": term.from + term.lag, "token": term.token}));
        let (heard, reason) = match term.end {
            End::Told(reason, _) => (term.to + term.lag, reason),
            End::Paused => (term.to + PAUSE, "expired"),
            End::Crash => continue,
        };
        lines.push(json!({"event": "demoted", "at_us": heard, "token": term.token, "reason": reason,
            "ended_us": term.to}));
    }
    let stands_still = |at: u64| {
        let mut pauses = terms.iter().filter(|term| term.end == End::Paused);
        pauses.any(|term| (term.to - PAUSE..term.to + PAUSE).contains(&at))
    };
    // The reading before, and when one was printed last.
    let mut previous: Option<(u64, Option<u64>)> = None;
    let mut printed = 0;
    for at in (start..end).step_by(period as usize).filter(|at| !stands_still(*at)) {
        let token = terms.iter().find(|term| (term.from..term.read_to).contains(&at)).map(|term| term.token);
        let last = at + period >= end;
        let before = previous.replace((at, token));
        if let Some((prev_us, read)) = before.filter(|(prev_us, _)| at - prev_us > 100_000) {
            let leader = read.is_some();
            lines.push(json!({"event": "gap", "at_us": at, "leader": leader, "prev_us": prev_us}));
        }
        if before.map(|it| it.1) != Some(token) || at - printed + period > 100_000 || last {
            lines.push(json!({"event": "sample", "at_us": at, "done_us": at + 7, "leader": token.is_some(),
                "token": token, "prev_us": before.map(|it| it.0)}));
            printed = at;
        }
    }
    // Readings and events are not in order with each other.
    lines.sort_by_key(|line| time(line) + if line["event"] == "sample" { 3_000 } else { 0 });
    lines
}

fn report(lines: &[Vec<Value>]) -> Report {
    let named = lines.iter().enumerate().map(|(index, lines)| History::new(&index.to_string(), lines));
    Report::new(&named.collect::<Vec<_>>(), &[])
}

/// How many overlaps, tokens out of order, events out of order and malformed lines there are.
fn counts(report: &Report) -> (usize, usize, usize, usize) {
    (report.overlaps.len(), report.tokens.len(), report.events.len(), report.malformed.len())
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases: 100, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_is_found_in_a_correct_election(election in elections(0..10)) {
        let report = report(&election.lines());
        prop_assert!(report.is_clean(), "{report}");
        prop_assert_eq!(report.summary.terms, election.terms.len());
        let spans = report.leaderless.iter().filter(|span| span.place == Place::Between);
        let spans: Vec<&Leaderless> = spans.collect();
        prop_assert_eq!(spans.len(), election.terms.len().saturating_sub(1));
        for (pair, span) in election.terms.windows(2).zip(spans) {
            let (from, cause) = match pair[0].end {
                End::Told(_, cause) => (pair[0].to..=pair[0].to, cause),
                End::Paused => (pair[0].to..=pair[0].to, Cause::Paused),
                // Of what a process read last it may have printed nothing for 100 ms.
                End::Crash => (pair[0].to - 100_000 - PERIOD..=pair[0].to, Cause::Crash),
            };
            let to = pair[1].from..=pair[1].from + LAG;
            prop_assert!(from.contains(&span.from_us) && to.contains(&span.to_us), "{span} in {pair:?}");
            prop_assert_eq!(span.cause(), Some(cause));
        }
    }

    #[test]
    fn a_term_that_reaches_into_another_ones_is_found(
        election in elections(2..8), index: Index, by in 16_000..60_000_u64, readings_only: bool,
    ) {
        let mut election = election;
        let of_two = |pair: &[Term]| pair[0].who != pair[1].who && matches!(pair[0].end, End::Told(..));
        let pairs = election.terms.windows(2).enumerate().filter(|(_, pair)| of_two(pair));
        let pairs: Vec<usize> = pairs.map(|(at, _)| at).collect();
        prop_assume!(!pairs.is_empty());
        let at = *index.get(&pairs);
        let (begin, tokens) = (election.terms[at + 1].from, [at, at + 1].map(|at| election.terms[at].token));
        // At least three periods longer, whether the events agree or deny it.
        let doctored = &mut election.terms[at];
        doctored.read_to = begin + by;
        if !readings_only {
            doctored.to = begin + by;
        }
        let report = report(&election.lines());
        prop_assert_eq!(counts(&report), (1, 0, usize::from(readings_only), 0), "{}", report);
        let overlap = &report.overlaps[0];
        prop_assert_eq!([overlap.tokens.0.min(overlap.tokens.1), overlap.tokens.0.max(overlap.tokens.1)], tokens);
        // Never longer than it was, nor shorter by more than a reading of each.
        let (from, to) = (begin..begin + PERIOD + 10, begin + by - PERIOD..=begin + by);
        prop_assert!(from.contains(&overlap.from_us) && to.contains(&overlap.to_us), "{overlap}");
    }

    #[test]
    fn tokens_that_were_exchanged_are_found(election in elections(2..8), one: Index, other: Index) {
        let mut election = election;
        let (one, other) = (one.index(election.terms.len()), other.index(election.terms.len()));
        let token = election.terms[one].token;
        election.terms[one].token = std::mem::replace(&mut election.terms[other].token, token);
        let mut largest = 0;
        let mut expected = Vec::new();
        for term in &election.terms {
            if term.token < largest {
                expected.push(term.token);
            }
            largest = largest.max(term.token);
        }
        let report = report(&election.lines());
        prop_assert_eq!(counts(&report), (0, expected.len(), 0, 0), "{}", report);
        let mut found: Vec<u64> = report.tokens.iter().map(|it| it.token).collect();
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_line_that_was_taken_out_or_put_in_is_found(election in elections(1..8), index: Index, what in 0..7) {
        let mut lines = election.lines();
        let told = election.told(&lines);
        prop_assume!(!told.is_empty());
        let (process, promoted, demoted) = *index.get(&told);
        let lines_of = &mut lines[process];
        let missed = |line: &Value| json!({"event": "missed", "at_us": time(line), "count": 1});
        let expected = match what {
            0 => { lines_of.remove(promoted); (0, 0, 1, 0) }
            1 => { lines_of.remove(demoted); (0, 0, 1, 0) }
            // Where they were missed, both may be gone.
            2 => { lines_of[promoted] = missed(&lines_of[promoted]); (0, 0, 0, 0) }
            3 => { lines_of[demoted] = missed(&lines_of[demoted]); (0, 0, 0, 0) }
            4 => { let again = lines_of[demoted].clone(); lines_of.insert(demoted, again); (0, 0, 1, 0) }
            5 => { let again = lines_of[promoted].clone(); lines_of.insert(promoted, again); (0, 1, 1, 0) }
            _ => { lines_of.insert(demoted, json!({"event": "demoted", "at_us": 1})); (0, 0, 0, 1) }
        };
        let report = report(&lines);
        prop_assert_eq!(counts(&report), expected, "{}", report);
    }

    #[test]
    fn events_that_were_exchanged_are_found(election in elections(1..8), index: Index) {
        let mut lines = election.lines();
        let told = election.told(&lines);
        prop_assume!(!told.is_empty());
        let (process, promoted, demoted) = *index.get(&told);
        lines[process].swap(promoted, demoted);
        let report = report(&lines);
        let (overlaps, tokens, events, malformed) = counts(&report);
        prop_assert_eq!((overlaps, tokens, malformed), (0, 0, 0), "{}", report);
        prop_assert!(events > 0);
    }
}
