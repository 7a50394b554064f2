//! Reading over and over whether this instance leads: the proof, from outside, that two never do.

use std::time::{Duration, Instant as Timer, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use taskrunner::election::{Elector, Instant};

use crate::lines::{Line, What, unix_us};

/// Reads every `period`, and sends on what is to be printed, until `quit` is disconnected. Then it reads
/// once more, so that the last line tells how it was after that.
pub(crate) fn run(elector: &Elector, period: Duration, quit: &Receiver<()>, lines: &Sender<Line>) {
    let mut samples = Samples::new(period);
    loop {
        let next = Timer::now() + period;
        if send(samples.add(read(elector)), lines).is_err() {
            return;
        }
        match quit.recv_deadline(next) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // If nobody reads any more, nobody misses it.
    send(samples.last(read(elector)), lines).ok();
}

/// Fails when nobody reads any more.
fn send(made: Vec<Line>, lines: &Sender<Line>) -> Result<(), ()> {
    made.into_iter().try_for_each(|line| lines.send(line).map_err(drop))
}

fn read(elector: &Elector) -> Reading {
    let at = Instant::now();
    let at_us = unix_us(SystemTime::now());
    // Whether this instance leads and its token come from one call, so they cannot contradict.
    let token = elector.leadership().map(|leadership| leadership.token());
    // Rounded up, for the reading was made before it.
    let done_us = unix_us(SystemTime::now() + Duration::from_nanos(999));
    Reading { at, at_us, done_us, token }
}

/// One look at whether this instance leads.
struct Reading {
    /// The clock that a pause of the process and a suspend of the machine are measured with; the wall
    /// clock may jump.
    at: Instant,
    at_us: u64,
    done_us: u64,
    /// There exactly while this instance leads.
    token: Option<u64>,
}

/// What of the readings is printed.
struct Samples {
    period: Duration,
    previous: Option<Reading>,
    /// When the reading was made that was printed last.
    printed: Option<Instant>,
}

/// Printed readings are at most this far apart, if they were made in time.
const LONGEST_SILENCE: Duration = Duration::from_millis(100);

impl Samples {
    fn new(period: Duration) -> Self {
        Self { period, previous: None, printed: None }
    }

    /// Takes a reading, and returns what is to be printed.
    fn add(&mut self, reading: Reading) -> Vec<Line> {
        let changed = self.previous.as_ref().is_none_or(|previous| previous.token != reading.token);
        // This one is due if the next one comes too late.
        let due = self.printed.is_none_or(|printed| {
            reading.at.saturating_duration_since(printed).saturating_add(self.period) > LONGEST_SILENCE
        });
        self.take(reading, changed || due)
    }

    /// Takes the last reading, which is printed in any case.
    fn last(&mut self, reading: Reading) -> Vec<Line> {
        self.take(reading, true)
    }

    fn take(&mut self, reading: Reading, print: bool) -> Vec<Line> {
        let mut lines = Vec::new();
        if let Some(previous) = &self.previous {
            // Measured from the beginning of one reading to that of the next: a reading that follows a gap
            // was made after all of it. That reading is due, for a hole is longer than the longest silence.
            let hole = reading.at.saturating_duration_since(previous.at);
            if hole > LONGEST_SILENCE.max(self.period.saturating_mul(2)) {
                let gap = What::Gap { leader: previous.token.is_some(), prev_us: previous.at_us };
                lines.push(Line { at_us: reading.at_us, what: gap });
            }
        }
        if print {
            let prev_us = self.previous.as_ref().map(|previous| previous.at_us);
            let what = What::Sample { token: reading.token, done_us: reading.done_us, prev_us };
            lines.push(Line { at_us: reading.at_us, what });
            self.printed = Some(reading.at);
        }
        self.previous = Some(reading);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings in virtual time: milliseconds from an arbitrary origin.
    struct Bench {
        origin: Instant,
        samples: Samples,
    }

    impl Bench {
        fn new(period_ms: u64) -> Self {
            Self { origin: Instant::now(), samples: Samples::new(Duration::from_millis(period_ms)) }
        }

        fn reading(&self, at_ms: u64, token: Option<u64>) -> Reading {
            let at = self.origin + Duration::from_millis(at_ms);
            Reading { at, at_us: at_ms * 1000, done_us: at_ms * 1000 + 1, token }
        }

        fn add(&mut self, at_ms: u64, token: Option<u64>) -> Vec<Line> {
            let reading = self.reading(at_ms, token);
            self.samples.add(reading)
        }

        /// Whether the reading was printed, and nothing else.
        fn prints(&mut self, at_ms: u64, token: Option<u64>) -> bool {
            let lines = self.add(at_ms, token);
            assert!(lines.len() <= 1, "{lines:?}");
            !lines.is_empty()
        }
    }

    fn sample(at_ms: u64, token: Option<u64>, prev_ms: Option<u64>) -> Line {
        let prev_us = prev_ms.map(|ms| ms * 1000);
        Line { at_us: at_ms * 1000, what: What::Sample { token, done_us: at_ms * 1000 + 1, prev_us } }
    }

    fn gap(at_ms: u64, leader: bool, prev_ms: u64) -> Line {
        Line { at_us: at_ms * 1000, what: What::Gap { leader, prev_us: prev_ms * 1000 } }
    }

    #[test]
    fn the_first_reading_is_printed_without_one_before() {
        let mut bench = Bench::new(5);
        assert_eq!(bench.add(3, None), [sample(3, None, None)]);
        assert_eq!(bench.add(8, None), []);
    }

    #[test]
    fn each_change_of_leader_or_token_is_printed_with_the_reading_before() {
        let mut bench = Bench::new(5);
        bench.add(0, None);
        bench.add(5, None);
        assert_eq!(bench.add(10, Some(7)), [sample(10, Some(7), Some(5))]);
        assert_eq!(bench.add(15, Some(7)), []);
        assert_eq!(bench.add(20, Some(9)), [sample(20, Some(9), Some(15))], "another term");
        assert_eq!(bench.add(25, None), [sample(25, None, Some(20))]);
    }

    #[test]
    fn one_is_printed_at_least_every_100_ms() {
        for period in [1, 5, 7, 30, 50, 60, 99, 100] {
            let mut bench = Bench::new(period);
            let mut printed = 0;
            for at in (0..5000).step_by(period as usize) {
                if bench.prints(at, Some(1)) {
                    assert!(at - printed <= 100, "period {period}: nothing from {printed} to {at}");
                    printed = at;
                }
            }
            assert!(printed + 100 >= 5000 - period, "period {period}: silent after {printed}");
        }
    }

    #[test]
    fn not_much_more_than_that_is_printed() {
        let mut bench = Bench::new(5);
        let printed = (0..=1000).step_by(5).filter(|at| bench.prints(*at, None)).count();
        assert_eq!(printed, 11);
    }

    #[test]
    fn a_change_counts_for_the_100_ms() {
        let mut bench = Bench::new(50);
        assert!(bench.prints(0, None));
        assert!(bench.prints(50, Some(1)));
        assert!(!bench.prints(100, Some(1)));
        assert!(bench.prints(150, Some(1)));
    }

    #[test]
    fn readings_further_apart_than_100_ms_are_all_printed_and_are_no_hole() {
        let mut bench = Bench::new(300);
        for at in [0, 300, 900] {
            assert!(bench.prints(at, None));
        }
    }

    #[test]
    fn a_hole_prints_what_was_last_read_before_the_next_reading() {
        let mut bench = Bench::new(5);
        bench.add(0, Some(7));
        assert_eq!(bench.add(5, Some(7)), []);
        assert_eq!(bench.add(3005, None), [gap(3005, true, 5), sample(3005, None, Some(5))]);
        assert_eq!(bench.add(3010, None), [], "once only");
        assert_eq!(bench.add(3200, None), [gap(3200, false, 3010), sample(3200, None, Some(3010))]);
    }

    #[test]
    fn a_hole_is_longer_than_100_ms_and_than_two_periods() {
        for (period, longest) in [(5, 100), (50, 100), (60, 120), (1000, 2000)] {
            let mut bench = Bench::new(period);
            bench.add(0, None);
            assert_eq!(bench.add(longest, None).len(), 1, "period {period}");
            assert_eq!(bench.add(2 * longest + 1, None).len(), 2, "period {period}");
        }
    }

    #[test]
    fn the_last_reading_is_printed_in_any_case() {
        let mut bench = Bench::new(5);
        bench.add(0, Some(7));
        let reading = bench.reading(5, Some(7));
        assert_eq!(bench.samples.last(reading), [sample(5, Some(7), Some(0))]);
        let reading = bench.reading(505, None);
        assert_eq!(bench.samples.last(reading), [gap(505, true, 5), sample(505, None, Some(5))]);
    }
}
